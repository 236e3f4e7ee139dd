# SPDX-License-Identifier: Apache-2.0
"""The Python module as its users meet it: ONNX Runtime's calling convention, errors with a code, arrays, threads, fork."""
import os
import pathlib
import threading

import numpy as np
import onnx
import pytest
from conftest import ROOT
from onnx import TensorProto, helper

import quern

DEMO = ROOT / "models" / "demo"


def add_model(nodes=1):
    """y = x + x + ..., float [n, 2]."""
    names = ["x"] + [f"v{i}" for i in range(nodes - 1)] + ["y"]
    graph = helper.make_graph([helper.make_node("Add", [names[i], "x"], [names[i + 1]], name=f"n{i}") for i in range(nodes)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture
def session():
    return quern.InferenceSession(add_model().SerializeToString(), threads=2)


@pytest.fixture(scope="module")
def demo():
    return quern.LLM(DEMO, threads=2)


def refused(code, call, *arguments, **named):
    with pytest.raises(quern.Error) as refusal:
        call(*arguments, **named)
    assert refusal.value.code == code, str(refusal.value)
    assert refusal.value.where
    return str(refusal.value)


def test_ports(session):
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, list(x.shape)) == ("x", "tensor(float)", ["n", 2])
    assert y.name == "y"


@pytest.mark.parametrize("array", [np.arange(12, dtype=np.float32).reshape(6, 2)[::2], np.arange(6, dtype=np.float32).reshape(2, 3).T,
                                   np.zeros((0, 2), np.float32), np.flip(np.ones((3, 2), np.float32), 0)])
def test_arrays_of_any_layout(session, array):
    (y,) = session.run(None, {"x": array})
    assert np.array_equal(y, array + array) and y.flags.c_contiguous and y.flags.writeable


def test_results_own_their_memory(session):
    (first,) = session.run(None, {"x": np.ones((3, 2), np.float32)})
    session.run(None, {"x": np.zeros((3, 2), np.float32)})
    del session
    assert (first == 2).all()


def test_bad_feeds(session):
    x = np.ones((1, 2), np.float32)
    assert "float64" in refused("bad_request", session.run, None, {"x": x.astype(np.float64)})
    assert "[1, 3]" in refused("bad_request", session.run, None, {"x": np.ones((1, 3), np.float32)})
    assert "'x'" in refused("bad_request", session.run, None, {})
    assert "'z'" in refused("bad_request", session.run, None, {"x": x, "z": x})
    assert ">f4" in refused("bad_request", session.run, None, {"x": x.astype(">f4")})
    for name in (1, b"x", "\ud800"):
        refused("bad_request", session.run, None, {name: x})
    for names in (["z"], [1], "y", ["y", "y"]):
        refused("bad_request", session.run, names, {"x": x})


def test_bad_sessions(tmp_path):
    refused("bad_model", quern.InferenceSession, tmp_path / "missing.onnx")
    for model in (bytearray(b"x"), 5, None):
        assert "path" in refused("bad_request", quern.InferenceSession, model)
    for threads in (-1, 1025, 2**40):
        assert str(threads) in refused("bad_request", quern.InferenceSession, add_model().SerializeToString(), threads=threads)
    odd = pathlib.Path(os.fsdecode(bytes(tmp_path) + b"/\xff.onnx"))
    odd.write_bytes(add_model().SerializeToString())
    assert quern.InferenceSession(odd).run(None, {"x": np.ones((1, 2), np.float32)})


def test_external_data_of_bytes_needs_a_folder(make_model):
    path = make_model("--size", "block")
    refused("bad_request", quern.InferenceSession, path.read_bytes())
    quern.InferenceSession(path.read_bytes(), external_data_dir=path.parent)


def test_unknown_operators_are_named_without_control_characters():
    model = add_model()
    model.graph.node[0].op_type = "Odd\x1b[31m\n"
    text = refused("unsupported", quern.InferenceSession, model.SerializeToString())
    assert "Odd" in text and "\x1b" not in text and "\n" not in text


def test_threads_share_a_session(session):
    wrong = []

    def work(value):
        for _ in range(50):
            (y,) = session.run(None, {"x": np.full((64, 2), value, np.float32)})
            if not (y == 2 * value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(v,)) for v in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_profile_fills_the_times():
    session = quern.InferenceSession(add_model(3).SerializeToString(), profile=True)
    session.run(None, {"x": np.ones((1000, 2), np.float32)})
    assert all(row["ns"] > 0 and row["owner"] == "kernel" for row in session.report())


def test_generation(demo):
    one = demo.generate("In the beginning", max_tokens=12, seed=3)
    same = demo.generate(demo.tokenize("In the beginning"), max_tokens=12, seed=3)
    assert one.token_ids == same.token_ids and one.text == same.text and one.finish_reason in ("length", "stop")
    assert demo.generate("And", max_tokens=0, greedy=True).token_ids == []
    assert {"load_ms", "prefill_ms", "decode_ms_per_token"} <= set(one.timings)


def test_bad_requests_of_generation(demo):
    vocab = demo.logits([1]).shape[1]
    refused("bad_request", demo.generate, [vocab])
    refused("bad_request", demo.generate, [-1])
    refused("bad_request", demo.generate, "")
    refused("bad_request", demo.generate, "\ud800")
    refused("bad_request", demo.generate, "a", max_tokens=-1)
    refused("bad_request", demo.generate, "a", stop_ids=[vocab])
    refused("bad_request", demo.generate, "a", temperature=float("nan"))
    refused("bad_request", demo.generate, "a", top_k=-1)
    refused("bad_request", demo.detokenize, [vocab])
    assert "2048" in refused("too_long", demo.generate, [5] * 3000)


def test_states_are_timelines(demo):
    ids = demo.tokenize("And God said, Let there be light")
    state = demo.new_state()
    row = demo.forward(state, ids)
    assert state.length == len(ids)
    branch = state.fork()
    demo.forward(branch, [7, 8])
    assert state.length == len(ids) and branch.length == len(ids) + 2
    state.rewind(len(ids) - 1)
    again = demo.forward(state, ids[-1:])
    assert again.argmax() == row.argmax()
    other = quern.LLM(DEMO)
    refused("bad_request", other.forward, state, [1])
    refused("bad_request", state.rewind, 10_000)


def test_a_child_of_fork_may_use_and_drop_what_it_inherits(session):
    x = np.ones((20_000, 2), np.float32)
    session.run(None, {"x": x})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (y,) = session.run(None, {"x": x})
            own = quern.InferenceSession(add_model().SerializeToString(), threads=2)
            (z,) = own.run(None, {"x": x})
            session = None  # noqa: F841: destroys the inherited one
            own = None  # noqa: F841
            status = 0 if (y == 2).all() and (z == 2).all() else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_ops_are_the_rooms():
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(quern.ops.add(x, x), x + x)
    assert np.array_equal(quern.ops.reshape(x, np.array([0, -1])), x.reshape(2, 12))
    assert [p.shape for p in quern.ops.split(x, np.array([1, 3]), axis=-1)] == [(2, 3, 1), (2, 3, 3)]
    assert quern.ops.shape(x).tolist() == [2, 3, 4]
    normed, total = quern.ops.skip_simplified_layer_normalization(x, x, np.ones(4, np.float32), epsilon=1e-6)
    assert np.array_equal(total, x + x)
    assert np.allclose(normed, total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6), atol=1e-6)
    refused("bad_request", quern.ops.gather, x, np.array([5]))
