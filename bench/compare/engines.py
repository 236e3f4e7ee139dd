# SPDX-License-Identifier: Apache-2.0
"""The engines that the whole model is measured with: what each is, how it is installed under bench/engines, how its worker is
started. An engine that cannot be installed here is absent with a reason, and the rest is measured without it."""
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

from compare import gguf
from paired import ROOT, Worker, first_cores

FOLDER = ROOT / "bench" / "engines"
GENAI = "onnxruntime-genai==0.15.2"
PLOT = "matplotlib==3.11.2"
LLAMA = "node-llama-cpp@3.21.1"

# What differs between them besides the code: said wherever figures are shown.
FORMS = {
    "quern": "the ONNX file: INT4 weights in blocks of 32, int8 activations; cache as named",
    "ort": "ONNX Runtime, the ONNX file with a last-row head; float32 cache, past and present as tensors of their own",
    "ort_shared": "ONNX Runtime, the same graph; float32 cache, one buffer bound as past and present",
    "genai": "onnxruntime-genai, the same graph through its generator; float32 cache in a shared buffer",
    "llama": "llama.cpp, another format: GGUF Q4_0 of the same codes, float16 scales, embedding quantized too; float16 cache",
    "llama_plain": "the same without flash attention, which llama.cpp chooses by itself",
}
OTHERS = [name for name in FORMS if name != "quern"]
LLAMA_FORMS = ("llama", "llama_plain")


class Absent(Exception):
    """Why an engine is not there."""


@dataclasses.dataclass
class Engine:
    name: str
    start: list  # the command up to the model
    environment: dict
    file: str = ""  # of the folder, where the model is not the folder itself

    def worker(self, folder, threads, capacity):
        """A started worker and its first answer. Raises Absent."""
        model = pathlib.Path(folder) / self.file
        worker = Worker([*self.start, model, str(threads), str(capacity)], first_cores(threads), self.environment)
        try:
            greeting = worker.read()
        except RuntimeError as error:
            raise Absent(str(error)) from error
        if "absent" in greeting:
            worker.close()
            raise Absent(greeting["absent"])
        return worker, greeting


def run(command, folder=None):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except OSError as error:
        raise Absent(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Absent(f"{pathlib.Path(command[0]).name} failed: {last}")


def once(folder, wanted, install):
    """Runs `install` unless what is `wanted` is in `folder` already. A failed attempt leaves nothing."""
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {wanted}", file=sys.stderr, flush=True)
    try:
        install()
    except Absent:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    stamp.write_text(wanted)


def python_package(name, wanted, *options):
    """A folder with a package, apart from the interpreter's own."""
    folder = FOLDER / name
    once(folder, wanted, lambda: run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target",
                                      folder, *options, wanted]))
    return folder


def plotting():
    """The folder that has matplotlib. Raises Absent."""
    return python_package("plot", PLOT, "-c", ROOT / "requirements-oracle.txt")


def llama_libraries():
    """Installs the npm package, whose libraries are compiled already, and builds our worker against them; returns the folder of
    the libraries. Its header comes out of the sources that the package carries."""
    folder, system = FOLDER / "llama", {"x86_64": "linux-x64", "aarch64": "linux-arm64"}.get(platform.machine())
    if system is None or platform.system() != "Linux":
        raise Absent(f"{LLAMA} has no libraries for {platform.system()} {platform.machine()}")
    libraries = folder / "node_modules" / "@node-llama-cpp" / system / "bins" / system
    source, worker = folder / "source", folder / "llama_worker"
    code = ROOT / "bench" / "compare" / "llama_worker.cc"

    def install():
        run(["npm", "install", "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", ".", LLAMA], folder)
        run(["git", "clone", "-q", folder / "node_modules" / "node-llama-cpp" / "llama" / "gitRelease.bundle", source])

    once(folder, LLAMA, install)
    if not worker.exists() or worker.stat().st_mtime < code.stat().st_mtime:
        linked = [path for pattern in ("libllama.*so", "libggml.*so", "libggml-base*.so") for path in sorted(libraries.glob(pattern))]
        run([os.environ.get("CXX", "g++"), "-O2", "-std=c++20", code, "-o", worker, "-I", source / "include", "-I",
             source / "ggml" / "include", *linked, f"-Wl,-rpath,{libraries}"])
    return libraries


def llama_version():
    package = FOLDER / "llama" / "node_modules" / "node-llama-cpp"
    release = json.loads((package / "llama" / "binariesGithubRelease.json").read_text())["release"]
    return f"llama.cpp {release} of node-llama-cpp {json.loads((package / 'package.json').read_text())['version']}"


GGUF = {"q4_0": "model.q4_0.gguf", "f32": "model.f32.gguf"}  # by the embedding


def gguf_file(folder, embedding="q4_0"):
    """Written beside the ONNX file once."""
    path = pathlib.Path(folder) / GGUF[embedding]
    if not path.exists() or path.stat().st_mtime < path.with_name("model.onnx").stat().st_mtime:
        try:
            gguf.write(folder, path, embedding)
        except ValueError as error:
            raise Absent(str(error)) from error
    return path


def engine(name):
    """Installs what the engine needs. Raises Absent."""
    start, environment = [sys.executable, ROOT / "bench" / "model_worker.py", name], {}
    if name == "genai":
        paths = [str(python_package("genai", GENAI, "--no-deps")), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    if name in LLAMA_FORMS:
        libraries = llama_libraries()
        return Engine(name, [FOLDER / "llama" / "llama_worker", libraries, "auto" if name == "llama" else "plain"], environment, GGUF["q4_0"])
    return Engine(name, start, environment)


def engines(names):
    """{name: Engine} of those that are there, {name: reason} of the others."""
    there, absent = {}, {}
    for name in names:
        try:
            there[name] = engine(name)
        except Absent as error:
            absent[name] = str(error)
    return there, absent
