"""The ``modelbudget`` command: 0 done, 1 unmeasured operations, 2 usage or unreadable source."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_modelbudget.budget.json_schema import schema_text
from pytest_modelbudget.cli.diff import add_diff
from pytest_modelbudget.cli.exit_codes import DONE, INTERRUPTED, UNUSABLE
from pytest_modelbudget.cli.explain import add_explain
from pytest_modelbudget.cli.init import add_init
from pytest_modelbudget.cli.onnx_files import add_linear, add_tile
from pytest_modelbudget.cli.show import add_show
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.record import schema_text as report_schema_text
from pytest_modelbudget.reports.text import one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what a user can mend is one sentence."""
    options = parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()  # here, where a full disk can still be said in a sentence
        return code
    except ModelBudgetError as error:
        print(f"modelbudget: error: {one_line(str(error))}", file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        _forget_output()
        return DONE
    except OSError as error:  # what models raise is a ModelBudgetError: this is our own output
        _forget_output()
        print(f"modelbudget: error: cannot write: {error.strerror or error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED


def _forget_output() -> None:
    """Let what could not be written go, so that Python's end does not try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Commands and their options."""
    top = argparse.ArgumentParser(prog="modelbudget", description="What a neural network costs, layer by layer.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add_show(commands.add_parser("show", help="a model's layer table and totals"))
    add_explain(commands.add_parser("explain", help="an operation's formula with its numbers"))
    add_init(commands.add_parser("init", help="a budget with what a model measures as limits"))
    add_diff(commands.add_parser("diff", help="what changed between two JSON reports"))
    add_linear(commands.add_parser("linear", help="write one linear layer as an ONNX file"))
    add_tile(commands.add_parser("tile", help="write an ONNX file's twin in tiles"))
    schema = commands.add_parser("schema", help="the JSON Schema of a budget file, or of a report")
    add = schema.add_argument
    add("of", nargs="?", choices=("budget", "report"), default="budget", help="default: budget")
    schema.set_defaults(command=print_schema)
    return top


def print_schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema (draft-07) of budget files, for editors, or of --model-budget-json."""
    if options.of == "report":
        print(report_schema_text().rstrip())
        return DONE
    registry = tables()
    print(schema_text(registry.metrics, registry.formats, registry.transforms).rstrip())
    return DONE
