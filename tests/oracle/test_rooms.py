# SPDX-License-Identifier: Apache-2.0
"""Every operator room against ONNX Runtime, live: one-node graphs over the edge tables in cases_<room>.py.

A case is (name, ModelProto, feeds, tolerances, expect). expect "ok": both engines run it and agree within
tolerances["atol"], ["rtol"] or per output tolerances["outputs"][name]. expect "load" or "run": quern refuses it there, and
so does ONNX Runtime, unless tolerances["ort"] is "skip": the specification says that it must not be imitated there, or it
supports a form that quern names as unsupported.
"""
import importlib
import pathlib

import onnxruntime
import pytest
from conftest import assert_close

import quern

onnxruntime.set_default_logger_severity(4)


def collect():
    for path in sorted(pathlib.Path(__file__).parent.glob("cases_*.py")):
        room = path.stem.removeprefix("cases_")
        for name, model, feeds, tolerances, expect in importlib.import_module(path.stem).cases():
            yield pytest.param(model, feeds, tolerances, expect, id=f"{room}-{name}")


def ort_session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def stage_of_refusal(make_session, feeds) -> str:
    """"load", "run" or "ok"."""
    try:
        session = make_session()
    except Exception:  # noqa: BLE001: both engines have their own types
        return "load"
    try:
        session.run(None, feeds)
    except Exception:  # noqa: BLE001
        return "run"
    return "ok"


@pytest.mark.parametrize("model, feeds, tolerances, expect", list(collect()))
def test_room(model, feeds, tolerances, expect):
    if expect == "ok":
        session = quern.InferenceSession(model.SerializeToString(), threads=2)
        ours = session.run(None, feeds)
        if "expected" in tolerances:
            theirs = [tolerances["expected"][port.name] for port in session.get_outputs()]
        else:
            theirs = ort_session(model).run(None, feeds)
        for port, a, b in zip(session.get_outputs(), ours, theirs, strict=True):
            t = tolerances.get("outputs", {}).get(port.name, tolerances)
            assert_close(port.name, a, b, t.get("atol", 0.0), t.get("rtol", 0.0))
        return
    with pytest.raises(quern.Error) as refusal:
        quern.InferenceSession(model.SerializeToString(), threads=2).run(None, feeds)
    assert refusal.value.code in ("bad_model", "unsupported") if expect == "load" else refusal.value.code == "bad_request"
    assert refusal.value.where, "an error names its place"
    if tolerances.get("ort") != "skip":
        assert stage_of_refusal(lambda: ort_session(model), feeds) != "ok", "ONNX Runtime accepts this case"


def test_every_operator_has_a_case_that_runs():
    ran = {node.op_type for case in collect() for node in case.values[0].graph.node if case.values[3] == "ok"}
    known = {"Add", "Cast", "Gather", "GroupQueryAttention", "MatMul", "MatMulNBits", "Mul", "ReduceSum", "Reshape", "Shape",
             "Sigmoid", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "Split", "Sub"}
    assert known <= ran, f"no passing case for {sorted(known - ran)}"
