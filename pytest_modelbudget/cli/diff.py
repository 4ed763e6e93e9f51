"""``modelbudget diff``: what changed between two JSON reports, layer by layer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pytest_modelbudget.cli.exit_codes import DONE, UNMEASURED
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.reports.diff import changes, comparison_markdown, comparison_text
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.typed_json import from_json

FORMATS = {"text": comparison_text, "markdown": comparison_markdown}


def add_diff(command: argparse.ArgumentParser) -> None:
    """The options of ``diff``."""
    command.add_argument("base", metavar="BASE.json", help="the report before")
    command.add_argument("head", metavar="HEAD.json", help="the report after")
    command.add_argument("--format", choices=tuple(FORMATS), default="text", help="what to print")
    command.set_defaults(command=diff)


def diff(options: argparse.Namespace) -> int:
    """Print what changed; 1 where a number of either report is only a lower bound."""
    changed = changes(_report(options.base), _report(options.head))
    print(FORMATS[options.format](changed))
    is_known = all(number.complete for change in changed for number in change.numbers)
    return DONE if is_known else UNMEASURED


def _report(name: str) -> Report:
    """The report of a file that --model-budget-json wrote."""
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{name} is no JSON: write it with --model-budget-json") from error
    try:
        return from_json(Report, document)
    except InputError as error:
        raise InputError(f"{name} is no report of this version: write it with --model-budget-json ({error})") from error
