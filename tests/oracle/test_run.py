# SPDX-License-Identifier: Apache-2.0
"""What ./dev oracle says about its suites."""
import run

SLOW = "import pytest\n\n@pytest.mark.slow\ndef test_one():\n    pass\n"
SKIPPED = "import pytest\n\ndef test_one():\n    pytest.importorskip('no_such_module', reason='is not installed')\n"


def summary(folder, text, everything=False):
    path = folder / "test_made.py"
    path.write_text(text)
    result = run.run(path, everything)
    return result["passed"], result["failed"], result["skipped"], result["reason"]


def test_a_suite_of_which_nothing_ran_says_so(tmp_path):
    assert summary(tmp_path, SLOW) == (0, 0, 0, "none ran: all of them are slow ones (--all)")
    assert summary(tmp_path, SLOW, everything=True) == (1, 0, 0, "")


def test_what_was_skipped_is_counted_with_its_reason(tmp_path):
    passed, failed, skipped, reason = summary(tmp_path, SKIPPED)
    assert (passed, failed, skipped) == (0, 0, 1) and "is not installed" in reason
