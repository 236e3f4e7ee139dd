# SPDX-License-Identifier: Apache-2.0
"""The ONNX reader against the Python package onnx, field by field and byte by byte: made graphs with external data, and
every model of the package's own backend suite. Needs the executable onnx_dump (tests/support/onnx_dump.cc), looked for
in QUERN_BUILD_DIR (default build/release) or named by QUERN_ONNX_DUMP."""
import json
import os
import pathlib
import struct
import subprocess

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import pytest
from conftest import ROOT
from onnx import AttributeProto, TensorProto, numpy_helper

DUMP = pathlib.Path(os.environ.get("QUERN_ONNX_DUMP") or
                    pathlib.Path(os.environ.get("QUERN_BUILD_DIR") or ROOT / "build" / "release") / "onnx_dump")
pytestmark = pytest.mark.skipif(not DUMP.exists(), reason=f"{DUMP} is not built")

SUITE = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
SIGNED_OR_UNSIGNED_NIBBLES = (TensorProto.INT4, TensorProto.UINT4)
KNOWN_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 21, 22}


def dump(paths):
    """The reader's view of each file."""
    lines = []
    for start in range(0, len(paths), 200):
        done = subprocess.run([DUMP, *paths[start:start + 200]], check=True, capture_output=True, text=True)
        lines += done.stdout.splitlines()
    return [json.loads(line) for line in lines]


def payload(tensor, folder):
    values = numpy_helper.to_array(tensor, base_dir=str(folder))
    if tensor.data_type in SIGNED_OR_UNSIGNED_NIBBLES:
        nibbles = np.resize(values.astype(np.int8).reshape(-1) & 15, (values.size + 1) // 2 * 2).astype(np.uint8)
        if values.size % 2:
            nibbles[-1] = 0
        raw = nibbles[0::2] | nibbles[1::2] << 4
    else:
        raw = np.frombuffer(values.astype(values.dtype.newbyteorder("<")).tobytes(), np.uint8)
    wide = raw.astype(np.uint64)
    return [raw.size, int(wide.sum()), int((wide * np.arange(1, raw.size + 1, dtype=np.uint64)).sum())]


def tensor_view(tensor, folder):
    view = {"name": tensor.name, "type": tensor.data_type, "dims": list(tensor.dims)}
    if tensor.data_type in KNOWN_TYPES:
        view["payload"] = payload(tensor, folder)
    return view


def attribute_view(a, folder):
    view = {"name": a.name, "type": a.type}
    kind = AttributeProto
    readers = {kind.FLOAT: lambda: a.f, kind.INT: lambda: a.i, kind.STRING: lambda: a.s.decode(errors="replace"),
               kind.TENSOR: lambda: tensor_view(a.t, folder), kind.FLOATS: lambda: list(a.floats),
               kind.INTS: lambda: list(a.ints), kind.STRINGS: lambda: [s.decode(errors="replace") for s in a.strings]}
    if a.type in readers:
        view["value"] = readers[a.type]()
    return view


def value_view(info):
    is_tensor = info.type.WhichOneof("value") == "tensor_type"
    view = {"name": info.name, "is_tensor": is_tensor, "type": 0, "dims": None}
    if is_tensor:
        view["type"] = info.type.tensor_type.elem_type
        if info.type.tensor_type.HasField("shape"):
            view["dims"] = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or None)
                            for d in info.type.tensor_type.shape.dim]
    return view


def domain(name):
    return "" if name == "ai.onnx" else name


def model_view(path):
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    return {
        "ir_version": model.ir_version, "producer": model.producer_name, "graph": graph.name,
        "opsets": {domain(o.domain): o.version for o in model.opset_import},
        "nodes": [{"name": n.name, "op": n.op_type, "domain": domain(n.domain), "inputs": list(n.input),
                   "outputs": list(n.output), "attributes": [attribute_view(a, path.parent) for a in n.attribute]}
                  for n in graph.node],
        "initializers": [tensor_view(t, path.parent) for t in graph.initializer],
        "inputs": [value_view(v) for v in graph.input], "outputs": [value_view(v) for v in graph.output],
        "value_info": [value_view(v) for v in graph.value_info],
    }


def without_refused_types(view):
    """Takes the refusals of element types that quern does not have out of a dumped view, having checked them."""
    tensors = view["initializers"] + [a["value"] for n in view["nodes"] for a in n["attributes"]
                                      if a["type"] == AttributeProto.TENSOR]
    for tensor in tensors:
        if "error" in tensor:
            assert tensor["type"] not in KNOWN_TYPES, tensor
            assert tensor.pop("error")["code"] == "unsupported"
    return view


def normalised(view):
    """NaN equals NaN, and floats are those of 32 bits."""
    return json.dumps(view, sort_keys=True, default=str)


def as_float32(view):
    if isinstance(view, float):
        return struct.pack("<f", view).hex()
    if isinstance(view, list):
        return [as_float32(v) for v in view]
    if isinstance(view, dict):
        return {k: as_float32(v) for k, v in view.items()}
    return view


def assert_same(path, ours):
    assert "error" not in ours, f"{path}: {ours['error']}"
    theirs = as_float32(model_view(path))
    ours = as_float32(without_refused_types(ours))
    for key in theirs:
        assert normalised(ours[key]) == normalised(theirs[key]), f"{path}: {key} differs"


@pytest.mark.parametrize("arguments", [("--size", "block"), ("--size", "block-fp32"), ("--size", "block", "--asymmetric"),
                                       ("--size", "block", "--form", "separate", "--opset", "21")], ids=" ".join)
def test_made_graph_with_external_data_is_read_alike(make_model, arguments):
    path = make_model(*arguments)
    assert_same(path, dump([path])[0])


def test_stored_suite_is_read_alike():
    paths = sorted(SUITE.rglob("*.onnx"))
    assert len(paths) > 100
    refused = 0
    for path, ours in zip(paths, dump(paths), strict=True):
        if "error" in ours:
            model = onnx.load(str(path), load_external_data=False)
            assert ours["error"]["code"] == "unsupported", (path, ours)
            assert model.functions or model.graph.sparse_initializer or not 3 <= model.ir_version <= 14, (path, ours)
            refused += 1
            continue
        assert_same(path, ours)
    assert refused < len(paths) / 10


def test_models_of_every_operator_are_read_alike(tmp_path):
    paths = []
    for i, case in enumerate(node_cases.collect_testcases(None)):
        if case.model is None:
            continue
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(case.model.SerializeToString())
        paths.append(path)
    assert len(paths) > 1000
    for path, ours in zip(paths, dump(paths), strict=True):
        assert_same(path, ours)
