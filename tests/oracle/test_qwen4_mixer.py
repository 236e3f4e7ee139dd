# SPDX-License-Identifier: Apache-2.0
"""The rooms of the residual stream and of the Gated DeltaNet layer of qwen4_exp against the reference's own modules, on
the same inputs, in float32 and in bfloat16."""
import pytest
from conftest import import_reference

import quern

ops = quern.ops
DTYPES = ["float32", "bfloat16"]


@pytest.fixture(scope="module", autouse=True)
def reference():
    """Imports the reference where these tests run, and only there."""
    import_reference()
    global torch, np, F, reference_model, elements, array, random
    import numpy as np
    import qwen4_elements as elements
    import torch
    import torch.nn.functional as F
    from qwen4_elements import array, random
    from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model

    with torch.no_grad():
        yield


def seeded(seed: int):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows,n,group", [(7, 256, 64), (3, 10240, 2560), (5, 128, 128), (2, 33, 11), (1, 1, 1)])
def test_centred_rms_norm(dtype, rows, n, group):
    g = seeded(n + rows)
    norm = reference_model.Qwen4ExpTextRMSNorm(n, group_size=group, eps=1e-6)
    norm.weight.copy_(random(g, n, scale=0.3))
    norm.to(elements.TYPES[dtype])
    # Streams of different sizes, or groups would not matter.
    x = (random(g, rows, n // group, group) * torch.exp(random(g, rows, n // group, 1))).reshape(rows, n).to(norm.weight.dtype)
    ours = ops.centred_rms_norm(array(x), array(norm.weight), group=group)
    elements.assert_elementwise("norm", ours, norm(x))


def gated_residual(hidden: int, streams: int, rank: int, dtype: str, g):
    config = reference_model.Qwen4ExpTextConfig(hidden_size=hidden, hc_count=streams, hc_lowrank=rank)
    module = reference_model.Qwen4ExpTextGatedResidual(config)
    for name, scale in (("input_mix_weight_down", 3), ("input_mix_weight_up", 1), ("block_inject_weight", 4)):
        weight = getattr(module, name).weight
        weight.copy_(random(g, *weight.shape, scale=scale / weight.shape[1] ** 0.5))
    module.hc_norm.weight.copy_(random(g, hidden * streams, scale=0.3))
    return module.to(elements.TYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows,hidden,streams,rank", [(5, 64, 4, 12), (3, 256, 2, 20), (2, 2560, 4, 320), (9, 40, 3, 7)])
def test_hyper_mix(dtype, rows, hidden, streams, rank):
    """Each part on the reference's own inputs of that part, taken by hooks."""
    g = seeded(hidden)
    module = gated_residual(hidden, streams, rank, dtype, g)
    x = random(g, rows, hidden * streams, scale=2).to(elements.TYPES[dtype])
    seen = {}
    for name in ("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"):
        getattr(module, name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: (i[0].clone(), o.clone())}))
    mixed, _, gates = module(x)

    gated = ops.hyper_gate(array(seen["input_mix_weight_down"][1]), streams=streams)
    elements.assert_elementwise("gate", gated, seen["input_mix_weight_up"][0])
    ours = ops.hyper_mix(array(seen["hc_norm"][1]), array(seen["input_mix_weight_up"][1]), streams=streams)
    elements.assert_elementwise("mix", ours, mixed)
    y = random(g, rows, hidden).to(x.dtype)
    # As Qwen4ExpTextDecoderLayer.forward adds the output of a sub-layer.
    wanted = x + (y.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
    ours = ops.hyper_scatter(array(x), array(y), array(seen["block_inject_weight"][1]))
    elements.assert_elementwise("scatter", ours, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows,n,k", [(1, 48, 2560), (1, 320, 10240), (3, 17, 33), (70, 130, 96), (5, 4, 10240), (2, 1, 1)])
def test_linear(dtype, rows, n, k):
    g = seeded(k + n)
    x = random(g, rows, k).to(elements.TYPES[dtype])
    w = random(g, n, k, scale=k**-0.5).to(elements.TYPES[dtype])
    elements.assert_projection("linear", ops.linear(array(x), array(w)), F.linear(x, w))


def test_linear_of_float32_rows_and_bfloat16_weights():
    g = seeded(3)
    x = random(g, 6, 200)
    w = random(g, 50, 200, dtype=torch.bfloat16)
    elements.assert_projection("linear", ops.linear(array(x), array(w)), F.linear(x, w.float()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
@pytest.mark.parametrize("rows,n", [(60, 128), (7, 16), (3, 33)])
def test_gated_norm(dtype, activation, rows, n):
    g = seeded(n)
    norm = reference_model.Qwen4ExpTextRMSNormGated(n, eps=1e-6, activation=activation)
    norm.weight.copy_(torch.rand(n, generator=g) + 0.5)
    norm.to(elements.TYPES[dtype])
    x, z = (random(g, rows, n, scale=2).to(norm.weight.dtype) for _ in range(2))
    ours = ops.gated_norm(array(x), array(z), array(norm.weight), silu=activation == "silu")
    elements.assert_elementwise("gated norm", ours, norm(x, z))


PIECES = [1, 2, 3, 1, 70, 5, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels,taps,dilation", [(40, 4, 1), (96, 4, 3), (33, 2, 1), (24, 2, 4), (16, 1, 3)])
def test_short_conv(dtype, channels, taps, dilation):
    """One call and pieces of calls with the state between them, against PyTorch's convolution over the whole."""
    g = seeded(channels)
    x = random(g, sum(PIECES), channels).to(elements.TYPES[dtype])
    w = random(g, channels, taps, scale=0.4).to(x.dtype)
    past = (taps - 1) * dilation
    wanted = F.silu(F.conv1d(F.pad(x.T, (past, 0)), w.unsqueeze(1), groups=channels, dilation=dilation)).T
    empty = array(torch.zeros(past, channels, dtype=x.dtype))
    whole, state = ops.short_conv(array(x), array(w), empty, dilation=dilation)
    elements.assert_elementwise("conv", whole, wanted)
    assert np.array_equal(state, array(x)[len(x) - past:])
    state, out = empty, []
    for piece in torch.split(x, PIECES):
        y, state = ops.short_conv(array(piece), array(w), state, dilation=dilation)
        out.append(y)
    assert np.array_equal(np.concatenate(out), whole)


def delta_inputs(dtype: str, tokens: int, key_heads: int, value_heads: int, key_size: int, value_size: int):
    g = seeded(tokens + key_size)
    kind = elements.TYPES[dtype]
    q, k = (F.silu(random(g, 1, tokens, key_heads, key_size)).to(kind) for _ in range(2))
    v = F.silu(random(g, 1, tokens, value_heads, value_size)).to(kind)
    b, a = (random(g, 1, tokens, value_heads, scale=1.7).to(kind) for _ in range(2))
    a_log = torch.log(torch.rand(value_heads, generator=g) * 7.5 + 0.5).to(kind)
    dt_bias = (torch.rand(value_heads, generator=g) * 5 - 4).to(kind)
    state = random(g, 1, value_heads, key_size, value_size, scale=0.1)
    return q, k, v, b, a, a_log, dt_bias, state


def reference_delta(function, q, k, v, b, a, a_log, dt_bias, state):
    """As Qwen4ExpTextGatedDeltaNet.forward calls the rule."""
    gates = -a_log.float().exp() * F.softplus(a.float() + dt_bias)
    group = v.shape[2] // k.shape[2]
    return function(q.repeat_interleave(group, dim=2), k.repeat_interleave(group, dim=2), v, g=gates, beta=b.sigmoid(),
                    initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)


def our_delta(chunked: bool, q, k, v, b, a, a_log, dt_bias, state):
    qkv = torch.cat([x.flatten(2) for x in (q, k, v)], dim=-1)[0]
    return ops.gated_delta_rule(array(qkv), array(b[0]), array(a[0]), array(a_log), array(dt_bias), array(state[0]), chunked=chunked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunked", [False, True], ids=["recurrent", "chunked"])
@pytest.mark.parametrize("tokens,key_heads,value_heads,key_size,value_size",
                         [(1, 2, 6, 16, 16), (1, 4, 12, 128, 128), (63, 2, 6, 16, 16), (64, 1, 2, 32, 24), (65, 2, 4, 16, 40),
                          (150, 1, 3, 128, 128), (20, 3, 3, 5, 7)])
def test_gated_delta_rule(dtype, chunked, tokens, key_heads, value_heads, key_size, value_size):
    inputs = delta_inputs(dtype, tokens, key_heads, value_heads, key_size, value_size)
    function = reference_model.torch_chunk_gated_delta_rule if chunked else reference_model.torch_recurrent_gated_delta_rule
    wanted, wanted_state = reference_delta(function, *inputs)
    out, state = our_delta(chunked, *inputs)
    elements.assert_elementwise("state", state, wanted_state)
    elements.assert_elementwise("out", out, wanted, cancels=True)


def test_gated_delta_rule_reads_the_rate_at_its_ends():
    """Decays near none and near all, learning rates of 0 and 1: the softplus and the sigmoid at their ends."""
    q, k, v, b, a, a_log, dt_bias, state = delta_inputs("float32", 66, 1, 4, 16, 16)
    a[..., 0], a[..., 1], b[..., 2], b[..., 3] = -30, 30, -40, 40
    for chunked in (False, True):
        inputs = (q, k, v, b, a, a_log, dt_bias, state)
        function = reference_model.torch_chunk_gated_delta_rule if chunked else reference_model.torch_recurrent_gated_delta_rule
        wanted, wanted_state = reference_delta(function, *inputs)
        out, left = our_delta(chunked, *inputs)
        elements.assert_elementwise("state", left, wanted_state)
        elements.assert_elementwise("out", out, wanted)


def small_config(**changes):
    return reference_model.Qwen4ExpTextConfig(**{**dict(
        vocab_size=199, hidden_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True),
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
        num_experts=16, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=40, hc_count=4, hc_lowrank=12,
        output_gate_type="sigmoid", indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16, indexer_compress_ratio=4,
        ple_layer_ids=[2, 6], ple_embed_dim=48, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=3, ngram_vocab_size_base=101,
        make_ngram_vocab_size_divisible_by=16, split_ngram_parts=4, eos_token_id=5, tie_word_embeddings=False,
        max_position_embeddings=4096), **changes})


@pytest.mark.parametrize("pieces", [[75], [1, 2, 3, 5, 8, 56], [1] * 12], ids=["whole", "irregular", "tokens"])
def test_the_rooms_in_a_row_are_the_gated_delta_layer(pieces):
    """float32: projections, convolution, rule, norm and output with our states, against the reference's layer with its
    own cache."""
    from transformers.cache_utils import DynamicCache
    g = seeded(11)
    config = small_config()
    layer = reference_model.Qwen4ExpTextGatedDeltaNet(config, 0)
    for name, p in layer.named_parameters():
        p.copy_(random(g, *p.shape, scale=0.4 if "conv1d" in name else p.shape[-1] ** -0.5))
    layer.A_log.copy_(torch.log(torch.rand(6, generator=g) * 7.5 + 0.5))
    layer.dt_bias.copy_(torch.rand(6, generator=g) * 5 - 4)
    layer.norm.weight.copy_(torch.rand(16, generator=g) + 0.5)
    layer.conv1d.weight.mul_(2)
    weights = {name: array(p) for name, p in layer.named_parameters()}
    cache, conv, state = DynamicCache(config=config), np.zeros((3, 160), np.float32), np.zeros((6, 16, 16), np.float32)
    for u in torch.split(random(g, sum(pieces), 64), pieces):
        wanted = layer(u[None], cache_params=cache)[0]
        qkv, z, b, a = (ops.linear(array(u), weights[f"in_proj_{x}.weight"]) for x in ("qkv", "z", "b", "a"))
        mixed, conv = ops.short_conv(qkv, weights["conv1d.weight"].reshape(160, 4), conv)
        o, state = ops.gated_delta_rule(mixed, b, a, weights["A_log"], weights["dt_bias"], state, chunked=len(u) > 1)
        normed = ops.gated_norm(o.reshape(-1, 16), z.reshape(-1, 16), weights["norm.weight"])
        ours = ops.linear(normed.reshape(len(u), -1), weights["out_proj.weight"])
        elements.assert_elementwise("layer", ours, wanted)
        elements.assert_elementwise("state", state, cache.layers[0].recurrent_states[0][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("theta,head_size,factor", [(1e7, 256, 0.25), (1e4, 32, 0.25), (1e7, 128, 0.5), (1e6, 16, 1.0)])
def test_partial_rope(dtype, theta, head_size, factor):
    g = seeded(head_size)
    half = int(head_size * factor) // 2
    config = small_config(head_dim=head_size, rope_parameters=dict(
        rope_type="default", rope_theta=theta, partial_rotary_factor=factor, mrope_section=[half - 2 * (half // 3), half // 3, half // 3],
        mrope_interleaved=True), indexer_head_dim=128)
    rotary = reference_model.Qwen4ExpTextRotaryEmbedding(config)
    frequencies = ops.rope_frequencies(theta, 2 * half)
    assert np.array_equal(frequencies.view(np.uint32), array(rotary.inv_freq).view(np.uint32))
    positions = torch.cat([torch.arange(70), torch.tensor([4095, 100_003, 262_143])])
    x = random(g, 1, 3, len(positions), head_size).to(elements.TYPES[dtype])
    cos, sin = rotary(x, positions[None, None].expand(3, 1, -1))
    wanted = reference_model.apply_rotary_pos_emb(x, cos=cos, sin=sin)[0].transpose(0, 1)
    ours = ops.partial_rope(array(x[0].transpose(0, 1)), array(positions), frequencies)
    elements.assert_elementwise("rope", ours, wanted)


class FixedRows(__import__("types").SimpleNamespace):
    """Stands for the table of n-grams: the rows are given."""

    def __call__(self, ids, cache):
        return self.rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden,streams", [(64, 4), (40, 4), (256, 2), (2560, 4)])
def test_ple(dtype, hidden, streams):
    """The layer from its projections on, each part on the reference's own inputs of that part."""
    g = seeded(hidden)
    config = small_config(hidden_size=hidden, hc_count=streams)
    layer = reference_model.Qwen4ExpTextPLELayer(config, 1, 0)
    for name, p in layer.named_parameters():
        if "ple_embedding" not in name:
            scale = 0.3 if "norm" in name else 0.4 if "conv1d" in name else p.shape[-1] ** -0.5
            p.copy_(random(g, *p.shape, scale=scale))
    layer.to(elements.TYPES[dtype])
    kind = layer.key_proj.weight.dtype
    rows = random(g, 1, 30, 48).to(kind)
    # A token whose key is zero: its gates are 1/2 exactly.
    rows[0, 3] = 0
    del layer._modules["ple_embedding"]
    layer.__dict__["ple_embedding"] = FixedRows(rows=rows)
    seen = {}
    for name in ("norm_key", "norm_query", "value_proj", "norm_conv", "conv1d"):
        getattr(layer, name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: (i[0].clone(), o.clone())}))
    x = random(g, 1, 30, streams * hidden, scale=2).to(kind)
    out = layer(x, None, None)

    gated = ops.ple_gate(array(seen["norm_key"][1][0]), array(seen["norm_query"][1][0]), array(seen["value_proj"][1][0]))
    elements.assert_elementwise("gate", gated, seen["norm_conv"][0][0])
    past = array(torch.zeros(9, streams * hidden, dtype=kind))
    conv, _ = ops.short_conv(array(seen["norm_conv"][1][0]), array(layer.conv1d.weight[:, 0]), past, dilation=3)
    wanted_conv = F.silu(seen["conv1d"][1][0].T)
    elements.assert_elementwise("conv", conv, wanted_conv)
    ours = ops.ple_add(array(x[0]), array(seen["norm_conv"][0][0]), array(wanted_conv))
    elements.assert_elementwise("add", ours, (x + out)[0])


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_activations_of_every_bfloat16(dtype):
    """sigmoid and silu through the rooms that use them, all finite inputs: the exponentials of two libraries may put a
    value beside a midpoint on either side of it, no more."""
    bits = np.arange(65536, dtype=np.uint16)
    bits = bits[(bits & 0x7F80) != 0x7F80]
    x = torch.from_numpy(bits.copy()).view(torch.bfloat16)
    one = torch.ones_like(x)
    # Two equal streams with a factor of 1: their mean is the sigmoid itself.
    ours = ops.hyper_mix(array(torch.stack([one, one], -1)), array(torch.stack([x, x], -1)), streams=2)
    elements.assert_elementwise("sigmoid", ours[:, 0], torch.sigmoid(x), equal=0.9999)
    ours = ops.hyper_gate(array(x)[None], streams=2)
    elements.assert_elementwise("silu", ours, F.silu(x / 2)[None], equal=0.9999)
