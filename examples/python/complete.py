# SPDX-License-Identifier: Apache-2.0
"""Continues a text. Usage: complete.py MODEL PROMPT"""
import sys

import quern


def main(folder: str, prompt: str) -> int:
    try:
        model = quern.LLM(folder)
        result = model.generate(prompt, max_tokens=64, seed=7)
    except quern.Error as error:
        print(f"complete.py: {error}", file=sys.stderr)
        return 1
    print(result.text)
    print(f"[{len(result.token_ids)} tokens, {result.timings['decode_ms_per_token']:.2f} ms each, {result.finish_reason}]")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
