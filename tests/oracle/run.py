# SPDX-License-Identifier: Apache-2.0
"""Runs the live oracle suites one by one and sums them: ./dev oracle [--json] [--all]; or compares one layer of a qwen4_exp
checkpoint with the reference: ./dev oracle --checkpoint DIR --layer N."""
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
        passed = int(suite.get("tests")) - failed - len(skips)
        reasons = set(skips)
        if not passed + failed + len(skips):
            reasons.add("none ran" if everything else "none ran: all of them are slow ones (--all)")
        return {"name": path.stem.removeprefix("test_"), "passed": passed, "failed": failed, "skipped": len(skips),
                "reason": "; ".join(sorted(reasons))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true", help="also the slow ones")
    layer = parser.add_argument_group("one layer of a checkpoint")
    layer.add_argument("--checkpoint", metavar="DIR")
    layer.add_argument("--layer", type=int, metavar="N", help="counted from 0")
    layer.add_argument("--component", choices=["hc", "gdn", "qsa", "moe", "ple"], help="one of those that the layer has")
    layer.add_argument("--tokens", type=int, metavar="T", help="random ids to compute (64; qsa: 64 above the indexer's budget)")
    layer.add_argument("--compute", choices=["fp32", "bf16"], default="bf16")
    arguments = parser.parse_args()
    if (arguments.checkpoint is None) != (arguments.layer is None):
        parser.error("--checkpoint and --layer belong together")
    if arguments.checkpoint:
        import checkpoint_layer  # needs the large oracle
        return checkpoint_layer.main(arguments)
    suites = [run(path, arguments.all) for path in sorted(HERE.glob("test_*.py"))]
    if arguments.json:
        print(json.dumps({"suites": suites}))
    else:
        for s in suites:
            print(f"{s['name']:24} {s['passed']:5} passed {s['failed']:4} failed {s['skipped']:4} skipped  {s['reason']}")
    return 1 if any(s["failed"] for s in suites) else 0


if __name__ == "__main__":
    sys.exit(main())
