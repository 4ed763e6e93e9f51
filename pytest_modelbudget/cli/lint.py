"""``modelbudget lint``: read budgets without a model, for editors and pre-commit."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_modelbudget.budget import SUFFIXES
from pytest_modelbudget.budget.read_budget import is_for_the_gate, read_budget, yaml_files
from pytest_modelbudget.budget.yaml_text import BudgetFileError
from pytest_modelbudget.cli.screen import GREEN, RED, print_lines
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.gate.project import project_around
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports.text import printed_line
from pytest_modelbudget.units import several


def add_lint(command: argparse.ArgumentParser) -> None:
    """The options of ``lint``: which files."""
    text = "budget files, or folders with them (default: where pytest looks); other YAML files are skipped"
    command.add_argument("paths", metavar="FILE", nargs="*", help=text)
    command.set_defaults(command=lint_budgets)


def lint_budgets(options: argparse.Namespace) -> bool:
    """Print every problem as file:line:column: message, then a count; incomplete where there is one."""
    registry = tables()
    names = options.paths or [os.path.relpath(path) for path in project_around(Path.cwd()).budgets]
    files = [file for name in names for file in _files(Path(name))]
    checked = {file: _problems(file, registry) for file in dict.fromkeys(files)}
    budgets = {file: problems for file, problems in checked.items() if problems is not None}
    if not any(file.suffix.lower() in SUFFIXES for file in checked):
        raise InputError(f"no YAML file in {' '.join(names)}: name budgets, or a folder with them")
    problems = [problem for found in budgets.values() for problem in found]
    print_lines((printed_line(problem), RED) for problem in problems)
    others = f", {several(rest, 'other file')} skipped" if (rest := len(checked) - len(budgets)) else ""
    counted = f"{several(len(budgets), 'budget')} read, {several(len(problems), 'problem')}{others}"
    print_lines([(counted, RED if problems else GREEN)])
    return not problems


def _files(path: Path) -> Iterator[Path]:
    """A file as it was named, or the YAML files below a folder."""
    if path.is_dir():
        yield from yaml_files([path])
    elif path.exists():
        yield path
    else:
        raise InputError(f"{path} does not exist: name budgets, or a folder with them")


def _problems(file: Path, registry: Tables) -> list[str] | None:
    """The problems of a budget, each with its place; None of another file."""
    try:
        if not is_for_the_gate(file.read_bytes()):
            return None
        if file.suffix != file.suffix.lower():  # which pytest does not collect
            return [f"{os.path.relpath(file)}:1:1: let its name end in {file.suffix.lower()}"]
        read_budget(file, registry, root=Path.cwd())
    except FileNotFoundError:
        return [f"{os.path.relpath(file)}:1:1: it is a link that leads nowhere"]
    except OSError as error:
        return [f"{os.path.relpath(file)}:1:1: it cannot be read: {error.strerror or error}"]
    except BudgetFileError as error:
        return [str(problem) for problem in error.problems]
    return []
