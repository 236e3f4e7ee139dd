# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of com.microsoft::MatMulNBits: 4 bits, block 32, accuracy level 4, and what is refused around them.

Needs numpy and onnx only. The tolerance is 1e-5 * max(1, max|Y|), with max|Y| from the formula in double: both engines
sum the same integers, in another order of float32 additions.
"""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

BLOCK = 32


def blocks_of(k):
    return -(-k // BLOCK)


def pack_nibbles(values):
    """Pairs of the last dimension into bytes, the even element in the low nibble."""
    values = np.asarray(values, np.uint8)
    if values.shape[-1] % 2:
        raise ValueError("an even number of nibbles is needed")
    return values[..., 0::2] | (values[..., 1::2] << 4)


class Weights:
    def __init__(self, rng, k, n, zero_points=False, scale=0.05):
        self.k, self.n, self.blocks = k, n, blocks_of(k)
        self.q = rng.integers(0, 16, (n, k), dtype=np.uint8)
        self.z = rng.integers(0, 16, (n, self.blocks), dtype=np.uint8) if zero_points else None
        self.scales = rng.uniform(-scale, scale, (n, self.blocks)).astype(np.float32)
        self.garbage = 0

    def codes(self):
        padded = np.full((self.n, self.blocks * BLOCK), self.garbage, np.uint8)
        padded[:, : self.k] = self.q
        return pack_nibbles(padded).reshape(self.n, self.blocks, BLOCK // 2)

    def packed_zero_points(self):
        padded = np.full((self.n, self.blocks + self.blocks % 2), self.garbage, np.uint8)
        padded[:, : self.blocks] = self.z
        return pack_nibbles(padded)

    def largest_output(self, a):
        """max|Y| by the formula in double."""
        rows = np.zeros((a.size // self.k if a.size else 0, self.blocks * BLOCK), np.float32)
        rows[:, : self.k] = a.reshape(-1, self.k)
        rows = rows.reshape(-1, self.blocks, BLOCK)
        amax = np.abs(rows).max(axis=2, keepdims=True, initial=0)
        with np.errstate(all="ignore"):
            inverse = np.where(amax > 0, np.float32(127) / amax, np.float32(0))
            inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
            a8 = np.rint(rows * inverse)
            q = np.zeros((self.n, self.blocks * BLOCK))
            q[:, : self.k] = self.q
            z = np.full((self.n, self.blocks), 8.0) if self.z is None else self.z.astype(np.float64)
            q = q.reshape(self.n, self.blocks, BLOCK) - z[..., None]
            y = np.einsum("mbk,nbk,mb,nb->mn", a8.astype(np.float64), q, (amax[..., 0] / np.float32(127)).astype(np.float64),
                          self.scales.astype(np.float64), optimize=True)
        return float(np.abs(y).max(initial=0))


ABSENT = object()


def node(inputs, outputs, k, n, name="/lm_head/MatMul_Q4", **attributes):
    wanted = {"K": k, "N": n, "block_size": BLOCK, "bits": 4, "accuracy_level": 4} | attributes
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


def one_node(w, a, scales=None, opset=21, constants=None, inputs=None, runtime=(), **attributes):
    """The model and feeds of one node. `constants` adds or replaces named constants, `inputs` replaces the input list,
    `runtime` names constants that are fed instead."""
    values = {"B": w.codes(), "scales": w.scales if scales is None else scales}
    if w.z is not None:
        values["zero_points"] = w.packed_zero_points()
    values |= constants or {}
    names = inputs or (["A", "B", "scales"] + (["zero_points"] if w.z is not None else []))
    dtypes = {name: helper.np_dtype_to_tensor_dtype(v.dtype) for name, v in values.items()}
    graph_inputs = [value("A", helper.np_dtype_to_tensor_dtype(a.dtype), a.ndim)]
    graph_inputs += [value(name, dtypes[name], values[name].ndim) for name in runtime]
    made = model([node(names, ["Y"], w.k, w.n, **attributes)], graph_inputs,
                 [value("Y", helper.np_dtype_to_tensor_dtype(a.dtype), a.ndim)],
                 {name: v for name, v in values.items() if name in names and name not in runtime}, opset)
    return made, {"A": a} | {name: values[name] for name in runtime}


def compared(name, w, a, **options):
    made, feeds = one_node(w, a, **options)
    return name, made, feeds, {"atol": 1e-5 * max(1.0, w.largest_output(a)), "rtol": 0.0}, "ok"


def refused(name, w, a, when, ort=None, **options):
    made, feeds = one_node(w, a, **options)
    return name, made, feeds, {"atol": 0.0, "rtol": 0.0} | ({} if ort is None else {"ort": ort}), when


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def shape_cases(rng):
    for zero_points in (False, True):
        kind = "asymmetric" if zero_points else "symmetric"
        for m in (1, 2, 3, 4, 7, 8, 16, 31, 128, 129):
            yield compared(f"{kind}_m{m}", Weights(rng, 96, 17, zero_points), normal(rng, m, 96))
        for n in (1, 2, 3, 15, 16, 17, 127):
            for m in (1, 5):
                yield compared(f"{kind}_m{m}_n{n}", Weights(rng, 64, n, zero_points), normal(rng, m, 64))
        for k in (1, 31, 32, 33, 63, 65, 159, 1024, 2048, 3072):
            for m in (1, 6):
                yield compared(f"{kind}_m{m}_k{k}", Weights(rng, k, 33, zero_points), normal(rng, m, k))
    for k, n in ((1024, 4096), (2048, 1024), (1024, 3072), (3072, 1024)):
        yield compared(f"projection_{k}x{n}", Weights(rng, k, n), normal(rng, 1, 1, k))
    yield compared("vocabulary_n151936", Weights(rng, 32, 151936), normal(rng, 1, 32))


def rank_cases(rng):
    w = Weights(rng, 64, 19)
    yield compared("rank1", w, normal(rng, 64))
    yield compared("rank3", w, normal(rng, 2, 3, 64))
    yield compared("rank5", w, normal(rng, 2, 1, 2, 1, 64))
    yield compared("no_rows", w, normal(rng, 0, 64))
    yield compared("no_rows_in_a_batch", w, normal(rng, 2, 0, 64))
    yield compared("opset26", w, normal(rng, 2, 64), opset=26)
    yield compared("flat_scales", w, normal(rng, 2, 64), scales=w.scales.reshape(-1))
    z = Weights(rng, 70, 19, zero_points=True)
    yield compared("flat_zero_points", z, normal(rng, 2, 70), constants={"zero_points": z.packed_zero_points().reshape(-1)})
    yield compared("bits_absent", w, normal(rng, 2, 64), bits=ABSENT)
    yield compared("empty_optional_inputs", w, normal(rng, 2, 64), inputs=["A", "B", "scales", "", "", ""])
    yield compared("weight_prepacked_default", w, normal(rng, 2, 64), weight_prepacked=0)


def value_cases(rng):
    w = Weights(rng, 64, 32, zero_points=True)
    w.q[:] = (np.arange(64)[None, :] + np.arange(32)[:, None]) % 16
    w.z[:] = (np.arange(2)[None, :] * 5 + np.arange(32)[:, None]) % 16
    yield compared("all_codes_and_zero_points", w, normal(rng, 3, 64))

    for garbage in (5, 15):
        w = Weights(rng, 70, 18, zero_points=True)
        w.garbage = garbage
        yield compared(f"garbage_padding_{garbage}", w, normal(rng, 3, 70))

    w = Weights(rng, 96, 20)
    w.scales[0::4] = 0
    w.scales[1::4] = -np.abs(w.scales[1::4])
    w.scales[2::4] = 1e-40
    yield compared("zero_negative_denormal_scales", w, normal(rng, 3, 96))

    w = Weights(rng, 96, 20)
    a = normal(rng, 3, 96)
    a[0, 32:64] = 0
    a[1] = 0
    a[2, 5] = -0.0
    yield compared("zero_blocks", w, a)
    a = normal(rng, 3, 96)
    a[:, 40] = 1e6
    yield compared("one_huge_element", w, a)
    a = np.zeros((2, 96), np.float32)
    a[:, 0::32] = 127
    a[0, 1:20] = np.arange(19) - 9 + 0.5
    a[1, 33:52] = -(np.arange(19) * 5 + 0.5)
    yield compared("ties_round_to_even", w, a)
    a = normal(rng, 2, 96) * np.float32(1e-38)
    yield compared("tiny_blocks", w, a)
    a = normal(rng, 2, 96) * np.float32(1e-42)
    yield compared("denormal_activations", w, a)

    # The oracle drops a NaN; the contract is that the row is NaN. Rows of zeros beside it stay zero.
    for name, bad in (("nan", np.nan), ("positive_infinity", np.inf), ("negative_infinity", -np.inf)):
        a = np.zeros((3, 96), np.float32)
        a[1, 50] = bad
        made, feeds = one_node(w, a)
        expected = np.zeros((3, 20), np.float32)
        expected[1] = np.nan
        yield (f"{name}_spoils_its_row", made, feeds, {"atol": 0.0, "rtol": 0.0, "ort": "skip", "expected": {"Y": expected}},
               "ok")


def shared_cases(rng):
    w = Weights(rng, 64, 40)
    a, b = normal(rng, 1, 64), normal(rng, 5, 64)
    made = model([node(["A", "W", "scales"], ["Y"], 64, 40, "first"), node(["B", "W", "scales"], ["Z"], 64, 40, "second")],
                 [value("A", TensorProto.FLOAT, 2), value("B", TensorProto.FLOAT, 2)],
                 [value("Y", TensorProto.FLOAT, 2), value("Z", TensorProto.FLOAT, 2)],
                 {"W": w.codes(), "scales": w.scales})
    limit = max(1.0, w.largest_output(a), w.largest_output(b))
    yield "two_nodes_share_one_b", made, {"A": a, "B": b}, {"atol": 1e-5 * limit, "rtol": 0.0}, "ok"


def refusal_cases(rng):
    w = Weights(rng, 64, 16)
    a = normal(rng, 2, 64)
    for name, wrong in (("k_smaller", normal(rng, 2, 63)), ("k_larger", normal(rng, 2, 65)), ("transposed", normal(rng, 64, 2))):
        yield refused(f"last_dimension_{name}", w, wrong, "run")

    # Wrong in both engines.
    for attribute in ("K", "N", "block_size"):
        yield refused(f"{attribute}_absent", w, a, "load", **{attribute: ABSENT})
    yield refused("bits_3", w, a, "load", bits=3)
    yield refused("block_size_48", w, a, "load", block_size=48)
    yield refused("block_size_512", w, a, "load", block_size=512)
    yield refused("k_as_float", w, a, "load", K=64.0)
    yield refused("b_of_two_dimensions", w, a, "load", constants={"B": w.codes().reshape(16, -1)})
    yield refused("b_of_fewer_columns", w, a, "load", constants={"B": w.codes()[:15]})
    yield refused("b_of_fewer_blocks", w, a, "load", constants={"B": w.codes()[:, :1]})
    yield refused("scales_too_few", w, a, "load", constants={"scales": w.scales.reshape(-1)[:-1]})
    yield refused("scales_transposed", w, a, "load", constants={"scales": np.ascontiguousarray(w.scales.T)})
    yield refused("scales_float16", w, a, "load", constants={"scales": w.scales.astype(np.float16)})
    z = Weights(rng, 70, 17, zero_points=True)
    yield refused("zero_points_packed_across_columns", z, normal(rng, 2, 70), "load",
                  constants={"zero_points": z.packed_zero_points().reshape(-1)[: -(-17 * 3 // 2)]})
    yield refused("unknown_attribute", w, a, "load", group_size=32)

    # Forms that the oracle has and this engine names as unsupported.
    skip = {"ort": "skip"}
    yield refused("bits_8", w, a, "load", **skip, bits=8,
                  constants={"B": rng.integers(0, 256, (16, 2, 32), dtype=np.uint8)})
    yield refused("bits_2", w, a, "load", **skip, bits=2, constants={"B": rng.integers(0, 256, (16, 2, 8), dtype=np.uint8)})
    for size in (16, 64, 128, 256):
        count = -(-64 // size)
        yield refused(f"block_size_{size}", w, a, "load", **skip, block_size=size,
                      constants={"B": np.zeros((16, count, size // 2), np.uint8), "scales": np.ones((16, count), np.float32)})
    for level in (0, 1, 2, 3, 5, -1):
        yield refused(f"accuracy_level_{level}", w, a, "load", **skip, accuracy_level=level)
    yield refused("accuracy_level_absent", w, a, "load", **skip, accuracy_level=ABSENT)
    yield refused("float_zero_points", w, a, "load", **skip, inputs=["A", "B", "scales", "z"],
                  constants={"z": np.full((16, 2), 8, np.float32)})
    yield refused("g_idx", w, a, "load", **skip, inputs=["A", "B", "scales", "", "g"],
                  constants={"g": (np.arange(64) // 32).astype(np.int32)})
    yield refused("bias", w, a, "load", **skip, inputs=["A", "B", "scales", "", "", "bias"],
                  constants={"bias": np.ones(16, np.float32)})
    yield refused("float16_activations", w, a.astype(np.float16), "load", **skip,
                  constants={"scales": w.scales.astype(np.float16)})
    # Silently wrong in the oracle, or correct only by expanding the whole matrix.
    yield refused("b_at_run_time", w, a, "load", **skip, runtime=["B"])
    yield refused("scales_at_run_time", w, a, "load", **skip, runtime=["scales"])
    z = Weights(rng, 64, 16, zero_points=True)
    yield refused("zero_points_at_run_time", z, a, "load", **skip, runtime=["zero_points"])


def cases():
    rng = np.random.default_rng(20)
    yield from shape_cases(rng)
    yield from rank_cases(rng)
    yield from value_cases(rng)
    yield from shared_cases(rng)
    yield from refusal_cases(rng)
