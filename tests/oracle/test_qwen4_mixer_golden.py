# SPDX-License-Identifier: Apache-2.0
"""The rooms of the residual stream, the Gated DeltaNet layer and the n-gram gate of qwen4_exp against stored results of the
reference library (testdata/qwen4/make_mixer_rooms.py says which); test_qwen4_mixer.py compares with it live."""
import numpy as np
import pytest
from conftest import ROOT
from test_qwen4_sparse_golden import DTYPES, assert_near, part

import quern

ops = quern.ops
pytestmark = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(scope="module")
def golden():
    return np.load(ROOT / "testdata" / "qwen4" / "mixer_rooms.npz")


def test_residual_stream(golden, dtype):
    g = part(golden, dtype, "residual")
    hidden = g["y"].shape[1]
    assert_near("norm", ops.centred_rms_norm(g["x"], g["norm_weight"], group=hidden), g["normed"], units=1)
    assert_near("down", ops.linear(g["normed"], g["down_weight"]), g["down"], units=2)
    assert_near("gate", ops.hyper_gate(g["down"], streams=4), g["gated"], units=1)
    assert_near("mix", ops.hyper_mix(g["normed"], g["up"], streams=4), g["mixed"], units=1)
    assert_near("scatter", ops.hyper_scatter(g["x"], g["y"], g["inject"]), g["added"], units=1)


@pytest.mark.parametrize("chunked", [False, True], ids=["recurrent", "chunked"])
def test_gated_delta_rule(golden, dtype, chunked):
    g = part(golden, dtype, "delta")
    out, state = ops.gated_delta_rule(g["mixed"], g["b"], g["a"], g["a_log"], g["dt_bias"], g["state"], chunked=chunked)
    form = "chunked" if chunked else "recurrent"
    assert_near("out", out, g[f"{form}_out"], units=1)
    assert_near("state", state, g[f"{form}_state"], units=1)


def test_gated_delta_layer(golden, dtype):
    g = part(golden, dtype, "delta")
    channels, taps = g["conv_weight"].shape
    mixed, state = ops.short_conv(g["qkv"], g["conv_weight"], np.zeros((taps - 1, channels), g["qkv"].dtype))
    assert_near("conv", mixed, g["mixed"], units=1)
    assert np.array_equal(state, g["qkv"][1 - taps:])
    assert_near("norm", ops.gated_norm(g["o"], g["z"], g["norm_weight"]), g["normed"], units=1)


def test_partial_rope(golden, dtype):
    g = part(golden, dtype, "rope")
    frequencies = ops.rope_frequencies(1e7, 2 * len(g["frequencies"]))
    assert np.array_equal(frequencies.view(np.uint32), g["frequencies"].view(np.uint32))
    assert_near("rope", ops.partial_rope(g["x"], g["positions"], frequencies), g["y"], units=1)


def test_ple(golden, dtype):
    g = part(golden, dtype, "ple")
    assert_near("gate", ops.ple_gate(g["key"], g["query"], g["value"]), g["gated"], units=1)
    past = np.zeros((9, g["conv_in"].shape[1]), g["conv_in"].dtype)
    conv, state = ops.short_conv(g["conv_in"], g["conv_weight"], past, dilation=3)
    assert_near("conv", conv, g["conv"], units=1)
    assert np.array_equal(state, g["conv_in"][-9:])
    assert_near("add", ops.ple_add(g["x"], g["gated"], g["conv"]), g["added"], units=1)
