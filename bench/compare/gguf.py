# SPDX-License-Identifier: Apache-2.0
"""Writes the GGUF file of a Qwen3 ONNX folder of this repository's generator, for llama.cpp: the same codes of the same
weights as Q4_0.

Q4_0 is what the stock symmetric INT4 of the ONNX graph is, blocks of 32 with value = scale * (code - 8), but for the scale,
which it keeps as float16. Scales that are exact in bfloat16 are exact in float16 as well, as long as they are not tiny. The
embedding, float32 in the ONNX file, is quantized too, as such files are published (--embedding f32: kept, and the whole model is
the same).

Usage: gguf.py FOLDER OUT [--embedding q4_0|f32]
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np
import onnx

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata values
VALUE = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}
F32, Q4_0 = 0, 2  # types of tensors
BLOCK, BLOCK_BYTES = 32, 18
ALIGNMENT = 32
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # types of tokens
MOSTLY_Q4_0 = 2
ROWS = 8192  # of a matrix converted at a time


def packed_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(key, kind, value):
    head = packed_string(key) + struct.pack("<I", kind)
    return head + (packed_string(value) if kind == STRING else struct.pack(VALUE[kind], value))


def metadata_list(key, kind, values):
    items = b"".join(map(packed_string, values)) if kind == STRING else struct.pack(f"<{len(values)}i", *values)
    return packed_string(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items


def vocabulary(folder, size):
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words, kinds = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for word, i in tokenizer["model"]["vocab"].items():
        words[i], kinds[i] = word, NORMAL
    for token in tokenizer["added_tokens"]:
        words[token["id"]], kinds[token["id"]] = token["content"], CONTROL if token["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    return [metadata("tokenizer.ggml.model", STRING, "gpt2"), metadata("tokenizer.ggml.pre", STRING, "qwen2"),
            metadata_list("tokenizer.ggml.tokens", STRING, words), metadata_list("tokenizer.ggml.token_type", INT32, kinds),
            metadata_list("tokenizer.ggml.merges", STRING, merges)]


class Onnx:
    """The constants of a model file with external data, as maps of it."""

    def __init__(self, folder):
        self.folder = folder
        graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
        self.tensors = {t.name: t for t in graph.initializer}
        self.nodes = graph.node

    def __contains__(self, name):
        return name in self.tensors

    def array(self, name):
        tensor = self.tensors[name]
        if not tensor.external_data:
            return onnx.numpy_helper.to_array(tensor)
        place = {e.key: e.value for e in tensor.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(self.folder / place["location"], dtype, "r", int(place.get("offset", 0)), tuple(tensor.dims))


def blocks_of_codes(packed, scales):
    """[N, K/32, 16] codes with neighbours in a byte, [N, K/32] scales: Q4_0 blocks, where a byte holds codes 16 apart."""
    packed = np.ascontiguousarray(packed)
    low, high = packed & 15, packed >> 4
    codes = np.stack([low, high], axis=-1).reshape(*packed.shape[:-1], BLOCK)
    halves = codes[..., :BLOCK // 2] | (codes[..., BLOCK // 2:] << 4)
    return np.concatenate([scales.astype("<f2")[..., None].view(np.uint8), halves], axis=-1).tobytes()


def blocks_of_floats(rows):
    """Floats as Q4_0: the element of largest magnitude becomes code 0."""
    blocks = rows.reshape(rows.shape[0], -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    scales = largest[..., 0] / np.float32(-8)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.clip(blocks * inverse[..., None] + np.float32(8.5), 0, 15).astype(np.uint8)
    return blocks_of_codes(codes[..., 0::2] | (codes[..., 1::2] << 4), scales)


class Tensor:
    def __init__(self, name, kind, shape, pieces):
        self.name, self.kind, self.shape, self.pieces = name, kind, shape, pieces  # shape: innermost first
        elements = math.prod(shape)
        self.bytes = elements * 4 if kind == F32 else elements // BLOCK * BLOCK_BYTES


def in_rows(*arrays):
    for at in range(0, len(arrays[0]), ROWS):
        yield [a[at:at + ROWS] for a in arrays]


def floats(name, array):
    return Tensor(name, F32, array.shape[::-1], lambda: (part.astype("<f4").tobytes() for part, in in_rows(array)))


def quantized_floats(name, array):
    return Tensor(name, Q4_0, array.shape[::-1], lambda: (blocks_of_floats(np.asarray(part)) for part, in in_rows(array)))


def codes(name, packed, scales):
    n, blocks, _ = packed.shape
    return Tensor(name, Q4_0, (blocks * BLOCK, n), lambda: (blocks_of_codes(*part) for part in in_rows(packed, scales)))


def matrix(source, prefix):
    return source.array(f"{prefix}.MatMul.weight_Q4"), source.array(f"{prefix}.MatMul.weight_scales")


def layer_tensors(source, layer, rows):
    theirs, ours = f"blk.{layer}.", f"model.layers.{layer}."
    for norm, name in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
                       ("attn_q_norm", "attn.q_norm.layernorm"), ("attn_k_norm", "attn.k_norm.layernorm")):
        yield floats(f"{theirs}{norm}.weight", source.array(f"{ours}{name}.weight"))
    if f"{ours}attn.qkv_proj.MatMul.weight_Q4" in source:
        at = 0
        packed, scales = matrix(source, f"{ours}attn.qkv_proj")
        for part, count in rows.items():
            yield codes(f"{theirs}attn_{part}.weight", packed[at:at + count], scales[at:at + count])
            at += count
    else:
        for part in rows:
            yield codes(f"{theirs}attn_{part}.weight", *matrix(source, f"{ours}attn.{part}_proj"))
    for part, name in (("attn_output", "attn.o_proj"), ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"),
                       ("ffn_down", "mlp.down_proj")):
        yield codes(f"{theirs}{part}.weight", *matrix(source, ours + name))


def write(folder, out, embedding="q4_0"):
    folder = pathlib.Path(folder)
    source = Onnx(folder)
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    decoder = config["decoder"]
    layers, head = decoder["num_hidden_layers"], decoder["head_size"]
    heads, kv_heads = decoder["num_attention_heads"], decoder["num_key_value_heads"]
    for node in source.nodes:
        if node.op_type == "MatMulNBits":
            form = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if (form["bits"], form["block_size"], len(node.input)) != (4, BLOCK, 3):
                raise ValueError(f"{node.name}: Q4_0 holds symmetric 4-bit weights in blocks of {BLOCK}")
    epsilon = next(onnx.helper.get_attribute_value(a) for n in source.nodes for a in n.attribute if a.name == "epsilon")
    # The last column of the table at position 1 is sin(base^(-(D - 2) / D)).
    base = math.asin(source.array("sin_cache")[1, -1]) ** (-head / (head - 2))
    vocab_rows, hidden = source.array("model.embed_tokens.weight").shape
    tensors = [(floats if embedding == "f32" else quantized_floats)("token_embd.weight", source.array("model.embed_tokens.weight")),
               codes("output.weight", *matrix(source, "lm_head")),
               floats("output_norm.weight", source.array(f"model.layers.{layers}.final_norm_layernorm.weight"))]
    for layer in range(layers):
        tensors += layer_tensors(source, layer, {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head})
    width = next(t.shape[1] for t in tensors if t.name == "blk.0.ffn_gate.weight")
    facts = [metadata("general.architecture", STRING, "qwen3"), metadata("general.name", STRING, folder.name),
             metadata("general.file_type", UINT32, MOSTLY_Q4_0), metadata("general.quantization_version", UINT32, 2),
             metadata("qwen3.rope.freq_base", FLOAT32, round(base)),
             metadata("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, epsilon),
             metadata("tokenizer.ggml.add_bos_token", BOOL, False),
             metadata("tokenizer.ggml.eos_token_id", UINT32, config["eos_token_id"][0]),
             metadata("tokenizer.ggml.padding_token_id", UINT32, config["pad_token_id"])]
    facts += [metadata("qwen3." + key, UINT32, value) for key, value in {
        "block_count": layers, "context_length": config["context_length"], "embedding_length": hidden, "feed_forward_length": width,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head}.items()]
    facts += vocabulary(folder, vocab_rows)
    partial = pathlib.Path(f"{out}.partial")
    with open(partial, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts))
        offset = 0
        for t in tensors:
            file.write(packed_string(t.name) + struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *t.shape, t.kind, offset))
            offset += t.bytes + -t.bytes % ALIGNMENT
        file.write(bytes(-file.tell() % ALIGNMENT))
        for t in tensors:
            for piece in t.pieces():
                file.write(piece)
            file.write(bytes(-file.tell() % ALIGNMENT))
    partial.rename(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--embedding", choices=["q4_0", "f32"], default="q4_0")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.out, arguments.embedding)


if __name__ == "__main__":
    main()
