"""Commands over what sessions have written: ``modelbudget merge``, ``diff`` and ``history``."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_modelbudget.budget.budget import Address, names_of
from pytest_modelbudget.budget.history import History, Series, branch_history
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.options import add_format
from pytest_modelbudget.cli.screen import print_json, print_pieces, print_text, terminal_width
from pytest_modelbudget.errors import InputError, MissingExtraError
from pytest_modelbudget.gate.merging import Merged, PartFile, merged
from pytest_modelbudget.gate.report_files import remove_reports, write_report
from pytest_modelbudget.reports import annotations, diff, findings, record, terminal
from pytest_modelbudget.reports import history as reports
from pytest_modelbudget.reports.json_records import R, from_json
from pytest_modelbudget.reports.shard import Part
from pytest_modelbudget.reports.table import SHAPE, FileReport, asked_report, asked_reports, report_help
from pytest_modelbudget.reports.text import printable
from pytest_modelbudget.units import several, some_of

REPORT = "report", "--model-budget-report=json"  # what a file is, and what writes it
PART = "part", "--model-budget-report=json and --model-budget-shard"


def add_merge(command: argparse.ArgumentParser) -> None:
    """The options of ``merge``: the parts, and every report that a session can write."""
    add = command.add_argument
    add("parts", metavar="PART", nargs="+", help="what --model-budget-report=json wrote in each shard")
    add("--report", metavar=SHAPE, type=asked_report, action="append", default=[], help=report_help())
    add("--annotations", action="store_true", help="print GitHub's annotations on the lines of budgets")
    add("--allow-missing", action="store_true", help="merge the parts that are there; the exit code is not 0")
    command.set_defaults(command=merge_parts)


def merge_parts(options: argparse.Namespace) -> int:
    """Write what is asked for, print what a session prints at its end, and return its exit code."""
    files = list(asked_reports(options.report))
    for report, name in files:
        option = f"--report {report.type}:{name}"
        if os.path.realpath(name) in map(os.path.realpath, options.parts):
            raise InputError(f"{option} is one of the parts: name another file")
        if not report.is_installed:
            raise MissingExtraError(option, package=report.package, extra=report.extra)
    remove_reports(Path(name) for _, name in files)
    parts = [PartFile(name, _read(name, Part, PART)) for name in options.parts]
    whole = merged(parts, allow_missing=options.allow_missing)
    for report, name in files:
        _write(report, whole.report, name)
    commands = annotations.commands(whole.report, root=parts[0].part.run.root) if options.annotations else []
    with suppress(BrokenPipeError):  # a reader who has seen enough changes no verdict
        print_pieces(_lines(whole))
        print(*commands, sep="\n", end="\n" * bool(commands))
    return whole.exit


def _write(kind: FileReport, report: record.Report, name: str) -> None:
    try:
        write_report(kind, report, Path(name), name)
    except OSError as error:
        raise InputError(f"cannot write {name}: {error.strerror or error}") from error


def _lines(whole: Merged) -> Iterator[Iterable[tuple[str, str]]]:
    """The table and the remarks of the run; each line in pieces with their colours."""
    report = whole.report
    yield from (line.pieces for line in terminal.lines(report, terminal.Detail.TIGHTEST))
    remarks = [f"shard {name} is missing: its limits were not measured" for name in whole.missing]
    for remark in filter(None, [*remarks, *terminal.change_lines(report), findings.unmeasured(report)]):
        yield [(printable(f"model budget: {remark}"), "note")]
    yield [(terminal.counted(report), "")]


def read_report(name: str) -> record.Report:
    """The report of a file that --model-budget-report=json wrote; raises InputError for any other."""
    return _read(name, record.Report, REPORT)


def _read(name: str, kind: type[R], described: tuple[str, str]) -> R:
    """The record of a file; described is what it should be, and how such a file is written."""
    what, written = described
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON: write it with {written}") from error
    try:
        return from_json(kind, document)
    except InputError as error:
        raise InputError(f"{name} is no {what} of this version: write it with {written} ({error})") from error


COMPARISONS = {"text": diff.comparison_text, "markdown": diff.comparison_markdown}


def add_diff(command: argparse.ArgumentParser) -> None:
    """The options of ``diff``: what changed between two JSON reports, layer by layer."""
    command.add_argument("base", metavar="BASE.json", help="the report before")
    command.add_argument("head", metavar="HEAD.json", help="the report after")
    add_format(command, tuple(COMPARISONS))
    command.set_defaults(command=print_diff)


def print_diff(options: argparse.Namespace) -> bool:
    """Print what changed; incomplete where a number is only a lower bound, or a report lacks its operations."""
    changed = diff.changes(read_report(options.base), read_report(options.head))
    print_text(COMPARISONS[options.format](changed))
    return all(change.is_aligned and all(number.complete for number in change.numbers) for change in changed)


def add_history(command: argparse.ArgumentParser) -> None:
    """The options of ``history``: which numbers, since when, and how to show them."""
    add = command.add_argument
    add("model", metavar="MODEL", nargs="?", help="a model by name, path or id, or a budget file (default: all)")
    add("--metric", metavar="M", help="a metric, or a check such as params@layer4.*")
    add("--since", metavar="REV", help="only what changed after this revision")
    add_format(command)
    command.set_defaults(command=print_history)


def print_history(options: argparse.Namespace) -> bool:
    """Print it; incomplete where a commit was skipped, or the clone is shallow."""
    branch = branch_history(Path.cwd(), options.since or "")
    series = _asked(branch, options)
    skipped = [each for each in branch.skipped if branch.asked is None or each.commit.digits in branch.asked]
    remarks = [printable(line) for line in reports.remarks(skipped, branch.depth)]
    if options.format == "json":
        print_json(reports.history_record(series, skipped, branch.depth))
    else:
        is_all = options.model is None and options.metric is None and options.since is None
        _print_table(series, only_changed=is_all)
    for line in remarks:
        print(f"modelbudget: {line}", file=sys.stderr)
    return not remarks


def _print_table(series: Sequence[Series], *, only_changed: bool) -> None:
    """The numbers that ever changed, and how many did not; all of them where somebody asked for them."""
    shown = [each for each in series if len(each.points) > 1 or not only_changed]
    if shown:
        print_text(reports.table(shown, terminal_width()))
    if left := len(series) - len(shown):
        print(f"{several(left, 'number')} never changed")
    if not series:
        print("nothing changed")


def _asked(branch: History, options: argparse.Namespace) -> list[Series]:
    """The series that a command line asks for. Raises InputError where it names none that ever was."""
    series: Sequence[Series] = branch.series
    if not series:
        unseen = list(reports.remarks(branch.skipped, branch.depth))
        found = f"a lock file that can be read ({some_of(unseen)})" if unseen else "a lock file below this folder"
        raise InputError(
            f"no commit has {found}: write one with pytest --model-budget --model-budget-update=create, and commit it"
        )
    asked = (("model", options.model, _names), ("number", options.metric, _checks))
    for what, word, names in (each for each in asked if each[1] is not None):
        known = {name for each in series for name in names(each)}
        series = [each for each in series if word in names(each)]
        if not series:
            raise InputError(f"no commit has a {what} '{word}' in a lock file: {suggestion(word, sorted(known))}")
    if branch.asked is None:
        return list(series)
    return [changed for each in series if (changed := each.since(branch.asked)) is not None]


def _names(series: Series) -> set[str]:
    """The words for a model: its own name, its path, its id, and its budget file."""
    paths = (names_of(series.model)[0], series.model)
    return {series.file, *paths, *(str(Address(series.file) / path) for path in paths)}


def _checks(series: Series) -> set[str]:
    return {series.check, Address("", (series.check,)).metric}
