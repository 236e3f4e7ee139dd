#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes qwen4_exp checkpoints in the published layout: config.json, generation_config.json and safetensors files.

    make_qwen4_checkpoint.py OUT --preset tiny              8 layers, every mechanism, some 1 MB
    make_qwen4_checkpoint.py OUT --preset wide              4 layers at the widths of the published model, 2.1 GB
    make_qwen4_checkpoint.py OUT --config FILE              a text configuration of one's own
    make_qwen4_checkpoint.py OUT --sparse-full              all 131 files of the published checkpoint as sparse files:
                                                            headers, sizes, index and hash constants are real, weights zero

--set FIELD=JSON changes a field of the text configuration (null removes it). The weights are random and drawn so that no
gate is half open, no router even and no state constant; a tensor's values depend on the seed and its name only, so fused
and separate experts, other shards and other files hold the same model. Values are bfloat16. Needs requirements-oracle.txt.
"""
import argparse
import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import qwen4_layout as layout
from qwen_tokenizer import write_generated_tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
FROZEN = ROOT / "testdata" / "qwen4"
# Rows of an n-gram table that are drawn together.
TABLE_BLOCK = 1 << 16
SMALLEST_TOKENIZER = 261  # ids: the bytes and the added tokens


# ---- values ----

def generator(seed, name):
    return np.random.default_rng(np.frombuffer(hashlib.sha256(f"{seed}:{name}".encode()).digest(), np.uint32))


def fan_in(shape):
    return shape[-1]


# Suffix of the name -> values from a generator and a shape. The first that fits counts; linear weights are the rest.
def normal(spread):
    return lambda rng, shape: rng.standard_normal(shape, np.float32) * np.float32(spread)


def linear(gain=1.0):
    return lambda rng, shape: rng.standard_normal(shape, np.float32) * np.float32(gain / fan_in(shape) ** 0.5)


def uniform(low, high):
    return lambda rng, shape: rng.uniform(low, high, shape).astype(np.float32)


RULES = [
    (("linear_attn.norm.weight",), uniform(0.5, 1.5)),
    (("norm.weight", "norm_key.weight", "norm_query.weight", "norm_conv.weight"), normal(0.3)),
    (("conv1d.weight",), normal(0.4)),
    (("A_log",), lambda rng, shape: np.log(rng.uniform(0.5, 8, shape)).astype(np.float32)),
    (("dt_bias",), uniform(-4, 1)),
    (("embed_tokens.weight", "ngram_embedding"), normal(1)),
    (("mlp.gate.weight", "in_proj_a.weight", "in_proj_b.weight", "q_proj.weight"), linear(1.75)),
    (("input_mix_weight_down.weight",), linear(3)),
    (("block_inject_weight.weight",), linear(4)),
    (("",), linear()),
]


def draw(seed, name, shape):
    """Float values of a tensor that is stored under this name in the form of separate experts and one n-gram table."""
    rule = next(rule for suffixes, rule in RULES if name.endswith(suffixes))
    return rule(generator(seed, name), shape)


def table_part(seed, name, begin, rows, width):
    """Rows of an n-gram table, the same however it is cut."""
    parts = []
    for block in range(begin // TABLE_BLOCK, -(-(begin + rows) // TABLE_BLOCK)):
        first = block * TABLE_BLOCK
        values = draw(seed, f"{block}:{name}", (TABLE_BLOCK, width))
        parts.append(values[max(begin - first, 0):begin + rows - first])
    return np.concatenate(parts)


def experts(seed, stack, shape):
    """Fused experts, one after the other; rows of the gate before rows of the up projection."""
    count, rows, columns = shape
    base = stack.rsplit(".", 1)[0]
    for e in range(count):
        if stack.endswith("gate_up_proj"):
            for part in ("gate_proj", "up_proj"):
                yield draw(seed, f"{base}.{e}.{part}.weight", (rows // 2, columns))
        else:
            yield draw(seed, f"{base}.{e}.down_proj.weight", (rows, columns))


class Values:
    """Values of the tensors of one model, in pieces, by the canonical name (without the prefix of the files)."""

    def __init__(self, config, seed):
        self.config, self.seed = layout.with_defaults(config), seed

    def hash_constants(self, name):
        layer = int(name.split(".")[1])
        index = self.config["ple_layer_ids"].index(layer + 1)
        sizes = layout.head_sizes(self.config, index)
        return {"layer_multipliers": layout.multipliers(self.config, index), "ngram_heads_vocab_sizes": sizes,
                "ngram_heads_offsets": layout.offsets(sizes)}[name.rsplit(".", 1)[1]]

    def pieces(self, name, shape):
        if layout.is_integer(name):
            yield np.array(self.hash_constants(name), "<i8")
            return
        if ".shard_" in name:
            table, shard = name.removesuffix(".weight").split(".shard_")
            layer = int(name.split(".")[1])
            rows = layout.table_rows(self.config, self.config["ple_layer_ids"].index(layer + 1))
            begin = int(shard) * -(-rows // self.config["split_ngram_parts"])
            values = [table_part(self.seed, table, begin, *shape)]
        elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            values = experts(self.seed, name, shape)
        else:
            values = [draw(self.seed, name, shape)]
        for piece in values:
            yield piece.astype(ml_dtypes.bfloat16)


# ---- files ----

def element_bytes(name):
    return 8 if layout.is_integer(name) else 2


def header_of(tensors):
    """The header's bytes with their length in front, and the tensors in the order of their places: as the format's library
    writes them, wide elements first, then by name."""
    order = sorted(tensors, key=lambda name: (-element_bytes(name), name))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        size = element_bytes(name) * int(np.prod(tensors[name], dtype=np.int64))
        header[name] = {"dtype": "I64" if layout.is_integer(name) else "BF16", "shape": tensors[name],
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order, at


def write_index(folder, place, total):
    # The published index has the total as a floating-point number.
    index = {"metadata": {"total_size": float(total)}, "weight_map": dict(sorted(place.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_weights(folder, tensors, values, canonical, files):
    """`canonical` turns a name of the files into one that Values knows. Tensors go to the files in turn, so that
    neighbours (the shards of a table, too) lie apart."""
    names = ["model.safetensors"] if files == 1 else [f"model-{n:05}-of-{files:05}.safetensors" for n in range(1, files + 1)]
    place = {tensor: names[i % files] for i, tensor in enumerate(tensors)}
    total = 0
    for file in names:
        header, order, size = header_of({t: tensors[t] for t in tensors if place[t] == file})
        with open(folder / file, "wb") as out:
            out.write(header)
            for tensor in order:
                for piece in values.pieces(canonical(tensor), tensors[tensor]):
                    out.write(piece.tobytes())
        total += size
    if files > 1:
        write_index(folder, place, total)


def write_made(arguments):
    folder = arguments.out
    frozen = json.loads((FROZEN / "config.json").read_text())
    match arguments.preset:
        case "tiny": text = dict(layout.TINY)
        case "wide": text = layout.wide(frozen["text_config"])
        case None: text = json.loads(arguments.config.read_text())
    text = dict(text.get("text_config", text))
    for assignment in arguments.set:
        field, value = assignment.split("=", 1)
        text[field] = json.loads(value)
    text = {k: v for k, v in text.items() if v is not None or k == "pad_token_id"}
    prefix = layout.TEXT_PREFIX if arguments.text_only else layout.PREFIX
    tensors = layout.text_tensors(text, not arguments.separate_experts, prefix)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.text_only:
        write_json(folder / "config.json", {"architectures": ["Qwen4ExpForCausalLM"], **text})
    else:
        write_json(folder / "config.json", {**frozen, "text_config": text})
    eos = text["eos_token_id"] if isinstance(text["eos_token_id"], list) else [text["eos_token_id"]]
    write_json(folder / "generation_config.json",
               {"bos_token_id": text.get("bos_token_id"), "do_sample": True, "eos_token_id": eos, "pad_token_id": eos[-1],
                "temperature": 1.0, "top_k": 20, "top_p": 0.95})
    if text["vocab_size"] >= SMALLEST_TOKENIZER:
        write_generated_tokenizer(folder, text["vocab_size"], text["max_position_embeddings"])
    write_weights(folder, tensors, Values(text, arguments.seed), lambda name: name.removeprefix(prefix), arguments.files)


def write_sparse_full(folder):
    if folder.resolve().is_relative_to(ROOT):
        sys.exit(f"{folder} lies inside the work tree; files of 360 GB apparent size do not belong there")
    inventory = json.loads((FROZEN / "inventory.json").read_text())
    config = json.loads((FROZEN / "config.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes((FROZEN / "config.json").read_bytes())
    values = Values(config["text_config"], seed=0)
    place, total = {}, 0
    for number, size in enumerate(inventory["file_sizes"], start=1):
        name = f"model-{number:05}-of-{inventory['files']:05}.safetensors"
        tensors = {tensor: shape for tensor, _, shape, file in inventory["tensors"] if file == number}
        header, order, payload = header_of(tensors)
        assert len(header) + payload == size, (name, len(header), payload, size)
        with open(folder / name, "wb") as out:
            out.write(header)
            for tensor in order:  # the constants of the hash come first, wide as they are
                if layout.is_integer(tensor):
                    for piece in values.pieces(tensor.removeprefix(layout.PREFIX), tensors[tensor]):
                        out.write(piece.tobytes())
            out.truncate(size)
        place.update({tensor: name for tensor in tensors})
        total += payload
    write_index(folder, place, total)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--preset", choices=["tiny", "wide"])
    what.add_argument("--config", type=pathlib.Path, help="a config.json, whole or the text part")
    what.add_argument("--sparse-full", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON")
    parser.add_argument("--separate-experts", action="store_true", help="one tensor an expert and projection")
    parser.add_argument("--text-only", action="store_true", help="the form of the text-only class: flat config.json, names "
                        "without language_model")
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.sparse_full:
        write_sparse_full(arguments.out)
    else:
        write_made(arguments)


if __name__ == "__main__":
    main()
