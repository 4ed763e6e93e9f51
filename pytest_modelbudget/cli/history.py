"""``modelbudget history``: when locked numbers changed, by how much, in which commit."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_modelbudget.budget.budget import Address, names_of
from pytest_modelbudget.budget.history import History, Series, branch_history
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.options import add_format
from pytest_modelbudget.cli.screen import print_json, print_text, terminal_width
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.reports import history as reports
from pytest_modelbudget.reports.text import printable
from pytest_modelbudget.units import several, some_of


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
    if options.model is not None:
        known = {name for each in series for name in _names(each)}
        series = _of(series, lambda each: options.model in _names(each), "model", options.model, known)
    if options.metric is not None:
        known = {name for each in series for name in _checks(each)}
        series = _of(series, lambda each: options.metric in _checks(each), "number", options.metric, known)
    if (asked := branch.asked) is None:
        return list(series)
    return [changed for each in series if (changed := each.since(asked)) is not None]


def _of(
    series: Sequence[Series], fits: Callable[[Series], bool], what: str, word: str, known: Iterable[str]
) -> list[Series]:
    if found := [each for each in series if fits(each)]:
        return found
    raise InputError(f"no commit has a {what} '{word}' in a lock file: {suggestion(word, sorted(known))}")


def _names(series: Series) -> set[str]:
    """The words for a model: its own name, its path, its id, and its budget file."""
    paths = (names_of(series.model)[0], series.model)
    return {series.file, *paths, *(str(Address(series.file) / path) for path in paths)}


def _checks(series: Series) -> tuple[str, str]:
    return series.check, Address("", (series.check,)).metric
