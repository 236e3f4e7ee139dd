# SPDX-License-Identifier: Apache-2.0
"""Tokenizer files in the form Qwen3 publishes: byte-level BPE with the Qwen split rule, NFC and added tokens.

Owns the constants of that form and the writing of tokenizer.json and tokenizer_config.json, for generated test models
and for the demo model. It does not train anything and needs only the standard library.
"""

import json
import os

# The Qwen pre-tokenizer: contractions, words, single digits, runs of punctuation, line ends, blanks.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The 26 added tokens of Qwen3 in id order; the flag says whether a decoder may skip the token as special.
QWEN3_ADDED = [
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<|object_ref_start|>", True), ("<|object_ref_end|>", True), ("<|box_start|>", True), ("<|box_end|>", True),
    ("<|quad_start|>", True), ("<|quad_end|>", True), ("<|vision_start|>", True), ("<|vision_end|>", True),
    ("<|vision_pad|>", True), ("<|image_pad|>", True), ("<|video_pad|>", True),
    ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False), ("<|fim_pad|>", False),
    ("<|repo_name|>", False), ("<|file_sep|>", False),
    ("<tool_response>", False), ("</tool_response>", False), ("<think>", False), ("</think>", False),
]
# The part of them a text-only model without tools needs.
SMALL_ADDED = [QWEN3_ADDED[0], QWEN3_ADDED[1], QWEN3_ADDED[2], QWEN3_ADDED[24], QWEN3_ADDED[25]]

# Turns as Qwen3 writes them, without tools and without the rewriting of old reasoning.
SMALL_CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}"
)


def byte_alphabet():
    """The 256 one-character names of the bytes, in the id order of GPT-2 and Qwen: printable bytes first."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


def systematic_merges(count):
    """`count` merges made by pairing frequent letters and then their pairs; the same list every time."""
    tokens = list("\u0120etaoinshrdlucmfwygpbvkxjqzTAIHSWBCMNDELPRGFO,.")  # U+0120 is the name of the blank
    known, merges = set(tokens), []
    total = 1
    while len(merges) < count:
        for i in range(total + 1):
            j = total - i
            if i >= len(tokens) or j >= len(tokens) or tokens[j].startswith("\u0120"):
                continue
            merged = tokens[i] + tokens[j]
            if merged in known:
                continue
            known.add(merged)
            tokens.append(merged)
            merges.append([tokens[i], tokens[j]])
            if len(merges) == count:
                break
        total += 1
    return merges


def tokenizer_json(vocab, merges, added):
    """The content of tokenizer.json; added tokens take the ids after the vocabulary."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
            for i, (text, special) in enumerate(added)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }


def tokenizer_config(first_added_id, added, chat_template, model_max_length):
    """The content of tokenizer_config.json, with the fields of the published Qwen3 file."""
    skippable = [text for text, special in added if special and text != "<|endoftext|>"]
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(first_added_id + i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                                      "single_word": False, "special": special}
            for i, (text, special) in enumerate(added)
        },
        "additional_special_tokens": skippable,
        "bos_token": None,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": model_max_length,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def write_tokenizer(folder, vocab, merges, added, model_max_length, chat_template=SMALL_CHAT_TEMPLATE):
    """Writes both files; returns the ids of the added tokens by text."""
    os.makedirs(folder, exist_ok=True)
    files = {
        "tokenizer.json": tokenizer_json(vocab, merges, added),
        "tokenizer_config.json": tokenizer_config(len(vocab), added, chat_template, model_max_length),
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as f:
            json.dump(content, f, ensure_ascii=False, indent=2)
            f.write("\n")
    return {text: len(vocab) + i for i, (text, _) in enumerate(added)}


def write_generated_tokenizer(folder, vocab_size, model_max_length):
    """An untrained tokenizer with exactly `vocab_size` ids: bytes, systematic merges, the added tokens last."""
    alphabet = byte_alphabet()
    added = QWEN3_ADDED if vocab_size >= len(alphabet) + len(QWEN3_ADDED) else SMALL_ADDED
    merge_count = vocab_size - len(alphabet) - len(added)
    if merge_count < 0:
        raise ValueError(f"a byte-level vocabulary needs at least {len(alphabet) + len(added)} ids, not {vocab_size}")
    merges = systematic_merges(merge_count)
    vocab = {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}
    return write_tokenizer(folder, vocab, merges, added, model_max_length)
