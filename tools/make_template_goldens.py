# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/chat_templates/constructs.json: what transformers makes of the small templates of
tests/oracle/template_constructs.py, for the unit tests, which have no oracle. Nothing in it is random.

Usage: make_template_goldens.py [OUT]. Needs requirements-models.txt.
"""
import json
import pathlib
import sys

import jinja2
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

import template_constructs  # noqa: E402
import template_reference  # noqa: E402


def main() -> None:
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "testdata" / "chat_templates" / "constructs.json")
    reference = template_reference.ByTransformers()
    # Where the name ends in "?", quern refuses, and there is no text to compare.
    cases = [{"name": name.rstrip("?"), "template": template,
              "text": None if name.endswith("?") else template_reference.text_or_none(reference, request)}
             for name, template, request in template_constructs.requests()]
    made = {"generator": "tools/make_template_goldens.py", "transformers": transformers.__version__, "jinja2": jinja2.__version__,
            "messages": template_constructs.MESSAGES, "variables": template_constructs.VARIABLES, "cases": cases}
    out.write_text(json.dumps(made, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
