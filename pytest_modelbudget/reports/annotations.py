"""Annotations, which GitHub shows on the lines of a change: one workflow command an annotation.

::error file=budgets/vision.yaml,line=8,title=mobilenet_v2 / params::params 3.729 M > 3.510 M ...

GitHub keeps ten errors and ten warnings of a step and drops the rest without a word: so beyond ten
the nine worst are told, and a tenth says how many more there are.
"""

import posixpath
from collections.abc import Collection, Mapping
from pathlib import Path

from pytest_modelbudget.budget.budget import path_of
from pytest_modelbudget.reports.findings import CHANGES, ERROR, NOTE, ORDER, WARNING, Finding, problems, severity
from pytest_modelbudget.reports.record import BrokenFile, Case, LockReport, Report
from pytest_modelbudget.reports.text import one_line, printable
from pytest_modelbudget.units import several

MOST = 10  # annotations of one kind that GitHub keeps
NAMED = 30  # of those that have no annotation of their own
KINDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
LOOSEN = "loosen"  # name of an item that fails for a change, and for no limit


def path_in_checkout(root: Path, environment: Mapping[str, str]) -> str:
    """Path of rootdir in GitHub's checkout, which is where GitHub looks for files; "" for its top, and elsewhere."""
    workspace = environment.get("GITHUB_WORKSPACE")
    if not workspace or not root.is_relative_to(workspace):
        return ""
    inside = root.relative_to(workspace).as_posix()
    return "" if inside == "." else inside


def commands(report: Report, *, root: str = "", annotated: Collection[str] = ()) -> list[str]:
    """Workflow commands for all that fails or is to be warned of, at most ten of each kind.

    root is the path of rootdir in the repository, "" where they are the same. annotated are
    node ids whose failure something else has shown.
    """
    found = [each for each in problems(report) if each.level != ERROR or _item(each) not in annotated]
    found.sort(key=lambda each: severity(each.source) if isinstance(each.source, Case) else ())
    found.sort(key=lambda each: ORDER.index(each.kind))
    return [
        _command(annotation, root)
        for level in KINDS
        for annotation in _fitting(list(dict.fromkeys(_annotation(each) for each in found if each.level == level)))
    ]


def _item(finding: Finding) -> str:
    """The node id of the item that fails for it."""
    if finding.kind in CHANGES:
        return path_of(finding.file, LOOSEN)
    return finding.source.id if isinstance(finding.source, (BrokenFile, LockReport)) else finding.id


def _annotation(finding: Finding) -> Finding:
    """What is shown of it, which tells no two apart that look alike; one for all limits of an unmeasured model."""
    shown = finding._replace(id="", kind="", source=None, file=finding.file if finding.is_placed else "")
    case = finding.source
    if not (isinstance(case, Case) and case.owner.error and finding.level == ERROR):
        return shown
    unknown = several(len(case.owner.checks), "limit is", "limits are")
    lines = (one_line(case.owner.error), f"{unknown} unknown for it")
    return shown._replace(line=case.owner.error_line or case.owner.line or 1, title=case.subject, lines=lines)


def _fitting(some: list[Finding]) -> list[Finding]:
    """All if GitHub keeps as many; else nine, and one that names the rest."""
    if len(some) <= MOST:
        return some
    shown, rest = some[: MOST - 1], some[MOST - 1 :]
    named = [f"{other.title}: {other.lines[0]}" for other in rest[:NAMED]]
    left = [f"and {len(rest) - NAMED} more"] if len(rest) > NAMED else []
    return [*shown, rest[0]._replace(title=f"model budget: and {len(rest)} more", lines=(*named, *left))]


def _command(shown: Finding, root: str) -> str:
    """One line, whatever is in the texts."""
    properties: dict[str, object] = {"title": shown.title}
    if shown.file:
        properties = {"file": posixpath.join(root, shown.file), "line": shown.line, **properties}
    escaped = {key: _data(str(value)).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    written = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{KINDS[shown.level]} {written}::{_data(chr(10).join(shown.lines))}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
