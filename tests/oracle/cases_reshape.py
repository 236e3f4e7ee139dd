# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Reshape: zeros, -1, allowzero, empty tensors. Compared bit for bit."""
import numpy as np
from one_node import floats, one_node


def case(name, x, shape, expect="ok", *, constants=("shape",), opset=21, ort=None, **attributes):
    shape = shape if isinstance(shape, np.ndarray) else np.array(shape, np.int64)
    rank = shape.size if shape.ndim == 1 else None
    model, feeds = one_node("Reshape", [("x", x), ("shape", shape)], [("y", x.dtype, rank)], constants=constants, opset=opset,
                            **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def cases():
    for opset in (13, 14, 19, 21, 26):
        yield case(f"heads-opset{opset}", floats(1, 2, 3, 2048), [0, -1, 128], opset=opset)
    yield case("heads-back", floats(2, 2, 48, 128), [0, -1, 2048])
    yield case("fed-shape", floats(3, 2, 3, 256), [0, -1, 128], constants=())
    yield case("no-tokens", np.zeros((2, 0, 2048), np.float32), [0, -1, 128])
    yield case("flatten", floats(4, 2, 3, 4), [-1])
    yield case("scalar-result", floats(5, 1, 1), [])
    yield case("from-scalar", np.array(3.5, np.float32), [1, 1])
    yield case("inferred-from-scalar", np.array(3.5, np.float32), [-1])
    yield case("zero-copies-zero", np.zeros((0, 3), np.float32), [0, 0])
    yield case("zero-to-literal", np.zeros((0, 3), np.float32), [3, 0], allowzero=1)
    yield case("allowzero-no-zero", floats(6, 2, 3), [3, -1], allowzero=1)
    yield case("int64", np.arange(6), [2, 3])
    yield case("bool", np.array([True, False]), [2, 1])
    yield case("no-batch", np.zeros((0, 3, 2048), np.float32), [0, -1, 128], "run")
    yield case("two-unknown", floats(7, 6), [-1, -1], "run")
    yield case("below-minus-one", floats(7, 6), [-2, 3], "run")
    yield case("not-dividing", floats(7, 6), [4, -1], "run")
    yield case("wrong-product", floats(7, 6), [2, 2], "run")
    yield case("zero-beyond-rank", floats(7, 6), [6, 0], "run")
    yield case("fed-wrong-product", floats(7, 6), [7], "run", constants=())
    yield case("empty-shape-of-two", floats(7, 2), [], "run")
    yield case("allowzero-mismatch", floats(7, 2, 3), [0, 3], "run", allowzero=1)
    yield case("overflow", floats(7, 6), [2**40, 2**40], "run")
    yield case("allowzero-with-unknown", np.zeros((0, 3), np.float32), [0, -1], "run", allowzero=1, ort="skip")
    yield case("shape-matrix", floats(7, 6), np.array([[6]], np.int64), "load")
    yield case("shape-scalar", floats(7, 6), np.array(6, np.int64), "load")
    yield case("shape-matrix-fed", floats(7, 6), np.array([[6]], np.int64), "run", constants=())
    yield case("int32-shape", floats(7, 6), np.array([6], np.int32), "load")
    yield case("allowzero-opset13", floats(7, 6), [6], "load", opset=13, allowzero=0)
