# SPDX-License-Identifier: Apache-2.0
"""Decoding and prompts under a quota of processor time, as containers have it: parts of processors by numbers of threads, and
the number that quern chooses by itself. For root, where control groups can be made.

A quota lets a group compute until its time in a period of 100 ms is used up; then all its threads stand still. Times of single
tokens have two levels then, so the figure is tokens per second over whole rounds of at least --seconds. Each round is a process
of its own; the rounds of all cases take turns.

Usage: bench_quota.py MODEL_FOLDER [--quotas 0.5,1,1.5,2] [--threads 1,2,4,8] [--cases decode,prefill]
[--rounds 5] [--seconds 1] [--prompt 64] [--out FILE].
Prints for each quota the default beside the best number of threads, and the slowest. One line a case goes to
bench/results/quota.jsonl.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys

from paired import ROOT, build_folder, built, machine, model_hash, numbers

sys.path.insert(0, str(ROOT / "tools"))

from control_group import control_group  # noqa: E402

DEFAULT = 0  # as a number of threads: what quern chooses
RUN = 32  # tokens that are decoded one behind the other


def bench(arguments, quota, threads, case, count):
    """ms of each sample of one process, and its threads. About `count` tokens one by one, or prompts."""
    command = [build_folder() / "quern", "bench", arguments.model, "--output", "json"]
    if case == "decode":
        command += ["-p", "0", "-n", RUN, "-r", -(-count // RUN)]
    else:
        command += ["-p", arguments.prompt, "-n", "0", "-r", count]
    if threads != DEFAULT:
        command += ["-t", threads]
    with control_group(processors=quota) as enter:
        done = subprocess.run([str(word) for word in command], preexec_fn=enter, check=True, capture_output=True)
    row, = json.loads(done.stdout)["rows"]
    return row["samples"], row["threads"]


def measure(arguments, case):
    """{(quota, threads): tokens per second of each round}, and {quota: threads that were chosen}."""
    tokens = 1 if case == "decode" else arguments.prompt
    cases = [(quota, threads) for quota in arguments.quotas for threads in [DEFAULT, *arguments.threads]]
    rates, chosen, counts = {c: [] for c in cases}, {}, {}
    for quota, threads in cases:  # how many samples a round needs; not counted
        few = RUN if case == "decode" else 2
        samples, used = bench(arguments, quota, threads, case, few)
        counts[quota, threads] = max(few, round(arguments.seconds * 1e3 / statistics.mean(samples)))
        if threads == DEFAULT:
            chosen[quota] = used
    shuffle = random.Random(0)
    for _ in range(arguments.rounds):
        for quota, threads in shuffle.sample(cases, len(cases)):
            samples, _ = bench(arguments, quota, threads, case, counts[quota, threads])
            rates[quota, threads].append(tokens * len(samples) / sum(samples) * 1e3)
    return rates, chosen


def report(arguments, case, rates, chosen):
    medians = {c: statistics.median(values) for c, values in rates.items()}
    for quota in arguments.quotas:
        best = max(arguments.threads, key=lambda t: medians[quota, t])
        worst = min(arguments.threads, key=lambda t: medians[quota, t])
        part = medians[quota, DEFAULT] / medians[quota, best]
        print(f"{case:8} {quota:4} processors: {medians[quota, DEFAULT]:8.1f} tokens/s with the default of {chosen[quota]}, "
              f"{part:.2f} of the best ({medians[quota, best]:.1f} with {best}); "
              + ", ".join(f"{t}: {medians[quota, t]:.1f}" for t in arguments.threads)
              + f"; slowest {medians[quota, best] / medians[quota, worst]:.2f} times slower", flush=True)
    facts = machine() | built()
    with open(arguments.out, "a") as out:
        for (quota, threads), values in rates.items():
            row = {"machine": facts, "model": pathlib.Path(arguments.model).name,
                   "model_hash": model_hash(arguments.model), "case": case, "quota": quota,
                   "threads": threads or chosen[quota], "default": threads == DEFAULT,
                   "tokens_per_second": round(medians[quota, threads], 2), "samples": [round(v, 2) for v in values]}
            if case == "prefill":
                row["prompt"] = arguments.prompt
            out.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quotas", type=lambda text: [float(q) for q in text.split(",")], default=[0.5, 1, 1.5, 2])
    parser.add_argument("--threads", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=["decode", "prefill"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "quota.jsonl"))
    arguments = parser.parse_args()
    for case in arguments.cases:
        report(arguments, case, *measure(arguments, case))


if __name__ == "__main__":
    main()
