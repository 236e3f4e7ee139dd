# SPDX-License-Identifier: Apache-2.0
"""The rooms of sparse attention, the mixture of experts and the n-gram embedding of qwen4_exp against stored results of the
reference library (testdata/qwen4/make_sparse_rooms.py says which); test_qwen4_sparse.py compares with it live."""
import numpy as np
import pytest
from conftest import ROOT

import quern

ops = quern.ops
DTYPES = ["float32", "bfloat16"]
RATIO, BUDGET = 4, 4


@pytest.fixture(scope="module")
def golden():
    return np.load(ROOT / "testdata" / "qwen4" / "sparse_rooms.npz")


def part(golden, *names: str) -> dict:
    prefix = "/".join(names) + "/"
    found = {key.removeprefix(prefix): golden[key] for key in golden.files if key.startswith(prefix)}
    assert found, f"no {prefix} in the golden file"
    return found


def numbers(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def assert_near(name: str, ours: np.ndarray, theirs: np.ndarray, units: float, size=None) -> None:
    """float32 within 1e-5 of the largest; bfloat16 within `units` in the last place of `size` (or of each element, those
    near zero taken as 2^-8 of the largest)."""
    assert ours.dtype == theirs.dtype, name
    a, b = numbers(ours).reshape(theirs.shape).astype(np.float64), numbers(theirs).astype(np.float64)
    largest = np.abs(b).max()
    bound = np.full(b.shape, 1e-5 * largest)
    if ours.dtype == np.uint16:
        of = np.maximum(np.abs(b), largest * 2.0**-8) if size is None else np.full(b.shape, size)
        bound = units * 2.0 ** (np.floor(np.log2(of)) - 7)
    worst = (np.abs(a - b) / bound).max()
    assert worst <= 1, f"{name}: {worst:.2f} times the allowed difference"


def test_ngram_ids(golden):
    g = part(golden, "ngrams")
    for layer_index in (0, 1):
        constants = ops.ngram_hash(ngram_size=3, heads_per_ngram=3, vocabulary=199, base=101, divisor=16, seed=1234,
                                   layer_index=layer_index)
        ours = ops.ngram_rows(g["ids"], *constants[:3], vocabulary=199, eos=5)
        assert np.array_equal(ours, g[f"rows{layer_index}"])
        for ids in (g["ids"], g["ids"].tolist()):
            ours = ops.ngram_ids(ids, vocab_size=199, eos_token_id=5, heads_per_ngram=3, ngram_vocab_size_base=101,
                                 ple_index=layer_index)
            assert np.array_equal(ours, g[f"rows{layer_index}"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_moe_route(golden, dtype):
    g = part(golden, dtype, "mixture")
    experts, weights = ops.moe_route(g["scores"], chosen=3)
    assert np.array_equal(experts, g["experts"])
    # One unit in the last place of a bfloat16 below one is at most 2^-8.
    assert np.abs(weights - g["weights"]).max() <= (1e-6 if dtype == "float32" else 2.0**-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moe_matmul(golden, dtype):
    g = part(golden, dtype, "mixture")
    names = ("x", "gate_up", "down", "shared_gate_proj", "shared_up", "shared_down", "shared_gate", "experts", "weights")
    assert_near("mixture", ops.moe_matmul(*(g[name] for name in names)), g["out"], units=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_index(golden, dtype):
    g = part(golden, dtype, "attention")
    keys, _, blocks, counts = ops.block_index(g["z"], g["q_weight"], g["k_weight"], g["frequencies"], ratio=RATIO, budget=BUDGET)
    assert_near("block keys", keys, g["keys"], units=1)
    for t in range(len(counts)):
        theirs = set(g["blocks"][t, : g["counts"][t]].tolist())
        if counts[t] == -1:
            assert theirs == set(range((t + 1) // RATIO))
            continue
        ours = set(blocks[t].tolist())
        assert len(ours) == len(theirs) == BUDGET
        cut = np.sort(g["scores"][t, : (t + 1) // RATIO])[-BUDGET]
        for b in ours ^ theirs:
            assert abs(g["scores"][t, b] - cut) <= 1e-4 * max(1, cut), f"query {t}, block {b}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_attention(golden, dtype):
    g = part(golden, dtype, "attention")
    nothing = np.zeros((g["k"].shape[1], 0, g["k"].shape[2]), g["k"].dtype)
    ours, *_ = ops.sparse_attention(g["q"], g["gate"], g["k"], g["v"], nothing, nothing, g["blocks"], g["counts"], ratio=RATIO,
                                    scale=g["q"].shape[2] ** -0.5)
    assert_near("attention", ours, g["out"], units=4, size=np.abs(numbers(g["v"])).max())
