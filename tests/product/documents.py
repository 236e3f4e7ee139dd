# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of the project's documents, and running them as a reader would.

`sh` and `python` blocks are run, `console` blocks (`$ command`, then its output, in which ... stands for anything) are run and
compared. `<!-- not run: reason -->` in front of a block leaves it out. `cpp`, `c` and `cmake` blocks must stand in an example,
line for line; `text` is free.
"""
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

from made_models import ROOT

import quern

DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
RUN = {"sh", "python", "console"}
QUOTED = {"cpp": ["examples/cpp/complete.cc"], "c": ["examples/c/complete.c", "examples/c/chat.c"],
          "cmake": ["examples/cpp/CMakeLists.txt", "examples/c/CMakeLists.txt"]}
FENCE = re.compile(r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
TIMEOUT_S = 600  # compiling an example, on a machine that is busy


@dataclass
class Block:
    place: str  # file:line
    language: str
    text: str
    left_out: bool


def blocks(document):
    content = (ROOT / document).read_text()
    found = [Block(f"{document}:{content.count(chr(10), 0, m.start('text'))}", m["language"], m["text"], m["mark"] is not None)
             for m in FENCE.finditer(content)]
    assert content.count("```") == 2 * len(found), f"{document}: a fence is not closed, or does not start its line"
    return found


def scratch_copy(folder, build):
    """A folder that looks like the repository, with `build` as build/release; what commands write stays in it."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "build"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    (folder / "build" / "release").symlink_to(build)
    return folder


def shell(command, folder):
    path = f"{folder / 'build' / 'release'}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, text=True,
                          env={**os.environ, "PATH": path, "PYTHONPATH": str(pathlib.Path(quern.__file__).parents[1])})
    assert done.returncode == 0, f"exit code {done.returncode} of {command}\n{done.stdout}"
    return done.stdout


def run_console(block, folder):
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, expected = part.split("\n", 1)
        pattern = re.escape(expected.rstrip()).replace(re.escape("..."), ".*?")
        seen = shell(command, folder).rstrip()
        assert re.fullmatch(pattern, seen, re.S), f"{block.place}: {command} printed\n{seen}\nbut the document says\n{expected}"


def run_block(block, folder):
    """What the block printed."""
    if block.language == "console":
        return run_console(block, folder)
    if block.language == "python":
        script = folder / "block.py"
        script.write_text(block.text)
        return shell(f"python {script}", folder)
    return shell(block.text, folder)
