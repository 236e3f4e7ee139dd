# SPDX-License-Identifier: Apache-2.0
"""Sums the JUnit files of a test run and prints the closing line: N passed, N failed, N skipped.

Usage: count_tests.py FOLDER. Exits 1 when a test failed or none ran.
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path: pathlib.Path) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    totals = [0, 0, 0]
    for path in sorted(pathlib.Path(sys.argv[1]).glob("**/*.xml")):
        totals = [a + b for a, b in zip(totals, count(path))]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped", flush=True)
    return 1 if totals[1] or not totals[0] else 0


if __name__ == "__main__":
    sys.exit(main())
