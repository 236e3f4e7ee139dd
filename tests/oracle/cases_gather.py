# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Gather: axes, index ranges and types, empty and scalar shapes. Copies are compared bit for bit."""
import numpy as np
from one_node import floats, one_node


def case(name, data, indices, expect="ok", *, constants=(), opset=21, ort=None, dtype=None, **attributes):
    rank = max(data.ndim - 1 + indices.ndim, 0)
    model, feeds = one_node("Gather", [("data", data), ("indices", indices)], [("y", data.dtype, rank)],
                            constants=constants, opset=opset, **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def cases():
    table = floats(1, 50, 16)
    cube = floats(2, 2, 3, 4)
    i64 = lambda *v: np.array(v, np.int64)  # noqa: E731
    for opset in (13, 21, 26):
        yield case(f"embedding-opset{opset}", table, np.array([[3, 0, 49], [7, 7, 1]], np.int64), constants=("data",), opset=opset)
    yield case("int32-indices", table, np.array([4, -1], np.int32))
    for axis in (0, 1, 2, -1, -3):
        yield case(f"axis{axis}", cube, i64(1, 0, -1), axis=axis)
    yield case("index-matrix-inner-axis", cube, np.array([[0, 3], [-4, 1]], np.int64), axis=2)
    yield case("scalar-index", table, np.array(5, np.int64))
    yield case("scalar-from-vector", i64(2, 9), np.array(1, np.int64), constants=("indices",))
    yield case("negative-lowest", table, i64(-50))
    yield case("empty-indices", table, np.zeros((0,), np.int64))
    yield case("empty-indices-of-empty-table", np.zeros((0, 4), np.float32), np.zeros((0, 2), np.int64))
    yield case("empty-slices", np.zeros((3, 0), np.float32), i64(2, 1))
    yield case("nan-payload", np.array([np.nan, -0.0, np.inf], np.float32), i64(2, 1, 0))
    for dtype in (np.int32, np.int64, np.uint8, np.float64, np.float16, np.bool_):
        yield case(f"data-{np.dtype(dtype).name}", np.arange(6).reshape(3, 2).astype(dtype), i64(2, 0))
    yield case("above-range", table, i64(0, 50), "run")
    yield case("below-range", table, i64(-51, 0), "run")
    yield case("far-out-of-range", table, i64(2**62), "run")
    yield case("empty-table", np.zeros((0, 4), np.float32), i64(0), "run")
    yield case("empty-table-negative", np.zeros((0, 4), np.float32), i64(-1), "run")
    yield case("int32-out-of-range", table, np.array([50], np.int32), "run")
    yield case("constant-data-axis-out-of-range", cube, i64(0), "load", constants=("data",), axis=3)
    yield case("axis-out-of-range", cube, i64(0), "run", axis=3)
    yield case("axis-below-range", cube, i64(0), "run", axis=-4)
    yield case("float-indices", table, np.array([1.0], np.float32), "load")
    yield case("unknown-attribute", table, i64(0), "load", mode=1)
