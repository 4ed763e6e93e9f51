"""``modelbudget show``: one model's layers, or operations, and its totals."""

from __future__ import annotations

import argparse
import json
import shutil

from pytest_modelbudget.cli.exit_codes import DONE, UNMEASURED
from pytest_modelbudget.cli.source_words import add_source, shown_model, source_of
from pytest_modelbudget.gate.measuring import CostedModel
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.layers import layer_table, layer_text
from pytest_modelbudget.reports.show import census_text, layer_record, op_record, ops_text, totals_text

PIPE_WIDTH = 120  # where no terminal says how wide it is


def add_show(command: argparse.ArgumentParser) -> None:
    """The options of ``show``."""
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


def show(options: argparse.Namespace) -> int:
    """Print a model's layers (or operations) and totals."""
    registry = tables()
    model = shown_model(source_of(options, registry), registry)
    as_json = options.format == "json"
    print(record_text(model, options) if as_json else table_text(model, options))
    return DONE if all(number.complete for number in model.measurements.values()) else UNMEASURED


def table_text(model: CostedModel, options: argparse.Namespace) -> str:
    """Layers or operations, then totals, then how the numbers came about."""
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    if options.ops:
        shown = [census_text(model.costed), ops_text(model.costed)]
    else:
        shown = [layer_text(layer_table(model.loaded, model.costed, options.depth), width)]
    traced = f"traced: {model.loaded.traced}" if model.loaded.traced else ""
    remarks = "\n".join(filter(None, [traced, *model.loaded.notes]))
    return "\n\n".join(filter(None, [*shown, totals_text(model.measurements, width), remarks]))


def record_text(model: CostedModel, options: argparse.Namespace) -> str:
    """The same as JSON."""
    table = layer_table(model.loaded, model.costed, options.depth)
    record = layer_record(model.loaded, table, model.measurements)
    if options.ops:
        record.update(op_record(model.costed))
    return json.dumps(record, indent=1, allow_nan=False)
