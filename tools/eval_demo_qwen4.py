#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Publishes the second demo: writes the checkpoint of train_demo_qwen4.py in the published layout with bfloat16 weights,
measures it with transformers and writes reference.json (which tests compare quern with) and the README.

The text that is scored is models/demo/heldout.txt, held out by both demos. Needs requirements-models.txt.
"""
import argparse
import importlib.metadata
import json
import math
import pathlib
import shutil

import ml_dtypes
import numpy as np
import qwen4_layout as layout
import torch
from eval_demo import HELD_OUT_BYTES, PROMPTS, SAMPLE_SEED, SAMPLE_TOKENS, negative_log_likelihood, package_version
from make_qwen4_checkpoint import FROZEN, ROOT, write_json, write_weights
from tokenizers import Tokenizer
from train_demo import VERSES, read_chapters, split_chapters, turn
from train_demo_qwen4 import text_config
from transformers import AutoModelForCausalLM

WINDOW = 512  # tokens that are scored without what is before them
MOST_BYTES = 12_000_000


class Trained:
    """Values of the trained tensors by the canonical name, as write_weights() takes them."""

    def __init__(self, state, config):
        self.state, self.config = state, layout.with_defaults(config)

    def pieces(self, name, shape):
        base, _, shard = name.removesuffix(".weight").partition(".shard_")
        if shard:
            table = self.state[f"model.{base}.weight"]
            begin = int(shard) * -(-len(table) // self.config["split_ngram_parts"])
            values = table[begin:begin + shape[0]]
        else:
            values = self.state[name if name == "lm_head.weight" else f"model.{name}"]
        if list(values.shape) != list(shape):
            raise SystemExit(f"{name} has shape {list(values.shape)}, the layout {shape}")
        yield values.numpy() if layout.is_integer(name) else values.numpy().astype(ml_dtypes.bfloat16)


def write_checkpoint(work, out):
    ids = Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json")).get_vocab()
    text = {"model_type": "qwen4_exp_text", "dtype": "bfloat16", **text_config(ids)}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", {**json.loads((FROZEN / "config.json").read_text()), "text_config": text})
    shutil.copy(work / "hf" / "generation_config.json", out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(work / "tokenizer" / name, out)
    state = torch.load(work / "hf" / "state.pt", weights_only=True)["model"]
    write_weights(out, layout.text_tensors(text), Trained(state, text), lambda name: name.removeprefix(layout.PREFIX), files=1)
    return text


def count_choices(model):
    """Filled while the model runs: how often each expert of each layer was chosen."""
    routers = [layer.mlp.gate for layer in model.model.layers]
    counts = np.zeros((len(routers), routers[0].num_experts), np.int64)
    for i, router in enumerate(routers):
        router.register_forward_hook(
            lambda m, _, o, i=i: counts.__setitem__(i, counts[i] + np.bincount(o[2].flatten().numpy(), minlength=len(counts[i]))))
    return counts


@torch.no_grad()
def measure(model, pieces):
    """Mean negative log-likelihood of all tokens but the first of each piece."""
    total = sum(negative_log_likelihood(model(torch.tensor([ids])).logits[0].float().numpy(), ids) for ids in pieces)
    return total / sum(len(ids) - 1 for ids in pieces)


@torch.no_grad()
def sample(model, tokenizer, kind, prompt):
    text = prompt if kind == "text" else turn("user", prompt) + "<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(text).ids])
    torch.manual_seed(SAMPLE_SEED)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=SAMPLE_TOKENS)[0, ids.shape[1]:].tolist()
    return tokenizer.decode([i for i in made if i not in model.generation_config.eos_token_id], skip_special_tokens=False).strip("\n")


def write_readme(out, text, training, facts, samples):
    c, router = text, facts["router"]
    held = len(split_chapters(read_chapters())[1])
    shown = "\n\n".join(f"{'Chat' if kind == 'chat' else 'Text'}, prompt `{prompt.strip()}`:\n\n```\n{answer}\n```"
                        for kind, prompt, answer in samples)
    layers = "\n".join(f"| {i} | {row['largest_share']:.1%} | {row['smallest_share']:.1%} | {row['effective_experts']:.1f} |"
                       for i, row in enumerate(router))
    (out / "README.md").write_text(f"""# Demo model of qwen4_exp

A small qwen4_exp in the layout of the published checkpoint, trained from nothing on one book. It shows that every
mechanism of the architecture works on weights that mean something; it knows nothing but the style of its text.

## Where it comes from

| | |
| --- | --- |
| text, split, chat, tokenizer | those of `models/demo`: the King James Version, all {VERSES:,} verses, as printed by the Debian packages bible-kjv {package_version('bible-kjv')} and bible-kjv-text {package_version('bible-kjv-text')}; {held} chapters held out |
| model | {training['parameters']:,} parameters in bfloat16: H={c['hidden_size']}, {c['hc_count']} streams, {c['num_hidden_layers']} layers (every third sparse attention, the others gated delta rule), {c['num_experts']} experts of which {c['num_experts_per_tok']} and a shared one for each token, n-gram embeddings before layers {', '.join(str(i - 1) for i in c['ple_layer_ids'])} ({layout.table_rows(c, 0):,} and {layout.table_rows(c, 1):,} rows of {c['ple_embed_dim'] // ((c['ngram_size'] - 1) * c['heads_per_ngram'])}); the indexer keeps {c['indexer_budget']} tokens in blocks of {c['indexer_compress_ratio']}; context {c['max_position_embeddings']:,} |
| training | `tools/train_demo_qwen4.py WORK --steps {training['steps']} --seed {training['seed']} --threads {training['threads']}`, here at step {training['step']:,}: AdamW, {training['rate']:g}, linear to nothing over the last quarter, weight decay {training['decay']:g}, {training['batch_tokens']:,} tokens a step (rows `{training['stages']}`), {training['tokens_seen'] / 1e6:.1f} million tokens in all, no loss that balances the router; the indexer learns to rank blocks by the attention that they get; {training['processor_seconds'] / 60:.0f} minutes of processor time |
| export | `tools/eval_demo_qwen4.py WORK models/demo-qwen4` |
| versions | {facts['versions']} |

The weights and the files made from them are under the licence of this repository.

## Held-out quality

`models/demo/heldout.txt` in pieces of {WINDOW} tokens, each without context, by transformers (float32, eager attention, eager
experts): mean negative log-likelihood {facts['mean_negative_log_likelihood']:.4f}, perplexity {math.exp(facts['mean_negative_log_likelihood']):.2f}. `reference.json` has the figures.

## The router

Over the same text: the share of all choices that the most and the least chosen expert of a layer get (even: {1 / c['num_experts']:.1%}), and
how many equally chosen experts would have the same entropy (of {c['num_experts']}).

| layer | most | least | effective experts |
| --- | --- | --- | --- |
{layers}

## Samples

transformers, temperature, top-k and top-p of `generation_config.json`, seed {SAMPLE_SEED}, at most {SAMPLE_TOKENS} tokens. Greedy decoding of so
small a model runs into loops; sample it.

{shown}
""", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="folder of train_demo_qwen4.py")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    training = json.loads((args.work / "hf" / "training.json").read_text())
    text = write_checkpoint(args.work, args.out)
    model = AutoModelForCausalLM.from_pretrained(args.out, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    heldout = (ROOT / "models" / "demo" / "heldout.txt").read_text(encoding="utf-8")
    assert len(heldout) <= HELD_OUT_BYTES
    ids = tokenizer.encode(heldout).ids
    counts = count_choices(model)
    loss = measure(model, [ids[i:i + WINDOW] for i in range(0, len(ids), WINDOW)])
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
    facts = {
        "generator": "tools/eval_demo_qwen4.py",
        "versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "tokenizers")),
        "text": "models/demo/heldout.txt", "window_tokens": WINDOW, "tokens": len(ids), "mean_negative_log_likelihood": loss,
        "router": [{"largest_share": float(row.max()), "smallest_share": float(row.min()), "effective_experts": float(np.exp(e))}
                   for row, e in zip(shares, entropy)],
    }
    write_json(args.out / "reference.json", facts)
    samples = [(kind, prompt, sample(model, tokenizer, kind, prompt)) for kind, prompt in PROMPTS]
    write_readme(args.out, text, training, facts, samples)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"perplexity {math.exp(loss):.2f}, {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{args.out} takes more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
