# SPDX-License-Identifier: Apache-2.0
"""Writes the outcome of a check script as a JUnit file, so that it is counted with the tests."""
import xml.etree.ElementTree as ElementTree


def write(path: str, suite: str, outcomes: dict[str, list[str]]) -> None:
    """outcomes: for each case its list of problems, empty for a pass."""
    root = ElementTree.Element("testsuite", name=suite)
    for name, problems in outcomes.items():
        case = ElementTree.SubElement(root, "testcase", classname=suite, name=name)
        if problems:
            ElementTree.SubElement(case, "failure", message=problems[0]).text = "\n".join(problems)
    ElementTree.ElementTree(root).write(path)
