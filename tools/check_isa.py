# SPDX-License-Identifier: Apache-2.0
"""Checks that objects built with instruction-set flags define no weak symbol: the linker could take such a definition
for the whole program, and the program would then need that instruction set everywhere.

Usage: check_isa.py BUILD_FOLDER [--junit FILE]. Needs nm.
"""
import argparse
import pathlib
import subprocess
import sys

import junit


def weak_symbols(path: pathlib.Path) -> list[str]:
    listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    symbols = [line.split(maxsplit=2)[1:] for line in listing.splitlines()]
    # DW.ref.* is a pointer to the exception personality, data that is the same in every file.
    return [name for kind, name in symbols if kind in "WVu" and not name.startswith("DW.ref.")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--junit")
    arguments = parser.parse_args()
    outcomes = {}
    for path in sorted(pathlib.Path(arguments.build).rglob("x86_*.o")):
        name = "/".join(path.parts[-3:])
        outcomes[name] = [f"{name} defines the weak symbol {s}" for s in weak_symbols(path)]
    problems = [p for found in outcomes.values() for p in found]
    if not outcomes:
        problems = ["no object of an instruction set found"]
        outcomes = {"objects": problems}
    print("\n".join(problems) if problems else f"instruction sets: {len(outcomes)} objects, no weak symbol")
    if arguments.junit:
        junit.write(arguments.junit, "isa", outcomes)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
