# SPDX-License-Identifier: Apache-2.0
"""models/demo-qwen4, a trained qwen4_exp, through the built binary."""
import json
import re

import pytest
from made_models import ROOT

DEMO = ROOT / "models" / "demo-qwen4"
HELD_OUT = ROOT / "models" / "demo" / "heldout.txt"


def test_every_mechanism_is_there(quern):
    model = quern.json("inspect", DEMO)["model"]
    assert (model["linear_layers"], model["sparse_layers"], model["ngram_layers"]) == ("4", "2", "2")
    assert (model["experts"], model["streams"], model["compute"]) == ("2 of 16 a token", "4", "bfloat16")
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 12_000_000


def test_text_is_recognisable(quern):
    """Most words are those of a small part of its book; with random weights four in ten are."""
    known = set(re.findall(r"[a-z]+", HELD_OUT.read_text().lower()))
    # float32, so that the text does not hang on the order of sums in this machine's kernels.
    command = ("run", DEMO, "-p", "In the beginning", "-n", "120", "--seed", "7", "--compute", "fp32")
    out = quern.json(*command)
    words = re.findall(r"[a-z]+", out["text"].lower())
    assert len(words) > 50
    assert sum(word in known for word in words) >= 0.75 * len(words), out["text"]
    assert len(set(words)) > 25, out["text"]
    assert quern.json(*command)["token_ids"] == out["token_ids"]


@pytest.mark.parametrize("compute, tolerance", [("fp32", 1e-6), ("bf16", 5e-4)])
def test_perplexity_is_the_references(quern, compute, tolerance):
    """reference.json says what transformers computed in float32; bfloat16 rounds."""
    reference = json.loads((DEMO / "reference.json").read_text())
    out = quern.json("perplexity", DEMO, "-f", HELD_OUT, "--ctx", reference["window_tokens"], "--compute", compute)
    assert out["counts"]["tokens"] == reference["tokens"]
    found, expected = out["mean_negative_log_likelihood"], reference["mean_negative_log_likelihood"]
    assert abs(found - expected) <= tolerance * expected
