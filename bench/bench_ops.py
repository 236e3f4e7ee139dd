# SPDX-License-Identifier: Apache-2.0
"""MatMulNBits at the 0.6B shapes: quern and ONNX Runtime as paired processes on the same graph.

A graph holds as many nodes with weights of their own as make 160 MB, so that weights come from memory; times are a node.
Usage: bench_ops.py [--threads 1,2] [--m 1,4,16,128] [--isa auto] [--pairs 3] [--json] [--out FILE]
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import numpy as np
from bench_model import KEEP, ROOT, Worker, machine, numbers, versions

SHAPES = {"qkv": (1024, 4096), "o": (2048, 1024), "gateup": (1024, 3072), "down": (3072, 1024), "lm_head": (1024, 151936)}
COLD_BYTES = 160_000_000
BYTES_PER_WEIGHT = 0.625  # 4-bit code and a float32 scale for 32 of them


def write_graph(path, k, n):
    """Returns the number of nodes."""
    from onnx import TensorProto, helper

    copies = max(1, int(COLD_BYTES / (k * n * BYTES_PER_WEIGHT)))
    rng = np.random.default_rng(k * n)
    data = path.with_suffix(".data")
    nodes, initializers, outputs, offset = [], [], [], 0
    with open(data, "wb") as out:
        for i in range(copies):
            for name, kind, dims, raw in ((f"b{i}", TensorProto.UINT8, [n, k // 32, 16], rng.integers(0, 256, n * k // 2, dtype=np.uint8)),
                                          (f"s{i}", TensorProto.FLOAT, [n, k // 32], rng.uniform(0.003, 0.006, n * k // 32).astype(np.float32))):
                tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
                for key, value in (("location", data.name), ("offset", offset), ("length", raw.nbytes)):
                    tensor.external_data.add(key=key, value=str(value))
                out.write(raw.tobytes())
                offset += raw.nbytes
                initializers.append(tensor)
            nodes.append(helper.make_node("MatMulNBits", ["a", f"b{i}", f"s{i}"], [f"y{i}"], domain="com.microsoft", K=k, N=n, bits=4,
                                          block_size=32, accuracy_level=4))
            outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["m", n]))
    graph = helper.make_graph(nodes, "ops", [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", k])], outputs, initializers)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
                                       ir_version=10).SerializeToString())
    return copies


def measure(arguments, graphs, threads):
    """{(shape, m): {"quern": [ms a node, by block], "ort": [...], "probe": [...]}}"""
    cores = set(sorted(os.sched_getaffinity(0))[:threads])
    build = ROOT / os.environ.get("QUERN_BUILD", "build/release")
    results = {}
    for pair in range(arguments.pairs):
        workers = {e: Worker([sys.executable, ROOT / "bench" / "ops_worker.py", e, str(threads)], cores) for e in ("quern", "ort")}
        probe = Worker([build / "machine_probe", str(threads)], cores)
        for worker in workers.values():
            worker.read()
        for shape, (path, copies) in graphs.items():
            for m in arguments.m:
                cell = results.setdefault((shape, m), {"quern": [], "ort": [], "probe": []})
                cell["probe"].append(probe.ask("go\n"))
                for engine in ("quern", "ort") if pair % 2 == 0 else ("ort", "quern"):
                    answer = workers[engine].ask({"model": str(path), "m": m, "reps": 10 if m <= 4 else 3})
                    cell[engine].append(statistics.median(answer["samples"]) / copies)
        for worker in [*workers.values(), probe]:
            worker.close()
        print(f"threads {threads}: pair {pair + 1} of {arguments.pairs}", file=sys.stderr, flush=True)
    return results


def row_of(shape, m, threads, isa, cell):
    k, n = SHAPES[shape]
    best = max(cell["probe"])
    kept = [i for i, p in enumerate(cell["probe"]) if p >= KEEP * best]
    quern_ms, ort_ms = (statistics.median(cell[e][i] for i in kept) for e in ("quern", "ort"))
    gbps = k * n * BYTES_PER_WEIGHT / quern_ms / 1e6
    return {"op": "MatMulNBits", "shape": f"{k}x{n}", "m": m, "threads": threads, "isa": isa, "quern_us": round(quern_ms * 1e3, 2),
            "ort_us": round(ort_ms * 1e3, 2), "ratio": round(statistics.median(cell["ort"][i] / cell["quern"][i] for i in kept), 3),
            "gbps": round(gbps, 2), "pct_bandwidth": round(100 * gbps / best, 1), "gops": round(2 * k * n * m / quern_ms / 1e6, 1),
            "pct_peak": None, "samples": cell}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--m", type=numbers, default=[1, 4, 16, 128])
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "ops.jsonl"))
    arguments = parser.parse_args()
    if arguments.isa != "auto":
        os.environ["QUERN_ISA"] = arguments.isa
    rows = []
    facts = machine() | versions()
    with tempfile.TemporaryDirectory() as folder:
        graphs = {}
        for shape, (k, n) in SHAPES.items():
            path = pathlib.Path(folder) / f"{shape}.onnx"
            graphs[shape] = (path, write_graph(path, k, n))
        for threads in arguments.threads:
            results = measure(arguments, graphs, threads)
            rows += [row_of(shape, m, threads, arguments.isa, cell) for (shape, m), cell in results.items()]
    with open(arguments.out, "a") as out:
        for row in rows:
            out.write(json.dumps({"machine": facts, **row}) + "\n")
    if arguments.json:
        print(json.dumps({"machine": facts, "rows": rows}))
        return
    for r in rows:
        print(f"{r['shape']:12} m={r['m']:<4} {r['threads']} threads  {r['quern_us']:9.1f} us  ort {r['ort_us']:9.1f} us  ratio {r['ratio']:5.2f}  "
              f"{r['gbps']:6.1f} GB/s ({r['pct_bandwidth']} % of the probe)  {r['gops']:7.1f} GOP/s")


if __name__ == "__main__":
    main()
