# SPDX-License-Identifier: Apache-2.0
"""What each graph pass gains on a whole model: the model with all passes, without one of them, and without any, call by call
in turns. A pool's threads sleep between calls, so the models of one process do not disturb each other; each opens several
times, because a copy of the weights is a little faster or slower for its place in memory.

Usage: bench_fuse.py MODEL_FOLDER [--threads 1,2] [--opens 4] [--calls 50] [--decode 0] [--prefill 128]
[--without PASS,... | --without all] [--split-skips] [--out FILE]. --split-skips measures a copy of the graph in which each
SkipSimplifiedLayerNormalization is an Add and a SimplifiedLayerNormalization: what add_norm is for. Prints the median ratio
of the times without and with the pass, its 95 % interval, and the median of the differences; raw samples go to
bench/results/fuse.jsonl, one line a case and pass.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import tempfile
import time

import numpy as np
import onnx
from paired import ROOT, built, first_cores, machine, model_hash, numbers, ratio_interval, versions

import quern

PASSES = ["shared_rows", "add_norm", "silu_mul"]


class Subject:
    def __init__(self, folder, threads, left_out, case, depth):
        self.model = quern.LLM(str(folder), threads=threads, no_fuse=[p for p in left_out.split(",") if p])
        self.state = self.model.new_state()
        self.tokens, self.past = (1, depth) if case == "decode" else (depth, 0)
        self.rng = np.random.default_rng(0)
        if self.past:
            self.model.forward(self.state, self.ids(self.past))

    def ids(self, count):
        return self.rng.integers(0, 1000, count).tolist()

    def call(self):
        ids = self.ids(self.tokens)
        begin = time.perf_counter()
        self.model.forward(self.state, ids)
        took = (time.perf_counter() - begin) * 1e3
        self.state.rewind(self.past)
        return took


def split_skips(folder, target):
    """A folder with the same files and the graph in its longer form. External data must lie within it: hard links."""
    for file in folder.iterdir():
        if file.is_file():
            os.link(file.resolve(), target / file.name)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    nodes = []
    for node in model.graph.node:
        if node.op_type != "SkipSimplifiedLayerNormalization":
            nodes.append(node)
            continue
        total = node.output[3] if len(node.output) > 3 and node.output[3] else node.name + "/sum"
        nodes.append(onnx.helper.make_node("Add", node.input[:2], [total], name=node.name + "/Add"))
        nodes.append(onnx.helper.make_node("SimplifiedLayerNormalization", [total, node.input[2]], [node.output[0]], name=node.name,
                                           axis=-1, stash_type=1, epsilon=node.attribute[0].f))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (target / "model.onnx").unlink()
    onnx.save(model, target / "model.onnx")
    return target


def measure(arguments, folder, threads, case, depth):
    """{passes left out: ms of every call}; call i of all variants belong together."""
    variants = ["", *arguments.without]
    samples = {v: [] for v in variants}
    shuffle = random.Random(0)
    for _ in range(arguments.opens):
        subjects = {v: Subject(folder, threads, v, case, depth) for v in shuffle.sample(variants, len(variants))}
        for call in range(-2, arguments.calls):
            for v in shuffle.sample(variants, len(variants)):
                took = subjects[v].call()
                if call >= 0:
                    samples[v].append(took)
    return samples


def report(arguments, facts, case, depth, threads, samples):
    for v in arguments.without:
        median, low, high = ratio_interval([a / b for a, b in zip(samples[v], samples[""])])
        gain = statistics.median(a - b for a, b in zip(samples[v], samples[""]))
        row = {"model": arguments.model.resolve().name, "model_hash": model_hash(arguments.model), "case": case,
               "depth": depth, "threads": threads, "without": v, "split_skips": arguments.split_skips,
               "ratio": round(median, 4), "ratio_95": [round(low, 4), round(high, 4)], "gain_us": round(gain * 1e3, 1), "ms": round(statistics.median(samples[""]), 3),
               "ms_without": round(statistics.median(samples[v]), 3)}
        print(f"{case:8} {depth:5} {threads} threads, without {v:30} {row['ms_without']:8.3f} -> {row['ms']:8.3f} ms, "
              f"{row['gain_us']:7.1f} us: {median:.4f} ({low:.4f}-{high:.4f})", flush=True)
        row["samples"] = {"with": [round(s, 4) for s in samples[""]], "without": [round(s, 4) for s in samples[v]]}
        with open(arguments.out, "a") as out:
            out.write(json.dumps({"machine": facts, **row}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--opens", type=int, default=4)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--decode", type=numbers, default=[0])
    parser.add_argument("--prefill", type=numbers, default=[128])
    parser.add_argument("--without", action="append", help="passes left out together; all: every pass")
    parser.add_argument("--split-skips", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "fuse.jsonl"))
    arguments = parser.parse_args()
    arguments.without = [",".join(PASSES) if w == "all" else w for w in arguments.without or [*PASSES, "all"]]
    facts = machine() | built() | versions()
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(dir=arguments.model.resolve().parent) as scratch:
        folder = split_skips(arguments.model, pathlib.Path(scratch)) if arguments.split_skips else arguments.model
        for case, depth in [("decode", d) for d in arguments.decode] + [("prefill", d) for d in arguments.prefill]:
            for threads in arguments.threads:
                os.sched_setaffinity(0, first_cores(threads))
                samples = measure(arguments, folder, threads, case, depth)
                os.sched_setaffinity(0, cores)
                report(arguments, facts, case, depth, threads, samples)


if __name__ == "__main__":
    main()
