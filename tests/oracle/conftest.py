# SPDX-License-Identifier: Apache-2.0
"""What the live oracle tests share: made models, sessions of both engines, comparison with a derived report."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# torch sums bfloat16 products in another order where the processor has AMX, and a test would meet another reference there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def made_model(folder: pathlib.Path, *arguments: str) -> pathlib.Path:
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen3_onnx.py", folder, *arguments], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / "model.onnx"


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """make_model("--size", "block", ...) -> path of model.onnx, made once a session for the same arguments."""
    made = {}

    def make(*arguments: str) -> pathlib.Path:
        if arguments not in made:
            made[arguments] = made_model(tmp_path_factory.mktemp("model"), *arguments)
        return made[arguments]

    return make


@pytest.fixture(scope="session")
def make_qwen4(tmp_path_factory):
    """make_qwen4("FIELD=JSON", ...) -> the folder of the tiny checkpoint with these fields, made once a session."""
    made = {}

    def make(*settings: str) -> pathlib.Path:
        if settings not in made:
            made[settings] = tmp_path_factory.mktemp("qwen4")
            subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", made[settings], "--preset", "tiny",
                            *(word for setting in settings for word in ("--set", setting))], check=True)
        return made[settings]

    return make


def import_reference():
    """Skips the test where the reference implementation of qwen4_exp is not installed."""
    for module in ("torch", "transformers.models.qwen4_exp"):
        pytest.importorskip(module, reason=f"{module} is not installed (requirements-models.txt)")


def copy_of_demo(folder: pathlib.Path) -> pathlib.Path:
    """model.onnx of a copy of models/demo, beside which a test may write."""
    shutil.copytree(ROOT / "models" / "demo", folder / "demo")
    return folder / "demo" / "model.onnx"


def past_extents(session, model: pathlib.Path) -> dict[str, tuple[int, int]]:
    """{past input: (heads, head size)}; exporters may write the head size as a symbol, then genai_config.json has it."""
    extents = {}
    for port in session.get_inputs():
        if port.name.startswith("past_key_values."):
            size = port.shape[3]
            if not isinstance(size, int):
                size = json.loads((pathlib.Path(model).parent / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
            extents[port.name] = (port.shape[1], size)
    return extents


def empty_past(extents: dict[str, tuple[int, int]], batch: int = 1) -> dict[str, np.ndarray]:
    return {name: np.zeros((batch, heads, 0, size), np.float32) for name, (heads, size) in extents.items()}


def assert_close(name: str, ours: np.ndarray, theirs: np.ndarray, atol: float, rtol: float = 0.0) -> None:
    """|ours - theirs| <= atol + rtol * |theirs|, NaN equal to NaN, infinities equal; types and shapes equal."""
    assert ours.dtype == theirs.dtype, f"{name}: type {ours.dtype}, expected {theirs.dtype}"
    assert ours.shape == theirs.shape, f"{name}: shape {ours.shape}, expected {theirs.shape}"
    if ours.size == 0:
        return
    if not np.issubdtype(ours.dtype, np.floating) or (atol == 0 and rtol == 0):
        assert np.array_equal(ours, theirs, equal_nan=np.issubdtype(ours.dtype, np.floating)), f"{name}: not equal bit for bit"
        return
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours.astype(np.float64) - theirs)
        bad = ~same & ~(difference <= atol + rtol * np.abs(theirs))
    assert not bad.any(), (f"{name}: {bad.sum()} of {bad.size} differ, worst {np.nanmax(np.where(same, 0, difference)):.3e}, "
                           f"first at {np.argwhere(bad)[0].tolist()}: {ours[bad][0]} against {theirs[bad][0]}")
