# SPDX-License-Identifier: Apache-2.0
"""Whole graphs against ONNX Runtime, live, on the identical file and feeds: the two-layer block with FP32 and with INT4
weights, every intermediate; prefill, decode, continuation, a right-padded batch; an exporter-made graph; the 0.6b geometry.
"""
import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import assert_close, copy_of_demo, empty_past, past_extents

import quern

onnxruntime.set_default_logger_severity(4)


def row_rms(difference):
    return np.sqrt(np.mean(np.square(difference.astype(np.float64)), axis=-1))


class Pair:
    """The same model in both engines; run() feeds both alike and compares every output.

    With FP32 weights the tolerance is that of float sums. With int8 activations the two engines add the same exact integers
    in another order; where such a sum lands on the other side of a rounding boundary, a code of the next layer moves by one
    step, and from there on the difference is rounding noise drawn anew. How large that noise is in a given graph shows
    between ONNX Runtime at accuracy level 4 and at level 0, where activations are not rounded. Two draws differ by up to
    sqrt(2) of one, in the root mean square over a row. (test_every_node.py compares node by node, where nothing can drift.)
    """

    FLOAT = 2e-5  # of max|value|

    def __init__(self, path, int8, threads=2):
        self.ours = quern.InferenceSession(str(path), threads=threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.past = past_extents(self.ours, path)
        self.names = [o.name for o in self.theirs.get_outputs()]
        assert self.names == [o.name for o in self.ours.get_outputs()]
        self.vocab = self.ours.get_outputs()[self.names.index("logits")].shape[-1]
        self.int8 = int8
        if int8:
            self.tolerance, self.largest = self.rounding_noise(path, options, 32)

    def rounding_noise(self, path, options, length):
        """sqrt(2) times the largest row_rms between levels 4 and 0 of every output of ONNX Runtime, over `length` tokens; and
        sqrt(2) times the largest difference of a logit."""
        model = onnx.load(path, load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 0
        target = pathlib.Path(path).with_name("level0.onnx")
        onnx.save(model, target)
        level0 = onnxruntime.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
        target.unlink()
        feeds = {"input_ids": ids_of(np.random.default_rng(99), self.vocab, 1, length), "attention_mask": ones(1, length),
                 **self.empty_past()}
        noise = {name: a - b for name, a, b in zip(self.names, self.theirs.run(None, feeds), level0.run(None, feeds))}
        return ({name: np.sqrt(2) * row_rms(difference).max() for name, difference in noise.items()},
                np.sqrt(2) * np.abs(noise["logits"]).max())

    def logit_bound(self, logits):
        """What a logit may be off."""
        return self.largest if self.int8 else self.FLOAT * max(1.0, float(np.abs(logits).max()))

    def empty_past(self, batch=1):
        return empty_past(self.past, batch)

    def call_theirs(self, ids, mask, past):
        return dict(zip(self.names, self.theirs.run(None, {"input_ids": ids, "attention_mask": mask, **past})))

    def call_ours(self, ids, mask, past):
        return dict(zip(self.names, self.ours.run(None, {"input_ids": ids, "attention_mask": mask, **past})))

    def compare(self, ours, theirs):
        for name in self.names:
            if self.int8:
                assert ours[name].shape == theirs[name].shape, name
                worst = row_rms(ours[name] - theirs[name]).max()
                assert worst <= self.tolerance[name], f"{name}: row rms {worst:.2e}, allowed {self.tolerance[name]:.2e}"
            else:
                scale = max(1.0, float(np.abs(theirs[name]).max(initial=0.0)))
                assert_close(name, ours[name], theirs[name], atol=self.FLOAT * scale)

    def run(self, ids, mask, past):
        """Returns ONNX Runtime's outputs, so that a chain of calls feeds both engines alike."""
        theirs = self.call_theirs(ids, mask, past)
        self.compare(self.call_ours(ids, mask, past), theirs)
        return theirs

    def next_past(self, outputs):
        return {name: outputs[name.replace("past_key_values", "present")] for name in self.past}


def ids_of(rng, vocab, batch, length):
    return rng.integers(0, vocab, (batch, length), dtype=np.int64)


def ones(batch, length):
    return np.ones((batch, length), np.int64)


BLOCKS = [
    pytest.param(("--size", "block-fp32"), False, id="fp32"),
    pytest.param(("--size", "block", "--opset", "21"), True, id="int4-opset21"),
    pytest.param(("--size", "block", "--opset", "26"), True, id="int4-opset26"),
    pytest.param(("--size", "block", "--form", "separate"), True, id="int4-separate"),
]


def check_calls(pair, length):
    rng = np.random.default_rng(length)
    past = pair.empty_past()
    total = 0
    for step in [length, 1, 1, 1, 4]:
        total += step
        past = pair.next_past(pair.run(ids_of(rng, pair.vocab, 1, step), ones(1, total), past))


@pytest.mark.parametrize("arguments, int8", BLOCKS)
@pytest.mark.parametrize("length", [1, 3, 32, 128])
def test_prefill_three_decodes_and_a_continuation(make_model, arguments, int8, length):
    check_calls(Pair(make_model(*arguments), int8), length)


@pytest.mark.parametrize("arguments, int8", BLOCKS)
def test_right_padded_batch_of_two_and_ragged_decode(make_model, arguments, int8):
    pair = Pair(make_model(*arguments), int8)
    rng = np.random.default_rng(7)
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4], np.int64)
    outputs = pair.run(ids_of(rng, pair.vocab, 2, 9), mask, pair.empty_past(2))
    mask = np.concatenate([mask, [[1], [1]]], axis=1)
    pair.run(ids_of(rng, pair.vocab, 2, 1), mask, pair.next_past(outputs))


def test_exporter_made_graph_runs_unmodified(tmp_path):
    """models/demo is what the onnxruntime-genai model builder wrote; nobody here touched the graph."""
    check_calls(Pair(copy_of_demo(tmp_path), True), 32)


@pytest.mark.parametrize("arguments, int8", BLOCKS[:2])
@pytest.mark.parametrize("length", [1, 3, 32, 128])
def test_one_call_equals_token_by_token(make_model, arguments, int8, length):
    """quern against itself: within the tolerance of Pair, and the same best token by the margin rule."""
    pair = Pair(make_model(*arguments), int8)
    ids = ids_of(np.random.default_rng(length), pair.vocab, 1, length)
    whole = pair.call_ours(ids, ones(1, length), pair.empty_past())
    past, logits = pair.empty_past(), []
    for t in range(length):
        single = pair.call_ours(ids[:, t:t + 1], ones(1, t + 1), past)
        past = pair.next_past(single)
        logits.append(single["logits"])
    single["logits"] = np.concatenate(logits, axis=1)
    pair.compare(single, whole)
    a, b = single["logits"][0], whole["logits"][0]
    bound = pair.logit_bound(b)
    assert np.abs(a - b).max() <= bound
    second, best = np.sort(b)[:, -2:].T
    decided = best - second > 2 * bound
    assert np.array_equal(a.argmax(axis=1)[decided], b.argmax(axis=1)[decided])


def test_same_bits_for_any_thread_count(make_model):
    path = str(make_model("--size", "block"))
    results = []
    for threads in (1, 2, 3, 5):
        session = quern.InferenceSession(path, threads=threads)
        past = empty_past(past_extents(session, path))
        ids = ids_of(np.random.default_rng(5), session.get_outputs()[0].shape[-1], 1, 40)
        results.append(session.run(None, {"input_ids": ids, "attention_mask": ones(1, 40), **past}))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def pair_06b(make_model):
    return Pair(make_model("--size", "0.6b"), True)


def test_06b_inventory(pair_06b):
    report = pair_06b.ours.report()
    assert len(report) == 519
    assert {row["owner"] for row in report} <= {"kernel", "prepared", "view", "fused"}
    counts = {}
    for row in report:
        counts[row["op"]] = counts.get(row["op"], 0) + 1
    assert counts == {"Constant": 6, "ReduceSum": 1, "Sub": 1, "Cast": 2, "Shape": 1, "Gather": 2, "SimplifiedLayerNormalization": 57,
                      "MatMulNBits": 141, "Split": 28, "Reshape": 112, "GroupQueryAttention": 28,
                      "SkipSimplifiedLayerNormalization": 56, "Sigmoid": 28, "Mul": 56}


def test_06b_geometry(pair_06b):
    check_calls(pair_06b, 32)


@pytest.mark.slow
def test_06b_widths_behind_32767_positions(make_model):
    pair = Pair(make_model("--size", "0.6b", "--layers", "2"), True)
    rng = np.random.default_rng(32768)
    past = {name: rng.standard_normal((1, heads, 32767, size), np.float32) for name, (heads, size) in pair.past.items()}
    for name in past:
        if name.endswith("key"):
            past[name] *= 4  # each head then looks at few positions, anywhere
    pair.run(ids_of(rng, pair.vocab, 1, 1), ones(1, 32768), past)
