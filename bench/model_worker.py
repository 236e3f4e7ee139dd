# SPDX-License-Identifier: Apache-2.0
"""One engine under test in a process of its own: takes cases as JSON lines on stdin, answers with samples in milliseconds.

Usage: model_worker.py ENGINE MODEL_FOLDER THREADS; ENGINE is quern, ort (past and present as separate tensors) or
ort_shared (one buffer as both). A case: {"case": "decode"|"prefill", "depth": N, "reps": N}. While it waits for a line
nothing of it runs, so two of them can stand on the same cores.
"""
import json
import pathlib
import resource
import sys
import time

import numpy as np

CAPACITY = 2048  # rows of the shared buffer


class Quern:
    def __init__(self, folder, threads):
        import quern

        self.model = quern.LLM(folder, threads=threads)
        self.state = self.model.new_state()
        self.rng = np.random.default_rng(0)

    def ids(self, count):
        return self.rng.integers(0, 1000, count).tolist()

    def prepare(self, case, depth):
        self.state.reset()
        if case == "decode" and depth:
            self.model.forward(self.state, self.ids(depth))

    def call(self, case, depth):
        if case == "decode":
            self.model.forward(self.state, self.ids(1))
            return
        self.model.forward(self.state, self.ids(depth))

    def restore(self, case, depth):
        self.state.rewind(depth if case == "decode" else 0)


class Ort:
    def __init__(self, folder, threads, shared):
        import onnxruntime

        self.shared = shared
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.ort = onnxruntime
        # Logits of the last row only, as quern computes them: the head over a whole prompt would be waste.
        path = last_row_graph(pathlib.Path(folder))
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.past = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        self.rng = np.random.default_rng(0)

    def prepare(self, case, depth):
        rows = CAPACITY if self.shared else (depth if case == "decode" else 0)
        self.values = {}
        for p in self.past:
            array = np.zeros((1, p.shape[1], rows, p.shape[3]), np.float32)
            if case == "decode":
                array[:, :, :depth] = self.rng.standard_normal((1, p.shape[1], depth, p.shape[3]), np.float32)
            self.values[p.name] = self.ort.OrtValue.ortvalue_from_numpy(array)

    def call(self, case, depth):
        new = 1 if case == "decode" else depth
        total = depth + 1 if case == "decode" else depth
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", self.rng.integers(0, 1000, (1, new)))
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
            present = name.replace("past_key_values", "present")
            if self.shared:
                binding.bind_ortvalue_output(present, value)
            else:
                binding.bind_output(present)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)

    def restore(self, case, depth):
        pass


def last_row_graph(folder):
    """model.onnx with a Gather of the last position before the head, written beside it once."""
    import onnx

    target = folder / "model_last_row.onnx"
    if target.exists():
        return target
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    graph = model.graph
    head = next(n for n in graph.node if "logits" in n.output)
    graph.initializer.append(onnx.helper.make_tensor("last_row_index", onnx.TensorProto.INT64, [1], [-1]))
    gather = onnx.helper.make_node("Gather", [head.input[0], "last_row_index"], ["last_row"], axis=1)
    head.input[0] = "last_row"
    graph.node.insert(list(graph.node).index(head), gather)
    onnx.save(model, target)
    return target


def main():
    engine, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    start = time.perf_counter()
    subject = Quern(folder, threads) if engine == "quern" else Ort(folder, threads, engine == "ort_shared")
    print(json.dumps({"load_ms": (time.perf_counter() - start) * 1e3}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        case, depth = order["case"], order["depth"]
        if order.get("prepare", True):
            subject.prepare(case, depth)
            subject.call(case, depth)
            subject.restore(case, depth)
        samples = []
        for _ in range(order["reps"]):
            begin = time.perf_counter()
            subject.call(case, depth)
            samples.append((time.perf_counter() - begin) * 1e3)
            subject.restore(case, depth)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"samples": samples, "rss_mb": peak}), flush=True)


if __name__ == "__main__":
    main()
