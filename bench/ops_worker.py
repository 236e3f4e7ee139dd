# SPDX-License-Identifier: Apache-2.0
"""One engine under test on graphs of MatMulNBits nodes: takes {"model": FILE, "m": ROWS, "reps": N} as JSON lines on stdin,
answers with milliseconds a call. Usage: ops_worker.py quern|ort THREADS
"""
import json
import sys
import time

import numpy as np


def make_session(engine, path, threads):
    if engine == "quern":
        import quern

        return quern.InferenceSession(path, threads=threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main():
    engine, threads = sys.argv[1], int(sys.argv[2])
    print(json.dumps({"ready": True}), flush=True)
    session, loaded = None, None
    for line in sys.stdin:
        order = json.loads(line)
        if loaded != order["model"]:
            session = None
            session, loaded = make_session(engine, order["model"], threads), order["model"]
        name, k = session.get_inputs()[0].name, session.get_inputs()[0].shape[-1]
        feeds = {name: np.random.default_rng(0).standard_normal((order["m"], k)).astype(np.float32)}
        session.run(None, feeds)
        samples = []
        for _ in range(order["reps"]):
            begin = time.perf_counter()
            session.run(None, feeds)
            samples.append((time.perf_counter() - begin) * 1e3)
        print(json.dumps({"samples": samples}), flush=True)


if __name__ == "__main__":
    main()
