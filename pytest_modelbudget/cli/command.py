"""The ``modelbudget`` command: 0 done, 1 unmeasured operations, 2 usage or unreadable source."""

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_modelbudget.budget.lock_schema import lock_schema_text
from pytest_modelbudget.budget.read_budget import schema_text
from pytest_modelbudget.cli.devices import add_devices, add_fit
from pytest_modelbudget.cli.history import add_history
from pytest_modelbudget.cli.merge import add_merge, read_report
from pytest_modelbudget.cli.models import add_explain, add_init, add_show
from pytest_modelbudget.cli.onnx_files import add_linear, add_tile
from pytest_modelbudget.cli.values import add_activations, add_weights
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports import diff, record
from pytest_modelbudget.reports.text import one_line, printable

DONE, UNMEASURED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130  # exit codes
EXITS = {True: DONE, False: UNMEASURED}
COMPARISONS = {"text": diff.comparison_text, "markdown": diff.comparison_markdown}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what a user can mend is one sentence."""
    options, code = parser().parse_args(arguments), DONE
    try:
        outcome = options.command(options)
        code = EXITS[outcome] if isinstance(outcome, bool) else int(outcome)
        sys.stdout.flush()  # here, where a full disk can still be said in a sentence
        return code
    except ModelBudgetError as error:
        print(f"modelbudget: error: {printable(one_line(str(error)))}", file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        _forget_output()
        return code
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
    """Commands and their options.

    A command is a function of its options that prints, and returns whether all that it needed could be measured, or
    an exit code of its own.
    """
    top = argparse.ArgumentParser(prog="modelbudget", description="What a neural network costs, layer by layer.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add_show(commands.add_parser("show", help="a model's layer table and totals"))
    add_explain(commands.add_parser("explain", help="an operation's formula with its numbers"))
    add_init(commands.add_parser("init", help="a budget with what a model measures as limits"))
    add_fit(commands.add_parser("fit", help="whether a model fits a device"))
    add_devices(commands.add_parser("devices", help="devices and their figures, each with its source"))
    add_diff(commands.add_parser("diff", help="what changed between two JSON reports"))
    add_activations(commands.add_parser("activations", help="values on a model's way, and their statistics"))
    add_weights(commands.add_parser("weights", help="a model's stored values, and their statistics"))
    add_history(commands.add_parser("history", help="when locked numbers changed, and by how much"))
    add_merge(commands.add_parser("merge", help="one run's reports from the parts of its shards"))
    add_linear(commands.add_parser("linear", help="write one linear layer as an ONNX file"))
    add_tile(commands.add_parser("tile", help="write an ONNX file's twin in tiles"))
    schema = commands.add_parser("schema", help="the JSON Schema of a budget file, a report or a lock file")
    add = schema.add_argument
    add("of", nargs="?", choices=("budget", "report", "lock"), default="budget", help="default: budget")
    schema.set_defaults(command=print_schema)
    return top


def add_diff(command: argparse.ArgumentParser) -> None:
    """The options of ``diff``: what changed between two JSON reports, layer by layer."""
    command.add_argument("base", metavar="BASE.json", help="the report before")
    command.add_argument("head", metavar="HEAD.json", help="the report after")
    command.add_argument("--format", choices=tuple(COMPARISONS), default="text", help="what to print")
    command.set_defaults(command=print_diff)


def print_diff(options: argparse.Namespace) -> bool:
    """Print what changed; incomplete where a number is only a lower bound, or a report lacks its operations."""
    changed = diff.changes(read_report(options.base), read_report(options.head))
    print(printable(COMPARISONS[options.format](changed)))
    return all(change.is_aligned and all(number.complete for number in change.numbers) for change in changed)


def print_schema(options: argparse.Namespace) -> bool:
    """Print the JSON Schema (draft-07) of budget files, for editors, of --model-budget-json, or of lock files."""
    if options.of == "report":
        text = record.schema_text()
    elif options.of == "lock":
        text = lock_schema_text()
    else:
        registry = tables()
        text = schema_text(registry.metrics, registry.formats, registry.transforms)
    print(text.rstrip())
    return True
