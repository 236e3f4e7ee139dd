# SPDX-License-Identifier: Apache-2.0
"""Writes sparse_rooms.npz: small inputs and outputs of the reference library's own modules for the rooms of sparse
attention, the mixture of experts and the n-gram embedding of qwen4_exp, in float32 and in bfloat16 (as the uint16 of its
bits). Needs torch and transformers (requirements-models.txt).

Usage: make_sparse_rooms.py [OUTPUT]
"""
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "oracle"))

import qwen4_sparse_reference as ref  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from qwen4_elements import TYPES, array, random  # noqa: E402
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model  # noqa: E402

SEED = 20261130


def mixture(dtype: str) -> dict:
    g = ref.seeded(SEED)
    c = ref.config(hidden_size=32, num_experts=8, moe_intermediate_size=8, shared_expert_intermediate_size=12)
    block = ref.draw(reference_model.Qwen4ExpTextSparseMoeBlock(c), g, wide=("gate.weight",)).to(TYPES[dtype])
    x = random(g, 12, c.hidden_size).to(TYPES[dtype])
    scores, weights, experts = block.gate(x)
    shared = block.shared_expert
    # In float32 the block itself; in bfloat16 its terms added as its grouped form adds them, with one rounding.
    out = block(x[None])[0] if dtype == "float32" else ref.combined(block, x, ref.terms_of_experts(block, x, experts, weights))
    return dict(x=array(x), scores=array(scores), experts=experts.int().numpy(), weights=weights.float().numpy(),
                gate_up=array(block.experts.gate_up_proj), down=array(block.experts.down_proj),
                shared_gate_proj=array(shared.gate_proj.weight), shared_up=array(shared.up_proj.weight),
                shared_down=array(shared.down_proj.weight), shared_gate=array(block.shared_expert_gate.weight), out=array(out))


def attention(dtype: str) -> dict:
    c = ref.config(head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5,
                                                     mrope_section=[2, 1, 1], mrope_interleaved=True))
    layer, seen = ref.attention_layer(c, 41, dtype, seed=SEED)
    q, gate, k, v = ref.attention_inputs(layer, seen, c)
    blocks, counts = ref.choice_lists(ref.choice(seen, 41), c.indexer_compress_ratio)
    scores, keys = ref.reference_scores(layer, seen)
    return dict(z=array(seen.z[0]), q_weight=array(layer.indexer.q_layernorm.weight),
                k_weight=array(layer.indexer.k_layernorm.weight), frequencies=seen.frequencies.numpy(), scores=scores.numpy(),
                keys=array(keys), blocks=blocks, counts=counts, q=array(q), gate=array(gate), k=array(k), v=array(v),
                out=array(seen.o_proj[0][0][0]))


def ngrams() -> dict:
    c = ref.config()
    ids = [11, 12, ref.EOS, 13, 14, 15, ref.EOS, ref.EOS, 7, 7, 7, 0, 198, ref.EOS]
    found = {}
    for layer_index in (0, 1):
        module = ref.ngram_module(c, layer_index)
        rows = []
        module.ngram_embedding.register_forward_pre_hook(lambda m, inputs, rows=rows: rows.append(inputs[0][0].numpy()))
        module(torch.tensor([ids]), None)
        found[f"rows{layer_index}"] = rows[0]
    return found | dict(ids=np.array(ids, np.int32))


def main() -> None:
    made = {"generator": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {SEED}")}
    with torch.no_grad():
        for dtype in TYPES:
            for name, part in (("mixture", mixture(dtype)), ("attention", attention(dtype))):
                made |= {f"{dtype}/{name}/{key}": value for key, value in part.items()}
        made |= {f"ngrams/{key}": value for key, value in ngrams().items()}
    np.savez_compressed(sys.argv[1] if len(sys.argv) > 1 else HERE / "sparse_rooms.npz", **made)


if __name__ == "__main__":
    main()
