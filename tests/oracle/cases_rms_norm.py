# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of SimplifiedLayerNormalization and com.microsoft::SkipSimplifiedLayerNormalization.

Y is compared within 1e-5 of max|Y| (observed 2e-7), the residual sum bit for bit.
"""
import numpy as np
from one_node import floats, one_node


def tolerances(x, gamma, axis, epsilon, ort=None):
    """1e-5 of max|Y|, from the formula in double."""
    with np.errstate(all="ignore"):
        y = x.astype(np.float64).reshape(x.shape[:axis] + (int(np.prod(x.shape[axis:])),))
        y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + epsilon)
        largest = np.nanmax(np.abs(np.where(np.isfinite(y), y, 0)), initial=0) * np.max(np.abs(gamma), initial=0)
    return {"atol": 1e-5 * max(float(largest), 1e-30)} | ({"ort": ort} if ort else {})


def plain(name, x, gamma, expect="ok", *, opset=21, ort=None, outputs=1, constants=("gamma",), **attributes):
    named = [("y", x.dtype, x.ndim), ("inv_std", np.float32, x.ndim)][:outputs]
    model, feeds = one_node("SimplifiedLayerNormalization", [("x", x), ("gamma", gamma)], named, opset=opset,
                            constants=constants, **attributes)
    axis = attributes.get("axis", -1)
    axis = axis if isinstance(axis, int) and -x.ndim <= axis < x.ndim else -1
    t = {"ort": ort} if ort else {}
    if expect == "ok":
        t = tolerances(x, gamma, axis % x.ndim, attributes.get("epsilon", 1e-5), ort)
    return name, model, feeds, t, expect


def skip(name, x, other, gamma, expect="ok", *, bias=None, outputs=1, ort=None, constants=("gamma", "bias"), extra=None,
         names=None, **attributes):
    inputs = [("x", x), ("skip", other), ("gamma", gamma)] + ([] if bias is None else [("bias", bias)]) + ([extra] if extra else [])
    named = names or [[("y", np.float32, x.ndim)], [("y", np.float32, x.ndim), None, None, ("sum", np.float32, x.ndim)]][outputs == 4]
    model, feeds = one_node("SkipSimplifiedLayerNormalization", inputs, named, domain="com.microsoft", constants=constants,
                            **attributes)
    t = {"ort": ort} if ort else {}
    if expect == "ok":
        r = x + np.broadcast_to(other, x.shape) + (0 if bias is None else bias)
        t = {"outputs": {"y": tolerances(r, gamma, x.ndim - 1, attributes.get("epsilon", 1e-12)), "sum": {}}}
    return name, model, feeds, t, expect


def cases():
    golden = np.array([[1, -2, 3, -4, 5, -6, 7, -8]], np.float32)
    scale = np.array([1, 0.5, 2, 1, 1, -1, 0.25, 3], np.float32)
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    yield plain("golden", golden, scale, epsilon=1e-6)
    for opset in (17, 21, 23, 24, 25, 26):
        yield plain(f"hidden-opset{opset}", floats(1, 1, 3, 1024), floats(2, 1024), opset=opset, axis=-1, epsilon=1e-6, stash_type=1)
    for rows in (1, 2, 33, 512):
        yield plain(f"heads-{rows}", floats(3, 1, rows, 128), floats(4, 128), epsilon=1e-6)
    for n in (1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 65, 1000):
        yield plain(f"width-{n}", floats(5, 5, n), floats(6, n), epsilon=1e-6)
    yield plain("fed-scale", floats(7, 2, 3, 16), floats(8, 16), constants=())
    yield plain("default-attributes", floats(7, 2, 16, scale=1e-3), floats(8, 16))
    cube = floats(9, 2, 3, 4)
    for axis, shape in ((-1, (1,)), (-1, (1, 4)), (-1, (4,)), (2, (4,)), (1, (3, 4)), (-2, (3, 4)), (0, (2, 3, 4))):
        yield plain(f"axis{axis}-scale{list(shape)}", cube, floats(10, *shape), axis=axis)
    yield plain("no-rows", np.zeros((0, 8), np.float32), ones(8))
    yield plain("no-rows-of-three", np.zeros((2, 0, 8), np.float32), ones(8))
    yield plain("zeros-without-epsilon", np.zeros((2, 8), np.float32), ones(8), epsilon=0.0)
    yield plain("one-zero-row", np.stack([np.zeros(8), np.arange(8)]).astype(np.float32), ones(8), epsilon=0.0)
    x = floats(11, 3, 8)
    x[1, 4] = np.nan
    yield plain("nan-row", x, ones(8))
    yield plain("overflow", np.full((1, 8), 1e30, np.float32), ones(8))
    yield plain("scale-too-short", cube, ones(3), "run")
    yield plain("scale-too-long", cube, ones(8), "run")
    yield plain("scale-empty", cube, np.zeros(0, np.float32), "run")
    yield plain("nothing-to-normalise", np.zeros((2, 0), np.float32), ones(1), "run")
    yield plain("axis-out-of-range", cube, ones(4), "run", axis=3)
    yield plain("negative-epsilon", cube, ones(4), "load", epsilon=-1e-6, ort="skip")
    yield plain("integer-epsilon", cube, ones(4), "load", epsilon=1)
    yield plain("stash-type-float16", cube, ones(4), "load", stash_type=10, ort="skip")
    yield plain("inv-std-output", cube, ones(4), "load", outputs=2, ort="skip")
    yield plain("float16", cube.astype(np.float16), ones(4).astype(np.float16), "load", ort="skip")
    yield plain("float64", cube.astype(np.float64), ones(4).astype(np.float64), "load", ort="skip")

    other = np.array([[0.5, 0.5, -0.5, 0.25, 0, 1, -1, 2]], np.float32)
    for outputs in (1, 4):
        yield skip(f"skip-golden-{outputs}", golden, other, scale, outputs=outputs, epsilon=1e-6)
        yield skip(f"skip-hidden-{outputs}", floats(1, 2, 5, 1024), floats(2, 2, 5, 1024), floats(3, 1024), outputs=outputs, epsilon=1e-6)
    for n in (1, 7, 8, 9, 15, 16, 17, 33, 100):
        yield skip(f"skip-width-{n}", floats(4, 2, 3, n), floats(5, 2, 3, n), floats(6, n), outputs=4, epsilon=1e-6)
    yield skip("skip-bias", floats(7, 2, 3, 16), floats(8, 2, 3, 16), floats(9, 16), bias=floats(10, 16), outputs=4)
    yield skip("skip-fed-vectors", floats(7, 3, 16), floats(8, 3, 16), floats(9, 16), bias=floats(10, 16), constants=(), outputs=4)
    yield skip("skip-default-epsilon", np.full((1, 4), 5e-7, np.float32), np.full((1, 4), 5e-7, np.float32), ones(4))
    yield skip("skip-zero-epsilon", floats(7, 3, 16), floats(8, 3, 16), ones(16), epsilon=0.0)
    batch = floats(11, 2, 3, 4)
    yield skip("skip-repeats-rank2", batch, floats(12, 3, 4), ones(4), outputs=4)
    yield skip("skip-repeats-rank3", batch, floats(12, 1, 3, 4), ones(4), outputs=4)
    yield skip("skip-no-tokens", np.zeros((2, 0, 4), np.float32), np.zeros((2, 0, 4), np.float32), ones(4), outputs=4)
    for shape in ((2, 1, 4), (2, 3, 1), (2, 4), (4,), (1, 1, 4), (1, 2, 3, 4)):
        yield skip(f"skip-shape-{list(shape)}", batch, ones(*shape), ones(4), "run")
    yield skip("skip-batch-differs", batch, ones(3, 3, 4), ones(4), "run", ort="skip")
    yield skip("skip-rank1", ones(4), ones(4), ones(4), "run")
    yield skip("skip-rank4", ones(1, 2, 3, 4), ones(1, 2, 3, 4), ones(4), "run")
    yield skip("skip-gamma-rank2", batch, batch, ones(1, 4), "run")
    yield skip("skip-gamma-short", batch, batch, ones(1), "run")
    yield skip("skip-bias-short", batch, batch, ones(4), "run", bias=ones(1))
    yield skip("skip-bias-rank2", batch, batch, ones(4), "run", bias=ones(1, 4))
    yield skip("skip-nothing-to-normalise", np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32), np.zeros(0, np.float32),
               "run", ort="skip")
    yield skip("skip-negative-epsilon", batch, batch, ones(4), "load", epsilon=-1e-6)
    yield skip("skip-fifth-input", batch, batch, ones(4), "load", bias=ones(4), extra=("more", ones(4)))
    yield skip("skip-unknown-attribute", batch, batch, ones(4), "load", axis=-1)
    yield skip("skip-mean-output", batch, batch, ones(4), "load", ort="skip",
               names=[("y", np.float32, 3), ("mean", np.float32, 3)])
    yield skip("skip-inv-std-output", batch, batch, ones(4), "load", ort="skip",
               names=[("y", np.float32, 3), None, ("inv_std", np.float32, 3)])
    half = batch.astype(np.float16)
    yield skip("skip-float16", half, half, np.ones(4, np.float16), "load", ort="skip", names=[("y", np.float16, 3)])
