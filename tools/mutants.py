# SPDX-License-Identifier: Apache-2.0
"""Plants one bug after the other in a copy of the tree and demands that the tests named for it fail: ./dev mutants [WORD..]
[--list]. The bugs are in tools/mutants.toml. Needs g++, cmake, ninja; with ccache a bug costs one compilation.

Everything happens in build/mutants, the copy, and in its only build tree, where a bug rebuilds what it changes.
With words, only bugs of which the description, a file or "trap N" contains one of them. Exits 1 when a bug is not found, does
not build, or no longer applies, or when a named test does not pass without one.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "mutants.toml"
TREE = ROOT / "build" / "mutants"
BUILD = TREE / "build" / "release"
# What the build reads, and the data of the tests.
COPIED = ("CMakeLists.txt", "cmake/", "src/", "tests/support/", "testdata/")
# A bug may make a loop endless.
LONGEST_TEST_S = 120


class Mutant:
    def __init__(self, entry):
        self.bug, self.tests, self.traps = entry["bug"], entry["tests"], entry.get("traps", [])
        self.edits = entry["edits"] if "edits" in entry else [entry]  # of file, old, new

    def matches(self, word):
        return word in [f"trap {t}" for t in self.traps] or word in self.bug or any(word in e["file"] for e in self.edits)

    def changed(self, root):
        """{path: text with the bug}. ValueError where a piece of text that the bug replaces is not there exactly once."""
        texts = {}
        for edit in self.edits:
            path = root / edit["file"]
            text = texts.get(path) or path.read_text()
            if text.count(edit["old"]) != 1:
                raise ValueError(f"{edit['file']} has {text.count(edit['old'])} times {edit['old'].strip()!r}")
            texts[path] = text.replace(edit["old"], edit["new"])
        return texts


def read_mutants(path=LIST):
    return [Mutant(entry) for entry in tomllib.loads(path.read_text())["mutant"]]


def copy_tree():
    """Makes TREE the working tree as it is, and leaves the times of what is already equal."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for folder in COPIED:
        for path in [p for p in (TREE / folder).rglob("*") if p.is_file()]:
            if str(path.relative_to(TREE)) not in wanted:
                path.unlink()


def build(targets):
    """The compiler's errors, or nothing."""
    # With the same paths below its base, the cache has the objects of other build trees, too.
    environment = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    if not (BUILD / "build.ninja").exists():
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DQUERN_TESTS=ON", "-DQUERN_CLI=OFF",
                        *launcher],
                       check=True, stdout=subprocess.DEVNULL, env=environment)
    jobs = ["-j", os.environ["QUERN_JOBS"]] if "QUERN_JOBS" in os.environ else []
    done = subprocess.run(["ninja", "-C", BUILD, *jobs, *sorted(targets)], capture_output=True, text=True, env=environment)
    return "" if done.returncode == 0 else next((line for line in done.stdout.splitlines() if "error" in line), done.stdout)


def passes(test):
    """Of "binary:filter". ValueError when no test of that name ran to its end."""
    binary, names = test.split(":", 1)
    try:
        done = subprocess.run([BUILD / binary, f"--gtest_filter={names}", "--gtest_brief=1"], capture_output=True, text=True,
                              errors="replace", timeout=LONGEST_TEST_S)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode == 0 and not re.search(r"\[  PASSED  \] [1-9]", done.stdout):
        raise ValueError(f"{test} runs no test here")
    return done.returncode == 0


def binaries(mutants):
    return {test.split(":", 1)[0] for mutant in mutants for test in mutant.tests}


def survivors(mutant):
    """What is wrong with a bug, one text each: tests that pass all the same, or that it cannot be planted."""
    try:
        texts = mutant.changed(TREE)
    except ValueError as error:
        return [f"no longer applies: {error}"]
    before = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        failed = build(binaries([mutant]))
        if failed:
            return [f"does not build: {failed}"]
        return [f"not found by {test}" for test in mutant.tests if passes(test)]
    finally:
        for path, text in before.items():
            path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--list", action="store_true", help="prints the bugs and plants none")
    arguments = parser.parse_args()
    mutants = [m for m in read_mutants() if not arguments.words or any(m.matches(word) for word in arguments.words)]
    if arguments.list:
        for mutant in mutants:
            print(f"{','.join(map(str, mutant.traps)):6} {mutant.bug}\n" + "".join(f"       {test}\n" for test in mutant.tests), end="")
        return 0
    copy_tree()
    failed = build(binaries(mutants))
    if failed:
        sys.exit(f"the tree without a bug does not build: {failed}")
    broken = [test for test in sorted({test for mutant in mutants for test in mutant.tests}) if not passes(test)]
    if broken:
        sys.exit("these tests fail without a bug: " + ", ".join(broken))
    wrong = 0
    for mutant in mutants:
        start = time.monotonic()
        reasons = survivors(mutant)
        wrong += bool(reasons)
        traps = ",".join(map(str, mutant.traps))
        print(f"{'SURVIVES' if reasons else 'found':8} {traps:6} {time.monotonic() - start:5.1f} s  {mutant.bug}", flush=True)
        for reason in reasons:
            print(f"{'':24}{reason}", flush=True)
    print(f"{len(mutants) - wrong} bugs found, {wrong} not")
    return 1 if wrong or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
