# SPDX-License-Identifier: Apache-2.0
"""Writes mixer_rooms.npz: small inputs and outputs of the reference library's own modules for the rooms of the residual
stream, the Gated DeltaNet layer and the n-gram gate of qwen4_exp, in float32 and in bfloat16 (as the uint16 of its bits).
Needs torch and transformers (requirements-models.txt).

Usage: make_mixer_rooms.py [OUTPUT]
"""
import pathlib
import sys
import types

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "oracle"))

import qwen4_sparse_reference as ref  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from qwen4_elements import TYPES, array, random  # noqa: E402
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model  # noqa: E402

SEED = 20261130
TOKENS = 70  # more than a chunk of the delta rule


def config():
    return ref.config(hidden_size=16, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=8,
                      linear_value_head_dim=8, hc_lowrank=6, output_gate_type="sigmoid")


def watch(module, names: tuple) -> dict:
    """{name: (input, output)} of the submodules, filled when the module runs."""
    seen = {}
    for name in names:
        getattr(module, name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: (i[0].clone(), o.clone())}))
    return seen


def fill(module, g, dtype: str):
    for name, p in module.named_parameters():
        scale = 0.3 if "norm" in name else 0.4 if "conv1d" in name else 3 * p.shape[-1] ** -0.5
        p.copy_(random(g, *p.shape, scale=scale))
    return module.to(TYPES[dtype])


def residual(dtype: str) -> dict:
    g = ref.seeded(SEED)
    c = config()
    module = fill(reference_model.Qwen4ExpTextGatedResidual(c), g, dtype)
    seen = watch(module, ("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"))
    x, y = random(g, 5, 4 * c.hidden_size, scale=2).to(TYPES[dtype]), random(g, 5, c.hidden_size).to(TYPES[dtype])
    mixed, _, gates = module(x)
    added = x + (y.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
    found = dict(x=x, norm_weight=module.hc_norm.weight, normed=seen["hc_norm"][1], down_weight=module.input_mix_weight_down.weight,
                 down=seen["input_mix_weight_down"][1], gated=seen["input_mix_weight_up"][0], up=seen["input_mix_weight_up"][1],
                 mixed=mixed, inject=seen["block_inject_weight"][1], y=y, added=added)
    return {name: array(t) for name, t in found.items()}


def delta(dtype: str) -> dict:
    g = ref.seeded(SEED + 1)
    c = config()
    layer = fill(reference_model.Qwen4ExpTextGatedDeltaNet(c, 0), g, dtype)
    layer.A_log.copy_(torch.log(torch.rand(3, generator=g) * 7.5 + 0.5))
    layer.dt_bias.copy_(torch.rand(3, generator=g) * 5 - 4)
    seen = watch(layer, ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj"))
    layer(random(g, 1, TOKENS, c.hidden_size).to(TYPES[dtype]))
    qkv, z, b, a = (seen[f"in_proj_{x}"][1] for x in ("qkv", "z", "b", "a"))
    mixed = reference_model.causal_conv1d_fn(qkv.transpose(1, 2), layer.conv1d.weight.squeeze(1), activation="silu").transpose(1, 2)
    q, k, v = (x.unflatten(-1, (-1, 8)) for x in torch.split(mixed, [8, 8, 24], dim=-1))
    state = random(g, 1, 3, 8, 8, scale=0.3)
    found = dict(qkv=qkv[0], conv_weight=layer.conv1d.weight[:, 0], mixed=mixed[0], b=b[0], a=a[0], a_log=layer.A_log,
                 dt_bias=layer.dt_bias, state=state[0], o=seen["norm"][0], z=z.reshape(-1, 8), norm_weight=layer.norm.weight,
                 normed=seen["norm"][1])
    gates = -layer.A_log.float().exp() * F.softplus(a.float() + layer.dt_bias)
    for form, rule in (("chunked", reference_model.torch_chunk_gated_delta_rule), ("recurrent", reference_model.torch_recurrent_gated_delta_rule)):
        out, after = rule(q.repeat_interleave(3, dim=2), k.repeat_interleave(3, dim=2), v, g=gates, beta=b.sigmoid(),
                          initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
        found |= {f"{form}_out": out[0], f"{form}_state": after[0]}
    return {name: array(t) for name, t in found.items()}


def rope(dtype: str) -> dict:
    c = ref.config(head_dim=32, rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.5,
                                                     mrope_section=[4, 2, 2], mrope_interleaved=True))
    rotary = reference_model.Qwen4ExpTextRotaryEmbedding(c)
    positions = torch.tensor([0, 1, 77, 4095, 262_143])
    x = random(ref.seeded(SEED + 2), 1, 2, len(positions), 32).to(TYPES[dtype])
    cos, sin = rotary(x, positions[None, None].expand(3, 1, -1))
    y = reference_model.apply_rotary_pos_emb(x, cos=cos, sin=sin)
    return dict(x=array(x[0].transpose(0, 1)), positions=positions.numpy(), frequencies=array(rotary.inv_freq),
                y=array(y[0].transpose(0, 1)))


def ple(dtype: str) -> dict:
    g = ref.seeded(SEED + 3)
    c = config()
    layer = fill(reference_model.Qwen4ExpTextPLELayer(c, 1, 0), g, dtype)
    rows = random(g, 1, 25, c.ple_embed_dim).to(TYPES[dtype])
    rows[0, 3] = 0  # gates of exactly 1/2
    del layer._modules["ple_embedding"]
    layer.__dict__["ple_embedding"] = lambda ids, cache: rows
    seen = watch(layer, ("norm_key", "norm_query", "value_proj", "norm_conv", "conv1d"))
    x = random(g, 1, 25, 4 * c.hidden_size, scale=2).to(TYPES[dtype])
    out = layer(x, None, None)
    found = dict(x=x[0], key=seen["norm_key"][1][0], query=seen["norm_query"][1][0], value=seen["value_proj"][1][0],
                 gated=seen["norm_conv"][0][0], conv_in=seen["norm_conv"][1][0], conv_weight=layer.conv1d.weight[:, 0],
                 conv=F.silu(seen["conv1d"][1][0].T), added=(x + out)[0])
    return {name: array(t) for name, t in found.items()}


def main() -> None:
    made = {"generator": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {SEED}")}
    with torch.no_grad():
        for dtype in TYPES:
            for name, part in (("residual", residual), ("delta", delta), ("rope", rope), ("ple", ple)):
                made |= {f"{dtype}/{name}/{key}": value for key, value in part(dtype).items()}
    np.savez_compressed(sys.argv[1] if len(sys.argv) > 1 else HERE / "mixer_rooms.npz", **made)


if __name__ == "__main__":
    main()
