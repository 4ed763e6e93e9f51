"""``modelbudget merge``: from the parts of its shards, the reports and the exit code that one run would have given."""

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pytest_modelbudget.cli.screen import print_pieces
from pytest_modelbudget.errors import InputError, MissingExtraError
from pytest_modelbudget.gate.merging import Merged, PartFile, merged
from pytest_modelbudget.gate.report_files import remove_reports, write_report
from pytest_modelbudget.reports import annotations, findings, record, terminal
from pytest_modelbudget.reports.json_records import R, from_json
from pytest_modelbudget.reports.shard import Part
from pytest_modelbudget.reports.table import SHAPE, FileReport, asked_report, asked_reports, report_help
from pytest_modelbudget.reports.text import printable

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
    """Write what is asked for, print what a session prints at its end, and return its exit code.

    Whatever happens, no report of an earlier merge is left.
    """
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
