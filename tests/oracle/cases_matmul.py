# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of MatMul in float32: NumPy shapes, tile edges, special values.

Both engines add in float32, in different orders: atol is 2 (K + 1) eps times the largest sum of |a b|.
"""
import numpy as np
from one_node import floats, one_node


def case(name, a, b, expect="ok", *, constants=("b",), opset=21, ort=None, **attributes):
    model, feeds = one_node("MatMul", [("a", a), ("b", b)], [("y", a.dtype, None)], constants=constants, opset=opset, **attributes)
    t = {"ort": ort} if ort else {}
    if expect == "ok":
        with np.errstate(all="ignore"):
            sums = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        largest = np.max(np.where(np.isfinite(sums), sums, 0), initial=1e-30)
        t["atol"] = float(2 * (a.shape[-1] + 1) * np.finfo(np.float32).eps * largest)
    return name, model, feeds, t, expect


def cases():
    for opset in (9, 13, 21, 26):
        yield case(f"projection-opset{opset}", floats(1, 1, 3, 256), floats(2, 256, 96), opset=opset)
    for m in (1, 2, 5, 6, 7, 8, 9, 31, 257):
        yield case(f"rows-{m}", floats(3, 1, m, 65), floats(4, 65, 130))
    for n in (1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65):
        yield case(f"columns-{n}", floats(5, 9, 40), floats(6, 40, n))
    for k in (1, 2, 255, 256, 257, 1024):
        yield case(f"depth-{k}", floats(7, 9, k), floats(8, k, 35))
        yield case(f"depth-{k}-one-row", floats(7, 1, k), floats(8, k, 35))
    yield case("fed-b", floats(9, 4, 5), floats(10, 5, 6), constants=())
    shapes = [((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)),
              ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((5, 1, 2, 3), (6, 3, 4)), ((5, 6, 2, 3), (1, 6, 3, 4)),
              ((2, 3, 4, 5), (5, 6)), ((0, 3), (3, 4)), ((2, 0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 0), (0, 4))]
    for i, (a, b) in enumerate(shapes):
        yield case(f"{list(a)}-{list(b)}", floats(20 + i, *a), floats(60 + i, *b), constants=())
    x = floats(11, 3, 8)
    x[1, 2] = np.nan
    yield case("nan-row", x, floats(12, 8, 5))
    for a, b in (((2, 3), (4, 3)), ((2, 3), (2,)), ((5, 2, 3), (4, 3, 4))):
        yield case(f"mismatch-{list(a)}-{list(b)}", np.ones(a, np.float32), np.ones(b, np.float32), "run", constants=())
    yield case("scalar", np.ones((), np.float32), np.ones(3, np.float32), "run", constants=())
    yield case("float64", np.ones((2, 3)), np.ones((3, 2)), "load", ort="skip")
    yield case("int64", np.ones((2, 3), np.int64), np.ones((3, 2), np.int64), "load", ort="skip")
    yield case("unknown-attribute", floats(1, 2, 3), floats(2, 3, 2), "load", transB=1)
