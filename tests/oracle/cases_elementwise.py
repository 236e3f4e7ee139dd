# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Add, Sub, Mul and Sigmoid: broadcasting, integer wrapping, special floats.

Arithmetic is compared bit for bit. ONNX Runtime's sigmoid is a rational approximation, absolute error up to 1.7e-7: hence
atol 5e-7 and no relative bound.
"""
import numpy as np
from one_node import floats, one_node

SIGMOID = 5e-7


def case(name, op, a, b, expect="ok", *, constants=(), opset=21, ort=None, **attributes):
    model, feeds = one_node(op, [("a", a), ("b", b)], [("y", a.dtype, max(a.ndim, b.ndim))], constants=constants, opset=opset,
                            **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def sigmoid(name, x, expect="ok", *, opset=21, ort=None, **attributes):
    model, feeds = one_node("Sigmoid", [("x", x)], [("y", x.dtype, x.ndim)], opset=opset, **attributes)
    return name, model, feeds, {"atol": SIGMOID} | ({"ort": ort} if ort else {}), expect


def cases():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38, -1.5], np.float32)
    lengths = np.array([0, 1, -2**63, 2**63 - 1, 40960], np.int64)
    one = np.array([1], np.int64)
    for op in ("Add", "Sub", "Mul"):
        for opset in (7, 13, 14, 21, 26):
            yield case(f"{op}-opset{opset}", op, floats(1, 3, 33), floats(2, 3, 33), opset=opset)
        yield case(f"{op}-gate", op, floats(3, 2, 5, 3072), floats(4, 2, 5, 3072))
        yield case(f"{op}-special", op, special.reshape(8, 1), special.reshape(1, 8))
        yield case(f"{op}-int64-wraps", op, lengths, one, constants=("b",))
        yield case(f"{op}-int64-scalar", op, lengths, np.array(3, np.int64))
        yield case(f"{op}-int32-wraps", op, np.array([2**31 - 1, -2**31, 5], np.int32), np.array([-1, 2, 3], np.int32))
    shapes = [((), (3,)), ((1,), (4,)), ((3, 1), (1, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((2, 3, 4), (3, 1)),
              ((2, 1, 4), (2, 3, 1)), ((1, 1, 1, 4), (5, 2, 3, 4)), ((5, 1, 3, 1), (2, 1, 4)), ((3, 0), (1,)), ((3, 0), (3, 1)),
              ((0, 1), (1, 4)), ((), ()), ((2, 3, 4), (2, 3, 4)), ((65, 129), (65, 1)), ((65, 129), (129,))]
    for i, (a, b) in enumerate(shapes):
        for op in ("Sub", "Mul"):
            yield case(f"{op}-{list(a)}-{list(b)}", op, floats(10 + i, *a).reshape(a), floats(50 + i, *b).reshape(b))
    for a, b in (((2, 3), (2,)), ((3, 4), (3, 3)), ((2,), (0,)), ((2, 3, 4), (3, 3, 4))):
        yield case(f"Mul-{list(a)}-{list(b)}", "Mul", np.ones(a, np.float32), np.ones(b, np.float32), "run")
    yield case("Sub-mismatch-int64", "Sub", np.ones((2, 3), np.int64), np.ones((2,), np.int64), "run")
    yield case("mixed-types", "Add", floats(1, 3), np.ones(3, np.int64), "load")
    yield case("float64", "Add", np.ones(3), np.ones(3), "load", ort="skip")
    yield case("uint8", "Mul", np.ones(3, np.uint8), np.ones(3, np.uint8), "load", ort="skip")
    yield case("float16", "Mul", np.ones(3, np.float16), np.ones(3, np.float16), "load", ort="skip")
    yield case("broadcast-attribute", "Add", floats(1, 3), floats(1, 3), "load", broadcast=1)

    for opset in (6, 13, 21, 26):
        yield sigmoid(f"Sigmoid-opset{opset}", floats(5, 3, 1027, scale=6.0), opset=opset)
    yield sigmoid("Sigmoid-range", np.linspace(-120, 120, 100001, dtype=np.float32))
    yield sigmoid("Sigmoid-special", special)
    yield sigmoid("Sigmoid-empty", np.zeros((0, 4), np.float32))
    yield sigmoid("Sigmoid-scalar", np.array(-0.25, np.float32))
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 33):
        yield sigmoid(f"Sigmoid-length{n}", floats(6, n, scale=4.0))
    yield sigmoid("Sigmoid-float16", np.ones(3, np.float16), "load", ort="skip")
    yield sigmoid("Sigmoid-int64", np.ones(3, np.int64), "load")
