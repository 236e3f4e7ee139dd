# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the product tests: the built binary, model folders that it is driven on, and copies to break.

The binary is $QUERN_BUILD/quern, by default build/release/quern.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import onnx
import pytest
from made_models import ROOT, make_model

sys.path.insert(0, str(ROOT / "tools"))

from control_group import Unavailable, control_group  # noqa: E402

# Loading and running a block model takes a fraction of a second; a hang is a failure.
TIMEOUT_S = 120


class Quern:
    """Runs the binary; never through a shell, never with inherited standard streams."""

    def __init__(self, path, limits=None):
        self.path = str(path)
        self.limits = limits

    def within(self, **limits):
        """The same in a control group with these limits, see control_group(). Skips the test where none can be made."""
        return Quern(self.path, limits)

    def __call__(self, *args, stdin=b"", env=None):
        args = [str(a) if not isinstance(a, bytes) else a for a in args]
        with contextlib.ExitStack() as stack:
            enter = None
            if self.limits:
                try:
                    enter = stack.enter_context(control_group(**self.limits))
                except Unavailable as error:
                    pytest.skip(str(error))
            return subprocess.run([self.path, *args], input=stdin, capture_output=True, timeout=TIMEOUT_S, preexec_fn=enter,
                                  env={**os.environ, **(env or {})})

    def json(self, *args, **kwargs):
        done = self(*args, "--json", **kwargs)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.count(b"\n") == 1 and done.stdout.endswith(b"\n")
        return json.loads(done.stdout)

    def refused(self, code, *args, **kwargs):
        """Asserts the exit code, silence on standard output, one line on standard error; returns that line."""
        done = self(*args, **kwargs)
        text = done.stderr.decode()
        assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {text}"
        assert done.stdout == b""
        assert text.count("\n") == 1 and text.startswith("quern: "), text
        return text


@pytest.fixture(scope="session")
def quern():
    path = ROOT / os.environ.get("QUERN_BUILD", "build/release") / "quern"
    assert path.is_file(), f"{path} is not built (QUERN_BUILD names the build folder)"
    return Quern(path)


@pytest.fixture(scope="session")
def block(tmp_path_factory):
    """Two layers, INT4, 512 ids, context 2048."""
    return make_model(tmp_path_factory.mktemp("model") / "block", "--size", "block")


@pytest.fixture(scope="session")
def deep(tmp_path_factory):
    """As many layers as 0.6b, so the same nodes, at a small width."""
    return make_model(tmp_path_factory.mktemp("model") / "deep", "--size", "block", "--layers", "28", "--hidden", "64",
                      "--intermediate", "64", "--opset", "26")


@pytest.fixture(scope="session")
def short_context(tmp_path_factory):
    """A context of 16."""
    return make_model(tmp_path_factory.mktemp("model") / "short", "--size", "block", "--context", "16")


@pytest.fixture(scope="session")
def long_context(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "long", "--size", "block", "--context", "40960")


@pytest.fixture(scope="session")
def demo():
    folder = ROOT / "models" / "demo"
    if not (folder / "genai_config.json").is_file():
        pytest.skip("models/demo is not there")
    return folder


class Copy:
    """A model folder to break."""

    def __init__(self, source, folder):
        self.folder = folder
        shutil.copytree(source, folder)

    def config(self, edit):
        path = self.folder / "genai_config.json"
        config = json.loads(path.read_text())
        edit(config)
        path.write_text(json.dumps(config))

    def graph(self, edit):
        """External data stays where it is: only the graph file is rewritten."""
        path = self.folder / "model.onnx"
        model = onnx.load(path, load_external_data=False)
        edit(model)
        path.write_bytes(model.SerializeToString())

    def data(self, edit):
        path = self.folder / "model.onnx.data"
        content = bytearray(path.read_bytes())
        path.write_bytes(edit(content) or content)


@pytest.fixture
def broken(block, tmp_path):
    return Copy(block, tmp_path / "broken")
