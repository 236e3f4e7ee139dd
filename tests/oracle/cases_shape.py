# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Shape: slices of the extents, empty tensors, types."""
import numpy as np
from one_node import one_node


def case(name, x, expect="ok", *, opset=21, ort=None, **attributes):
    model, feeds = one_node("Shape", [("x", x)], [("y", np.int64, 1)], opset=opset, **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def cases():
    x = np.zeros((5, 6, 7), np.float32)
    for opset in (13, 15, 21, 26):
        yield case(f"mask-opset{opset}", np.zeros((2, 9), np.int64), opset=opset)
    for start, end in ((0, 2), (1, 3), (-1, 9), (-9, -1), (2, 1), (9, 9), (-2, -1), (0, -3)):
        yield case(f"start{start}-end{end}", x, start=start, end=end)
    yield case("start-only", x, start=1)
    yield case("end-only", x, end=-1)
    yield case("scalar", np.array(1.0, np.float32))
    yield case("scalar-sliced", np.array(1.0, np.float32), start=-1, end=2)
    yield case("empty", np.zeros((2, 0, 128), np.float32))
    for dtype in (np.float64, np.float16, np.int32, np.uint8, np.bool_):
        yield case(f"type-{np.dtype(dtype).name}", np.zeros((2, 3), dtype))
    yield case("slice-opset13", x, "load", opset=13, start=1)
    yield case("unknown-attribute", x, "load", axis=1)
