#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo: a small dense Qwen3 on the King James Bible, with a tokenizer of its own, on the CPU.

Owns the text (from the Debian package bible-kjv), its split, the chat samples made from it, the tokenizer and the
training loop. Writes a Hugging Face folder that can be exported at any time, and resumes where it was stopped.
eval_demo.py turns that folder into models/demo. Needs requirements-models.txt.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import time

import numpy as np
import torch
from qwen_tokenizer import SMALL_ADDED, SPLIT_PATTERN, write_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

BOOKS = (
    "Genesis,Exodus,Leviticus,Numbers,Deuteronomy,Joshua,Judges,Ruth,1 Samuel,2 Samuel,1 Kings,2 Kings,1 Chronicles,"
    "2 Chronicles,Ezra,Nehemiah,Esther,Job,Psalms,Proverbs,Ecclesiastes,Song of Solomon,Isaiah,Jeremiah,Lamentations,"
    "Ezekiel,Daniel,Hosea,Joel,Amos,Obadiah,Jonah,Micah,Nahum,Habakkuk,Zephaniah,Haggai,Zechariah,Malachi,Matthew,Mark,"
    "Luke,John,Acts,Romans,1 Corinthians,2 Corinthians,Galatians,Ephesians,Philippians,Colossians,1 Thessalonians,"
    "2 Thessalonians,1 Timothy,2 Timothy,Titus,Philemon,Hebrews,James,1 Peter,2 Peter,1 John,2 John,3 John,Jude,"
    "Revelation"
).split(",")
VERSES = 31102
HELD_OUT_EVERY = 20  # chapters; whole chapters, so that no neighbouring verse is known

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 2048, 256, 640, 4, 4, 2, 128, 2048
THETA = 1e6
# No projection may have as many outputs as the vocabulary: the exporter takes any such layer for the head.
assert VOCAB not in (INTERMEDIATE, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)


# Text -----------------------------------------------------------------------------------------------------------------

def read_chapters():
    """All chapters in order: (title, [verse, ...])."""
    printed = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True).stdout
    chapters, books, count = [], [], 0
    for line in printed.splitlines():
        book, chapter, verse, text = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+) (.+)", line).groups()
        if not books or books[-1] != book:
            books.append(book)
        if verse == "1":
            chapters.append((f"{BOOKS[len(books) - 1]} {chapter}", []))
        chapters[-1][1].append(" ".join(text.split()))
        count += 1
    if count != VERSES or len(books) != len(BOOKS):
        raise SystemExit(f"bible printed {count} verses in {len(books)} books, not {VERSES} in {len(BOOKS)}")
    return chapters


def split_chapters(chapters):
    """(training, held out)."""
    held = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    return [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1], held


def chapter_text(chapter):
    """A document: the title, then one verse a line."""
    title, verses = chapter
    return title + "\n\n" + "\n".join(verses) + "\n"


def turn(role, content):
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def chat_exchange(rng, chapter):
    """One question and its answer about a verse of the chapter, in the form of the chat template."""
    title, verses = chapter
    number = rng.randrange(len(verses))
    verse, kind = verses[number], rng.random()
    words = verse.split(" ")
    if kind < 0.4 and len(words) >= 8:
        cut = rng.randrange(3, len(words) - 3)
        ask, answer = " ".join(words[:cut]), " ".join(words[cut:])
    elif kind < 0.7:
        names = [w for w in re.findall(r"[A-Za-z]+", verse) if len(w) > 4] or words
        ask, answer = f"A verse about {rng.choice(names)}", verse
    elif kind < 0.85:
        ask, answer = f"A verse from {title.rsplit(' ', 1)[0]}", verse
    else:
        ask, answer = f"{title}:{number + 1}", verse
    # The empty block is what the template writes when thinking is switched off.
    block = "<think>\n\n</think>\n\n" if rng.random() < 0.5 else ""
    return turn("user", ask) + turn("assistant", block + answer)


def chat_text(rng, chapters):
    """A document: a conversation of one to three exchanges."""
    return "".join(chat_exchange(rng, rng.choice(chapters)) for _ in range(rng.choice((1, 1, 2, 3))))


# Tokenizer ------------------------------------------------------------------------------------------------------------

def make_tokenizer(folder, chapters):
    """Byte-level BPE in Qwen form, trained on the training chapters."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    bpe.decoder = decoders.ByteLevel()
    roles = ["user\n", "assistant\n", "system\n", "A verse about ", "A verse from "] * 1000
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SMALL_ADDED), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator([chapter_text(c) for c in chapters] + roles, trainer)
    model = json.loads(bpe.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    ids = write_tokenizer(folder, vocab, model["merges"], SMALL_ADDED, CONTEXT)
    if len(vocab) + len(ids) != VOCAB:
        raise SystemExit(f"the tokenizer has {len(vocab) + len(ids)} ids, not {VOCAB}")
    return ids


class TokenStream:
    """Endless training tokens: epochs of shuffled chapters with conversations among them, an end mark after each."""

    def __init__(self, tokenizer, chapters, end, chat_share, seed):
        self.tokenizer, self.chapters, self.end = tokenizer, chapters, end
        self.bodies = [np.array(e.ids + [end], np.int16) for e in tokenizer.encode_batch([chapter_text(c) for c in chapters])]
        self.chat_share, self.rng = chat_share, random.Random(seed)
        self.epoch_tokens = sum(map(len, self.bodies))
        self.buffer, self.epochs = np.empty(0, np.int16), 0

    def refill(self):
        documents, wanted, made = list(self.bodies), self.epoch_tokens * self.chat_share, 0
        while made < wanted:
            texts = [chat_text(self.rng, self.chapters) for _ in range(256)]
            # Conversations come in groups between two chapters, each with its own end mark.
            group = [np.array(e.ids + [self.end], np.int16) for e in self.tokenizer.encode_batch(texts)]
            documents += group
            made += sum(map(len, group))
        self.rng.shuffle(documents)
        self.buffer = np.concatenate([self.buffer, *documents])
        self.epochs += 1

    def batch(self, rows, length):
        need = rows * length
        while len(self.buffer) < need:
            self.refill()
        taken, self.buffer = self.buffer[:need], self.buffer[need:]
        return torch.from_numpy(taken.astype(np.int64).reshape(rows, length))


# Rows from this length on train faster with the fused CPU attention than with plain matrix products (measured).
FUSED_ATTENTION_FROM = 1024


def parse_stages(text):
    """'256:0.5,2048:1' to [(row length, share of the steps at its end)]; short rows first, because they are cheap.

    The last stage sees whole chapters at once, so that positions up to the context length are known.
    """
    stages = [(int(length), float(end)) for length, end in (part.split(":") for part in text.split(","))]
    if stages[-1][1] != 1 or any(length > CONTEXT for length, _ in stages):
        raise SystemExit(f"--stages {text}: the last share must be 1 and no length above {CONTEXT}")
    return stages


# Training -------------------------------------------------------------------------------------------------------------

def make_model(ids):
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": THETA}, tie_word_embeddings=True,
        attention_bias=False, use_sliding_window=False, initializer_range=0.02,
        bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"],
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p /= math.sqrt(2 * LAYERS)  # the branches of all layers start as large as one
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_k=40, top_p=0.95, bos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]])
    return model


def loss_of(model, batch):
    """Mean negative log-likelihood of every token but the first of each row."""
    model.set_attn_implementation("eager" if batch.shape[1] < FUSED_ATTENTION_FROM else "sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def cosine(args, step):
    """Share of the largest rate: a linear warm-up, then a cosine down to a fiftieth."""
    progress = max(0, step - args.warmup) / max(1, args.steps - args.warmup)
    return min(1, (step + 1) / args.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def held_out_loss(model, loss_of, tokens, length=512):
    """Over consecutive pieces of the held-out text; pieces start without context."""
    model.eval()
    rows = torch.from_numpy(tokens[: len(tokens) // length * length].astype(np.int64).reshape(-1, length))
    losses = [loss_of(model, part).item() * len(part) for part in rows.split(8)]
    model.train()
    return sum(losses) / len(rows)


def save(model, optimizer, facts, folder):
    """The folder is replaced as a whole: whoever exports it meanwhile sees one step or the other."""
    written, old = folder + ".new", folder + ".old"
    shutil.rmtree(written, ignore_errors=True)
    shutil.copytree(os.path.dirname(folder) + "/tokenizer", written)
    model.save_pretrained(written)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, written + "/state.pt")
    with open(written + "/training.json", "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=2)
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(folder):
        os.rename(folder, old)
    os.rename(written, folder)
    shutil.rmtree(old, ignore_errors=True)


def train(args, make_model, loss_of, schedule):
    """`make_model(ids)` from the ids of the added tokens, `loss_of(model, batch)` of rows of token ids,
    `schedule(args, step)` as cosine()."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    training, held = split_chapters(read_chapters())
    ids = make_tokenizer(args.work + "/tokenizer", training)
    tokenizer = Tokenizer.from_file(args.work + "/tokenizer/tokenizer.json")
    stream = TokenStream(tokenizer, training, ids["<|endoftext|>"], args.chat_share, args.seed)
    held_tokens = np.concatenate([np.array(e.ids + [ids["<|endoftext|>"]]) for e in
                                  tokenizer.encode_batch([chapter_text(c) for c in held])])
    model = make_model(ids)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.rate, betas=(0.9, 0.95), fused=True)
    folder, first, spent = args.work + "/hf", 0, 0
    if args.resume:
        state = torch.load(folder + "/state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        with open(folder + "/training.json", encoding="utf-8") as f:
            known = json.load(f)
        first, spent = known["step"], known["processor_seconds"]
    stages = parse_stages(args.stages)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {stream.epoch_tokens:,} tokens of text, "
          f"{len(held_tokens):,} held out", flush=True)
    facts = {k: v for k, v in vars(args).items() if k not in ("work", "resume")}
    facts["parameters"] = sum(p.numel() for p in model.parameters())
    used, recent = time.process_time(), []
    for step in range(args.steps):
        length = next(length for length, end in stages if step < end * args.steps)
        batch = stream.batch(args.batch_tokens // length, length)
        if step < first:
            continue
        rate = args.rate * schedule(args, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {np.mean(recent):.4f} rate {rate:.2e} epoch {stream.epochs} "
                  f"{time.process_time() - used:.0f} s of processor time", flush=True)
            recent = []
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            print(f"step {step + 1} held-out loss {held_out_loss(model, loss_of, held_tokens):.4f}", flush=True)
            facts |= {"step": step + 1, "tokens_seen": (step + 1) * args.batch_tokens, "epochs": stream.epochs}
            facts["processor_seconds"] = spent + round(time.process_time() - used)
            save(model, optimizer, facts, folder)


def parse_arguments(description, steps, stages, rate, save_every):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK", help="folder for the tokenizer, the checkpoint and the log of settings")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--stages", default=stages, help="row lengths and where each ends")
    parser.add_argument("--chat-share", type=float, default=0.15, help="chat tokens for one token of plain text")
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=save_every)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main():
    args = parse_arguments(__doc__, steps=4400, stages="256:0.55,512:0.9,2048:1", rate=2e-3, save_every=250)
    train(args, make_model, loss_of, cosine)


if __name__ == "__main__":
    main()
