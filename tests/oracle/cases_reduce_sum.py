# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of ReduceSum: axes in every form, empty extents, types. int64 is compared below 2^53, where ONNX
Runtime is exact too; float32 within the error of its float32 sums."""
import numpy as np
from one_node import floats, one_node


def case(name, x, axes, expect="ok", *, keepdims=None, noop=None, constants=(), opset=21, atol=0.0, ort=None, expected=None):
    attributes = {} if keepdims is None else {"keepdims": keepdims}
    if noop is not None:
        attributes["noop_with_empty_axes"] = noop
    axes = axes if axes is None or isinstance(axes, np.ndarray) else np.array(axes, np.int64)
    inputs = [("x", x)] + ([] if axes is None else [("axes", axes)])
    model, feeds = one_node("ReduceSum", inputs, [("y", x.dtype, None)], constants=constants, opset=opset, **attributes)
    tolerances = {"atol": atol}
    if ort:
        tolerances["ort"] = ort
    if expected is not None:
        tolerances["expected"] = {"y": expected}
    return name, model, feeds, tolerances, expect


def cases():
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int64)
    cube = np.arange(2 * 3 * 4, dtype=np.int64).reshape(2, 3, 4) - 7
    for opset in (13, 21, 26):
        yield case(f"mask-opset{opset}", mask, [1], keepdims=0, constants=("axes",), opset=opset)
    for axes in ([0], [1], [2], [-1], [0, 1], [0, 2], [1, 2], [2, 0], [-3, -1], [0, 1, 2]):
        for keep in (0, 1):
            yield case(f"axes{axes}-keep{keep}", cube, axes, keepdims=keep)
    yield case("fed-axes", mask, [1], keepdims=0)
    yield case("default-keepdims", mask, [0])
    yield case("absent-axes", cube, None)
    yield case("empty-axes", cube, [])
    yield case("empty-axes-flat", cube, [], keepdims=0)
    yield case("empty-axes-noop", cube, [], noop=1)
    yield case("absent-axes-noop", cube, None, noop=1)
    yield case("axes-with-noop", cube, [1], noop=1)
    yield case("extent-zero", np.zeros((2, 0), np.int64), [1], keepdims=0)
    yield case("extent-zero-kept", np.zeros((2, 0), np.int64), [0], keepdims=0)
    yield case("extent-zero-all", np.zeros((2, 0), np.int64), None)
    yield case("extent-zero-float", np.zeros((0, 3), np.float32), [0])
    yield case("scalar", np.array(5, np.int64), None)
    yield case("duplicate-axes", cube, [1, 1, -2], keepdims=0)
    yield case("int32", cube.astype(np.int32), [1])
    # One unit in the last place for each of 999 additions of at most sum|x| = 1000, in float32.
    yield case("float32-rows", floats(1, 8, 1000), [1], atol=2e-4)
    yield case("float32-columns", floats(2, 1000, 8), [0], atol=2e-4)
    yield case("float32-outer-and-inner", floats(3, 7, 5, 9), [0, 2], atol=1e-5)
    yield case("nan-and-infinity", np.array([[np.nan, 1], [np.inf, 1], [np.inf, -np.inf]], np.float32), [1])
    yield case("above-2-53", np.array([2**53, 1, 1, 2**62], np.int64), [0], keepdims=0, ort="skip",
               expected=np.array(2**53 + 2 + 2**62, np.int64))
    yield case("wraps", np.array([2**63 - 1, 1], np.int64), [0], keepdims=0, ort="skip", expected=np.array(-2**63, np.int64))
    yield case("axis-out-of-range", mask, [2], "run")
    yield case("axis-below-range", mask, [-3], "run")
    yield case("scalar-axes", mask, np.array(1, np.int64), "run")
    yield case("scalar-axes-constant", mask, np.array(1, np.int64), "load", constants=("axes",))
    yield case("int32-axes", mask, np.array([1], np.int32), "load")
    yield case("float64", np.ones((2, 2)), [0], "load", ort="skip")
    model, feeds = one_node("ReduceSum", [("x", mask)], [("y", np.int64, None)], axes=[1])
    yield "axes-attribute", model, feeds, {}, "load"
