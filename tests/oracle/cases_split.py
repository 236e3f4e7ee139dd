# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Split: sizes, counts, axes, empty pieces. Copies are compared bit for bit."""
import numpy as np
from one_node import floats, one_node


def case(name, x, sizes, outputs, expect="ok", *, constants=("sizes",), opset=21, ort=None, **attributes):
    sizes = sizes if sizes is None or isinstance(sizes, np.ndarray) else np.array(sizes, np.int64)
    inputs = [("x", x)] + ([] if sizes is None else [("sizes", sizes)])
    model, feeds = one_node("Split", inputs, [(f"y{j}", x.dtype, x.ndim) for j in range(outputs)],
                            constants=constants if sizes is not None else (), opset=opset, **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def cases():
    for tokens in (1, 3):
        for batch in (1, 2):
            for opset in (18, 21, 26):
                yield case(f"packed-{batch}x{tokens}-opset{opset}", floats(1, batch, tokens, 4096), [2048, 1024, 1024], 3,
                           axis=-1, opset=opset)
    cube = floats(2, 4, 6, 5)
    for axis, sizes in ((0, [1, 3]), (1, [2, 2, 2]), (-2, [5, 1]), (2, [4, 1]), (-3, [4])):
        yield case(f"axis{axis}-{sizes}", cube, sizes, len(sizes), axis=axis)
    yield case("default-axis", cube, [3, 1], 2)
    yield case("fed-sizes", cube, [1, 5], 2, constants=(), axis=1)
    yield case("zero-pieces", cube, [0, 6, 0], 3, axis=1)
    yield case("num-outputs-even", cube, None, 3, axis=1, num_outputs=3)
    yield case("num-outputs-rest", cube, None, 2, axis=2, num_outputs=2)
    yield case("num-outputs-one", cube, None, 1, num_outputs=1)
    yield case("equal-parts-opset13", cube, None, 2, opset=13)
    yield case("no-sizes-opset21", cube, None, 2)
    yield case("unequal-parts-opset13", cube, None, 4, "run", opset=13, axis=1)
    yield case("empty-tensor", np.zeros((0, 4), np.float32), [1, 3], 2, axis=1)
    yield case("empty-axis", np.zeros((2, 0), np.float32), [0, 0], 2, axis=1)
    yield case("int64", np.arange(12).reshape(3, 4), [1, 3], 2, axis=1)
    yield case("leading-ones", floats(3, 1, 1, 8), [3, 5], 2, axis=-1)
    yield case("sum-too-small", cube, [2, 3], 2, "run", axis=1)
    yield case("sum-too-large", cube, [2, 5], 2, "run", axis=1)
    yield case("negative", cube, [-1, 7], 2, "run", axis=1)
    yield case("wrong-count", cube, [2, 2, 2], 2, "run", axis=1)
    yield case("too-few", cube, [6], 2, "run", axis=1)
    yield case("fed-sum-wrong", cube, [2, 3], 2, "run", axis=1, constants=())
    yield case("sizes-matrix", cube, np.array([[2, 4]], np.int64), 2, "run", axis=1)
    yield case("axis-out-of-range", cube, [2, 4], 2, "run", axis=3)
    yield case("axis-below-range", cube, [2, 4], 2, "run", axis=-4)
    yield case("num-outputs-too-many", floats(4, 5), None, 4, "run", num_outputs=4)
    yield case("num-outputs-differs", cube, None, 2, "load", num_outputs=3, ort="skip")
    yield case("both-forms", cube, [2, 2], 2, "load", num_outputs=2)
    yield case("int32-sizes", cube, np.array([2, 2], np.int32), 2, "load")
    model, feeds = one_node("Split", [("x", cube)], [("a", np.float32, 3), ("b", np.float32, 3)], split=[2, 2])
    yield "split-attribute", model, feeds, {}, "load"
