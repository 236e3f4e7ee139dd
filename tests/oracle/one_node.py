# SPDX-License-Identifier: Apache-2.0
"""Owns one-node models for the case tables: a node, its graph inputs, initializers and outputs. It checks nothing: what is
wrong with a case must reach the engines."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

TYPES = {np.dtype(n): getattr(TensorProto, t) for n, t in (
    ("float32", "FLOAT"), ("float64", "DOUBLE"), ("float16", "FLOAT16"), ("int64", "INT64"), ("int32", "INT32"),
    ("int8", "INT8"), ("uint8", "UINT8"), ("bool", "BOOL"))}


def one_node(op, inputs, outputs, *, domain="", opset=21, constants=(), **attributes):
    """inputs: list of (name, array) in node order, None for an absent one. outputs: list of (name, dtype, rank), None for an
    absent one. Inputs named in `constants` become initializers. Returns (ModelProto, feeds)."""
    node = helper.make_node(op, [i[0] if i else "" for i in inputs], [o[0] if o else "" for o in outputs], name="node",
                            domain=domain, **attributes)
    fed = {name: array for name, array in filter(None, inputs) if name not in constants}
    graph = helper.make_graph(
        [node], "one_node",
        [helper.make_tensor_value_info(n, TYPES[a.dtype], [f"{n}_{i}" for i in range(a.ndim)]) for n, a in fed.items()],
        [helper.make_tensor_value_info(n, TYPES[np.dtype(t)], None if r is None else [f"{n}_{i}" for i in range(r)])
         for n, t, r in filter(None, outputs)],
        [numpy_helper.from_array(a, n) for n, a in dict(filter(None, inputs)).items() if n in constants])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), fed


def floats(seed, *shape, scale=1.0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * scale, np.float32)
