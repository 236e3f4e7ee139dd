# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a container would: in a control group of its own (version 1 or 2) with a part of the processors' time or
of the memory.

Usage: control_group.py [--processors 0.5] [--memory-mb 256] COMMAND...   (for root, where control groups can be made)
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import time

PERIOD_US = 100_000  # what container engines use


class Unavailable(Exception):
    """No such group can be made here; says why."""


def find_hierarchy(controller):
    """Where groups with the controller are mounted, and whether that is version 2."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        place = pathlib.Path(place)
        if kind == "cgroup" and controller in options.split(","):
            return place, False
        if kind == "cgroup2" and controller in (place / "cgroup.controllers").read_text().split():
            return place, True
    raise Unavailable(f"no control groups with the {controller} controller are mounted")


def remove(group):
    """A killed process may take a moment to leave."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            return group.rmdir()
        time.sleep(0.1)
    group.rmdir()


@contextlib.contextmanager
def group_with(controller, settings):
    """A group with settings(unified) as its files' contents, removed at the end."""
    place, unified = find_hierarchy(controller)
    group = place / f"quern-{os.getpid()}"
    with contextlib.ExitStack() as undo:
        try:
            if unified and controller not in (place / "cgroup.subtree_control").read_text().split():
                (place / "cgroup.subtree_control").write_text(f"+{controller}")
            if not group.exists():  # version 2 has one for all controllers
                group.mkdir()
                undo.callback(remove, group)
            for name, value in settings(unified).items():
                (group / name).write_text(str(value))
        except OSError as error:
            raise Unavailable(f"{group} cannot be made or set: {error.strerror}") from error
        yield group


@contextlib.contextmanager
def control_group(processors=None, memory_bytes=None):
    """Gives a function that puts the calling process into the group (for preexec_fn). Every process in it must have ended
    when the context is left."""
    with contextlib.ExitStack() as stack:
        groups = []
        if processors is not None:
            quota = int(processors * PERIOD_US)
            groups.append(stack.enter_context(group_with("cpu", lambda unified: {"cpu.max": f"{quota} {PERIOD_US}"} if unified else
                                                         {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota})))
        if memory_bytes is not None:
            groups.append(stack.enter_context(group_with("memory", lambda unified: {"memory.max": memory_bytes} if unified else
                                                         {"memory.limit_in_bytes": memory_bytes})))

        def enter():
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        yield enter


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processors", type=float)
    parser.add_argument("--memory-mb", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        with control_group(arguments.processors, arguments.memory_mb and arguments.memory_mb << 20) as enter_group:
            code = subprocess.run(arguments.command, preexec_fn=enter_group).returncode
    except Unavailable as error:
        sys.exit(str(error))
    sys.exit(code)
