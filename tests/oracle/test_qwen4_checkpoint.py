# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that tools/make_qwen4_checkpoint.py writes: their layout against the published inventory, and that the
reference implementation loads every form of them as the same model."""
import hashlib
import json
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import qwen4_layout as layout  # noqa: E402

FROZEN = ROOT / "testdata" / "qwen4"
PUBLISHED_INDEX = "99e815241ef03325536b0aaa4441deea45174c17fae31e10f0bb456410c590de"


def make(folder, *arguments):
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", folder, *arguments], check=True,
                   stdout=subprocess.DEVNULL)
    return folder


def test_layout_gives_every_published_text_tensor():
    published = {name: shape for name, _, shape, _ in json.loads((FROZEN / "inventory.json").read_text())["tensors"]
                 if not name.startswith(("mtp.", "model.visual."))}
    config = json.loads((FROZEN / "config.json").read_text())["text_config"]
    assert layout.text_tensors(config) == published
    assert len(published) == 1294


def test_sparse_files_have_the_published_index_and_take_no_space(tmp_path):
    full = make(tmp_path / "full", "--sparse-full")
    assert hashlib.sha256((full / "model.safetensors.index.json").read_bytes()).hexdigest() == PUBLISHED_INDEX
    files = list(full.iterdir())
    assert sum(f.stat().st_size for f in files) > 360e9
    assert sum(f.stat().st_blocks * 512 for f in files) < 1e6


@pytest.mark.slow
def test_reference_loads_every_form_as_the_same_model_and_generates(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM
    ids = torch.tensor([[11, 12, 5, 13, 14, 15, *range(20, 50)]])
    results = []
    for number, form in enumerate([(), ("--separate-experts", "--files", "5", "--set", "split_ngram_parts=7"),
                                   ("--text-only", "--files", "3")]):
        folder = make(tmp_path / str(number), "--preset", "tiny", *form)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
        assert not any(report.values()), report  # nothing missing, unexpected or mismatched
        with torch.no_grad():
            results.append((model(ids).logits, model.generate(ids, max_new_tokens=8, do_sample=False)))
    for logits, generated in results:
        assert torch.equal(logits, results[0][0]) and torch.equal(generated, results[0][1])
    assert results[0][0].std() > 0.1
