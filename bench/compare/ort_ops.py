# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on the graphs of ops_graph.py: what ops_worker.py drives beside quern. Default session options but the
thread counts."""
import numpy as np
import onnxruntime


class Engine:
    Refusal = Exception

    def __init__(self, threads):
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.inter_op_num_threads = 1
        self.session = None

    def load(self, path):
        self.session = None  # the old weights go first
        self.session = onnxruntime.InferenceSession(path, self.options, providers=["CPUExecutionProvider"])
        return {}

    def feed(self, feeds, rows):
        """Binds inputs and outputs once. All nodes but the last one write to the same memory, as those of quern do
        whose results nobody wants; they run one after the other, in no order that we know."""
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        self.binding = self.session.io_binding()
        for name, array in feeds.items():
            self.binding.bind_ortvalue_input(name, make(array))
        tick, *nodes = (port.name for port in self.session.get_outputs())
        self.binding.bind_ortvalue_output(tick, make(np.zeros(1, np.float32)))
        if nodes:
            shape = rows, self.session.get_outputs()[-1].shape[-1]
            self.y, unwanted = make(np.zeros(shape, np.float32)), make(np.zeros(shape, np.float32))
            for name in nodes:
                self.binding.bind_ortvalue_output(name, self.y if name == nodes[-1] else unwanted)

    def call(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):  # of the last node
        self.call()
        return self.y.numpy()
