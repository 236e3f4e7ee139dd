# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: engines in processes of their own that take turns on the same cores, the facts of the
machine, and the statistics of paired blocks."""
import datetime
import functools
import hashlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEEP = 0.8  # blocks whose probe is below this part of the median probe are discarded
QUIET_SECONDS, QUIET_PART = 0.01, 0.05  # a process at rest: how long it is watched, and what it may compute in that time
MOST_SECONDS = 2.0  # after which a process that never rests is taken as it is


def build_folder():
    return ROOT / os.environ.get("QUERN_BUILD", "build/release")


def first_cores(threads):
    return set(sorted(os.sched_getaffinity(0))[:threads])


class Worker:
    """A process that answers each line with a line of JSON and blocks on its pipe in between."""

    def __init__(self, command, cores, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | (environment or {}), preexec_fn=lambda: os.sched_setaffinity(0, cores))

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, order):
        self.process.stdin.write(order if isinstance(order, str) else json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.read()

    def settle(self):
        """Waits until no thread of the process computes: ONNX Runtime's spin for tens of milliseconds after a call, on
        the cores of whoever comes next."""
        clock = (~self.process.pid << 3) | 2  # of the process's processor time, as clock_getcpuclockid(3) makes it
        before = time.clock_gettime(clock)
        for _ in range(int(MOST_SECONDS / QUIET_SECONDS)):
            time.sleep(QUIET_SECONDS)
            now = time.clock_gettime(clock)
            if now - before <= QUIET_PART * QUIET_SECONDS:
                return
            before = now

    def turn(self, order):
        """ask(), and back to rest."""
        answer = self.ask(order)
        self.settle()
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", text)
    family = re.search(r"cpu family\s*: (\d+)", text)
    number = re.search(r"\nmodel\s*: (\d+)", text)
    return {"cpu": model[1] if model else platform.processor(), "family": int(family[1]) if family else 0,
            "model": int(number[1]) if number else 0, "cores": os.cpu_count(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, "kernel": platform.release(),
            "date": datetime.date.today().isoformat(), "load_at_start": os.getloadavg()[0]}


def built():
    """What quern was made from and how: commit ("+" behind it: with changes that are not in it), the instruction sets
    that the processor has and QUERN_ISA allows, compiler, build type, and the flags of a file without an instruction set
    of its own (cmake/isa.cmake has what the others get)."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":!bench/results").returncode
    ninja = (build_folder() / "build.ninja").read_text()
    cache = (build_folder() / "CMakeCache.txt").read_text()
    compiler, = build_folder().glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    name, version = (re.search(rf'CMAKE_CXX_COMPILER_{what} "([^"]*)"', compiler.read_text())[1]
                     for what in ("ID", "VERSION"))
    cpu = subprocess.run([build_folder() / "quern", "inspect", "cpu", "--json"], check=True, capture_output=True)
    return {"commit": git("rev-parse", "--short", "HEAD").stdout.strip() + ("+" if changed else ""),
            "isa": json.loads(cpu.stdout)["usable"], "compiler": f"{name} {version}",
            "build_type": re.search(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", cache, re.M)[1],
            "flags": re.search(r"/src/cpu/features\.cc\.o:.*?\n  FLAGS = (.*?)\n", ninja, re.S)[1]}


def versions():
    import numpy
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, "numpy": numpy.__version__}


@functools.cache
def model_hash(folder):
    """Of the graph or the checkpoint in a folder: names and bytes of its files, without what benchmarks write there."""
    patterns = ("model.onnx", "model.onnx[._]data", "*.safetensors")
    files = [path for pattern in patterns for path in sorted(pathlib.Path(folder).glob(pattern))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with open(path, "rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return digest.hexdigest()[:16]


def kept_blocks(probes):
    """Indices of the blocks during which the machine gave what it usually gives. Against the median, not the best: the read
    bandwidth of two threads on a shared host has two levels, and the upper one may be seen once."""
    return [i for i, value in enumerate(probes) if value >= KEEP * statistics.median(probes)]


def ratio_interval(ratios):
    """Median and a 95 % interval of it by order statistics (the extremes for fewer than six pairs)."""
    ordered = sorted(ratios)
    if len(ordered) < 6:
        return statistics.median(ordered), ordered[0], ordered[-1]
    cut = max(0, int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2))
    return statistics.median(ordered), ordered[cut], ordered[-1 - cut]


def numbers(text):
    return [int(n) for n in text.split(",") if n]
