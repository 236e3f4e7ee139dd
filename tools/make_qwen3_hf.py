#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random Qwen3 folder in Hugging Face form: config.json, model.safetensors and a generated tokenizer.

Input for export_qwen3.py and for checks against transformers. The weights mean nothing; they are scaled so that
activations stay near one, and rounded to bfloat16 as published checkpoints are. Needs requirements-models.txt.
"""

import argparse
import math
import os

import torch
from qwen_tokenizer import write_generated_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM


def random_weights(model, seed):
    """Gaussian weights of standard deviation 1/sqrt(inputs), norm weights near one, all of them bfloat16 values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                value = 1 + 0.1 * torch.randn(p.shape, generator=generator)
            elif "embed_tokens" in name:
                value = torch.randn(p.shape, generator=generator)
            else:
                # Twice the spread for the head: greedy decoding then has a margin between first and second token.
                spread = (2.0 if "lm_head" in name else 1.0) / math.sqrt(p.shape[1])
                value = spread * torch.randn(p.shape, generator=generator)
            p.copy_(value.to(torch.bfloat16))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=640)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rope-theta", type=float, default=1e6)
    parser.add_argument("--tied", action="store_true", help="one matrix for the embedding and the head")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="type of the stored weights")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    os.makedirs(args.out, exist_ok=True)
    ids = write_generated_tokenizer(args.out, args.vocab, args.context)
    config = Qwen3Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.intermediate,
        num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim, max_position_embeddings=args.context, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": args.rope_theta},
        tie_word_embeddings=args.tied, attention_bias=False, use_sliding_window=False,
        bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"],
    )
    model = Qwen3ForCausalLM(config)
    random_weights(model, args.seed)
    model.to(getattr(torch, args.dtype)).save_pretrained(args.out)
    print(f"{args.out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
