# SPDX-License-Identifier: Apache-2.0
"""Model folders that tests make for themselves. Not in conftest.py: tests cannot import from one when several are loaded."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_model(out, *args):
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen3_onnx.py", out, *args], check=True, capture_output=True)
    return out
