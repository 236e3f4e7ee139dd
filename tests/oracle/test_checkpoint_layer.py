# SPDX-License-Identifier: Apache-2.0
"""./dev oracle --checkpoint: one layer of a stored checkpoint, the reference against quern, component by component."""
import json
import subprocess
import sys

import pytest
from conftest import ROOT, import_reference

PARTS = {"hc attn", "hc mlp", "moe"}


@pytest.fixture(scope="module", autouse=True)
def reference():
    import_reference()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """In the form with most to get wrong: experts and shards of the tables apart, several files."""
    folder = tmp_path_factory.mktemp("qwen4") / "model"
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", folder, "--preset", "tiny", "--separate-experts",
                    "--files", "3", "--set", "split_ngram_parts=7"], check=True)
    return folder


@pytest.mark.parametrize("layer, parts", [(1, PARTS | {"gdn", "ple"}), (3, PARTS | {"qsa"})])
def test_float32_agrees_step_by_step(made, layer, parts):
    from checkpoint_layer import compare
    rows = compare(made, layer, dtype="float32")
    assert {row["component"] for row in rows} == parts
    for row in rows:
        assert row["max_rel"] <= 1e-5, row
        if row["step"] in ("ngram_ids", "ngram_embedding", "chosen blocks", "chosen experts"):
            assert row["differing"] == 0, row


def test_the_demo_in_its_own_type():
    from checkpoint_layer import compare
    folder = ROOT / "models" / "demo-qwen4"
    for layer in (1, 2):
        for row in compare(folder, layer):
            # Four units in the last place, which the attention may be off by most.
            assert row["max_rel"] <= 4 * 2**-8, row


def test_a_difference_is_reported(made, monkeypatch):
    import checkpoint_layer
    monkeypatch.setattr(checkpoint_layer.reference.F, "softplus", lambda x: x.exp())
    rows = {row["step"]: row["max_rel"] for row in checkpoint_layer.compare(made, 1, "gdn", dtype="float32")}
    assert rows["delta_rule"] > 1e-3 and rows["conv1d"] <= 1e-5


def test_the_verb(made, monkeypatch, capsys):
    import run

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["run.py", "--checkpoint", str(made), "--layer", "3", *arguments])
        return run.main()

    assert call("--component", "moe", "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert out["layer"] == 3 and {row["step"] for row in out["rows"]} == {"gate", "chosen experts", "their weights", "experts"}
    assert call("--component", "hc") == 0 and "block_inject_weight" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="layer 3 has no gdn; it has hc, moe, qsa"):
        call("--component", "gdn")
