# SPDX-License-Identifier: Apache-2.0
"""The structural gates of the specification, by counters: what must not be copied, expanded, repeated or allocated.

Their numbers are those of spec section 4.3. Gate 11 and the counters behind 1, 2, 6 and 12 are also unit tests in
src/graph/graph_test.cc.
"""
import os
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quern

MIB = 1 << 20


@pytest.fixture(scope="module")
def model_06b(make_model):
    """The full 0.6b geometry, a session on it, and the memory before it."""
    path = make_model("--size", "0.6b")
    before = quern.memory_usage()
    session = quern.InferenceSession(str(path), threads=2)
    return path, session, before


def feeds_of(session, length, past=0):
    feeds = {"input_ids": np.arange(length, dtype=np.int64)[None] * 997 % 151936, "attention_mask": np.ones((1, length + past), np.int64)}
    for i in session.get_inputs():
        if i.name.startswith("past"):
            feeds[i.name] = np.zeros((1, i.shape[1], past, i.shape[3]), np.float32)
    return feeds


def resident_of(path):
    """Bytes of this process's maps of a file that are resident."""
    total, inside = 0, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inside = line.rstrip().endswith(os.path.realpath(path))
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


def test_gate_1_constants_and_shape_arithmetic_are_prepared_and_take_no_time(model_06b):
    path, _, _ = model_06b
    session = quern.InferenceSession(str(path), threads=2, profile=True)
    session.run(["logits"], feeds_of(session, 3))
    rows = session.report()
    prepared = [r for r in rows if r["owner"] == "prepared"]
    assert sorted(r["op"] for r in prepared) == ["Cast"] + ["Constant"] * 6 + ["Gather", "Shape"]
    assert all(r["ns"] == 0 and r["bytes_copied"] == 0 for r in prepared)
    assert all(r["ns"] > 0 for r in rows if r["owner"] == "kernel")


@pytest.mark.parametrize("length", [1, 5])
def test_gate_2_reshape_and_split_copy_nothing(model_06b, length):
    _, session, _ = model_06b
    session.run(["logits"], feeds_of(session, length))
    rows = [r for r in session.report() if r["op"] in ("Reshape", "Split")]
    assert len(rows) == 140
    assert all(r["owner"] == "view" and r["bytes_copied"] == 0 for r in rows)
    assert session.counters()["bytes_copied"] == 0


def test_gate_3_embedding_touches_only_its_rows(model_06b):
    path, session, _ = model_06b
    session.run(["logits"], feeds_of(session, 8))
    # 8 rows of 4 KiB, the small vectors, 8 positions of the rotary tables; the rest of 1,016 MB is not resident. Pages come
    # with their neighbours (fault-around of 64 KiB, file read-ahead).
    assert resident_of(path.parent / "model.onnx.data") < 16 * MIB


def test_gates_4_and_5_weights_stay_compressed_and_are_prepared_once(model_06b):
    _, session, before = model_06b
    first = session.counters()
    assert first["preparations"] == 141
    assert first["serialized_bytes"] == sum(k * n * 5 // 8 for k, n, count in SHAPES for _ in range(count))
    assert first["prepared_bytes"] <= 1.25 * first["serialized_bytes"]
    usage = quern.memory_usage()
    held = usage["weights"]["current"] - before["weights"]["current"]
    assert held <= 1.25 * first["serialized_bytes"]
    # The largest single allocation under the tag is the head's; an expanded copy of it would be 4 to 8 times as large.
    assert usage["largest_weights_bytes"] <= 1.25 * 1024 * 151936 * 5 // 8
    for length in (1, 2, 16, 1):
        session.run(["logits"], feeds_of(session, length))
    assert session.counters()["preparations"] == 141
    after = quern.memory_usage()
    assert after["weights"] == usage["weights"], "no weight memory is taken by running"
    assert after["workspace"]["peak"] - before["workspace"]["current"] < 64 * MIB


SHAPES = [(1024, 4096, 28), (2048, 1024, 28), (1024, 3072, 56), (3072, 1024, 28), (1024, 151936, 1)]


def test_gate_5_nodes_that_share_a_constant_share_its_preparation():
    k, n = 64, 48
    rng = np.random.default_rng(0)
    b = rng.integers(0, 256, (n, k // 32, 16), dtype=np.uint8)
    scales = rng.standard_normal((n, k // 32)).astype(np.float32)
    nodes = [helper.make_node("MatMulNBits", ["a", "b", "s"], [f"y{i}"], domain="com.microsoft", K=k, N=n, bits=4, block_size=32,
                              accuracy_level=4) for i in range(2)]
    graph = helper.make_graph(nodes, "shared", [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", k])],
                              [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["m", n]) for i in range(2)],
                              [onnx.numpy_helper.from_array(b, "b"), onnx.numpy_helper.from_array(scales, "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    session = quern.InferenceSession(model.SerializeToString())
    y0, y1 = session.run(None, {"a": rng.standard_normal((3, k)).astype(np.float32)})
    assert y0.tobytes() == y1.tobytes()
    counters = session.counters()
    assert counters["preparations"] == 1
    assert counters["prepared_bytes"] <= 1.25 * counters["serialized_bytes"]


def test_gate_6_omitted_outputs_allocate_nothing():
    n = 1 << 18

    def session(outputs):
        node = helper.make_node("SkipSimplifiedLayerNormalization", ["x", "s", "g"], outputs, domain="com.microsoft", epsilon=1e-6)
        graph = helper.make_graph([node], "skip", [helper.make_tensor_value_info(v, TensorProto.FLOAT, [1, 1, n]) for v in "xs"],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, n])],
                                  [onnx.numpy_helper.from_array(np.ones(n, np.float32), "g")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
        made = quern.InferenceSession(model.SerializeToString())
        made.run(None, {"x": np.ones((1, 1, n), np.float32), "s": np.ones((1, 1, n), np.float32)})
        return made.counters()

    for outputs in (["y"], ["y", "", "", ""]):
        counters = session(outputs)
        assert counters["arena_bytes"] == 0 and counters["scratch_peak_bytes"] < n * 4
    # The residual, where somebody asks for it inside the graph, does take its place.
    assert session(["y", "", "", "sum"])["arena_bytes"] >= n * 4


def attention_session(query_heads, kv_heads, head_size):
    node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lengths", "total"], ["y", "pk2", "pv2"], domain="com.microsoft",
                            num_heads=query_heads, kv_num_heads=kv_heads)
    f32 = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("q", f32, [1, "s", query_heads * head_size])]
    inputs += [helper.make_tensor_value_info(v, f32, [1, "s", kv_heads * head_size]) for v in "kv"]
    inputs += [helper.make_tensor_value_info(v, f32, [1, kv_heads, "p", head_size]) for v in ("pk", "pv")]
    inputs += [helper.make_tensor_value_info("lengths", TensorProto.INT32, [1]), helper.make_tensor_value_info("total", TensorProto.INT32, [1])]
    outputs = [helper.make_tensor_value_info("y", f32, [1, "s", query_heads * head_size])]
    outputs += [helper.make_tensor_value_info(v, f32, [1, kv_heads, "t", head_size]) for v in ("pk2", "pv2")]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    return quern.InferenceSession(model.SerializeToString(), threads=2)


def attention_scratch(query_heads, kv_heads, head_size, new, past):
    session = attention_session(query_heads, kv_heads, head_size)
    rng = np.random.default_rng(0)
    cache = rng.standard_normal((1, kv_heads, past, head_size)).astype(np.float32)
    session.run(None, {"q": rng.standard_normal((1, new, query_heads * head_size)).astype(np.float32),
                       "k": rng.standard_normal((1, new, kv_heads * head_size)).astype(np.float32),
                       "v": rng.standard_normal((1, new, kv_heads * head_size)).astype(np.float32), "pk": cache, "pv": cache,
                       "lengths": np.array([new + past - 1], np.int32), "total": np.array([new + past], np.int32)})
    return session.counters()["scratch_peak_bytes"]


def test_gate_7_no_score_matrix_and_decode_scores_of_a_block_only():
    heads, size = 4, 16
    # Prefill: a score matrix of 1024 x 1024 a head would be 4 MiB a head; scratch may hold rows, never rows times keys.
    small, large = attention_scratch(heads, 2, size, 256, 0), attention_scratch(heads, 2, size, 1024, 0)
    assert large < 1024 * 1024 * 4
    assert large <= 4.5 * small + 64 * 1024, "scratch grows with the rows, not with rows times keys"
    # Decode: 16 times the keys may add a partial result a block of keys, not a score a key a head.
    short, long = attention_scratch(heads, 2, size, 1, 1024), attention_scratch(heads, 2, size, 1, 16 * 1024)
    assert long - short < heads * 15 * 1024 * 4


def test_gate_8_query_heads_share_keys_and_values():
    # 8 query heads on one KV head: a repeated K or V would be 8 x 4096 x 64 floats, 8 MiB.
    assert attention_scratch(8, 1, 64, 1, 4096) < 4096 * 64 * 4


def test_gate_10_threads_are_those_of_the_session(model_06b):
    def threads():
        return int(re.search(r"Threads:\s*(\d+)", open("/proc/self/status").read())[1])

    path, _, _ = model_06b
    before = threads()
    session = quern.InferenceSession(str(path), threads=3)
    assert threads() == before + 2
    for length in (1, 40):
        session.run(["logits"], feeds_of(session, length))
        assert threads() == before + 2
    del session
    assert threads() == before


def test_gate_12_every_executed_node_is_attributed(model_06b):
    _, session, _ = model_06b
    rows = session.report()
    assert len(rows) == 519
    assert {r["owner"] for r in rows} <= {"kernel", "prepared", "view", "fused"}
    assert all(r["variant"] for r in rows if r["owner"] == "kernel")


def test_gate_12_joint_nodes_name_each_other_and_change_no_bit(make_model):
    # Separate query, key and value projections read the same rows, and so do gate and up: three nodes less a layer.
    path = str(make_model("--size", "block", "--form", "separate"))
    joint = quern.InferenceSession(path, no_fuse=["silu_mul"])
    separate = quern.InferenceSession(path, no_fuse=["shared_rows", "silu_mul"])
    for length in (1, 5):
        feeds = feeds_of(joint, length)
        feeds["input_ids"] %= 512
        for a, b in zip(joint.run(None, feeds), separate.run(None, feeds)):
            assert a.tobytes() == b.tobytes()
    fused = [r for r in joint.report() if r["owner"] == "fused"]
    assert len(fused) == 2 * 3 and not any(r["variant"] or r["ns"] for r in fused)
    names = {r["node"] for r in joint.report() if r["owner"] == "kernel" and r["op"] == "MatMulNBits"}
    assert all(any(f"'{name}'" in r["reason"] for name in names) for r in fused)
    assert not any(r["owner"] == "fused" for r in separate.report())
    assert [r["node"] for r in joint.report()] == [r["node"] for r in separate.report()]
    with pytest.raises(quern.Error) as refusal:
        quern.InferenceSession(path, no_fuse=["rows"])
    assert refusal.value.code == "bad_request" and "shared_rows" in str(refusal.value)


def test_gate_12_an_unknown_operator_fails_by_node_and_name(make_model, tmp_path):
    model = onnx.load(make_model("--size", "block"))
    node = next(n for n in model.graph.node if n.op_type == "Sigmoid")
    node.op_type = "Softplus"
    with pytest.raises(quern.Error) as refusal:
        quern.InferenceSession(model.SerializeToString())
    assert refusal.value.code == "unsupported"
    assert "Softplus" in str(refusal.value) and node.name in str(refusal.value)
