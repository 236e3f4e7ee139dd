# SPDX-License-Identifier: Apache-2.0
"""Checks that C++ sources are as clang-format writes them (.clang-format).

Usage: check_format.py [--junit FILE]. Prints what is not; exits 1 when there is something. Needs clang-format.
"""
import argparse
import pathlib
import re
import subprocess
import sys

import junit

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Other projects' sources may lie in bench/engines.
SOURCES = ("src/**/*", "tests/**/*", "fuzz/*", "bench/*", "bench/compare/*", "examples/**/*")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junit")
    arguments = parser.parse_args()
    listed = [str(path.relative_to(ROOT)) for pattern in SOURCES for path in sorted(ROOT.glob(pattern))
              if path.suffix in (".cc", ".h")]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *listed], cwd=ROOT, capture_output=True, text=True)
    outcomes: dict[str, list[str]] = {file.split("/")[0]: [] for file in listed}
    places = re.findall(r"^(\S+:\d+:\d+): ", done.stderr, re.M)
    for place in places:
        outcomes[place.split("/")[0]].append(f"{place}: not as clang-format writes it")
    if done.returncode and not places:
        outcomes["clang-format"] = [done.stderr or f"exit code {done.returncode}"]
    problems = [problem for found in outcomes.values() for problem in found]
    print("\n".join(problems) if problems else f"formatting: {len(listed)} files")
    if arguments.junit:
        junit.write(arguments.junit, "format", outcomes)
    return 1 if problems or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
