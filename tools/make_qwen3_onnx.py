#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a dense Qwen3 decoder with random weights as the ONNX folder that the model builder publishes.

Owns the graph of that export (node, value and initializer names, constants, file layout), genai_config.json and the
tokenizer files beside it. The same arguments give the same bytes. Needs requirements-oracle.txt only; weights are
drawn and quantized in row ranges, so memory does not grow with the model.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper
from qwen_tokenizer import write_generated_tokenizer

FLOAT, UINT8, INT32, INT64 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64
MICROSOFT = "com.microsoft"
MASK = "/model/attn_mask_reformat/attn_mask_subgraph"
DATA_FILE = "model.onnx.data"
IR_VERSION = 10
EPSILON = 1e-6
ROPE_THETA = 1e6
# External layout of the builder: ascending size, and whatever is larger than 1 MiB starts on a 64 KiB boundary.
ALIGN_ABOVE, ALIGNMENT = 1 << 20, 1 << 16
QWEN3_VOCAB = 151936
# Weights drawn at a time; 16 MiB of float32 keeps the temporaries of quantization below 200 MiB.
ELEMENTS_PER_RANGE = 4 << 20


@dataclasses.dataclass
class Geometry:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocab: int = QWEN3_VOCAB
    context: int = 40960
    int4: bool = True


BLOCK = Geometry(layers=2, hidden=256, intermediate=512, heads=4, kv_heads=2, vocab=512, context=2048)
SIZES = {
    "0.6b": Geometry(layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8),
    "1.7b": Geometry(layers=28, hidden=2048, intermediate=6144, heads=16, kv_heads=8),
    "4b": Geometry(layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8),
    "8b": Geometry(layers=36, hidden=4096, intermediate=12288, heads=32, kv_heads=8),
    "block": BLOCK,
    "block-fp32": dataclasses.replace(BLOCK, int4=False),
}


# Weights ------------------------------------------------------------------------------------------------------------

def bf16(x):
    """Rounds float32 to the nearest bfloat16 value, ties to even; stays float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


HALF = np.float32(0.5)


def round_codes(w, inverse, zero):
    """The stock quantizer adds the zero point first and rounds halves up: the order decides ties."""
    codes = w * inverse[:, :, None]
    codes += zero
    codes += HALF
    np.clip(codes, 0, 15, out=codes)
    return codes.astype(np.uint8)  # truncation, of values that are not negative


def quantize_symmetric(w):
    """[rows, blocks, block] weights to codes and scales [rows, blocks], as the stock block quantizer does.

    The element of largest magnitude m becomes code 0: scale = m / -8. An exact bfloat16 m gives an exact bfloat16 scale.
    """
    high, low = w.max(axis=2), w.min(axis=2)
    scale = np.where(high > -low, high, low) / np.float32(-8)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return round_codes(w, inverse, np.float32(8)), scale, None


def quantize_asymmetric(w):
    """The same with zero points: the range of the block, widened to hold 0, is cut into 15 steps."""
    high, low = np.maximum(w.max(axis=2), 0), np.minimum(w.min(axis=2), 0)
    scale = (high - low) / np.float32(15)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.divide(-low, scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.floor(np.clip(zero, 0, 15) + HALF)
    return round_codes(w, inverse, zero[:, :, None]), scale, zero.astype(np.uint8)


def pack_nibbles(codes):
    """Two codes of the last axis in one byte, the first in the low half; an odd end gets an empty high half."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


class Gaussian:
    """Random rows of one named tensor: its own stream, so a value depends on seed and name and not on the order."""

    def __init__(self, seed, name, columns, spread, centre=0.0, row_spread=0.0, rounded=True):
        self.rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        self.columns, self.spread, self.centre = columns, np.float32(spread), np.float32(centre)
        self.row_spread = row_spread  # of the logarithm of a row's length
        self.rounded = rounded  # to bfloat16, as published weights are

    def rows(self, count):
        w = self.rng.standard_normal((count, self.columns), dtype=np.float32)
        w *= self.spread
        w += self.centre
        if self.row_spread:
            w *= np.exp(self.row_spread * self.rng.standard_normal((count, 1))).astype(np.float32)
        return bf16(w) if self.rounded else w


class Stacked:
    """Several sources as one matrix: packed QKV holds the rows that three projections would hold."""

    def __init__(self, *parts):
        self.parts = list(parts)  # (source, rows left), top first

    def rows(self, count):
        taken = []
        while count:
            source, left = self.parts[0]
            step = min(count, left)
            taken.append(source.rows(step))
            count -= step
            self.parts[:1] = [(source, left - step)] if left > step else []
        return np.concatenate(taken)


# Initializers: name, type, shape, and a function that writes the bytes at the offset it is given --------------------

class DataFile:
    def __init__(self, path):
        self.path, self.tensors = path, []

    def add(self, name, elem, shape, fill=None):
        size = math.prod(shape) * (4 if elem == FLOAT else 1)
        self.tensors.append({"name": name, "elem": elem, "shape": shape, "bytes": size, "fill": fill})
        return self.tensors[-1]

    def place(self):
        """Gives every tensor its offset; the order of equal sizes is that of the graph."""
        end = 0
        for t in sorted(self.tensors, key=lambda t: t["bytes"]):
            if t["bytes"] > ALIGN_ABOVE:
                end += -end % ALIGNMENT
            t["offset"] = end
            end += t["bytes"]
        return end

    def write(self):
        size = self.place()
        with open(self.path, "wb") as f:
            f.truncate(size)  # gaps read as zero
            for t in self.tensors:
                if t["fill"]:
                    t["fill"](f, t)

    def protos(self):
        for t in self.tensors:
            proto = TensorProto(name=t["name"], data_type=t["elem"], dims=t["shape"], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", os.path.basename(self.path)), ("offset", t["offset"]), ("length", t["bytes"])):
                proto.external_data.add(key=key, value=str(value))
            yield proto


def put(f, offset, array):
    f.seek(offset)
    f.write(np.ascontiguousarray(array).data)


def row_ranges(rows, columns):
    step = max(1, ELEMENTS_PER_RANGE // columns)
    return ((start, min(step, rows - start)) for start in range(0, rows, step))


def fill_float(source):
    def fill(f, t):
        columns = t["shape"][-1]
        for start, count in row_ranges(t["bytes"] // 4 // columns, columns):
            put(f, t["offset"] + start * columns * 4, source.rows(count))
    return fill


def fill_transposed(source, n, k):
    """[K,N] of a matrix drawn as [N,K], so that the float form holds the weights that the INT4 form quantizes."""
    def fill(f, t):
        w = np.concatenate([source.rows(count) for _, count in row_ranges(n, k)])
        put(f, t["offset"], w.T)
    return fill


def fill_rope(function, context, head_dim):
    """Position times theta^(-2j/D), each step rounded to float32 as in the exporter.

    Powers and sines are taken in float64 and then rounded: float32 routines differ from one processor to the next.
    """
    def fill(f, t):
        exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        inverse = np.float32(1) / np.power(ROPE_THETA, exponent.astype(np.float64)).astype(np.float32)
        angles = np.arange(context, dtype=np.float32)[:, None] * inverse[None, :]
        put(f, t["offset"], function(angles.astype(np.float64)).astype(np.float32))
    return fill


def fill_quantized(source, n, k, block, quantize, scales, zeros):
    """Writes codes, scales and zero points together: one pass over the drawn weights."""
    blocks = -(-k // block)
    zero_bytes = -(-blocks // 2)

    def fill(f, t):
        for start, count in row_ranges(n, k):
            w = source.rows(count)
            if blocks * block != k:
                w = np.pad(w, ((0, 0), (0, blocks * block - k)))
            codes, scale, zero = quantize(w.reshape(count, blocks, block))
            put(f, t["offset"] + start * blocks * block // 2, pack_nibbles(codes))
            put(f, scales["offset"] + start * blocks * 4, scale)
            if zeros:
                put(f, zeros["offset"] + start * zero_bytes, pack_nibbles(zero))
    return fill


# Graph ----------------------------------------------------------------------------------------------------------------

class Graph:
    def __init__(self, geometry, args):
        self.g, self.args = geometry, args
        self.nodes, self.values, self.constants = [], [], set()
        self.data = DataFile(os.path.join(args.out, DATA_FILE))
        self.matmuls = []  # their initializers come after all others, as the quantizer appends them

    def node(self, name, op, inputs, outputs, domain="", **attributes):
        made = helper.make_node(op, inputs, outputs, name=name, domain=domain)
        made.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.nodes.append(made)
        return outputs[0]

    def value(self, name, elem, shape):
        self.values.append(helper.make_tensor_value_info(name, elem, shape))
        return name

    def activation(self, name, width, rows="sequence_length"):
        return self.value(name, FLOAT, ["batch_size", rows, width])

    def constant(self, payload):
        """INT64 tensor named by its own value; a vector is annotated with rank 0 as the builder does."""
        name = f"/model/constants/INT64/{payload}"
        if name not in self.constants:
            self.constants.add(name)
            vector = isinstance(payload, list)
            tensor = helper.make_tensor(name, INT64, [len(payload)] if vector else [],
                                        np.array(payload, np.int64).tobytes(), raw=True)
            self.node(f"/model/constant_nodes/INT64/{payload}", "Constant", [], [name], value=tensor)
            self.value(name, INT64, [])
        return name

    def norm_weight(self, name, width):
        source = Gaussian(self.args.seed, name, width, 0.1, centre=1.0)
        self.data.add(name, FLOAT, [width], fill_float(source))
        return name

    def matrix(self, path, k, spread=1.0, row_spread=0.0):
        """[N,K] weights whose outputs are about `spread` times as large as the inputs."""
        return Gaussian(self.args.seed, path, k, spread / math.sqrt(k), row_spread=row_spread, rounded=self.args.scales == "bf16")

    def branch_spread(self):
        """All 2L branches together weigh as much as the embedding; larger ones make rounding noise grow with depth."""
        return 1 / math.sqrt(2 * self.g.layers)

    def matmul(self, path, x, k, n, spread=1.0, source=None, out=None):
        """One projection, quantized or float."""
        weight = path[1:].replace("/", ".") + ".MatMul"
        source = source or self.matrix(path, k, spread)
        out = out or self.activation(f"{path}/MatMul/output_0", n)
        if not self.g.int4:
            self.matmuls.append([(weight + ".weight", FLOAT, [k, n], lambda _: fill_transposed(source, n, k))])
            return self.node(f"{path}/MatMul", "MatMul", [x, weight + ".weight"], [out])
        block, blocks = self.args.block, -(-k // self.args.block)
        names = [weight + ".weight_Q4", weight + ".weight_scales"]
        quantize = quantize_symmetric
        group = [(names[0], UINT8, [n, blocks, block // 2],
                  lambda made: fill_quantized(source, n, k, block, quantize, made[1], made[2] if len(made) > 2 else None)),
                 (names[1], FLOAT, [n, blocks], None)]
        if self.args.asymmetric:
            quantize = quantize_asymmetric
            names.append(weight + ".weight_zero_points")
            group.append((names[2], UINT8, [n, -(-blocks // 2)], None))
        self.matmuls.append(group)
        return self.node(f"{path}/MatMul_Q4", "MatMulNBits", [x, *names], [out], MICROSOFT,
                         K=k, N=n, accuracy_level=4, bits=4, block_size=block)

    def mask(self):
        """Both lengths that attention needs, from the mask alone."""
        one = self.constant([1])
        summed = self.value(f"{MASK}/ReduceSum/output_0", INT64, ["batch_size"])
        self.node(f"{MASK}/ReduceSum", "ReduceSum", ["attention_mask", one], [summed], keepdims=0)
        less = self.value(f"{MASK}/Sub/output_0", INT64, ["batch_size"])
        self.node(f"{MASK}/Sub", "Sub", [summed, one], [less])
        self.seqlens = self.value(f"{MASK}/Sub/Cast/output_0", INT32, ["batch_size"])
        self.node(f"{MASK}/Sub/Cast", "Cast", [less], [self.seqlens], to=INT32)
        shape = self.value(f"{MASK}/Shape/output_0", INT64, [2])
        self.node(f"{MASK}/Shape", "Shape", ["attention_mask"], [shape])
        index = self.constant(1)
        total = self.value(f"{MASK}/Gather/output_0", INT64, [])
        self.node(f"{MASK}/Gather", "Gather", [shape, index], [total], axis=0)
        self.total = self.value(f"{MASK}/Gather/Cast/output_0", INT32, [])
        self.node(f"{MASK}/Gather/Cast", "Cast", [total], [self.total], to=INT32)

    def embedding(self):
        name, g = "model.embed_tokens.weight", self.g
        self.data.add(name, FLOAT, [g.vocab, g.hidden], fill_float(Gaussian(self.args.seed, name, g.hidden, 1.0)))
        out = self.activation("/model/embed_tokens/Gather/output_0", g.hidden)
        return self.node("/model/embed_tokens/Gather", "Gather", [name, "input_ids"], [out])

    def skip_norm(self, path, weight, root, skip, last=False):
        """Returns the normalized sum and, unless it is the last norm of the graph, the sum itself."""
        weight = self.norm_weight(weight, self.g.hidden)
        outputs = [self.activation(f"{path}/output_0", self.g.hidden)]
        if not last:
            outputs += ["", "", self.activation(f"{path}/output_3", self.g.hidden)]
        self.node(f"{path}/SkipLayerNorm", "SkipSimplifiedLayerNormalization", [root, skip, weight], outputs, MICROSOFT,
                  epsilon=EPSILON)
        return outputs[0], outputs[-1]

    def head_norm(self, layer, which, x, heads, symbol):
        """RMS norm of every head: rows are seen as [B, S*heads, D] and back."""
        d, path = self.g.head_dim, f"/model/layers.{layer}/attn/{which}_norm"
        rows = f"sequence_length * {symbol}"
        shape = self.constant([0, -1, d])
        split = self.activation(f"{path}/Reshape_1/output_0", d, rows)
        self.node(f"{path}/Reshape_1", "Reshape", [x, shape], [split])
        weight = self.norm_weight(f"model.layers.{layer}.attn.{which}_norm.layernorm.weight", d)
        normed = self.activation(f"{path}/SimplifiedLayerNormalization/output_0", d, rows)
        self.node(f"{path}/SimplifiedLayerNormalization", "SimplifiedLayerNormalization", [split, weight], [normed],
                  epsilon=EPSILON, axis=-1, stash_type=1)
        shape = self.constant([0, -1, heads * d])
        out = self.activation(f"{path}/Reshape_2/output_0", heads * d)
        return self.node(f"{path}/Reshape_2", "Reshape", [normed, shape], [out])

    def attention(self, layer, x):
        g, path = self.g, f"/model/layers.{layer}/attn"
        wide, narrow = g.heads * g.head_dim, g.kv_heads * g.head_dim
        if self.args.form == "packed":
            rows = Stacked(*((self.matrix(f"{path}/{p}_proj", g.hidden), n)
                             for p, n in (("q", wide), ("k", narrow), ("v", narrow))))
            packed = self.matmul(f"{path}/qkv_proj", x, g.hidden, wide + 2 * narrow, source=rows)
            sizes = self.constant([wide, narrow, narrow])
            q, k, v = (self.activation(f"{path}/qkv_proj/Split/output_{i}", w) for i, w in enumerate((wide, narrow, narrow)))
            self.node(f"{path}/qkv_proj/Split", "Split", [packed, sizes], [q, k, v], axis=-1)
        else:
            q = self.matmul(f"{path}/q_proj", x, g.hidden, wide)
            k = self.matmul(f"{path}/k_proj", x, g.hidden, narrow)
            v = self.matmul(f"{path}/v_proj", x, g.hidden, narrow)
        q = self.head_norm(layer, "q", q, g.heads, "num_attention_heads")
        k = self.head_norm(layer, "k", k, g.kv_heads, "num_key_value_heads")
        if layer == 0:
            for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
                self.data.add(name, FLOAT, [g.context, g.head_dim // 2], fill_rope(function, g.context, g.head_dim))
        out = self.activation(f"{path}/GroupQueryAttention/output_0", wide)
        self.node(f"{path}/GroupQueryAttention", "GroupQueryAttention",
                  [q, k, v, f"past_key_values.{layer}.key", f"past_key_values.{layer}.value", self.seqlens, self.total,
                   "cos_cache", "sin_cache", "", "", ""],
                  [out, f"present.{layer}.key", f"present.{layer}.value"], MICROSOFT,
                  num_heads=g.heads, kv_num_heads=g.kv_heads, scale=1 / math.sqrt(g.head_dim), softcap=0.0,
                  do_rotary=1, rotary_interleaved=0)
        return self.matmul(f"{path}/o_proj", out, wide, g.hidden, spread=self.branch_spread())

    def mlp(self, layer, x):
        g, path = self.g, f"/model/layers.{layer}/mlp"
        gate = self.matmul(f"{path}/gate_proj", x, g.hidden, g.intermediate)
        up = self.matmul(f"{path}/up_proj", x, g.hidden, g.intermediate)
        sigmoid = self.activation(f"{path}/act_fn/Sigmoid/output_0", g.intermediate)
        self.node(f"{path}/act_fn/Sigmoid", "Sigmoid", [gate], [sigmoid])
        silu = self.activation(f"{path}/act_fn/Mul/output_0", g.intermediate)
        self.node(f"{path}/act_fn/Mul", "Mul", [gate, sigmoid], [silu])
        product = self.activation(f"{path}/Mul/output_0", g.intermediate)
        self.node(f"{path}/Mul", "Mul", [silu, up], [product])
        # silu(g)*u of unit gaussians has a root mean square of 0.6.
        return self.matmul(f"{path}/down_proj", product, g.intermediate, g.hidden, spread=self.branch_spread() / 0.6)

    def build(self):
        g = self.g
        self.mask()
        root = self.embedding()
        weight = self.norm_weight("model.layers.0.input_layernorm.weight", g.hidden)
        x = self.activation("/model/layers.0/input_layernorm/output_0", g.hidden)
        self.node("/model/layers.0/input_layernorm/LayerNorm", "SimplifiedLayerNormalization", [root, weight], [x],
                  epsilon=EPSILON, axis=-1, stash_type=1)
        for layer in range(g.layers):
            skip = self.attention(layer, x)
            x, root = self.skip_norm(f"/model/layers.{layer}/post_attention_layernorm",
                                     f"model.layers.{layer}.post_attention_layernorm.weight", root, skip)
            skip = self.mlp(layer, x)
            name = "final_norm_layernorm" if layer + 1 == g.layers else "input_layernorm"
            x, root = self.skip_norm(f"/model/layers.{layer + 1}/{name}", f"model.layers.{layer + 1}.{name}.weight",
                                     root, skip, last=layer + 1 == g.layers)
        # Rows of unequal length give greedy decoding a margin between the first and the second token: the largest of
        # many equal gaussians leads by far less than rounding noise.
        head = self.matrix("/lm_head", g.hidden, spread=2.0, row_spread=0.4)
        self.matmul("/lm_head", x, g.hidden, g.vocab, source=head, out="logits")
        for group in self.matmuls:
            made = [self.data.add(name, elem, shape) for name, elem, shape, _ in group]
            for tensor, (_, _, _, fill) in zip(made, group):
                tensor["fill"] = fill(made) if fill else None

    def cache_values(self, prefix, extent):
        shape = ["batch_size", self.g.kv_heads, extent, self.g.head_dim]
        return [helper.make_tensor_value_info(f"{prefix}.{i}.{kind}", FLOAT, shape)
                for kind in ("key", "value") for i in range(self.g.layers)]

    def model(self):
        tokens = ["batch_size", "sequence_length"]
        inputs = [helper.make_tensor_value_info("input_ids", INT64, tokens),
                  helper.make_tensor_value_info("attention_mask", INT64, ["batch_size", "total_sequence_length"]),
                  *self.cache_values("past_key_values", "past_sequence_length")]
        outputs = [helper.make_tensor_value_info("logits", FLOAT, [*tokens, self.g.vocab]),
                   *self.cache_values("present", "total_sequence_length")]
        weights = [helper.make_tensor_value_info(t["name"], t["elem"], t["shape"]) for t in self.data.tensors]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, list(self.data.protos()),
                                  value_info=weights + self.values)
        return helper.make_model(graph, ir_version=IR_VERSION, producer_name="quern", opset_imports=[
            helper.make_opsetid("", self.args.opset), helper.make_opsetid(MICROSOFT, 1)])


# Folder ---------------------------------------------------------------------------------------------------------------

def genai_config(g, ids):
    """Everything a generation loop asks; the search defaults are those Qwen3 ships."""
    stop, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    return {
        "model": {
            "bos_token_id": pad,
            "context_length": g.context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": g.head_dim,
                "hidden_size": g.hidden,
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                           "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                            "present_value_names": "present.%d.value"},
                "num_attention_heads": g.heads,
                "num_hidden_layers": g.layers,
                "num_key_value_heads": g.kv_heads,
            },
            "eos_token_id": [stop, pad],
            "pad_token_id": pad,
            "type": "qwen3",
            "vocab_size": g.vocab,
        },
        "search": {
            "diversity_penalty": 0.0, "do_sample": True, "early_stopping": True, "length_penalty": 1.0,
            "max_length": g.context, "min_length": 0, "no_repeat_ngram_size": 0, "num_beams": 1,
            "num_return_sequences": 1, "past_present_share_buffer": True, "repetition_penalty": 1.0,
            "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        },
    }


def place_tokenizer(g, source, out):
    """Copies a tokenizer or makes one; returns the ids of its added tokens by text."""
    if source is None and g.vocab != QWEN3_VOCAB:
        try:
            return write_generated_tokenizer(out, g.vocab, g.context)
        except ValueError as error:
            raise SystemExit(f"--vocab {g.vocab}: {error}")
    if source is None:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "tokenizers", "qwen3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
        ids = {token["content"]: token["id"] for token in json.load(f)["added_tokens"]}
    if max(ids.values()) >= g.vocab:
        raise SystemExit(f"{source}: token id {max(ids.values())} does not fit a vocabulary of {g.vocab}")
    return ids


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--size", choices=SIZES, required=True)
    dimensions = [field.name for field in dataclasses.fields(Geometry) if field.name != "int4"]
    for name in dimensions:
        parser.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help="instead of the value of --size")
    parser.add_argument("--form", choices=["packed", "separate"], default="packed", help="one QKV projection or three")
    parser.add_argument("--opset", type=int, choices=range(21, 27), default=21)
    parser.add_argument("--block", type=int, choices=[16, 32, 64, 128, 256], default=32, help="weights per scale")
    parser.add_argument("--asymmetric", action="store_true", help="quantize with zero points")
    parser.add_argument("--scales", choices=["bf16", "fp32"], default="bf16",
                        help="draw the weights as bfloat16, which makes the scales exact in it too, or as float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", metavar="FOLDER", help="take tokenizer.json and tokenizer_config.json from here")
    args = parser.parse_args()
    changed = {name: getattr(args, name) for name in dimensions if getattr(args, name) is not None}
    geometry = dataclasses.replace(SIZES[args.size], **changed)
    if min(getattr(geometry, name) for name in dimensions) < 1:
        parser.error("every dimension must be at least 1")
    if geometry.heads % geometry.kv_heads or geometry.head_dim % 16:
        parser.error("--heads must be a multiple of --kv-heads, and --head-dim of 16")
    if geometry.int4 is False and args.asymmetric:
        parser.error("--asymmetric needs quantized weights")
    return args, geometry


def main():
    args, geometry = parse_arguments()
    os.makedirs(args.out, exist_ok=True)
    ids = place_tokenizer(geometry, args.tokenizer, args.out)
    graph = Graph(geometry, args)
    graph.build()
    graph.data.write()
    model = graph.model()
    with open(os.path.join(args.out, "model.onnx"), "wb") as f:
        f.write(model.SerializeToString(deterministic=True))
    with open(os.path.join(args.out, "genai_config.json"), "w", encoding="utf-8", newline="\n") as f:
        json.dump(genai_config(geometry, ids), f, indent=4)
        f.write("\n")
    size = os.path.getsize(graph.data.path)
    print(f"{args.out}: {len(graph.nodes)} nodes, {len(graph.data.tensors)} initializers, {size:,} bytes of data")


if __name__ == "__main__":
    main()
