# SPDX-License-Identifier: Apache-2.0
"""Graphs that the onnxruntime-genai model builder writes from a Hugging Face folder, here and now, in each of its forms."""
import subprocess
import sys

import pytest
from conftest import ROOT
from test_every_node import EveryNode
from test_every_node import check_calls as check_every_node
from test_graph import Pair
from test_graph import check_calls as check_graph

import quern

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pytest.importorskip("onnxruntime_genai")
    folder = tmp_path_factory.mktemp("hf")
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen3_hf.py", folder], check=True)
    return folder


@pytest.mark.parametrize("options", [(), ("--separate",), ("--asymmetric",)])
def test_exported_graphs_run_unmodified(checkpoint, tmp_path, options):
    subprocess.run([sys.executable, ROOT / "tools" / "export_qwen3.py", checkpoint, tmp_path / "onnx", *options], check=True)
    path = tmp_path / "onnx" / "model.onnx"
    check_graph(Pair(path, int8=True), 32)
    check_every_node(EveryNode(path), 32)
    assert len(quern.LLM(tmp_path / "onnx").generate([1, 2, 3], max_tokens=4, greedy=True, stop_ids=[]).token_ids) == 4
