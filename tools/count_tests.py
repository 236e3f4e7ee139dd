# SPDX-License-Identifier: Apache-2.0
"""Sums the JUnit files of a test run and prints the closing line: N passed, N failed, N skipped.

Usage: count_tests.py FOLDER. Exits 1 when a test failed or none ran.
"""
import pathlib
import sys

import junit


def main() -> int:
    passed, failed, skipped = map(sum, zip((0, 0, 0), *map(junit.count, junit.files(pathlib.Path(sys.argv[1])))))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
