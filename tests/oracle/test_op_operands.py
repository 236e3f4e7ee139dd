# SPDX-License-Identifier: Apache-2.0
"""quern.ops of qwen4_exp: an operand with the right number of elements in other rows is refused, and so is a width that
does not divide. Computed, most of these read or wrote outside of their arrays."""
import numpy as np
import pytest

import quern

ops = quern.ops


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def flat(a: np.ndarray) -> np.ndarray:
    return a.reshape(1, -1)


MOE = {"x": ones(2, 8), "gate_up": ones(3, 8, 8), "down": ones(3, 8, 4), "shared_gate_proj": ones(4, 8), "shared_up": ones(4, 8),
       "shared_down": ones(8, 4), "shared_gate": ones(1, 8), "chosen_experts": ints(2, 1), "chosen_weights": ones(2, 1)}
SPARSE = {"q": ones(3, 2, 8), "gate": ones(3, 2, 8), "k": ones(3, 1, 8), "v": ones(3, 1, 8), "past_keys": ones(1, 4, 8),
          "past_values": ones(1, 4, 8), "blocks": ints(3, 1), "counts": np.full(3, -1, np.int32), "ratio": 4, "scale": 1.0}
DELTA = {"qkv": ones(256, 3 * 32 * 4), "b": ones(256, 32), "a": ones(256, 32), "a_log": ones(32), "dt_bias": ones(32),
         "state": ones(32, 4, 4), "chunked": True}

# What is computed, by operator.
CALLS = {
    "centred_rms_norm": {"x": ones(4, 8), "weight": ones(8), "group": 4},
    "hyper_mix": {"normed": ones(2, 8), "gate_logits": ones(2, 8), "streams": 2},
    "hyper_scatter": {"x": ones(256, 1024), "y": ones(256, 256), "inject_logits": ones(256, 4)},
    "linear": {"x": ones(2, 8), "weight": ones(4, 8)},
    "gated_norm": {"x": ones(4, 8), "gate": ones(4, 8), "weight": ones(8)},
    "short_conv": {"x": ones(5, 8), "weight": ones(8, 4), "state": ones(3, 8)},
    "gated_delta_rule": {**DELTA, "qkv": ones(256, 2 * 2 * 4 + 32 * 4)},
    "partial_rope": {"x": ones(3, 2, 8), "positions": np.arange(3), "frequencies": ones(2)},
    "ple_gate": {"key_normed": ones(256, 1024), "query_normed": ones(256, 1024), "value": ones(256, 256)},
    "ple_add": {"x": ones(256, 1024), "gated": ones(256, 1024), "conv": ones(256, 1024)},
    "ngram_embed": {"shards": [ones(4, 2), ones(4, 2)], "rows": np.zeros((2, 2), np.int64)},
    "moe_matmul": MOE,
    "sparse_attention": SPARSE,
    "block_index": {"z": ones(6, 24), "q_weight": ones(8), "k_weight": ones(8), "frequencies": ones(2), "ratio": 2, "budget": 1},
}

# The same elements in other rows.
OTHER_ROWS = [
    ("centred_rms_norm", "weight", ones(8, 1)),
    ("hyper_mix", "gate_logits", ones(1, 16)),
    ("hyper_scatter", "y", ones(128, 512)),
    ("hyper_scatter", "inject_logits", ones(1, 1024)),
    ("linear", "weight", ones(1, 32)),
    ("linear", "weight", ones(8, 4)),
    ("gated_norm", "gate", ones(1, 32)),
    ("gated_norm", "weight", ones(8, 1)),
    ("short_conv", "weight", ones(1, 32)),
    ("short_conv", "state", ones(1, 24)),
    ("gated_delta_rule", "b", ones(1, 8192)),
    ("gated_delta_rule", "a", ones(1, 8192)),
    ("gated_delta_rule", "a_log", ones(32, 1)),
    ("gated_delta_rule", "dt_bias", ones(32, 1)),
    ("gated_delta_rule", "state", flat(ones(32, 4, 4))),
    ("partial_rope", "x", flat(ones(3, 2, 8))),
    ("partial_rope", "frequencies", ones(2, 1)),
    ("ple_gate", "query_normed", flat(ones(256, 1024))),
    ("ple_gate", "value", ones(128, 512)),
    ("ple_add", "gated", flat(ones(256, 1024))),
    ("ple_add", "conv", flat(ones(256, 1024))),
    ("ngram_embed", "shards", [ones(4, 2), ones(2, 4)]),
    *(("moe_matmul", name, flat(MOE[name])) for name in ("gate_up", "down", "shared_gate_proj", "shared_up", "shared_down")),
    ("moe_matmul", "shared_gate", ones(8, 1)),
    *(("sparse_attention", name, flat(SPARSE[name])) for name in ("q", "gate", "k", "v", "past_keys", "past_values")),
    ("sparse_attention", "past_keys", ones(4, 1, 8)),
    ("block_index", "q_weight", ones(8, 1)),
    ("block_index", "k_weight", ones(8, 1)),
]

# Widths with a remainder.
REMAINDERS = [
    ("hyper_mix", {"streams": 3}),
    ("hyper_mix", {"streams": 0}),
    ("hyper_scatter", {"y": ones(256, 300), "inject_logits": ones(256, 3)}),
    ("gated_delta_rule", {"qkv": ones(256, 2 * 2 * 4 + 32 * 4 + 1)}),
    ("gated_delta_rule", {"qkv": ones(256, 32 * 4 - 8)}),
    ("ple_gate", {"key_normed": ones(2, 8), "query_normed": ones(2, 8), "value": ones(2, 3)}),
    ("moe_matmul", {"down": ones(25, 4)}),
    ("moe_matmul", {"chosen_experts": ints(3), "chosen_weights": ones(3)}),
    ("sparse_attention", {"blocks": ints(4)}),
    ("block_index", {"z": ones(6, 20)}),
]


@pytest.mark.parametrize("name", CALLS)
def test_is_computed(name):
    getattr(ops, name)(**CALLS[name])


def refuse(name: str, changed: dict):
    with pytest.raises(quern.Error) as refusal:
        getattr(ops, name)(**{**CALLS[name], **changed})
    assert refusal.value.code == "bad_request"


@pytest.mark.parametrize("name,operand,value", OTHER_ROWS)
def test_other_rows_are_refused(name, operand, value):
    refuse(name, {operand: value})


@pytest.mark.parametrize("name,changed", REMAINDERS)
def test_a_remainder_is_refused(name, changed):
    refuse(name, changed)
