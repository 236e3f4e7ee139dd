# SPDX-License-Identifier: Apache-2.0
"""qwen4_exp at the widths of the published model, cut to 4 layers and 32 experts (1.0 G parameters), against the reference
implementation, live, on 2,300 tokens: past the 2,051 up to which the indexer chooses everything."""
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from test_qwen4_model import TOLERANCE, Reference, engine
from test_qwen4_parity import Comparison, reference  # noqa: F401, the fixture imports torch

pytestmark = pytest.mark.slow
# In pieces, which bounds the memory that the comparison takes.
PIECES = [512, 512, 512, 512, 252]
GENERATED = 8
# Scores of other choices, from the cut, of its size. A score is four sums of 128 products, whose magnitudes come to some 18 times
# the score: twice (128 / 8 + 4) * 2^-24 of that, and as much for the norm and the rotation of queries in float32.
NEAR = 1e-4


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", folder, "--preset", "wide"], check=True)
    yield folder
    shutil.rmtree(folder)  # 2.1 GB


@pytest.fixture(scope="module")
def ids():
    rng = np.random.default_rng(20261130)
    ids = rng.integers(0, 4000, sum(PIECES))
    ids[[700, 701, 2100]] = 4084  # ends the context of n-grams
    return ids.tolist()


def test_every_step_in_bfloat16_on_the_references_own_inputs(wide, ids):
    import torch
    torch.set_num_threads(2)
    steps = Comparison(Reference(wide, "bfloat16").model, engine(wide, "bf16"), "all", NEAR)

    def compare():
        steps.assert_steps()
        steps.forget()

    steps.run(ids, PIECES, after_call=compare)
    steps.assert_mixture_is_as_exact()


def test_float32_with_the_same_choices_and_generation(wide, ids):
    """A choice may be another one only where scores are as near as sums in another order bring them."""
    import torch
    torch.set_num_threads(2)
    ours = engine(wide)
    text = ours.generate(ids, max_tokens=GENERATED, greedy=True, stop_ids=[]).token_ids
    model = Comparison(Reference(wide).model, ours, "choices")

    def compare():
        for step, found, expected in model.tensors():
            if found.dtype == torch.float32:
                worst = ((found - expected).abs().max() / expected.abs().max()).item()
                assert worst <= TOLERANCE, f"{step}: {worst:.2e} of the largest element"
        model.forget()

    found, expected = model.run(ids + text[:-1], PIECES + [1] * (GENERATED - 1), after_call=compare)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert model.widest_flip() <= NEAR
    assert model.sparse_queries > 0
    assert found[len(PIECES) - 1:].argmax(-1).tolist() == text == expected[len(PIECES) - 1:].argmax(-1).tolist()
