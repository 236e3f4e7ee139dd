# SPDX-License-Identifier: Apache-2.0
"""The reference library's own modules of qwen4_exp that the sparse rooms are compared with: built small, with weights that
make no mechanism vanish, and with what flows between their parts. Needs torch and transformers."""
import types

import numpy as np
import torch
import torch.nn.functional as F
from qwen4_elements import TYPES, random
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model

EOS = 5


def seeded(seed: int):
    return torch.Generator().manual_seed(seed)


def config(**changes):
    """A small text configuration that reaches every branch of these rooms."""
    fields = dict(
        vocab_size=199, hidden_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25, mrope_section=[2, 1, 1],
                             mrope_interleaved=True),
        num_experts=16, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=40,
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16, indexer_compress_ratio=4,
        ple_layer_ids=[2, 6], ple_embed_dim=48, ngram_size=3, heads_per_ngram=3, ngram_vocab_size_base=101,
        make_ngram_vocab_size_divisible_by=16, split_ngram_parts=4, eos_token_id=EOS, tie_word_embeddings=False,
        max_position_embeddings=4096)
    c = reference_model.Qwen4ExpTextConfig(**(fields | changes))
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    return c


def ngram_module(c, layer_index: int):
    return reference_model.Qwen4ExpTextNGramEmbedding(c, c.ple_embed_dim, layer_idx=0, ple_layer_index=layer_index)


def draw(module, g, wide=()):
    """Weights of unit gain, those whose names are in `wide` twice as large, so that routers and gates are not flat."""
    for name, w in module.named_parameters():
        gain = 2.0 if any(part in name for part in wide) else 1.0
        w.copy_(random(g, *w.shape, scale=gain / w.shape[-1] ** 0.5))
    return module


def terms_of_experts(block, x, experts, weights):
    """[tokens, chosen, H]: the reference's term of every choice, each from its own module with one choice a token."""
    terms = [block.experts(x, experts[:, k : k + 1], weights[:, k : k + 1]) for k in range(experts.shape[1])]
    return torch.stack(terms, 1)


def combined(block, x, terms):
    """The terms summed in float32 in the order of the router with one rounding; the shared expert as the reference adds it."""
    total = torch.zeros(terms.shape[0], terms.shape[2])
    for k in range(terms.shape[1]):
        total += terms[:, k].float()
    return total.to(x.dtype) + F.sigmoid(block.shared_expert_gate(x)) * block.shared_expert(x)


def causal(tokens: int, dtype):
    return torch.full((tokens, tokens), torch.finfo(dtype).min, dtype=dtype).triu(1)[None, None]


def attention_layer(c, tokens: int, dtype: str, seed: int):
    """A layer with random weights, and what attend() sees of it with random inputs."""
    g = seeded(seed)
    layer = draw(reference_model.Qwen4ExpTextAttention(c, layer_idx=3), g, wide=("q_proj",))
    for norm in (layer.q_norm, layer.k_norm, layer.indexer.q_layernorm, layer.indexer.k_layernorm):
        norm.weight.copy_(random(g, *norm.weight.shape, scale=0.3))
    layer.to(TYPES[dtype])
    return layer, attend(layer, c, random(g, 1, tokens, c.hidden_size).to(TYPES[dtype]))


def attend(layer, c, x):
    """Runs the layer on x [1, T, H]; everything between its parts, taken by hooks."""
    tokens = x.shape[1]
    rotary = reference_model.Qwen4ExpTextRotaryEmbedding(c)
    cos, sin = rotary(x, torch.arange(tokens).view(1, 1, -1).expand(3, 1, -1))
    seen = types.SimpleNamespace(cos=cos, sin=sin, frequencies=rotary.inv_freq)
    for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "indexer", "o_proj"):
        getattr(layer, name).register_forward_hook(lambda m, i, o, name=name: setattr(seen, name, (i, o)))
    layer.indexer.index_qk_proj.register_forward_hook(lambda m, i, o: setattr(seen, "z", o))
    layer(x, (cos, sin), causal(tokens, x.dtype))
    return seen


def choice_lists(visible, ratio: int):
    """(blocks [tokens, blocks], counts [tokens]) int32 of what each query sees, every block by name."""
    tokens = len(visible)
    blocks = np.zeros((tokens, tokens // ratio + 1), np.int32)
    counts = np.zeros(tokens, np.int32)
    for t in range(tokens):
        chosen = chosen_blocks(visible, t, ratio)
        blocks[t, : len(chosen)] = chosen
        counts[t] = len(chosen)
    return blocks, counts


def choice(seen, tokens: int):
    """[tokens, tokens] bool: what the reference's indexer lets each query see."""
    return ((seen.indexer[1][0, 0] == 0) & torch.ones(tokens, tokens).tril().bool()).numpy()


def chosen_blocks(visible, t: int, ratio: int):
    """Indices of the complete blocks that query t sees."""
    return np.nonzero(visible[t, : (t + 1) // ratio * ratio : ratio])[0]


def reference_scores(layer, seen):
    """[tokens, blocks] of all blocks, from the reference's own parts; only to tell how clear a choice was."""
    indexer = layer.indexer
    heads, d, ratio = indexer.index_n_heads, indexer.index_head_dim, indexer.compress_ratio
    z = seen.z[0]
    tokens = z.shape[0]
    rope = reference_model.apply_rotary_pos_emb
    q = rope(indexer.q_layernorm(z[:, : heads * d].reshape(1, tokens, heads, d)), cos=seen.cos, sin=seen.sin, unsqueeze_dim=2)
    complete = tokens // ratio
    pooled = z[: complete * ratio, heads * d :].reshape(complete, ratio, d).float().mean(1).to(z.dtype)
    starts = torch.arange(complete) * ratio
    keys = rope(indexer.k_layernorm(pooled)[None, :, None], cos=seen.cos[:, starts], sin=seen.sin[:, starts], unsqueeze_dim=2)
    keys = keys[0, :, 0]
    scores = torch.relu(torch.einsum("thd,bd->tbh", q[0].float(), keys.float())).sum(-1) / d**0.5
    return scores, keys


def attention_inputs(layer, seen, c):
    """q, gate [S, Nq, D] and k, v [S, Nk, D] as the reference's attention gets them."""
    heads, kv_heads, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    tokens = seen.z.shape[1]
    rope = reference_model.apply_rotary_pos_emb
    _, gate = seen.q_proj[1].view(1, tokens, heads, 2 * d).chunk(2, -1)
    q = rope(seen.q_norm[1].view(1, tokens, heads, d), cos=seen.cos, sin=seen.sin, unsqueeze_dim=2)
    k = rope(seen.k_norm[1].view(1, tokens, kv_heads, d), cos=seen.cos, sin=seen.sin, unsqueeze_dim=2)
    return q[0], gate[0], k[0], seen.v_proj[1].view(tokens, kv_heads, d)
