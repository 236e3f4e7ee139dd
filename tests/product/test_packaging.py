# SPDX-License-Identifier: Apache-2.0
"""quern as other people's programs get it: a wheel in an environment of its own, and the installed C++ and C libraries.

What is installed are the objects of the build under test. The wheel is made twice: as the README says, by `./dev wheel`, which
links with build/release (another build under test is linked with by pip's own arguments), and by `pip install .` alone, which
compiles everything (from the compiler cache where there is one and the options are the build's).
"""
import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from documents import ROOT, blocks, run_block, scratch_copy

pytestmark = pytest.mark.slow
PROMPT = "In the beginning"
OPTIONS = ["-p", PROMPT, "-n", "64", "--seed", "7"]  # those of the examples


def run(*command, timeout=600, env=None, **kwargs):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | (env or {})
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, env=env, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def text_of(output):
    """What an example printed, without its last line, which has timings."""
    text, figures = output.rstrip("\n").rsplit("\n", 1)
    assert figures.startswith("[64 tokens, ") and figures.endswith(", length]"), figures
    return text


@pytest.fixture(scope="module")
def expected(quern, demo):
    return quern.json("run", demo, *OPTIONS)["text"]


@pytest.fixture(scope="module")
def followed(quern, tmp_path_factory):
    """A scratch copy in which a reader of docs/cpp.md has typed everything: what each block printed last, by block."""
    folder = scratch_copy(tmp_path_factory.mktemp("installed"), pathlib.Path(quern.path).resolve().parent)
    for block in blocks("docs/cpp.md"):
        if block.language == "sh":
            run_block(block, folder)
    return folder


@pytest.mark.parametrize("program", ["build-cpp/complete", "build-c/complete", "complete"])
def test_examples_outside_the_tree_continue_a_text(followed, program, expected, demo):
    assert text_of(run(followed / program, demo, PROMPT)) == expected


def test_the_c_example_of_a_conversation_says_what_the_program_says(followed, quern, demo):
    """Both compute the second answer behind the first; the C interface gives the marks of (no) reasoning, too."""
    messages = ["A verse about Jerusalem", "And then?"]
    done = quern("chat", demo, "-n", "64", "--seed", "7", "--json", stdin="".join(f"{m}\n" for m in messages).encode())
    answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert len(answers) == 2
    printed = run(followed / "build-c" / "chat", demo, *messages)
    assert printed.replace("<think>\n\n</think>\n\n", "") == "".join(f"{a['text']}\n[{n} tokens computed]\n" for a, n in zip(
        answers, [a["counts"]["prompt_tokens"] - a["counts"]["kept_tokens"] for a in answers]))


@pytest.mark.parametrize("program, code, named", [("build-cpp/complete", 3, "/nowhere"), ("build-c/complete", 3, "/nowhere"),
                                                  ("build-c/chat", 3, "/nowhere")])
def test_examples_say_what_is_wrong(followed, program, code, named):
    done = subprocess.run([followed / program, "/nowhere", PROMPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and named in done.stderr


def test_every_public_header_compiles(followed, tmp_path):
    headers = re.findall(r"^\| `(quern/[a-z_/]+\.h)` \|", (ROOT / "docs" / "cpp.md").read_text(), re.M)
    assert len(headers) > 5
    (tmp_path / "all.cc").write_text("".join(f"#include <{header}>\n" for header in headers))
    run("c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", followed / "prefix" / "include", tmp_path / "all.cc")


def test_nothing_of_the_tree_is_needed_or_shown(followed):
    prefix = followed / "prefix"
    for file in [*prefix.rglob("*.cmake"), *prefix.rglob("*.h")]:
        assert str(ROOT) not in file.read_text(), file
    symbols = run("nm", "-D", "--defined-only", prefix / "lib" / "libquern_c.so").splitlines()
    names = {line.split()[-1] for line in symbols}
    assert "quern_generate" in names and all(name.startswith("quern_") for name in names), names
    assert run(prefix / "bin" / "quern", "--version").startswith("quern ")


@pytest.fixture(scope="module", params=["as the README says", "of the sources alone"])
def environment(request, quern, followed, tmp_path_factory):
    """The interpreter of a new environment in which the wheel was built and installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder / "env")
    python = folder / "env" / "bin" / "python"
    cached = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
    if request.param == "as the README says" and pathlib.Path(quern.path).resolve().parent == ROOT / "build" / "release":
        shutil.rmtree(ROOT / "build" / "wheel", ignore_errors=True)
        block, = (b for b in blocks("README.md") if "./dev wheel" in b.text)
        run("bash", "-euo", "pipefail", "-c", block.text, cwd=ROOT, timeout=3000,
            env=cached | {"PATH": f"{python.parent}:{os.environ['PATH']}"})
        return python
    options = [f"cmake.define.QUERN_LIBRARY={followed / 'prefix' / 'lib' / 'libquern.a'}"]
    if request.param == "of the sources alone":
        # As deep in the tree as other builds: compiler caches see relative paths.
        shutil.rmtree(ROOT / "build" / "pip", ignore_errors=True)
        options = [f"build-dir={ROOT / 'build' / 'pip'}"]
        cache = (followed / "build" / "release" / "CMakeCache.txt").read_text()
        options += [f"cmake.define.{name}={value}" for name, value in re.findall(
            r"^(CMAKE_CXX_COMPILER|QUERN_WERROR):\w+=(.*)$", cache, re.M)]
    options += [f"cmake.define.{name}={value}" for name, value in cached.items()]
    run(python, "-m", "pip", "install", "--disable-pip-version-check", ROOT,
        *[word for option in options for word in ("-C", option)], cwd=folder, timeout=3000)
    return python


def test_the_wheel_continues_a_text(environment, expected, demo, tmp_path):
    assert text_of(run(environment, ROOT / "examples" / "python" / "complete.py", demo, PROMPT, cwd=tmp_path)) == expected


def test_the_wheel_carries_types_and_nothing_else(environment, tmp_path):
    script = """
import importlib.metadata, json, quern
print(json.dumps({"files": [str(f) for f in importlib.metadata.files("quern")], "version": quern.__version__,
                  "metadata": importlib.metadata.version("quern"), "at": quern.__file__, "names": quern.__all__}))
"""
    seen = json.loads(run(environment, "-c", script, cwd=tmp_path))
    assert seen["version"] == seen["metadata"]
    package = pathlib.Path(seen["at"]).parent
    files = {f for f in seen["files"] if f.startswith("quern/") and "__pycache__" not in f}
    modules = {f for f in files if f.endswith(".so")}
    assert len(modules) == 1
    assert files - modules == {"quern/__init__.py", "quern/py.typed", "quern/_quern/__init__.pyi", "quern/_quern/ops.pyi"}
    stub = ast.parse((package / "_quern" / "__init__.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    named |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    named |= {alias.asname or alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(seen["names"]) <= named, set(seen["names"]) - named
