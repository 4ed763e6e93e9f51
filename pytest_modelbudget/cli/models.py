"""``modelbudget show``, ``explain`` and ``init``: the commands that measure a model.

Each prints, and tells whether every number that it needed could be worked out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from fractions import Fraction
from pathlib import Path
from shlex import quote

from pytest_modelbudget.budget.verdict import known_scopes
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.source_words import add_source, shown_model, source_of
from pytest_modelbudget.errors import InputError, UnitError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.budgets import read
from pytest_modelbudget.gate.measuring import CostedModel
from pytest_modelbudget.graph.scopes import MODEL, is_in_scope
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports.draft_budget import budget_text
from pytest_modelbudget.reports.explain import explanation
from pytest_modelbudget.reports.layers import layer_table, layer_text
from pytest_modelbudget.reports.show import census_text, layer_record, op_record, ops_text, totals_text
from pytest_modelbudget.units import quantity

PIPE_WIDTH = 120  # where no terminal says how wide it is
FOLDER = "budgets"  # where a printed budget is taken to be saved


def add_show(command: argparse.ArgumentParser) -> None:
    """The options of ``show``: one model's layers, or operations, and its totals."""
    add_source(command)
    add = command.add_argument
    add("--depth", metavar="N", type=_depth, help="unfold this many levels (default: all)")
    add("--format", choices=("table", "json"), default="table", help="what to print")
    add("--ops", action="store_true", help="operations instead of layers: census and attributes")
    command.set_defaults(command=show)


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no depth: write 0, 1, 2 ...")
    return int(text)


def show(options: argparse.Namespace) -> bool:
    """Print a model's layers (or operations) and totals."""
    registry = tables()
    model = shown_model(source_of(options, registry), registry)
    print(_show_json(model, options) if options.format == "json" else _show_table(model, options))
    return model.is_complete


def _show_table(model: CostedModel, options: argparse.Namespace) -> str:
    """Layers or operations, then totals, then how the numbers came about."""
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    if options.ops:
        shown = [census_text(model.costed), ops_text(model.costed)]
    else:
        shown = [layer_text(layer_table(model.loaded, model.costed, options.depth), width)]
    traced = f"traced: {model.loaded.traced}" if model.loaded.traced else ""
    remarks = "\n".join(filter(None, [traced, *model.loaded.notes]))
    return "\n\n".join(filter(None, [*shown, totals_text(model.measurements, width), remarks]))


def _show_json(model: CostedModel, options: argparse.Namespace) -> str:
    table = layer_table(model.loaded, model.costed, options.depth)
    record = layer_record(model.loaded, table, model.measurements)
    if options.ops:
        record.update(op_record(model.costed))
    return json.dumps(record, indent=1, allow_nan=False)


def add_explain(command: argparse.ArgumentParser) -> None:
    """The options of ``explain``: where a number of one layer comes from."""
    command.add_argument("metric", metavar="METRIC", help="such as macs, params or bandwidth")
    add_source(command)
    scope_help = f"a module's path, such as layer4.0.conv1, or '{MODEL}' for all of it"
    command.add_argument("scope", metavar="SCOPE", help=scope_help)
    command.set_defaults(command=explain)


def explain(options: argparse.Namespace) -> bool:
    """Print the formulas of one metric for the operations or weights of one module."""
    registry = tables()
    if options.metric not in registry.metrics:
        guess = suggestion(options.metric, registry.metrics)
        raise InputError(f"there is no metric '{options.metric}': {guess}")
    metric = registry.metrics[options.metric]
    model = shown_model(source_of(options, registry), registry)
    scope = None if options.scope in ("", MODEL) else options.scope
    known = known_scopes(model.measurements.values()) - {""}
    if scope and not any(is_in_scope(name, scope) for name in known):
        raise InputError(f"no module of the model is called '{scope}': {suggestion(scope, sorted(known))}")
    measurement = model.measurements[metric.key]
    print(explanation(metric, measurement, model.costed, scope))
    return not any(is_in_scope(op.scope, scope) for op in measurement.unmeasured)


def add_init(command: argparse.ArgumentParser) -> None:
    """The options of ``init``: a first budget, with what the model measures as its limits."""
    add_source(command)
    command.add_argument("--headroom", metavar="SHARE", default="0%", help="room above what is measured, such as 5%%")
    command.add_argument("--name", metavar="NAME", help="what the budget calls the model")
    command.add_argument("--output", metavar="FILE", help="write the budget there, where nothing is yet")
    command.set_defaults(command=init)


def init(options: argparse.Namespace) -> bool:
    """Print or write a commented budget; what is unmeasured stays a comment."""
    registry = tables()
    source = source_of(options, registry)
    path = Path(options.output or f"{FOLDER}/budget.yaml")
    if options.output and path.exists():
        raise InputError(f"{path} exists: name another file, or delete it")
    try:
        headroom = Fraction(quantity(options.headroom, "%"))
    except UnitError as error:
        raise InputError(f"--headroom: {error}") from error
    model = shown_model(source, registry)
    text = budget_text(
        options.name or _name(str(source.target)),
        source,
        _target(source, path, registry),
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
    return model.is_complete


def _name(target: str) -> str:
    """What to call a model: the callable's name, or the file's."""
    if re.search(r":[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", target):
        return target.rpartition(":")[2].rpartition(".")[2]
    return Path(target).stem


def _target(source: ModelSource, path: Path, registry: Tables) -> str:
    """The model's target, a file's path as seen from the budget."""
    target = str(source.target)
    if not registry.formats[source.format].suffixes:
        return target
    return Path(os.path.relpath(source.base / target, source.base / path.parent)).as_posix()
