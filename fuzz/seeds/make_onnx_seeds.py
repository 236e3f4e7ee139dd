# SPDX-License-Identifier: Apache-2.0
"""Writes the seed models of fuzz_onnx into the folder onnx/ beside this script. Needs the Python package onnx."""
import pathlib

import onnx
from onnx import TensorProto, helper

FOLDER = pathlib.Path(__file__).parent / "onnx"


def save(name, nodes, initializers, **model_fields):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], initializers, value_info=[
        helper.make_tensor_value_info("m", TensorProto.INT64, [])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **model_fields)
    (FOLDER / name).write_bytes(model.SerializeToString(deterministic=True))


def external(name, **entries):
    t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        t.external_data.add(key=key, value=value)
    return t


save("attributes.onnx", [
    helper.make_node("Op", ["x", "", "w"], ["y", ""], name="n", domain="com.microsoft", i=3, f=0.5, s="s", ints=[1, -1],
                     floats=[1.0, 2.0], strings=["a", "b"], t=helper.make_tensor("t", TensorProto.INT64, [2], [1, 2]))], [])
save("typed.onnx", [helper.make_node("Relu", ["x"], ["y"])], [
    helper.make_tensor("f", TensorProto.FLOAT, [2], [1.0, 2.0]),
    helper.make_tensor("d", TensorProto.DOUBLE, [1], [1.0]),
    helper.make_tensor("i", TensorProto.INT32, [2], [-1, 7]),
    helper.make_tensor("b", TensorProto.UINT8, [3], [0, 255, 8]),
    helper.make_tensor("u", TensorProto.UINT64, [1], [2**64 - 1]),
    helper.make_tensor("q", TensorProto.INT4, [3], [-8, 7, 1]),
    helper.make_tensor("r", TensorProto.FLOAT16, [2], b"\0\x3c\0\0", raw=True),
    helper.make_tensor("s", TensorProto.STRING, [1], [b"text"])])
save("external.onnx", [helper.make_node("Relu", ["x"], ["y"])], [
    external("e", location="d", offset="0", length="8")])
