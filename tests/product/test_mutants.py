# SPDX-License-Identifier: Apache-2.0
"""The list of bugs that ./dev mutants plants stays in step with the sources and the tests; planting them takes minutes and is
left to that command."""
import os
import subprocess
import sys

from made_models import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402

BUILD = ROOT / os.environ.get("QUERN_BUILD", "build/release")
MUTANTS = mutants.read_mutants()
# Of the ways of getting qwen4_exp wrong, these are no matter of an engine.
NOT_OURS = {33, 35}


def test_every_bug_can_be_planted():
    for mutant in MUTANTS:
        assert mutant.tests and mutant.changed(ROOT), mutant.bug


def test_every_trap_has_a_bug():
    assert {trap for mutant in MUTANTS for trap in mutant.traps} == set(range(1, 36)) - NOT_OURS


def test_every_named_test_is_there():
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        binary, names = test.split(":", 1)
        listed = subprocess.run([BUILD / binary, "--gtest_list_tests", f"--gtest_filter={names}"], capture_output=True, text=True,
                                check=True)
        assert "\n  " in listed.stdout, test
