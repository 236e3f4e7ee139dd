# SPDX-License-Identifier: Apache-2.0
"""The guard of a comparison: before anything is timed, every engine must show that it computes the same model.

ONNX Runtime with tensors goes first: a prompt, then greedy tokens. The others get the same ids, so that one close call does not
end the comparison, and each row of logits is compared. Two conditions:
- the difference of a row (root mean square) is at most LIMIT of the spread of its logits. All engines here round activations to
  8 bits, which moves a row of the 0.6B geometry by 1 to 2 % of its spread (docs/numerics.md); another model, a lost past or a
  position off by one moves it by all of it;
- the chosen id is the same wherever the first choice leads by more than twice the largest difference of that row.
The forms of ONNX Runtime, which run the same kernels, must choose the same ids without exception.

llama.cpp is held to this on a model of two layers whose GGUF keeps the embedding, so that it is the same model.
"""
import dataclasses
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from compare.engines import Absent, GGUF, LLAMA_FORMS, gguf_file, llama_version
from paired import ROOT

LIMIT = 0.10
PROMPT, TOKENS = 32, 8
SAME_KERNELS = ("ort_shared", "genai")


class Different(Exception):
    """An engine does not compute the same model: its times would mean nothing."""


def prompt_of(length):
    return np.random.default_rng(7).integers(0, 256, length).tolist()


def rows_of(engine, folder, threads, forced, out):
    worker, greeting = engine.worker(folder, threads, PROMPT + TOKENS)
    answer = worker.ask({"case": "chain", "prompt": prompt_of(PROMPT), "tokens": TOKENS, "forced": forced, "out": str(out)})
    worker.close()
    rows = np.fromfile(out, np.float32).reshape(TOKENS, -1).astype(np.float64)
    return answer["ids"], rows, greeting["facts"] | {"base_mb": round(greeting["base_mb"])}


def compare(name, ids, rows, expected_ids, expected):
    """One line about the agreement. Raises Different."""
    error = np.sqrt(np.mean((rows - expected) ** 2, axis=1)) / expected.std(axis=1)
    if not error.max() <= LIMIT:  # NaN too
        raise Different(f"{name}: logits differ by {100 * error.max():.1f} % of their spread, at most {100 * LIMIT:.0f} % is rounding")
    decided = 0
    for step, (ours, theirs) in enumerate(zip(rows, expected)):
        second, best = np.sort(theirs)[-2:]
        must = name in SAME_KERNELS or best - second > 2 * np.abs(ours - theirs).max()
        decided += must
        if must and ids[step] != expected_ids[step]:
            raise Different(f"{name}: token {step} is {ids[step]}, ONNX Runtime chooses {expected_ids[step]}")
    same = sum(a == b for a, b in zip(ids, expected_ids))
    return f"{name:11} {same} of {TOKENS} ids the same ({decided} had to be), logits within {100 * error.max():.2f} % of their spread"


def check(there, absent, folder, threads):
    """Compares all of `there` on the model in `folder`; engines that cannot load it move to `absent`. Returns what each says about
    itself. Raises Different."""
    facts = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "rows"
        expected_ids, expected, facts["ort"] = rows_of(there["ort"], folder, threads, None, out)
        for name in [n for n in there if n != "ort" and n not in LLAMA_FORMS]:
            try:
                ids, rows, facts[name] = rows_of(there[name], folder, threads, expected_ids, out)
            except Absent as error:
                absent[name] = str(error)
                del there[name]
                continue
            print("same model:", compare(name, ids, rows, expected_ids, expected), file=sys.stderr, flush=True)
        if set(LLAMA_FORMS) & set(there):
            facts |= check_llama(there, threads, pathlib.Path(scratch))
    return facts


def check_llama(there, threads, scratch):
    folder = scratch / "block"
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen3_onnx.py", folder, "--size", "block"], check=True, capture_output=True)
    gguf_file(folder, "f32")
    expected_ids, expected, _ = rows_of(there["ort"], folder, threads, None, scratch / "rows")
    facts = {}
    for name in [n for n in LLAMA_FORMS if n in there]:
        kept = dataclasses.replace(there[name], file=GGUF["f32"])
        ids, rows, facts[name] = rows_of(kept, folder, threads, expected_ids, scratch / "rows")
        facts[name]["version"] = llama_version()
        print("same model:", compare(name, ids, rows, expected_ids, expected), "(two layers)", file=sys.stderr, flush=True)
    return facts
