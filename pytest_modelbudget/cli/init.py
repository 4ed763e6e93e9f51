"""``modelbudget init``: a first budget, with what the model measures as its limits."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from shlex import quote

from pytest_modelbudget.cli.exit_codes import DONE, UNMEASURED
from pytest_modelbudget.cli.source_words import add_source, shown_model, source_of
from pytest_modelbudget.errors import InputError, UnitError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.gate.budgets import read
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.draft_budget import budget_text
from pytest_modelbudget.units import quantity

FOLDER = "budgets"  # where a printed budget is taken to be saved


def add_init(command: argparse.ArgumentParser) -> None:
    """The options of ``init``."""
    add_source(command)
    command.add_argument("--headroom", metavar="SHARE", default="0%", help="room above what is measured, such as 5%%")
    command.add_argument("--name", metavar="NAME", help="what the budget calls the model")
    command.add_argument("--output", metavar="FILE", help="write the budget there, where nothing is yet")
    command.set_defaults(command=init)


def init(options: argparse.Namespace) -> int:
    """Print or write a commented budget; what is unmeasured stays a comment."""
    registry = tables()
    source = source_of(options, registry)
    path = Path(options.output or f"{FOLDER}/budget.yaml")
    if options.output and path.exists():
        raise InputError(f"{path} exists: name another file, or delete it")
    headroom = _share(options.headroom)
    model = shown_model(source, registry)
    text = budget_text(
        options.name or _name(str(source.target)),
        source,
        _target(source, path, registry.formats),
        registry.metrics,
        model.measurements,
        headroom=headroom,
        versions=registry.versions(source.format),
    )
    read(path, registry, root=Path.cwd(), text=text)  # refuses what the gate would not take
    if options.output:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path} written: pytest --model-budget {quote(str(path))} holds it")
    else:
        print(text, end="")
    return DONE if all(number.complete for number in model.measurements.values()) else UNMEASURED


def _share(text: str) -> Fraction:
    try:
        return Fraction(quantity(text, "%"))
    except UnitError as error:
        raise InputError(f"--headroom: {error}") from error


def _name(target: str) -> str:
    """What to call a model: the callable's name, or the file's."""
    if re.search(r":[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", target):
        return target.rpartition(":")[2].rpartition(".")[2]
    return Path(target).stem


def _target(source: ModelSource, path: Path, formats: Mapping[str, Format]) -> str:
    """The model's target, a file's path as seen from the budget."""
    target = str(source.target)
    if not formats[source.format].suffixes:
        return target
    return Path(os.path.relpath(source.base / target, source.base / path.parent)).as_posix()
