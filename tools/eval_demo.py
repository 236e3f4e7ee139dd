#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Publishes the demo: exports the checkpoint of train_demo.py to INT4 ONNX, measures both forms and writes the README.

Owns the held-out measurement (float model by torch, exported model by ONNX Runtime), the samples and the text sample
heldout.txt. Needs requirements-models.txt.
"""

import argparse
import importlib.metadata
import json
import math
import os
import subprocess

import numpy as np
import onnxruntime
import torch
from export_qwen3 import export
from tokenizers import Tokenizer
from train_demo import CONTEXT, VERSES, chapter_text, read_chapters, split_chapters, turn
from transformers import Qwen3ForCausalLM

HELD_OUT_BYTES = 50_000  # of the text sample
SAMPLE_TOKENS, SAMPLE_SEED = 160, 7
PROMPTS = [
    ("text", "Genesis 51\n\n"),
    ("text", "In the beginning"),
    ("chat", "A verse about Jerusalem"),
    ("chat", "And the LORD said unto Moses,"),
]


class Exported:
    """The INT4 model in ONNX Runtime, with its cache kept as plain arrays."""

    def __init__(self, folder, threads):
        with open(os.path.join(folder, "genai_config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        decoder = self.config["model"]["decoder"]
        self.cache = [f"{i}.{kind}" for i in range(decoder["num_hidden_layers"]) for kind in ("key", "value")]
        self.empty = np.zeros((1, decoder["num_key_value_heads"], 0, decoder["head_size"]), np.float32)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, ["CPUExecutionProvider"])

    def forward(self, ids, past=None):
        """[len(ids), V] logits and the cache after them."""
        past = past or [self.empty] * len(self.cache)
        feeds = {f"past_key_values.{name}": array for name, array in zip(self.cache, past)}
        feeds["input_ids"] = np.array([ids], np.int64)
        feeds["attention_mask"] = np.ones((1, past[0].shape[2] + len(ids)), np.int64)
        logits, *present = self.session.run(["logits"] + [f"present.{name}" for name in self.cache], feeds)
        return logits[0], present

    def generate(self, ids, count, seed):
        """Sampling with the defaults of genai_config.json and a fixed seed."""
        search, rng = self.config["search"], np.random.default_rng(seed)
        logits, past = self.forward(ids)
        made = []
        while len(made) < count:
            order = np.argsort(-logits[-1], kind="stable")[: search["top_k"]]
            p = np.exp((logits[-1][order] - logits[-1][order[0]]).astype(np.float64) / search["temperature"])
            p /= p.sum()
            p[np.cumsum(p) - p >= search["top_p"]] = 0
            token = int(rng.choice(order, p=p / p.sum()))
            if token in self.config["model"]["eos_token_id"]:
                break
            made.append(token)
            logits, past = self.forward([token], past)
        return made


def negative_log_likelihood(logits, ids):
    """Sum over all tokens but the first."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return float((np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), ids[1:]]).sum())


def mean_loss(forward, documents):
    """Per token over all documents, each on its own from its first token."""
    return sum(negative_log_likelihood(forward(ids), ids) for ids in documents) / sum(len(ids) - 1 for ids in documents)


def float_forward(folder):
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def forward(ids):
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()
    return forward


def write_held_out(chapters, path):
    """Whole chapters from all over the book, as many as fit."""
    text, stride = "", 2  # of the held-out chapters, so that the sample reaches beyond the first books
    for chapter in chapters[::stride]:
        part = chapter_text(chapter) + "\n"
        if len(text) + len(part) <= HELD_OUT_BYTES:
            text += part
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


def package_version(name):
    shown = subprocess.run(["dpkg-query", "-W", "-f=${Version}", name], capture_output=True, text=True)
    return shown.stdout or "unknown"


def write_readme(out, config, training, held, results, samples):
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in
                         ("torch", "transformers", "onnxruntime-genai", "onnxruntime", "tokenizers"))
    rows = "\n".join(f"| {name} | {loss:.4f} | {math.exp(loss):.2f} |" for name, loss in results.items())
    shown = "\n\n".join(f"{'Chat' if kind == 'chat' else 'Text'}, prompt `{prompt.strip()}`:\n\n```\n{answer}\n```"
                        for kind, prompt, answer in samples)
    text = f"""# Demo model

A small dense Qwen3, trained from nothing on one book, exported as INT4 ONNX. It shows that the engine runs; it knows
nothing but the style of its text.

## Where it comes from

| | |
| --- | --- |
| text | King James Version of the Bible, all {VERSES:,} verses, out of copyright, as printed by the program `bible` of the Debian packages bible-kjv {package_version('bible-kjv')} and bible-kjv-text {package_version('bible-kjv-text')} |
| split | every 20th chapter is held out ({held} chapters); chapters are documents that end with `<\\|endoftext\\|>` |
| chat | {training['chat_share']:.0%} of the amount of text once more as short conversations in the chat template: the start of a verse, a word, a book or a reference is asked, a verse answers |
| tokenizer | byte-level BPE in Qwen form, {config['vocab_size']:,} ids with 5 added tokens, trained on the training chapters |
| model | {training['parameters']:,} parameters, tied embedding; H={config['hidden_size']}, L={config['num_hidden_layers']}, Nq={config['num_attention_heads']}, Nk={config['num_key_value_heads']}, D={config['head_dim']}, I={config['intermediate_size']}, context {config['max_position_embeddings']:,}, RoPE theta {config['rope_parameters']['rope_theta']:,.0f} |
| training | `tools/train_demo.py WORK --steps {training['steps']} --seed {training['seed']} --threads {training['threads']}`, here at step {training['step']:,}: AdamW, cosine from {training['rate']:g}, weight decay {training['decay']:g}, {training['batch_tokens']:,} tokens a step (rows `{training['stages']}`), {training['tokens_seen'] / 1e6:.1f} million tokens in all (the run ends in pass {training['epochs']} over the text), bfloat16 products, {training['processor_seconds'] / 60:.0f} minutes of processor time |
| export | `tools/eval_demo.py WORK models/demo`: the ONNX Runtime GenAI model builder, INT4 block 32 symmetric, accuracy level 4, graph unchanged |
| versions | {packages} |

The weights and the files made from them are under the licence of this repository.

## Held-out quality

Mean negative log-likelihood per token and perplexity. Each held-out chapter is read from its first token, up to
{CONTEXT:,} tokens. `heldout.txt` is a part of that text; it is read in pieces of 512 tokens, each without context.

| | loss | perplexity |
| --- | --- | --- |
{rows}

## Samples

ONNX Runtime, temperature, top-k and top-p of `genai_config.json`, seed {SAMPLE_SEED}, at most {SAMPLE_TOKENS} tokens. Greedy decoding of so small
a model runs into loops; sample it.

{shown}
"""
    with open(os.path.join(out, "README.md"), "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK", help="folder of train_demo.py")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = os.path.join(args.work, "hf")
    with open(os.path.join(source, "training.json"), encoding="utf-8") as f:
        training = json.load(f)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    forward = float_forward(source)
    export(source, args.out)
    _, held = split_chapters(read_chapters())
    write_held_out(held, os.path.join(args.out, "heldout.txt"))
    tokenizer = Tokenizer.from_file(os.path.join(args.out, "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    chapters = [(tokenizer.encode(chapter_text(c)).ids + [end])[:CONTEXT] for c in held]
    with open(os.path.join(args.out, "heldout.txt"), encoding="utf-8") as f:
        ids = tokenizer.encode(f.read()).ids
    pieces = [ids[i:i + 512] for i in range(0, len(ids), 512)]
    exported = Exported(args.out, args.threads)
    results = {
        "float32, chapters (torch)": mean_loss(forward, chapters),
        "INT4, chapters (ONNX Runtime)": mean_loss(lambda ids: exported.forward(ids)[0], chapters),
        "float32, heldout.txt (torch)": mean_loss(forward, pieces),
        "INT4, heldout.txt (ONNX Runtime)": mean_loss(lambda ids: exported.forward(ids)[0], pieces),
    }
    samples = []
    for kind, prompt in PROMPTS:
        text = prompt if kind == "text" else turn("user", prompt) + "<|im_start|>assistant\n"
        made = exported.generate(tokenizer.encode(text).ids, SAMPLE_TOKENS, SAMPLE_SEED)
        samples.append((kind, prompt, tokenizer.decode(made, skip_special_tokens=False).strip("\n")))
    write_readme(args.out, config, training, len(held), results, samples)
    for name, loss in results.items():
        print(f"{name}: {loss:.4f}, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
