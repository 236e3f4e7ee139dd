# SPDX-License-Identifier: Apache-2.0
"""One engine under test on graphs of ops_graph.py, in a process of its own. Takes JSON lines on stdin: {"load": FILE}
answers with what the engine says about the graph, or {"refused": why}; {"rows": M, "seconds": S} answers with
milliseconds a call, and with "check" also with some results. ONNX Runtime spins on for a while after an answer.

Usage: ops_worker.py quern|ort THREADS
"""
import json
import sys
import time

import numpy as np

WARM_SECONDS = 0.02     # calls before the first sample: caches, pages, the processor's clock
SAMPLE_SECONDS = 0.003  # a sample is the mean of as many calls as last that long
LEAST, MOST = 3, 20     # samples a block
CHECKED = 8             # results that "check" gives out


class Quern:
    def __init__(self, threads):
        import quern

        self.quern, self.threads, self.session = quern, threads, None
        self.Refusal = quern.Error

    def load(self, path):
        self.session = None  # the old weights go first
        # All nodes read one value: joined into a single product they would no longer be what a graph of one node is.
        self.session = self.quern.InferenceSession(path, threads=self.threads, no_fuse=["shared_rows"])
        nodes = [row for row in self.session.report() if row["op"] == "MatMulNBits"]
        if any(row["owner"] != "kernel" for row in nodes):
            raise RuntimeError(f"not every node is computed by itself: {[row['reason'] for row in nodes]}")
        return {"packed_bytes": self.session.counters()["prepared_bytes"],
                "variant": ", ".join(sorted({row["variant"] for row in nodes}))}

    def feed(self, feeds, rows):
        self.feeds = feeds

    def call(self):
        self.session.run(["tick"], self.feeds)

    def result(self):  # of the last node
        return self.session.run([self.session.get_outputs()[-1].name], self.feeds)[0]


def make_feeds(engine, rows):
    feeds = {"z": np.ones(1, np.float32)}
    for port in engine.session.get_inputs():
        if port.name == "a":
            feeds["a"] = np.random.default_rng(0).standard_normal((rows, port.shape[-1])).astype(np.float32)
    return feeds


def measure(engine, seconds):
    def milliseconds(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            engine.call()
        return (time.perf_counter() - begin) * 1e3 / calls

    start = time.perf_counter()
    quickest = milliseconds(1)
    while time.perf_counter() - start < WARM_SECONDS:
        quickest = min(quickest, milliseconds(1))
    calls = max(1, round(SAMPLE_SECONDS * 1e3 / quickest))
    samples, start = [], time.perf_counter()
    while len(samples) < LEAST or (len(samples) < MOST and time.perf_counter() - start < seconds):
        samples.append(round(milliseconds(calls), 5))
    return samples


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    if name == "quern":
        engine = Quern(threads)
    else:
        from compare.ort_ops import Engine

        engine = Engine(threads)
    for line in sys.stdin:
        order = json.loads(line)
        if "load" in order:
            try:
                answer = engine.load(order["load"])
            except engine.Refusal as error:
                answer = {"refused": str(error)}
        else:
            engine.feed(make_feeds(engine, order["rows"]), order["rows"])
            answer = {"samples": measure(engine, order["seconds"])}
            if order.get("check"):
                last = engine.result()[-1]
                answer["check"] = last[:: len(last) // CHECKED].tolist()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
