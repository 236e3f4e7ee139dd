#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the second demo: a small qwen4_exp with every mechanism of that architecture, on the text of the first, on the CPU.

Owns the configuration, the loss that teaches the indexer, and faster forms of two loops of the reference that compute the
same. Text, split, tokenizer and training loop are those of train_demo.py, and so is the folder that it writes.
eval_demo_qwen4.py turns that folder into models/demo-qwen4. Needs requirements-models.txt.
"""
import math

import torch
from train_demo import CONTEXT, VOCAB, parse_arguments, train
from transformers import GenerationConfig, Qwen4ExpForCausalLM, Qwen4ExpTextConfig
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference

HIDDEN, LAYERS, STREAMS = 128, 6, 4
# Rows from this length on are trained with the indexer's choice; on shorter ones it learns to rank the blocks by the
# attention that they get while all of them are seen.
SPARSE_FROM = 512
INDEXER_SHARE = 0.1  # of the indexer's loss; its gradient reaches the indexer alone


def text_config(ids):
    return {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * (LAYERS // 3),
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
        "output_gate_type": "sigmoid", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5,
                            "mrope_section": [3, 3, 2], "mrope_interleaved": True},
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96, "hc_count": STREAMS, "hc_lowrank": 16, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 64, "indexer_compress_ratio": 4,
        "ple_layer_ids": [2, 4], "ple_embed_dim": 128, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 6007, "make_ngram_vocab_size_divisible_by": 16, "split_ngram_parts": 4,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|endoftext|>"], "pad_token_id": None,
        "tie_word_embeddings": False, "max_position_embeddings": CONTEXT,
    }


class Indexer(reference.Qwen4ExpTextQSAIndexer):
    """All queries at once, for whole rows without padding or cache. Keeps the scores and the choice for the loss."""

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values):
        batch, length, _ = hidden_states.shape
        width, ratio = self.index_head_dim, self.compress_ratio
        cos, sin = position_embeddings
        q, keys = self.index_qk_proj(hidden_states.detach()).split([self.index_n_heads * width, width], dim=-1)
        q = self.q_layernorm(q.reshape(batch, length, -1, width))
        q = reference.apply_rotary_pos_emb(q, cos=cos, sin=sin, unsqueeze_dim=2)
        blocks = length // ratio
        pooled = keys[:, :blocks * ratio].float().reshape(batch, blocks, ratio, width).mean(dim=2).to(keys.dtype)
        starts = slice(0, blocks * ratio, ratio)
        pooled = reference.apply_rotary_pos_emb(self.k_layernorm(pooled).unsqueeze(2), cos=cos[:, starts],
                                                sin=sin[:, starts], unsqueeze_dim=2).squeeze(2)
        with torch.autocast("cpu", enabled=False):
            scores = torch.einsum("bthw,bkw->bthk", q.float(), pooled.float()).relu().sum(dim=2) / math.sqrt(width)
        position = torch.arange(length)
        complete = (position + 1) // ratio
        chosen = (torch.arange(blocks) < complete[:, None]).expand(batch, -1, -1)
        if length >= SPARSE_FROM or not self.training:
            best = scores.masked_fill(~chosen, -math.inf).topk(min(self.block_topk, blocks)).indices
            chosen = chosen & torch.zeros_like(chosen).scatter(-1, best, True)
        self.scores, self.chosen = scores, chosen
        seen = (position >= complete[:, None] * ratio).expand(batch, -1, -1).clone()
        seen[..., :blocks * ratio] |= chosen.repeat_interleave(ratio, dim=-1)
        return torch.where(seen, 0.0, torch.finfo(attention_mask.dtype).min).to(attention_mask.dtype).unsqueeze(1)

    def loss(self, attention):
        """Cross entropy between the share of attention [B, heads, T, T] that each seen block gets and the softmax of the
        scores, over the queries that have a choice to make."""
        scores, chosen = self.scores[:, self.token_budget:], self.chosen[:, self.token_budget:]
        blocks = scores.shape[-1]
        mass = attention.detach().float().mean(dim=1)[:, self.token_budget:, :blocks * self.compress_ratio]
        mass = mass.unflatten(-1, (blocks, self.compress_ratio)).sum(dim=-1) * chosen
        share = mass / mass.sum(dim=-1, keepdim=True).clamp_min(1e-6)
        return -(share * scores.masked_fill(~chosen, -1e9).log_softmax(dim=-1)).sum(dim=-1).mean()


def make_model(ids):
    config = Qwen4ExpTextConfig(**text_config(ids))
    model = Qwen4ExpForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")):
                p /= math.sqrt(2 * LAYERS)  # the branches of all layers start as large as one
    for module in model.modules():
        if isinstance(module, reference.Qwen4ExpTextQSAIndexer):
            module.__class__ = Indexer
        if isinstance(module, reference.Qwen4ExpTextAttention):
            module.register_forward_hook(keep_attention)
    model.set_attn_implementation("eager")
    model.set_experts_implementation("grouped_mm")
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_k=40, top_p=0.95, bos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]])
    return model


def keep_attention(module, _, output):
    module.probabilities = output[1]


def loss_of(model, batch):
    """Mean negative log-likelihood of every token but the first of each row; in training with the indexers' loss."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    if model.training:
        attention = [m for m in model.modules() if isinstance(m, reference.Qwen4ExpTextAttention)]
        loss = loss + INDEXER_SHARE * sum(m.indexer.loss(m.probabilities) for m in attention) / len(attention)
    return loss


def trapezoid(args, step):
    """Share of the largest rate: a linear warm-up, constant, then linear to nothing over the last quarter: a run that
    is resumed with fewer steps or more keeps its rate until then."""
    return min(1, (step + 1) / args.warmup, 4 * (args.steps - step) / args.steps)


def main():
    args = parse_arguments(__doc__, steps=2000, stages="256:0.4,512:0.92,2048:1", rate=3e-3, save_every=250)
    train(args, make_model, loss_of, trapezoid)


if __name__ == "__main__":
    main()
