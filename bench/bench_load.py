# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of opening the graph of a model (quern.InferenceSession, onnxruntime.InferenceSession) in fresh
processes, one engine after the other on the same cores, with the file in the page cache. Each engine opens it twice in a row
and the second counts: a virtual machine gives free memory back to its host within seconds, huge pages first, and whoever
comes next waits for the host. Both times are kept.

Usage: bench_load.py [--model FOLDER] [--threads 2] [--pairs 7] [--out FILE]. Raw samples go to bench/results/load.jsonl.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from paired import ROOT, built, first_cores, machine, model_hash, ratio_interval, versions

OPEN = """
import os, resource, sys, time
engine, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
if engine == "quern":
    import quern
    begin = time.perf_counter()
    session = quern.InferenceSession(path, threads=threads)
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    begin = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
print((time.perf_counter() - begin) * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
os._exit(0)
"""


def warm(folder):
    for path in folder.glob("model.onnx*"):
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass


def open_once(engine, folder, cores, threads):
    done = subprocess.run(["taskset", "-c", cores, sys.executable, "-c", OPEN, engine, folder / "model.onnx", str(threads)],
                          check=True, capture_output=True, text=True)
    ms, peak = done.stdout.split()
    return {"ms": float(ms), "peak_bytes": int(peak)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "bench" / "models" / "0.6b"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "load.jsonl"))
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.model)
    cores = ",".join(str(c) for c in sorted(first_cores(arguments.threads)))
    samples = {"quern": [], "ort": []}
    for pair in range(arguments.pairs):
        for engine in ("quern", "ort") if pair % 2 == 0 else ("ort", "quern"):
            warm(folder)
            samples[engine].append([open_once(engine, folder, cores, arguments.threads) for _ in range(2)])
    ratio, low, high = ratio_interval([q[1]["ms"] / o[1]["ms"] for q, o in zip(samples["quern"], samples["ort"])])
    row = {"machine": machine() | built() | versions(), "model": folder.name, "model_hash": model_hash(folder),
           "case": "load", "threads": arguments.threads, "ratio": round(ratio, 3),
           "ratio_95": [round(low, 3), round(high, 3)], "samples": samples}
    for engine, values in samples.items():
        row[f"{engine}_first_ms"] = round(statistics.median(v[0]["ms"] for v in values), 1)
        row[f"{engine}_ms"] = round(statistics.median(v[1]["ms"] for v in values), 1)
        row[f"{engine}_peak_mb"] = round(max(v[1]["peak_bytes"] for v in values) / 1e6)
    with open(arguments.out, "a") as out:
        out.write(json.dumps(row) + "\n")
    for engine in samples:
        print(f"{engine:6} {row[f'{engine}_ms']:7.1f} ms (first of two: {row[f'{engine}_first_ms']:.1f}), peak {row[f'{engine}_peak_mb']} MB")
    print(f"quern / ort {row['ratio']} ({row['ratio_95'][0]}-{row['ratio_95'][1]}), {arguments.threads} threads")


if __name__ == "__main__":
    main()
