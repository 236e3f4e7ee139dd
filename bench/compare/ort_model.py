# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime as a subject of model_worker.py: with past and present as tensors of their own, or with one buffer bound as
both. Nothing is copied between calls on our side: the present tensors of a call are the past of the next one."""
import pathlib

import numpy as np
import onnx
import onnxruntime

LAST_ROW = "model_last_row.onnx"


def last_row_graph(folder):
    """model.onnx with a Gather of the last position before the head, written beside it once: quern computes the logits of
    the last row only, and the head over a whole prompt would be waste."""
    target = pathlib.Path(folder) / LAST_ROW
    if target.exists():
        return target
    model = onnx.load(target.with_name("model.onnx"), load_external_data=False)
    graph = model.graph
    head = next(n for n in graph.node if "logits" in n.output)
    graph.initializer.append(onnx.helper.make_tensor("last_row_index", onnx.TensorProto.INT64, [1], [-1]))
    gather = onnx.helper.make_node("Gather", [head.input[0], "last_row_index"], ["last_row"], axis=1)
    head.input[0] = "last_row"
    graph.node.insert(list(graph.node).index(head), gather)
    onnx.save(model, target)
    return target


class Model:
    def __init__(self, folder, threads, capacity, shared):
        self.capacity, self.shared = capacity, shared
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(last_row_graph(folder)), options, providers=["CPUExecutionProvider"])
        self.past = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        self.presents = [i.name.replace("past_key_values", "present") for i in self.past]
        self.begin()

    @staticmethod
    def facts():
        return {"version": onnxruntime.__version__}

    def hold(self, depth, make):
        """Past tensors of `depth` rows made by `make(shape)`, in buffers of the capacity where they are shared."""
        self.depth, self.values = depth, []
        for p in self.past:
            array = np.zeros((1, p.shape[1], self.capacity if self.shared else depth, p.shape[3]), np.float32)
            if depth:
                array[:, :, :depth] = make((1, p.shape[1], depth, p.shape[3]))
            self.values.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def begin(self):
        self.hold(0, None)

    def step(self, ids):
        """A call behind the rows held, which stay as they are. All outputs, logits last."""
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([ids], np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, self.depth + len(ids)), np.int64))
        for past, present, value in zip(self.past, self.presents, self.values):
            binding.bind_ortvalue_input(past.name, value)
            if self.shared:
                binding.bind_ortvalue_output(present, value)
            else:
                binding.bind_output(present)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()

    def extend(self, ids):
        *presents, logits = self.step(ids)
        self.depth += len(ids)
        if not self.shared:  # the bound buffers are memory of the arrays behind them, and hold the rows already
            self.values = presents
        return logits.numpy()[0, -1]

    def fill(self, ids):
        """As many rows of random numbers: what they are does not change the time, and computing them would take long."""
        rng = np.random.default_rng(0)
        self.hold(len(ids), lambda shape: rng.standard_normal(shape, np.float32))

    def restore(self, depth):
        pass

    def length(self):
        return self.depth
