# SPDX-License-Identifier: Apache-2.0
"""Every command and every Python block of the documents does what its reader is told; links lead somewhere."""
import pathlib
import re

import pytest
from documents import DOCUMENTS, QUOTED, ROOT, RUN, blocks, run_block, scratch_copy

# Compiles; test_packaging.py runs its blocks one after the other.
SLOW = {"docs/cpp.md"}
TO_RUN = [pytest.param(b, id=f"{b.place}:{b.language}", marks=[pytest.mark.module] if b.language == "python" else [])
          for d in DOCUMENTS if d not in SLOW for b in blocks(d) if b.language in RUN and not b.left_out]


@pytest.fixture(scope="module")
def scratch(quern, tmp_path_factory):
    return scratch_copy(tmp_path_factory.mktemp("docs"), pathlib.Path(quern.path).resolve().parent)


@pytest.mark.parametrize("block", TO_RUN)
def test_block_runs(block, scratch):
    run_block(block, scratch)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_what_it_is(document):
    for block in blocks(document):
        assert block.language in RUN | QUOTED.keys() | {"text"}, f"{block.place}: a block of kind {block.language!r}"
        if block.language in QUOTED:
            sources = [(ROOT / source).read_text() for source in QUOTED[block.language]]
            assert any(block.text in source for source in sources), f"{block.place} is in none of {QUOTED[block.language]}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    content = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", content):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


def test_figures_of_the_readme_are_those_of_the_measurements():
    measured = (ROOT / "docs" / "performance.md").read_text().splitlines()
    rows = re.findall(r"^\| (?:decode|prefill|first token) .*$", (ROOT / "README.md").read_text(), re.M)
    assert rows
    for row in rows:
        assert row in measured, f"README.md has {row}, docs/performance.md has not"
