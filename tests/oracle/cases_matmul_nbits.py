# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of com.microsoft::MatMulNBits: 4 and 8 bits, blocks of 16 to 256, all kinds of zero points, accuracy
levels, bias, float32 and float16, and what is refused around them.

Needs numpy and onnx only. max|Y| below is from the formula in double. float32: the tolerance is 1e-5 * max(1, max|Y|), because
both engines add the same products in another order. float16: both engines compute in float32 and round the result once, so
results that differ within that tolerance may round to neighbouring halves; hence one unit in the last place of max|Y| on top.

ONNX Runtime 1.30 refuses to run 8 bits with float zero points, so those cases are held against the formula in double.
"""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

ZEROS = (None, "packed", "float")


def pack_nibbles(values):
    """Pairs of the last dimension into bytes, the even element in the low nibble."""
    values = np.asarray(values, np.uint8)
    if values.shape[-1] % 2:
        raise ValueError("an even number of nibbles is needed")
    return values[..., 0::2] | (values[..., 1::2] << 4)


class Weights:
    """`exact`: all scales are bfloat16 values, which engines may store in two bytes."""

    def __init__(self, rng, k, n, zeros=None, bits=4, block=32, dtype=np.float32, exact=False, bias=False):
        self.k, self.n, self.bits, self.block, self.dtype = k, n, bits, block, dtype
        self.blocks = -(-k // block)
        self.zeros = zeros
        codes, per_block = 1 << bits, (n, self.blocks)
        self.q = rng.integers(0, codes, (n, k), dtype=np.uint8)
        self.scales = (rng.uniform(-0.8, 0.8, per_block) / codes).astype(dtype)
        if exact:  # the upper half of a float32; for float16 in the range where halves have as many bits
            bits = self.scales.astype(np.float32).view(np.uint32) & np.uint32(0xffff0000)
            self.scales = bits.view(np.float32).astype(dtype)
        if zeros == "packed":
            self.z = rng.integers(0, codes, per_block, dtype=np.uint8)
        elif zeros == "float":
            self.z = rng.uniform(0, codes, per_block).astype(dtype)
        else:
            self.z = np.full(per_block, codes // 2)
        self.bias = rng.standard_normal(n).astype(dtype) if bias else None
        self.garbage = 0

    def codes(self):
        padded = np.full((self.n, self.blocks * self.block), self.garbage, np.uint8)
        padded[:, : self.k] = self.q
        return (pack_nibbles(padded) if self.bits == 4 else padded).reshape(self.n, self.blocks, -1)

    def zero_points(self):
        """As the file has them; None where there are none."""
        if self.zeros != "packed" or self.bits == 8:
            return self.z if self.zeros else None
        padded = np.full((self.n, self.blocks + self.blocks % 2), self.garbage, np.uint8)
        padded[:, : self.blocks] = self.z
        return pack_nibbles(padded)

    def product(self, a, level):
        """The formula in double. Level 4 has its float32 steps where codes are made."""
        rows = np.zeros((a.size // self.k if a.size else 0, self.blocks * self.block), np.float32)
        rows[:, : self.k] = a.reshape(-1, self.k)
        rows = rows.reshape(-1, self.blocks, self.block)
        x = rows.astype(np.float64)
        if level == 4 and self.zeros != "float":
            amax = np.abs(rows).max(axis=2, keepdims=True, initial=0)
            with np.errstate(all="ignore"):
                inverse = np.where(amax > 0, np.float32(127) / amax, np.float32(0))
                inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
            x = np.rint(rows * inverse).astype(np.float64) * (amax / np.float32(127))
        w = np.zeros((self.n, self.blocks * self.block))
        w[:, : self.k] = self.q
        w = (w.reshape(self.n, self.blocks, self.block) - self.z[..., None]) * self.scales[..., None].astype(np.float64)
        y = x.reshape(len(x), self.blocks * self.block) @ w.reshape(self.n, -1).T
        return (y if self.bias is None else y + self.bias).reshape(*a.shape[:-1], self.n)


ABSENT = object()


def node(inputs, outputs, k, n, name="/lm_head/MatMul_Q4", **attributes):
    wanted = {"K": k, "N": n, "block_size": 32, "bits": 4, "accuracy_level": 4} | attributes
    wanted = {key: value for key, value in wanted.items() if value is not ABSENT}
    return helper.make_node("MatMulNBits", inputs, outputs, name=name, domain="com.microsoft", **wanted)


def model(nodes, inputs, outputs, initializers, opset=21):
    graph = helper.make_graph(nodes, "matmul_nbits", inputs, outputs,
                              [numpy_helper.from_array(value, name) for name, value in initializers.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
    made.ir_version = 10
    return made


def value(name, dtype, rank):
    return helper.make_tensor_value_info(name, dtype, [f"{name}_{i}" for i in range(rank)])


def constants_of(w):
    named = {"B": w.codes(), "scales": w.scales, "zero_points": w.zero_points(), "bias": w.bias}
    return {name: v for name, v in named.items() if v is not None}


def one_node(w, a, opset=21, constants=None, inputs=None, runtime=(), **attributes):
    """The model and feeds of one node. `constants` adds or replaces named constants, `inputs` replaces the input list,
    `runtime` names constants that are fed instead."""
    values = constants_of(w) | (constants or {})
    if inputs is None:
        inputs = ["A", "B", "scales"] + [n if n in values else "" for n in ("zero_points", "g_idx", "bias")]
        while not inputs[-1]:
            inputs.pop()
    dtypes = {name: helper.np_dtype_to_tensor_dtype(v.dtype) for name, v in values.items()}
    graph_inputs = [value("A", helper.np_dtype_to_tensor_dtype(a.dtype), a.ndim)]
    graph_inputs += [value(name, dtypes[name], values[name].ndim) for name in runtime]
    made = model([node(inputs, ["Y"], w.k, w.n, **{"bits": w.bits, "block_size": w.block} | attributes)], graph_inputs,
                 [value("Y", helper.np_dtype_to_tensor_dtype(a.dtype), a.ndim)],
                 {name: v for name, v in values.items() if name in inputs and name not in runtime}, opset)
    return made, {"A": a} | {name: values[name] for name in runtime}


def tolerances(dtype, *expected):
    largest = max(np.abs(y).max(initial=0) for y in expected)
    atol = 1e-5 * max(1.0, largest)
    if dtype == np.float16:
        atol += float(np.spacing(np.float16(largest)))
    return {"atol": atol, "rtol": 0.0}


def compared(name, w, a, level=4, **options):
    made, feeds = one_node(w, a, **{"accuracy_level": level} | options)
    y = w.product(a, level)
    t = tolerances(a.dtype, y)
    if w.bits == 8 and w.zeros == "float":
        t |= {"ort": "skip", "expected": {"Y": y.astype(a.dtype)}}
    return name, made, feeds, t, "ok"


def refused(name, w, a, when, ort=None, **options):
    made, feeds = one_node(w, a, **options)
    return name, made, feeds, {"atol": 0.0, "rtol": 0.0} | ({} if ort is None else {"ort": ort}), when


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def form_cases(rng):
    """Every form, once with one row and once with several, with odd numbers of blocks, tails in K and N, and by turns exact
    scales and bias."""
    turn = 0
    for bits in (4, 8):
        for block in (16, 32, 64, 128, 256):
            for zeros in ZEROS:
                for level in (0, 1, 4):
                    for dtype in (np.float32, np.float16):
                        form = f"{bits}bit_block{block}_{zeros or 'no'}_zeros_level{level}_{np.dtype(dtype)}"
                        for m in (1, 6):
                            turn += 1
                            k = 3 * block - 5 if turn % 3 else 2 * block
                            w = Weights(rng, k, 37, zeros, bits, block, dtype, exact=turn % 4 < 2, bias=turn % 5 < 2)
                            yield compared(f"{form}_m{m}", w, normal(rng, m, k, dtype=dtype), level)


# Forms whose sizes are walked through: bits, block, kind of zero points, level.
WALKED = ((4, 32, None, 4), (4, 32, "packed", 4), (8, 128, "packed", 4), (4, 32, "packed", 0), (4, 128, "float", 0),
          (8, 32, None, 0))


def shape_cases(rng):
    for bits, block, zeros, level in WALKED:
        form = f"{bits}bit_block{block}_{zeros or 'no'}_zeros_level{level}"

        def one(m, n, k, form=form, bits=bits, block=block, zeros=zeros, level=level):
            w = Weights(rng, k, n, zeros, bits, block, exact=(m + n + k) % 2 == 0)
            return compared(f"{form}_m{m}_n{n}_k{k}", w, normal(rng, m, k), level)

        for m in (1, 2, 3, 4, 7, 8, 16, 31, 128, 129, 261):
            yield one(m, 17, 3 * block)
        for n in (1, 2, 3, 15, 16, 31, 127):
            for m in (1, 5):
                yield one(m, n, 2 * block)
        for k in (1, block - 1, block, block + 1, 2 * block - 1, 2 * block + 1, 5 * block - 1, 1024, 2048, 3072):
            for m in (1, 6):
                yield one(m, 33, k)
    for level in (0, 4):
        for k, n in ((1024, 4096), (2048, 1024), (1024, 3072), (3072, 1024)):
            yield compared(f"projection_{k}x{n}_level{level}", Weights(rng, k, n), normal(rng, 1, 1, k), level)
        yield compared(f"vocabulary_n151936_level{level}", Weights(rng, 32, 151936), normal(rng, 1, 32), level)


def rank_cases(rng):
    w = Weights(rng, 64, 19)
    yield compared("rank1", w, normal(rng, 64))
    yield compared("rank3", w, normal(rng, 2, 3, 64))
    yield compared("rank5", w, normal(rng, 2, 1, 2, 1, 64))
    yield compared("no_rows", w, normal(rng, 0, 64))
    yield compared("no_rows_in_a_batch", w, normal(rng, 2, 0, 64))
    yield compared("no_rows_level0", w, normal(rng, 0, 64), 0)
    yield compared("opset26", w, normal(rng, 2, 64), opset=26)
    yield compared("flat_scales", w, normal(rng, 2, 64), constants={"scales": w.scales.reshape(-1)})
    for zeros in ("packed", "float"):
        z = Weights(rng, 70, 19, zeros)
        yield compared(f"flat_{zeros}_zero_points", z, normal(rng, 2, 70),
                       constants={"zero_points": z.zero_points().reshape(-1)})
    z = Weights(rng, 70, 19, "packed", bits=8)
    yield compared("flat_8bit_zero_points", z, normal(rng, 2, 70), constants={"zero_points": z.zero_points().reshape(-1)})
    half = Weights(rng, 70, 19, "packed", dtype=np.float16, bias=True)
    yield compared("float16_rank1", half, normal(rng, 70, dtype=np.float16), 0)
    yield compared("float16_rank4", half, normal(rng, 2, 1, 3, 70, dtype=np.float16))
    yield compared("float16_no_rows", half, normal(rng, 0, 70, dtype=np.float16))
    yield compared("float16_m261", half, normal(rng, 261, 70, dtype=np.float16))
    yield compared("bits_absent", w, normal(rng, 2, 64), bits=ABSENT)
    yield compared("accuracy_level_absent", w, normal(rng, 2, 64), 0, accuracy_level=ABSENT)
    for level in (2, 3):
        yield compared(f"accuracy_level_{level}", w, normal(rng, 2, 64), level)
    yield compared("empty_optional_inputs", w, normal(rng, 2, 64), inputs=["A", "B", "scales", "", "", ""])
    yield compared("weight_prepacked_default", w, normal(rng, 2, 64), weight_prepacked=0)


def value_cases(rng):
    for bits in (4, 8):
        for level in (0, 4):
            w = Weights(rng, 64, 32 if bits == 4 else 256, "packed", bits)
            w.q[:] = (np.arange(64)[None, :] * (1 if bits == 4 else 5) + np.arange(w.n)[:, None]) % (1 << bits)
            w.z[:] = (np.arange(2)[None, :] * 5 + np.arange(w.n)[:, None]) % (1 << bits)
            yield compared(f"all_codes_and_zero_points_{bits}bit_level{level}", w, normal(rng, 3, 64), level)

            for garbage in (5, 15 if bits == 4 else 255):
                w = Weights(rng, 70, 18, "packed", bits)
                w.garbage = garbage
                yield compared(f"garbage_padding_{garbage}_{bits}bit_level{level}", w, normal(rng, 3, 70), level)

            # Extreme codes against extreme activations, in the largest blocks: sums at both ends of what int8 codes can make.
            for q, zero in ((0, (1 << bits) - 1), ((1 << bits) - 1, 0)):
                w = Weights(rng, 512, 18, "packed", bits, 256)
                w.q[:], w.z[:] = q, zero
                a = np.repeat(np.float32([[1.0], [-1.0]]), 512, axis=1)
                yield compared(f"extreme_codes_{q}_{bits}bit_level{level}", w, a, level)

            # Codes that are centred too late would cancel here, worst in long blocks.
            for block, k in ((128, 512), (256, 4096)):
                w = Weights(rng, k, 18, None, bits, block)
                yield compared(f"activations_of_one_sign_{bits}bit_{block}_level{level}", w, 3 + normal(rng, 3, k), level)
            if level == 0:
                # Zero points at the ends of the codes, codes near them, activations of one sign and a massive one.
                for block in (32, 256):
                    for zeros in ("packed", "float") if bits == 4 else ("packed",):
                        w = Weights(rng, 1024, 18, zeros, bits, block)
                        far = np.where(w.z > 1 << (bits - 1), (1 << bits) - 3, 2)
                        w.z = far.astype(w.z.dtype) if zeros == "packed" else (far + rng.uniform(-0.4, 0.4, far.shape)).astype(np.float32)
                        w.q = (np.repeat(far, block, axis=1)[:, :1024] + rng.integers(-2, 3, w.q.shape)).astype(np.uint8)
                        a = 3 + normal(rng, 3, 1024)
                        a[1, 100] = 3000
                        yield compared(f"codes_near_far_{zeros}_zero_points_{bits}bit_{block}_level{level}", w, a, level)

            w = Weights(rng, 160, 20, None, bits)
            a = normal(rng, 5, 160)
            a[2] *= 1000
            a[4, 64:96] *= 1000
            yield compared(f"outlier_rows_{bits}bit_level{level}", w, a, level)

            w = Weights(rng, 96, 20, None, bits)
            w.scales[0::4] = 0
            w.scales[1::4] = -np.abs(w.scales[1::4])
            w.scales[2::4] = 1e-40
            yield compared(f"zero_negative_denormal_scales_{bits}bit_level{level}", w, normal(rng, 3, 96), level)

    w = Weights(rng, 96, 20)
    a = normal(rng, 3, 96)
    a[0, 32:64] = 0
    a[1] = 0
    a[2, 5] = -0.0
    yield compared("zero_blocks", w, a)
    yield compared("zero_blocks_level0", w, a, 0)
    a = normal(rng, 3, 96)
    a[:, 40] = 1e6
    yield compared("one_huge_element", w, a)
    yield compared("one_huge_element_level0", w, a, 0)
    a = np.zeros((2, 96), np.float32)
    a[:, 0::32] = 127
    a[0, 1:20] = np.arange(19) - 9 + 0.5
    a[1, 33:52] = -(np.arange(19) * 5 + 0.5)
    yield compared("ties_round_to_even", w, a)
    for level in (0, 4):
        a = normal(rng, 2, 96) * np.float32(1e-38)
        yield compared(f"tiny_blocks_level{level}", w, a, level)
        a = normal(rng, 2, 96) * np.float32(1e-42)
        yield compared(f"denormal_activations_level{level}", w, a, level)

    half = Weights(rng, 96, 20, "packed", dtype=np.float16)
    half.scales[0::4] = 0
    half.scales[1::4] = 6e-8  # the smallest denormal half
    yield compared("float16_zero_and_denormal_scales", half, normal(rng, 3, 96, dtype=np.float16), 0)
    half = Weights(rng, 96, 20, dtype=np.float16)
    half.scales[:] = np.where(rng.random(half.scales.shape) < 0.5, 64, -64)
    a = np.zeros((2, 96), np.float16)
    a[0, ::7], a[1, ::5] = 250, -300
    made, feeds = one_node(half, a, accuracy_level=0)
    with np.errstate(over="ignore"):
        expected = half.product(a, 0).astype(np.float16)
    assert np.isinf(expected).any() and np.isfinite(expected).any()
    yield "float16_results_overflow_to_infinity", made, feeds, {"atol": 32.0, "rtol": 0.0}, "ok"


def not_finite_cases(rng):
    # At level 4 the contract is a row of NaN, beside which rows of zeros stay zero; the oracle drops a NaN there, which must not
    # be imitated. At level 0 both multiply: NaN stays, an infinity gives infinities, or NaN where the weight is zero.
    w = Weights(rng, 96, 20)
    for level in (0, 4):
        for name, bad in (("nan", np.nan), ("positive_infinity", np.inf), ("negative_infinity", -np.inf)):
            a = np.zeros((3, 96), np.float32)
            a[1, 50] = bad
            made, feeds = one_node(w, a, accuracy_level=level)
            expected = np.zeros((3, 20), np.float32)
            expected[1] = np.nan
            t = {"atol": 0.0, "rtol": 0.0}
            if level == 4:
                t |= {"ort": "skip", "expected": {"Y": expected}}
            yield f"{name}_spoils_its_row_level{level}", made, feeds, t, "ok"


def shared_cases(rng):
    """Nodes that share a constant, and nodes that read the same rows: engines may do the common work once."""
    w = Weights(rng, 64, 40)
    a, b = normal(rng, 1, 64), normal(rng, 5, 64)
    for level in (0, 4):
        made = model([node(["A", "B", "scales"], ["Y"], 64, 40, "first", accuracy_level=level),
                      node(["A2", "B", "scales"], ["Z"], 64, 40, "second", accuracy_level=level)],
                     [value("A", TensorProto.FLOAT, 2), value("A2", TensorProto.FLOAT, 2)],
                     [value("Y", TensorProto.FLOAT, 2), value("Z", TensorProto.FLOAT, 2)], constants_of(w))
        limit = tolerances(np.float32, w.product(a, level), w.product(b, level))
        yield f"two_nodes_share_one_b_level{level}", made, {"A": a, "A2": b}, limit, "ok"

    # The same codes and scales, with and without zero points.
    z = Weights(rng, 64, 40, "packed")
    made = model([node(["A", "B", "scales"], ["Y"], 64, 40, "plain"),
                  node(["A", "B", "scales", "zero_points"], ["Z"], 64, 40, "zeros")],
                 [value("A", TensorProto.FLOAT, 2)], [value("Y", TensorProto.FLOAT, 2), value("Z", TensorProto.FLOAT, 2)],
                 constants_of(z))
    yield "shared_b_other_zero_points", made, {"A": b}, tolerances(np.float32, z.product(b, 4), 2 * z.product(b, 4)), "ok"

    # Three projections of the same rows; the last ones differ from the first in what they need of the rows.
    for dtype in (np.float32, np.float16):
        for level in (0, 4):
            ws = [Weights(rng, 160, 48, None, dtype=dtype),
                  Weights(rng, 160, 17, "packed", dtype=dtype, bias=True, exact=True),
                  Weights(rng, 160, 16, "packed", 8, dtype=dtype), Weights(rng, 160, 20, None, 4, 64, dtype)]
            nodes, constants = [], {}
            for i, one in enumerate(ws):
                named = {f"{name}{i}": v for name, v in constants_of(one).items()}
                wanted = (f"{n}{i}" for n in ("B", "scales", "zero_points", "g_idx", "bias"))
                inputs = ["A"] + [name if name in named else "" for name in wanted]
                nodes.append(node(inputs, [f"Y{i}"], one.k, one.n, f"projection{i}", bits=one.bits, block_size=one.block,
                                  accuracy_level=level))
                constants |= named
            tensor = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            made = model(nodes, [value("A", tensor, 3)], [value(f"Y{i}", tensor, 3) for i in range(len(ws))], constants)
            for m in (1, 9):
                a = normal(rng, 1, m, 160, dtype=dtype)
                yield (f"projections_of_one_input_{np.dtype(dtype)}_level{level}_m{m}", made, {"A": a},
                       tolerances(dtype, *(one.product(a, level) for one in ws)), "ok")


def refusal_cases(rng):
    w = Weights(rng, 64, 16)
    a = normal(rng, 2, 64)
    for name, wrong in (("k_smaller", normal(rng, 2, 63)), ("k_larger", normal(rng, 2, 65)), ("transposed", normal(rng, 64, 2))):
        for level in (0, 4):
            yield refused(f"last_dimension_{name}_level{level}", w, wrong, "run", accuracy_level=level)

    # Wrong in both engines.
    for attribute in ("K", "N", "block_size"):
        yield refused(f"{attribute}_absent", w, a, "load", **{attribute: ABSENT})
    yield refused("bits_3", w, a, "load", bits=3)
    yield refused("bits_8_with_4bit_codes", w, a, "load", bits=8)
    yield refused("block_size_48", w, a, "load", block_size=48)
    yield refused("block_size_512", w, a, "load", block_size=512)
    yield refused("block_size_64_with_codes_of_32", w, a, "load", block_size=64)
    yield refused("k_as_float", w, a, "load", K=64.0)
    yield refused("b_of_two_dimensions", w, a, "load", constants={"B": w.codes().reshape(16, -1)})
    yield refused("b_of_fewer_columns", w, a, "load", constants={"B": w.codes()[:15]})
    yield refused("b_of_fewer_blocks", w, a, "load", constants={"B": w.codes()[:, :1]})
    yield refused("scales_too_few", w, a, "load", constants={"scales": w.scales.reshape(-1)[:-1]})
    yield refused("scales_transposed", w, a, "load", constants={"scales": np.ascontiguousarray(w.scales.T)})
    yield refused("scales_float16", w, a, "load", constants={"scales": w.scales.astype(np.float16)})
    yield refused("bias_too_short", w, a, "load", constants={"bias": np.ones(15, np.float32)})
    yield refused("bias_float16", w, a, "load", constants={"bias": np.ones(16, np.float16)})
    yield refused("float16_activations_float32_scales", w, a.astype(np.float16), "load")
    z = Weights(rng, 70, 17, "packed")
    yield refused("zero_points_packed_across_columns", z, normal(rng, 2, 70), "load",
                  constants={"zero_points": z.zero_points().reshape(-1)[: -(-17 * 3 // 2)]})
    z = Weights(rng, 70, 17, "float")
    yield refused("float_zero_points_too_few", z, normal(rng, 2, 70), "load", constants={"zero_points": z.z[:, :2]})
    z = Weights(rng, 70, 17, "packed", bits=8)
    yield refused("8bit_zero_points_too_few", z, normal(rng, 2, 70), "load", constants={"zero_points": z.z[:, :2]})
    yield refused("unknown_attribute", w, a, "load", group_size=32)

    # Forms that the oracle has and this engine names as unsupported.
    skip = {"ort": "skip"}
    yield refused("bits_2", w, a, "load", **skip, bits=2, constants={"B": rng.integers(0, 256, (16, 2, 8), dtype=np.uint8)})
    for level in (5, -1):
        yield refused(f"accuracy_level_{level}", w, a, "load", **skip, accuracy_level=level)
    for bits in (4, 8):
        yield refused(f"g_idx_{bits}bit", Weights(rng, 64, 16, None, bits), a, "load", **skip,
                      constants={"g_idx": (np.arange(64) // 32).astype(np.int32)})
    # Silently wrong in the oracle, or correct only by expanding the whole matrix.
    for bits in (4, 8):
        for level in (0, 4):
            w = Weights(rng, 64, 16, None, bits)
            z = Weights(rng, 64, 16, "packed", bits)
            biased = Weights(rng, 64, 16, None, bits, bias=True)
            form = f"at_run_time_{bits}bit_level{level}"
            yield refused(f"b_{form}", w, a, "load", **skip, runtime=["B"], accuracy_level=level)
            yield refused(f"scales_{form}", w, a, "load", **skip, runtime=["scales"], accuracy_level=level)
            yield refused(f"zero_points_{form}", z, a, "load", **skip, runtime=["zero_points"], accuracy_level=level)
            yield refused(f"bias_{form}", biased, a, "load", **skip, runtime=["bias"], accuracy_level=level)


def cases():
    rng = np.random.default_rng(20)
    yield from form_cases(rng)
    yield from shape_cases(rng)
    yield from rank_cases(rng)
    yield from value_cases(rng)
    yield from not_finite_cases(rng)
    yield from shared_cases(rng)
    yield from refusal_cases(rng)
