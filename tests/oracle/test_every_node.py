# SPDX-License-Identifier: Apache-2.0
"""Every node of whole graphs against ONNX Runtime, each on ONNX Runtime's own inputs.

ONNX Runtime runs the file with every intermediate as an output. quern then runs the same nodes, but each of them reads
what ONNX Runtime computed before it, so that a difference shows at the node that makes it, with that operator's tolerance
from the specification, and int8 activation codes cannot drift apart from node to node.
"""
import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import assert_close, copy_of_demo, empty_past, past_extents

import quern

onnxruntime.set_default_logger_severity(4)

# Spec sections 2.2 to 2.13: (absolute, relative to max(1, max|expected|)).
TOLERANCES = {
    "MatMulNBits": (0.0, 1e-5),
    "MatMul": (0.0, 1e-5),
    "GroupQueryAttention": (2e-5, 0.0),
    "SimplifiedLayerNormalization": (0.0, 1e-5),
    "SkipSimplifiedLayerNormalization": (0.0, 1e-5),
    "Sigmoid": (5e-7, 0.0),
}


class EveryNode:
    """The graph at `path`, opened up; run() compares all nodes of one call and returns ONNX Runtime's values."""

    def __init__(self, path):
        model = onnx.load(path, load_external_data=False)
        graph = model.graph
        declared = {o.name for o in graph.output}
        self.nodes = [n for n in graph.node if n.op_type != "Constant"]
        produced = [(node, name) for node in self.nodes for name in node.output if name]

        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        for node, name in produced:
            if name not in declared:
                exposed.graph.output.append(onnx.ValueInfoProto(name=name))
        infer_types(exposed, path)
        types = {o.name: o.type.tensor_type.elem_type for o in exposed.graph.output}
        self.theirs = onnxruntime.InferenceSession(self.save(exposed, path, "exposed"), providers=["CPUExecutionProvider"])

        forced = onnx.ModelProto()
        forced.CopyFrom(model)
        del forced.graph.output[:]
        del forced.graph.value_info[:]
        for _, name in produced:
            forced.graph.input.append(onnx.helper.make_tensor_value_info(name, types[name], None))
            forced.graph.output.append(onnx.helper.make_tensor_value_info("quern/" + name, types[name], None))
        for node in forced.graph.node:
            if node.op_type != "Constant":
                for i, name in enumerate(node.output):
                    node.output[i] = name and "quern/" + name
        self.ours = quern.InferenceSession(self.save(forced, path, "forced"), threads=2)
        self.names = [name for _, name in produced]
        self.past = past_extents(self.theirs, path)

    @staticmethod
    def save(model, path, name):
        target = path.parent / f"{name}.onnx"
        onnx.save(model, target)
        return str(target)

    def run(self, feeds):
        theirs = dict(zip(self.names, self.theirs.run(self.names, feeds)))
        # Runtime inputs have no empty-extent problem: an absent past is a fed tensor with no rows.
        ours = dict(zip(self.names, self.ours.run(["quern/" + n for n in self.names], {**feeds, **theirs})))
        for node in self.nodes:
            for j, name in enumerate(node.output):
                if not name:
                    continue
                atol, rtol = TOLERANCES.get(node.op_type, (0.0, 0.0))
                if node.op_type == "GroupQueryAttention" and j == 1:
                    atol, rtol = 0.0, 1e-6
                elif j > 0:
                    atol, rtol = 0.0, 0.0  # values, residual sums and pieces are copies or single additions
                scale = max(1.0, float(np.abs(theirs[name]).max(initial=0.0)))
                assert_close(f"{node.op_type} {name}", ours[name], theirs[name], atol=atol + rtol * scale)
        return theirs


def infer_types(model, path):
    """Fills the element types of outputs that were added by name."""
    initializers = {i.name: i.data_type for i in model.graph.initializer}
    types = dict(initializers)
    types.update({i.name: i.type.tensor_type.elem_type for i in model.graph.input})
    for node in model.graph.node:
        if node.op_type == "Constant":
            kind = node.attribute[0].t.data_type
        elif node.op_type == "Cast":
            kind = next(a.i for a in node.attribute if a.name == "to")
        elif node.op_type == "Shape":
            kind = onnx.TensorProto.INT64
        else:
            kind = types[node.input[0]]
        types.update({name: kind for name in node.output})
    for output in model.graph.output:
        output.type.tensor_type.elem_type = types[output.name]


def call(every, rng, vocab, ids_length, mask, past):
    batch = mask.shape[0]
    ids = rng.integers(0, vocab, (batch, ids_length), dtype=np.int64)
    theirs = every.run({"input_ids": ids, "attention_mask": mask, **past})
    return {name: theirs[name.replace("past_key_values", "present")] for name in past}


def vocab_of(every):
    return next(o for o in every.theirs.get_outputs() if o.name == "logits").shape[-1]


BLOCKS = [
    pytest.param(("--size", "block-fp32"), id="fp32"),
    pytest.param(("--size", "block", "--opset", "21"), id="int4-opset21"),
    pytest.param(("--size", "block", "--opset", "26"), id="int4-opset26"),
    pytest.param(("--size", "block", "--form", "separate"), id="int4-separate"),
]


def check_calls(every, length):
    rng = np.random.default_rng(length)
    past = empty_past(every.past, 1)
    total = 0
    for step in [length, 1, 1, 1, 4]:
        total += step
        past = call(every, rng, vocab_of(every), step, np.ones((1, total), np.int64), past)


@pytest.mark.parametrize("arguments", BLOCKS)
@pytest.mark.parametrize("length", [1, 3, 32, 128])
def test_block_prefill_three_decodes_and_a_continuation(make_model, arguments, length):
    check_calls(EveryNode(make_model(*arguments)), length)


@pytest.mark.parametrize("arguments", BLOCKS)
def test_block_right_padded_batch_of_two_and_ragged_decode(make_model, arguments):
    every = EveryNode(make_model(*arguments))
    rng = np.random.default_rng(7)
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4], np.int64)
    past = call(every, rng, vocab_of(every), 9, mask, empty_past(every.past, 2))
    call(every, rng, vocab_of(every), 1, np.concatenate([mask, [[1], [1]]], axis=1), past)


def test_exporter_made_graph_unmodified(tmp_path):
    """models/demo is what the onnxruntime-genai model builder wrote."""
    check_calls(EveryNode(copy_of_demo(tmp_path)), 32)


@pytest.mark.parametrize("length", [1, 32])
def test_06b_geometry(make_model, length):
    check_calls(EveryNode(make_model("--size", "0.6b", "--layers", "2")), length)
