# SPDX-License-Identifier: Apache-2.0
"""Runs the live oracle suites one by one and sums them: ./dev oracle [--json] [--all]."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent


def run(path, everything):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        marker = "slow or not slow" if everything else "not slow"
        subprocess.run([sys.executable, "-m", "pytest", path, "-q", "-m", marker, "-p", "no:cacheprovider", f"--junit-xml={report}"],
                       stdout=sys.stderr)
        suite = ElementTree.parse(report).getroot().find("testsuite")
        skips = [s.get("message") for s in suite.iter("skipped")]
        failed = int(suite.get("failures")) + int(suite.get("errors"))
        return {"name": path.stem.removeprefix("test_"), "passed": int(suite.get("tests")) - failed - len(skips), "failed": failed,
                "skipped": len(skips), "reason": "; ".join(sorted(set(skips)))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true", help="also what needs the large oracle")
    arguments = parser.parse_args()
    suites = [run(path, arguments.all) for path in sorted(HERE.glob("test_*.py"))]
    if arguments.json:
        print(json.dumps({"suites": suites}))
    else:
        for s in suites:
            print(f"{s['name']:24} {s['passed']:5} passed {s['failed']:4} failed {s['skipped']:4} skipped  {s['reason']}")
    return 1 if any(s["failed"] for s in suites) else 0


if __name__ == "__main__":
    sys.exit(main())
