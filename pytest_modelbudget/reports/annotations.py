"""Annotations, which GitHub shows on the lines of a change: one workflow command an annotation.

::error file=budgets/vision.yaml,line=8,title=mobilenet_v2 / params::params 3.73 M > 3.51 M ...

GitHub keeps ten errors and ten warnings of a step and drops the rest without a word: so beyond ten
the nine worst are told, and a tenth says how many more there are.
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_modelbudget.budget.budget import Address, path_of
from pytest_modelbudget.reports.cases import Case, cases, changes, unmeasured, worst_first
from pytest_modelbudget.reports.changes import bans
from pytest_modelbudget.reports.findings import ERROR, WARNING, placed
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.sentences import headline, short_lines
from pytest_modelbudget.reports.text import one_line, printable
from pytest_modelbudget.units import several

MOST = 10  # annotations of one kind that GitHub keeps
NAMED = 30  # of those that have no annotation of their own
NOTICE = "notice"
LOOSEN = "loosen"  # name of an item that fails for a change, and for no limit


class Annotation(NamedTuple):
    """A message on a line of a file; file "" is none."""

    kind: str
    file: str
    line: int
    title: str
    message: str


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
    annotations = dict.fromkeys(_annotations(report, annotated))
    return [
        _command(annotation, root)
        for kind in (ERROR, WARNING, NOTICE)
        for annotation in _fitting([some for some in annotations if some.kind == kind])
    ]


def _annotations(report: Report, annotated: Collection[str]) -> Iterator[Annotation]:
    """Files without readable limits first, then limits lifted that may not be, then the worst; warnings; exceptions."""
    for broken in report.broken:
        if broken.id not in annotated:
            yield from (_of_problem(broken.id, problem) for problem in broken.problems)
    yield from _changes(report, forbidden=True, annotated=annotated)
    for lock in report.failing_locks:
        if lock.id not in annotated:
            yield Annotation(ERROR, lock.file or "", 1, "lock file", one_line(lock.text))
    if sentence := unmeasured(report):
        yield Annotation(ERROR, "", 1, "model budget", sentence)
    failing = [case for case in cases(report) if case.check.fails and case.id not in annotated]
    for case in worst_first(failing):
        yield _of_unloaded(case) if case.owner.error else _of_case(case, ERROR)
    yield from _changes(report, forbidden=False)
    warned = [case for case in cases(report) if case.outcome == "warn"]
    yield from (_of_case(case, WARNING) for case in worst_first(warned))
    yield from (_of_case(case, NOTICE) for case in cases(report) if case.outcome == "accepted")


def _of_case(case: Case, kind: str) -> Annotation:
    """The headline, and below it the layers that grew, or that the number is made of."""
    message = "\n".join([headline(case), *short_lines(case)])
    return Annotation(kind, case.file, case.line, f"{case.subject} / {case.name}", message)


def _of_unloaded(case: Case) -> Annotation:
    """One for all limits of a model that could not be measured at all, on the line that says what failed."""
    unknown = several(len(case.owner.checks), "limit is", "limits are")
    message = f"{one_line(case.owner.error)}\n{unknown} unknown for it"
    return Annotation(ERROR, case.file, case.owner.error_line or case.owner.line or 1, case.subject, message)


def _of_problem(node_id: str, problem: str) -> Annotation:
    """A problem of a budget file, on the line that it names."""
    line, text = placed(problem)
    return Annotation(ERROR, Address.parse(node_id).file, line, "broken budget", text)


def _changes(report: Report, *, forbidden: bool, annotated: Collection[str] = ()) -> Iterator[Annotation]:
    """Loosened limits and redefined models, on the lines that do so; below them, where that is forbidden."""
    kind = ERROR if forbidden else WARNING
    found = [(word, change) for word, change in changes(report) if change.forbidden == forbidden]
    below = bans(change for _, change in found)
    for word, change in found:
        if path_of(change.file, LOOSEN) not in annotated:
            message = "\n".join(map(one_line, (change.text, *below.get(change.file, ()))))
            yield Annotation(kind, change.file, change.line, (change.address / word).title, message)


def _fitting(some: list[Annotation]) -> list[Annotation]:
    """All if GitHub keeps as many; else nine, and one that names the rest."""
    if len(some) <= MOST:
        return some
    shown, rest = some[: MOST - 1], some[MOST - 1 :]
    named = [f"{other.title}: {other.message.partition(chr(10))[0]}" for other in rest[:NAMED]]
    left = [f"and {len(rest) - NAMED} more"] if len(rest) > NAMED else []
    return [*shown, rest[0]._replace(title=f"model budget: and {len(rest)} more", message="\n".join([*named, *left]))]


def _command(annotation: Annotation, root: str) -> str:
    """One line, whatever is in the texts."""
    properties: dict[str, object] = {"title": annotation.title}
    if annotation.file:
        properties = {"file": posixpath.join(root, annotation.file), "line": annotation.line, **properties}
    escaped = {key: _data(str(value)).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    written = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{annotation.kind} {written}::{_data(annotation.message)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
