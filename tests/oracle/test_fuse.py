# SPDX-License-Identifier: Apache-2.0
"""Graph passes that no other graph of these tests meets, against ONNX Runtime on the identical bytes and feeds: a residual
addition with a norm behind it, a gate, with equal shapes and with addends and factors that repeat. Each pass is also left
out, which changes no bit."""
import numpy as np
import onnxruntime
import pytest
from conftest import assert_close
from one_node import floats
from onnx import TensorProto, helper, numpy_helper

import quern

onnxruntime.set_default_logger_severity(4)
PASSES = ["add_norm", "silu_mul"]


def layer(skip_read):
    """y = z + silu(g) * u with z = x + r, n = norm(z), g = n * w, u = n - r; without skip_read y has x in place of z."""
    node = helper.make_node
    nodes = [
        node("Add", ["x", "r"], ["z"], name="add"),
        node("SimplifiedLayerNormalization", ["z", "gamma"], ["n"], name="norm", axis=-1, epsilon=1e-6, stash_type=1),
        node("Mul", ["n", "w"], ["g"], name="scale"),
        node("Sub", ["n", "r"], ["u"], name="difference"),
        node("Sigmoid", ["g"], ["s"], name="sigmoid"),
        node("Mul", ["g", "s"], ["a"], name="silu"),
        node("Mul", ["a", "f" if not skip_read else "u"], ["p"], name="product"),
        node("Add", ["z" if skip_read else "x", "p"], ["q"], name="end"),
        node("Add", ["q", "u"], ["y"], name="last"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "r", "f")]
    constants = [numpy_helper.from_array(floats(1, 96), "gamma"), numpy_helper.from_array(floats(2, 96, scale=3), "w")]
    graph = helper.make_graph(nodes, "layer", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


@pytest.mark.parametrize("skip_read", [True, False])
@pytest.mark.parametrize("shapes", [[(2, 3, 96)] * 3, [(1, 40, 96)] * 3, [(5, 96), (96,), (1, 96)], [(3, 96), (2, 3, 96), (96,)]])
def test_additions_with_norms_and_gates(shapes, skip_read):
    model = layer(skip_read)
    feeds = {name: floats(3 + i, *shape) for i, (name, shape) in enumerate(zip(("x", "r", "f"), shapes))}
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
    results = []
    for left_out in [[], *[[p] for p in PASSES], PASSES]:
        session = quern.InferenceSession(model, threads=2, no_fuse=left_out)
        results.append(session.run(["y"], feeds)[0])
        fused = {r["node"] for r in session.report() if r["owner"] == "fused"}
        assert fused == {n for p, names in (("add_norm", ["add"]), ("silu_mul", ["sigmoid", "silu"])) if p not in left_out for n in names}
    # A norm within 1e-5 of its largest value (docs/numerics.md), through factors of up to 3 standard deviations.
    assert_close("y", results[0], wanted, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))
    assert all(r.tobytes() == results[0].tobytes() for r in results)
