# SPDX-License-Identifier: Apache-2.0
"""Whole-model times of quern and ONNX Runtime as paired processes: each engine in its own process, pinned to the same
cores, one blocked on a pipe while the other runs; a bandwidth probe beside each block.

Usage: bench_model.py [--model FOLDER] [--size 0.6b] [--threads 1,2] [--pairs 5] [--decode 0,128,1024]
[--prefill 32,128,512] [--json] [--out FILE]. Without --model one is made in bench/models. Raw samples, machine facts and
versions go to bench/results/model.jsonl, one line a case.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from paired import ROOT, Worker, build_folder, first_cores, kept_blocks, machine, numbers, ratio_interval, versions

ENGINES = ("quern", "ort", "ort_shared")


def reps_of(case, depth):
    if case == "decode":
        return 24
    return 4 if depth <= 32 else 2 if depth <= 128 else 1


def run_pairs(arguments, folder, threads, cases):
    """{case: {engine: [[samples of a block], ...], "probe": [...]}} over fresh process pairs."""
    cores = first_cores(threads)
    results = {case: {engine: [] for engine in ENGINES} | {"probe": []} for case in cases}
    facts = {}
    for pair in range(arguments.pairs):
        workers = {e: Worker([sys.executable, ROOT / "bench" / "model_worker.py", e, folder, str(threads)], cores) for e in ENGINES}
        for engine, worker in workers.items():
            facts.setdefault(engine, {"load_ms": [], "rss_mb": 0})["load_ms"].append(worker.read()["load_ms"])
        probe = Worker([build_folder() / "machine_probe", str(threads)], cores)
        for case, depth in cases:
            order = list(ENGINES) if pair % 2 == 0 else list(reversed(ENGINES))
            for block in range(2):
                results[case, depth]["probe"].append(probe.ask("go\n")["read_gbps"])
                for engine in order:
                    answer = workers[engine].ask({"case": case, "depth": depth, "reps": reps_of(case, depth), "prepare": block == 0})
                    workers[engine].settle()
                    results[case, depth][engine].append(answer["samples"])
                    facts[engine]["rss_mb"] = max(facts[engine]["rss_mb"], answer["rss_mb"])
        for worker in [*workers.values(), probe]:
            worker.close()
        print(f"threads {threads}: pair {pair + 1} of {arguments.pairs}", file=sys.stderr, flush=True)
    return results, facts


def row_of(name, case, depth, threads, blocks, facts):
    kept = kept_blocks(blocks["probe"])
    medians = {e: [statistics.median(blocks[e][i]) for i in kept] for e in ENGINES}
    row = {"model": name, "case": case, "depth": depth, "threads": threads, "blocks": len(kept), "discarded": len(blocks["probe"]) - len(kept),
           "probe_gbps": round(statistics.median(blocks["probe"][i] for i in kept), 2)}
    for engine in ENGINES:
        row[f"{engine}_ms"] = round(statistics.median(medians[engine]), 3)
    for other in ("ort", "ort_shared"):
        ratios = [theirs / ours for theirs, ours in zip(medians[other], medians["quern"])]
        median, low, high = ratio_interval(ratios)
        row[f"ratio_{other}"] = round(median, 3)
        row[f"ratio_{other}_95"] = [round(low, 3), round(high, 3)]
    row["llama_ms"] = row["ratio_llama"] = None  # not measured yet
    row["rss_mb"] = {e: round(facts[e]["rss_mb"]) for e in ENGINES}
    row["load_ms"] = {e: round(statistics.median(facts[e]["load_ms"]), 1) for e in ENGINES}
    row["samples"] = {e: [[round(s, 4) for s in block] for block in blocks[e]] for e in ENGINES}
    row["probes"] = blocks["probe"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--size", default="0.6b")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--decode", type=numbers, default=[0, 128, 1024])
    parser.add_argument("--prefill", type=numbers, default=[32, 128, 512])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "model.jsonl"))
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.model) if arguments.model else ROOT / "bench" / "models" / arguments.size
    if not arguments.model and not (folder / "model.onnx").exists():
        subprocess.run([sys.executable, ROOT / "tools" / "make_qwen3_onnx.py", folder, "--size", arguments.size], check=True)
    cases = [("decode", d) for d in arguments.decode] + [("prefill", d) for d in arguments.prefill]
    facts = machine() | versions()
    rows = []
    for threads in arguments.threads:
        results, engine_facts = run_pairs(arguments, folder, threads, cases)
        rows += [row_of(arguments.size, case, depth, threads, results[case, depth], engine_facts) for case, depth in cases]
    with open(arguments.out, "a") as out:
        for row in rows:
            out.write(json.dumps({"machine": facts, **row}) + "\n")
    if arguments.json:
        print(json.dumps({"machine": facts, "rows": rows}))
        return
    print(f"{'case':8} {'depth':>6} {'threads':>7} {'quern':>9} {'ort':>9} {'shared':>9}  ratio to ort (95 %)      to shared")
    for r in rows:
        print(f"{r['case']:8} {r['depth']:6} {r['threads']:7} {r['quern_ms']:8.2f}  {r['ort_ms']:8.2f}  {r['ort_shared_ms']:8.2f}  "
              f"{r['ratio_ort']:5.2f} ({r['ratio_ort_95'][0]:.2f}-{r['ratio_ort_95'][1]:.2f})   {r['ratio_ort_shared']:5.2f} "
              f"({r['ratio_ort_shared_95'][0]:.2f}-{r['ratio_ort_shared_95'][1]:.2f})")


if __name__ == "__main__":
    main()
