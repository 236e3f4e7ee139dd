# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of Cast: the integer and float32 pairs. Where a float does not fit an integer the standard leaves the
result open, so only what fits is compared."""
import numpy as np
from one_node import TYPES, one_node


def case(name, x, to, expect="ok", *, opset=21, ort=None, **attributes):
    to = np.dtype(to)
    model, feeds = one_node("Cast", [("x", x)], [("y", to, x.ndim)], opset=opset, to=TYPES[to], **attributes)
    return name, model, feeds, {"ort": ort} if ort else {}, expect


def cases():
    wide = np.array([0, 1, -1, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**32 + 5, 2**63 - 1, -2**63, 40960], np.int64)
    narrow = np.array([0, -7, 2**31 - 1, -2**31, 2**24 + 1, 2**24 + 3], np.int32)
    real = np.array([0.0, -0.0, 0.5, -0.5, 1.99, -1.99, 2147483520.0, -2147483648.0, 1e-30], np.float32)
    for opset in (13, 19, 21, 24, 26):
        yield case(f"int64-int32-opset{opset}", wide, np.int32, opset=opset)
    yield case("int32-int64", narrow, np.int64)
    yield case("int64-float32", np.concatenate([wide, np.array([2**53 + 1, 2**40 + 2**16], np.int64)]), np.float32)
    yield case("int32-float32", narrow, np.float32)
    yield case("float32-int32", real, np.int32)
    yield case("float32-int64", np.append(real, np.float32(2.0**62)), np.int64)
    yield case("identity-float32", np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32), np.float32)
    yield case("identity-int64", wide, np.int64)
    yield case("identity-int32", narrow, np.int32)
    yield case("scalar", np.array(2**31, np.int64), np.int32)
    yield case("empty", np.zeros((0, 3), np.int64), np.int32)
    yield case("large", np.arange(-50000, 50000, dtype=np.int64) * 1234567891, np.int32)
    yield case("saturate-default", wide, np.int32, saturate=1)
    yield case("to-float16", real, np.float16, "load", ort="skip")
    yield case("from-float16", real[:6].astype(np.float16), np.float32, "load", ort="skip")
    yield case("to-bool", wide, np.bool_, "load", ort="skip")
    yield case("from-float64", real.astype(np.float64), np.float32, "load", ort="skip")
    yield case("unknown-attribute", wide, np.int32, "load", axis=1)
    model, feeds = one_node("Cast", [("x", wide)], [("y", np.int32, 1)])
    yield "no-target", model, feeds, {}, "load"
    model, feeds = one_node("Cast", [("x", wide)], [("y", np.int32, 1)], to=6.0)
    yield "float-target", model, feeds, {}, "load"
