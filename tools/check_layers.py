# SPDX-License-Identifier: Apache-2.0
"""Checks the include arrows of docs/architecture.md over src/: who may include whom.

Usage: check_layers.py [--junit FILE]. Prints every breach; exits 1 when there is one.
"""
import argparse
import pathlib
import re
import sys

import junit

ROOT = pathlib.Path(__file__).resolve().parent.parent / "src"

# folder -> folders whose headers it may include directly.
MAY_INCLUDE = {
    "base": set(),
    "cpu": {"base"},
    "cuda": {"base"},
    "ops": {"base", "cpu", "cuda"},
    "formats": {"base"},
    "text": {"base", "formats"},
    "graph": {"base", "cpu", "ops", "formats"},
    "model": {"base", "cpu", "ops", "formats", "graph"},
    "engine": {"base", "cpu", "model", "text"},
    "http": {"base", "formats", "engine"},
    # inspect and tokenize look below the engine, bench at the machine; every other command sees engine/engine.h and
    # engine/session.h only.
    "cli": {"base", "engine"},
    "c": {"base", "engine"},
    "python": {"base", "cpu", "ops", "formats", "graph", "engine"},
}
CLI_LOOKS_LOWER = {"inspect.cc": {"cpu", "ops", "model"}, "tokenize.cc": {"text", "formats"}, "output.cc": {"text"}, "bench.cc": {"cpu"}}
# Who may include CUDA headers.
CUDA = re.compile(r"^(cuda/|ops/[^/]+/cuda\.cu$)")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)
# What an ISA file may include: one definition of an inline function must not be built for two instruction sets.
ISA_SYSTEM = {"immintrin.h", "cstdint"}


def room_of(path: str) -> str | None:
    parts = path.split("/")
    return parts[1] if parts[0] == "ops" and len(parts) > 2 else None


def is_test(path: pathlib.Path) -> bool:
    in_room = room_of(path.relative_to(ROOT).as_posix()) is not None
    return in_room and path.name in ("test.cc", "bench.cc", "test_support.h") or path.stem.endswith("_test")


def check_file(path: pathlib.Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    folder = name.split("/")[0]
    allowed = MAY_INCLUDE[folder] | {folder}
    if folder == "cli":
        allowed = allowed | CLI_LOOKS_LOWER.get(path.name, set())
    problems = []
    for kind, target in INCLUDE.findall(path.read_text()):
        if kind == "<":
            if target.startswith("cuda") and not CUDA.match(name):
                problems.append(f"{name}: includes <{target}>; only cuda/ and ops/*/cuda.cu may")
            if path.name.startswith("x86_") and target not in ISA_SYSTEM:
                problems.append(f"{name}: an ISA file includes <{target}>; only {sorted(ISA_SYSTEM)} are allowed")
            continue
        if target.startswith("tests/"):
            if not is_test(path):
                problems.append(f"{name}: includes {target}; nothing but tests may include test code")
            continue
        top = target.split("/")[0]
        if top not in MAY_INCLUDE:
            if (path.parent / target).exists():
                continue  # a room's own file, by its short name
            problems.append(f'{name}: includes "{target}", which is in no folder of src/')
            continue
        if top not in allowed and not is_test(path):
            problems.append(f'{name}: {folder}/ may not include {top}/ ("{target}")')
        own, other = room_of(name), room_of(target)
        if own and other and own != other and target != f"ops/{other}/{other}.h":
            problems.append(f'{name}: includes a private file of another room ("{target}")')
        if path.name.startswith("x86_") and other != own:
            problems.append(f'{name}: an ISA file includes "{target}" from outside its room')
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junit")
    arguments = parser.parse_args()
    outcomes: dict[str, list[str]] = {}
    for folder in sorted(p for p in ROOT.iterdir() if p.is_dir()):
        if folder.name not in MAY_INCLUDE:
            outcomes[folder.name] = [f"src/{folder.name} is not a folder of the layout"]
            continue
        files = [p for p in sorted(folder.rglob("*")) if p.suffix in (".h", ".cc", ".cu", ".inc")]
        outcomes[folder.name] = [problem for p in files for problem in check_file(p)]
    problems = [problem for found in outcomes.values() for problem in found]
    print("\n".join(problems) if problems else f"layers: {len(outcomes)} folders, no breach")
    if arguments.junit:
        junit.write(arguments.junit, "layers", outcomes)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
