# SPDX-License-Identifier: Apache-2.0
"""The published layout of qwen4_exp checkpoints: names, shapes and types of all text tensors, the constants of the hashed
n-gram embedding, and named configurations. Owns no weights; needs only the standard library.
"""
import copy
import math

PREFIX = "model.language_model."
TEXT_PREFIX = "model."
MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15

# Fields that a configuration may leave out, with the value they then have.
DEFAULTS = {
    "full_attention_interval": 4, "hc_count": 4, "hc_lowrank": 320, "ple_layer_ids": [], "ple_conv_kernel_size": 4,
    "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000_000, "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234, "split_ngram_parts": 512,
}

# Small, with every mechanism switched on and widths that differ wherever a mix-up could hide: the embedding of the n-grams
# and the shared expert are not as wide as their neighbours, three value heads share a key head, two layers have n-gram
# embeddings, 20 tokens exceed the budget of the indexer, a sparse layer precedes an n-gram layer.
TINY = {
    "model_type": "qwen4_exp_text", "dtype": "bfloat16",
    "vocab_size": 199, "hidden_size": 64, "num_hidden_layers": 8, "full_attention_interval": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "output_gate_type": "sigmoid", "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40, "hc_count": 4, "hc_lowrank": 12, "indexer_n_heads": 4, "indexer_kv_heads": 1,
    "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4, "ple_layer_ids": [2, 6],
    "ple_embed_dim": 48, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 3, "ngram_vocab_size_base": 101,
    "make_ngram_vocab_size_divisible_by": 16, "split_ngram_parts": 4, "bos_token_id": 5, "eos_token_id": 5,
    "pad_token_id": None, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}


def wide(frozen):
    """The widths of the frozen text configuration with 4 layers, 32 experts and a small vocabulary: 1.0 G parameters."""
    return {**frozen, "num_hidden_layers": 4, "layer_types": frozen["layer_types"][:4], "num_experts": 32,
            "vocab_size": 4096, "ngram_vocab_size_base": 10007, "split_ngram_parts": 8, "bos_token_id": 4084,
            "eos_token_id": 4084}


def with_defaults(config):
    """The text configuration with every field that the layout needs."""
    c = {**DEFAULTS, **{k: v for k, v in copy.deepcopy(config).items() if v is not None}}
    c["ple_layer_ids"] = sorted(set(c["ple_layer_ids"]))
    c.setdefault("ple_embed_dim", c["hidden_size"])
    if "layer_types" not in c:
        every = c["full_attention_interval"]
        c["layer_types"] = ["linear_attention" if (i + 1) % every else "full_attention"
                            for i in range(c["num_hidden_layers"])]
    return c


# ---- hashed n-grams ----

def mix64(v):
    v = (v + GAMMA) & MASK64
    v = ((v ^ v >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    v = ((v ^ v >> 27) * 0x94D049BB133111EB) & MASK64
    return v ^ v >> 31


def multipliers(c, ple_index):
    half = max(1, ((1 << 63) - 1) // c["vocab_size"] // 2)
    base = c["seed"] + 10007 * ple_index
    return [2 * (mix64((base + GAMMA * (i + 1)) & MASK64) % half) + 1 for i in range(c["ngram_size"])]


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def head_sizes(c, ple_index):
    """One prime a hash head, all layers on one ascending run from the base on."""
    heads = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    primes, n = [], c["ngram_vocab_size_base"]
    while len(primes) < (ple_index + 1) * heads:
        if is_prime(n):
            primes.append(n)
        n += 1
    return primes[-heads:]


def offsets(sizes):
    return [sum(sizes[:h]) for h in range(len(sizes))]


def table_rows(c, ple_index):
    every = c["make_ngram_vocab_size_divisible_by"]
    return -(-sum(head_sizes(c, ple_index)) // every) * every


def shard_rows(rows, parts):
    """Rows of each shard: equal ones, the last shorter, possibly fewer than `parts`."""
    each = -(-rows // parts)
    return [min(each, rows - begin) for begin in range(0, rows, each)]


# ---- tensors ----

def hyper_connection(c, name, inject):
    width, rank = c["hc_count"] * c["hidden_size"], c["hc_lowrank"]
    tensors = {f"{name}.hc_norm.weight": [width], f"{name}.input_mix_weight_down.weight": [rank, width],
               f"{name}.input_mix_weight_up.weight": [width, rank]}
    if inject:
        tensors[f"{name}.block_inject_weight.weight"] = [c["hc_count"], width]
    return tensors


def moe(c, fused):
    hidden, experts = c["hidden_size"], c["num_experts"]
    inner, shared = c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    tensors = {"mlp.gate.weight": [experts, hidden], "mlp.shared_expert.gate_proj.weight": [shared, hidden],
               "mlp.shared_expert.up_proj.weight": [shared, hidden], "mlp.shared_expert.down_proj.weight": [hidden, shared],
               "mlp.shared_expert_gate.weight": [1, hidden]}
    if fused:
        return {**tensors, "mlp.experts.gate_up_proj": [experts, 2 * inner, hidden],
                "mlp.experts.down_proj": [experts, hidden, inner]}
    for e in range(experts):
        tensors[f"mlp.experts.{e}.gate_proj.weight"] = [inner, hidden]
        tensors[f"mlp.experts.{e}.up_proj.weight"] = [inner, hidden]
        tensors[f"mlp.experts.{e}.down_proj.weight"] = [hidden, inner]
    return tensors


def linear_attention(c):
    hidden, value_heads = c["hidden_size"], c["linear_num_value_heads"]
    value = value_heads * c["linear_value_head_dim"]
    mixed = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + value
    return {f"linear_attn.{name}": shape for name, shape in {
        "in_proj_qkv.weight": [mixed, hidden], "in_proj_z.weight": [value, hidden],
        "in_proj_b.weight": [value_heads, hidden], "in_proj_a.weight": [value_heads, hidden],
        "conv1d.weight": [mixed, 1, c["linear_conv_kernel_dim"]], "A_log": [value_heads], "dt_bias": [value_heads],
        "norm.weight": [c["linear_value_head_dim"]], "out_proj.weight": [hidden, value]}.items()}


def sparse_attention(c):
    hidden, head, index = c["hidden_size"], c["head_dim"], c["indexer_head_dim"]
    query, key = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    return {f"self_attn.{name}.weight": shape for name, shape in {
        "q_proj": [2 * query, hidden], "k_proj": [key, hidden], "v_proj": [key, hidden], "o_proj": [hidden, query],
        "q_norm": [head], "k_norm": [head], "indexer.index_qk_proj": [(c["indexer_n_heads"] + 1) * index, hidden],
        "indexer.q_layernorm": [index], "indexer.k_layernorm": [index]}.items()}


def ngram_layer(c, ple_index):
    hidden, width, embedding = c["hidden_size"], c["hc_count"] * c["hidden_size"], c["ple_embed_dim"]
    heads = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    tensors = {"key_proj.weight": [width, embedding], "value_proj.weight": [hidden, embedding],
               "norm_key.weight": [width], "norm_query.weight": [width], "norm_conv.weight": [width],
               "conv1d.weight": [width, 1, c["ple_conv_kernel_size"]], "ple_embedding.layer_multipliers": [c["ngram_size"]],
               "ple_embedding.ngram_heads_vocab_sizes": [heads], "ple_embedding.ngram_heads_offsets": [heads]}
    for k, rows in enumerate(shard_rows(table_rows(c, ple_index), c["split_ngram_parts"])):
        tensors[f"ple_embedding.ngram_embedding.shard_{k}.weight"] = [rows, embedding // heads]
    return {f"ple.{name}": shape for name, shape in tensors.items()}


def text_tensors(config, fused=True, prefix=PREFIX):
    """{name: shape} of every text tensor. All are bfloat16 but the three constants of the hash, which are int64."""
    c = with_defaults(config)
    out = {"lm_head.weight": [c["vocab_size"], c["hidden_size"]],
           prefix + "embed_tokens.weight": [c["vocab_size"], c["hidden_size"]]}
    out.update({prefix + name: shape for name, shape in hyper_connection(c, "hyper_connection_mixer", False).items()})
    for i, kind in enumerate(c["layer_types"]):
        layer = {**hyper_connection(c, "attn_hyper_connection", True), **hyper_connection(c, "mlp_hyper_connection", True),
                 **moe(c, fused), **(linear_attention(c) if kind == "linear_attention" else sparse_attention(c))}
        if i + 1 in c["ple_layer_ids"]:
            layer.update(ngram_layer(c, c["ple_layer_ids"].index(i + 1)))
        out.update({f"{prefix}layers.{i}.{name}": shape for name, shape in layer.items()})
    return out


def is_integer(name):
    return name.endswith(("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"))
