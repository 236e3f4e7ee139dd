# SPDX-License-Identifier: Apache-2.0
"""One engine under test in a process of its own: takes orders as JSON lines on stdin, answers each with a line of JSON.

Usage: model_worker.py ENGINE MODEL_FOLDER THREADS CAPACITY; ENGINE is quern or quern:KV (its cache type), ort (past and present
as tensors of their own), ort_shared (one buffer as both) or genai; CAPACITY is the most tokens a timeline gets. The first line
out is {"load_ms", "facts", "base_mb"} (the last: resident before the model was loaded), or {"absent": reason} from an engine that cannot do this. Orders:
  {"case": "decode"|"prefill", "depth": N, "reps": N, "prepare": bool}  times of a token behind N, or of a prompt of N tokens;
      `prepare` fills the past and makes one untimed call first. Answer: {"samples": ms, "rss_mb", "past": tokens held behind it}
  {"case": "chain", "prompt": ids, "tokens": N, "forced": ids or null, "out": file or null}  the prompt, then N greedy tokens
      (of `forced`, where given, instead of the own choice). Answer: {"ids": choices, "first_ms", "rss_mb"}; the row of logits
      before each choice goes to `out` as float32.
compare/llama_worker.cc speaks the same. While it waits for a line nothing of it runs, so several can stand on the same cores.
"""
import json
import pathlib
import re
import sys
import time

import numpy as np


def open_subject(engine, *arguments):
    """The engine's class and the call that loads the model: importing a library is not loading."""
    name, _, kv = engine.partition(":")
    if name == "quern":
        from compare.quern_model import Model
        return Model, lambda: Model(*arguments, kv or None)
    if name in ("ort", "ort_shared"):
        from compare.ort_model import Model, last_row_graph
        last_row_graph(arguments[0])
        return Model, lambda: Model(*arguments, name == "ort_shared")
    from compare.genai_model import Model
    return Model, lambda: Model(*arguments)


def peak_mb():
    """Of this program: what the process was before it became this program does not count."""
    return int(re.search(r"VmHWM:\s*(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


def time_calls(subject, order, rng):
    decode = order["case"] == "decode"
    depth, new = (order["depth"], 1) if decode else (0, order["depth"])
    ids = lambda count: rng.integers(0, ID_LIMIT, count).tolist()
    if order["prepare"]:
        subject.fill(ids(depth))
        subject.step(ids(new))
        subject.restore(depth)
    samples = []
    for _ in range(order["reps"]):
        tokens = ids(new)
        begin = time.perf_counter()
        subject.step(tokens)
        samples.append((time.perf_counter() - begin) * 1e3)
        subject.restore(depth)
    return {"samples": samples, "past": subject.length()}


ID_LIMIT = 256  # every model here has these ids


def chain(subject, order):
    begin = time.perf_counter()
    subject.begin()
    rows = [subject.extend(order["prompt"])]
    chosen = [int(rows[0].argmax())]
    first_ms = (time.perf_counter() - begin) * 1e3
    keep = order["out"] is not None
    rows = [np.array(rows[0])] if keep else []
    while len(chosen) < order["tokens"]:
        row = subject.extend([(order["forced"] or chosen)[len(chosen) - 1]])
        chosen.append(int(row.argmax()))
        if keep:
            rows.append(np.array(row))
    if keep:
        np.array(rows, np.float32).tofile(order["out"])
    return {"ids": chosen, "first_ms": first_ms}


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    engine, folder, threads, capacity = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    try:
        library, load = open_subject(engine, folder, threads, capacity)
        base_mb = peak_mb()
        begin = time.perf_counter()
        subject = load()
    except Exception as error:  # whatever an engine that was not written for this reports
        say({"absent": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
        return
    say({"load_ms": (time.perf_counter() - begin) * 1e3, "facts": library.facts(), "base_mb": base_mb})
    rng = np.random.default_rng(0)
    for line in sys.stdin:
        order = json.loads(line)
        answer = chain(subject, order) if order["case"] == "chain" else time_calls(subject, order, rng)
        say(answer | {"rss_mb": peak_mb()})


if __name__ == "__main__":
    main()
