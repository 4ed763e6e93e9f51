"""What dashboards take from a JUnit file, each by the elements and attributes that it reads.

Written after their parsers, which are named at each reader. Jenkins' grammar is that of the xUnit
plugin's junit-10.xsd, as a table.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

# Element -> (attributes, those that must be there, children), after junit-10.xsd.
JENKINS: dict[str, tuple[str, str, str]] = {
    "testsuites": ("name time tests failures errors", "", "testsuite"),
    "testsuite": (
        "name tests failures errors group time skipped timestamp hostname id package file log url",
        "name tests failures errors",
        "testsuite properties testcase system-out system-err",
    ),
    "testcase": (
        "name time classname group",
        "name",
        "skipped error failure rerunFailure rerunError flakyFailure flakyError system-out system-err",
    ),
    "properties": ("", "", "property"),
    "property": ("name value", "name value", ""),
    "failure": ("type message", "", ""),
    "error": ("type message", "", ""),
    "system-out": ("", "", ""),
}


def offences(element: Element) -> set[str]:
    """What Jenkins' grammar refuses: "testcase@file", "testcase/properties", "testsuite!name"."""
    allowed, needed, children = (words.split() for words in JENKINS[element.tag])
    found = {f"{element.tag}@{name}" for name in element.attrib if name not in allowed}
    found |= {f"{element.tag}!{name}" for name in needed if name not in element.attrib}
    for child in element:
        if child.tag not in children:
            found.add(f"{element.tag}/{child.tag}")
        found |= offences(child)
    return found


def dorny(root: Element) -> list[tuple[str, str, str, str, float]]:
    """(suite, group, test, result, milliseconds): java-junit-parser.ts of dorny/test-reporter."""
    return [
        (
            suite.attrib["name"].strip(),
            "" if case.attrib["classname"] == suite.attrib["name"] else case.attrib["classname"],
            case.attrib["name"].strip(),
            "failed" if _problem(case) is not None else "success",
            float(case.attrib["time"]) * 1000,
        )
        for suite in root.iter("testsuite")
        for case in suite.iter("testcase")
    ]


def mikepenz(root: Element) -> list[tuple[str, int, str, str, str]]:
    """(path, line, title, message, details): testParser.ts of mikepenz/action-junit-report."""
    annotations = []
    for case in root.iter("testcase"):
        problem = _problem(case)
        if problem is not None:
            path = case.get("file") or case.attrib["classname"].split(".")[-1]
            details = (problem.text or "").strip()
            message = problem.get("message") or "\n".join(details.split("\n")[:2])
            title = f"{path}.{case.attrib['name']}"
            annotations.append((path, int(case.get("line") or 1), title, message, details))
    return annotations


def enrico_mi(root: Element) -> list[dict[str, Any]]:
    """Cases as publish-unit-test-result-action's junit.py has them."""
    taken = []
    for case in root.iter("testcase"):
        problem = _problem(case)
        out = case.find("system-out")
        taken.append(
            {
                "test_file": case.get("file"),
                "line": int(case.attrib["line"]) if "line" in case.attrib else None,
                "class_name": case.get("classname"),
                "test_name": case.get("name"),
                "result": "success" if problem is None else problem.tag,
                "message": None if problem is None else problem.get("message"),
                "stdout": None if out is None else out.text,
            }
        )
    return taken


def gitlab(root: Element) -> dict[tuple[str, str], tuple[str, str, str]]:
    """(class, name) -> (status, file, output): GitLab's junit.rb; the last of a name wins."""
    taken = {}
    for case in root.iter("testcase"):
        problem = _problem(case)
        status = "success" if problem is None else {"failure": "failed"}.get(problem.tag, "error")
        output = "" if problem is None else (problem.text or "")
        taken[case.get("classname", ""), case.get("name", "")] = (
            status, case.get("file", ""), output,
        )  # fmt: skip
    return taken


def azure(root: Element) -> list[tuple[str, str, str, str, str]]:
    """(title, storage, outcome, message, stack trace): the agent's JUnitResultReader.cs."""
    return [
        (
            case.attrib["name"],
            case.attrib["classname"],
            "Passed" if problem is None else "Failed",
            "" if problem is None else problem.get("message", ""),
            "" if problem is None else (problem.text or ""),
        )
        for case in root.iter("testcase")
        for problem in [_problem(case)]
    ]


def _problem(case: Element) -> Element | None:
    failure = case.find("failure")
    return case.find("error") if failure is None else failure
