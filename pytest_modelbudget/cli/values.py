"""``modelbudget activations`` and ``weights``: values on the way of a model, and stored ones, with their statistics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_modelbudget.budget.read_budget import names_transform
from pytest_modelbudget.cli.build import changed
from pytest_modelbudget.cli.options import SEED, add_format, add_source, source_of
from pytest_modelbudget.cli.screen import naming, print_json, print_text
from pytest_modelbudget.equivalence.user_inputs import SUFFIXES, GivenInputs
from pytest_modelbudget.errors import InputError, SourceError, TransformError, user_code
from pytest_modelbudget.formats.source import names_attribute
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.registry import tables
from pytest_modelbudget.values import capture
from pytest_modelbudget.values.capture import SavedValues

if TYPE_CHECKING:
    from pytest_modelbudget.values.capture import Captured


def add_activations(command: argparse.ArgumentParser) -> None:
    """The options of ``activations``: which layers, on which inputs, and what becomes of their values."""
    add_source(command)
    add = command.add_argument
    add("--layers", metavar="GLOB", action="append", help="module paths, such as 'features.*' (default: all)")
    add("--types", metavar="TYPE", nargs="+", default=[], help="types of layers, such as Conv2d (default: all)")
    add("--given", metavar="INPUTS", help="inputs in a .npy or .npz file, or package.module:callable")
    add("--seeds", metavar="SEED", nargs="+", type=SEED, default=[], help="of drawn inputs (default: 0 1 2)")
    add("--channels", metavar="AXIS", type=int, default=capture.CHANNELS, help="the axis of channels (default: 1)")
    _add_results(command)
    command.set_defaults(command=print_activations)


def add_weights(command: argparse.ArgumentParser) -> None:
    """The options of ``weights``."""
    add_source(command)
    command.add_argument("--layers", metavar="GLOB", action="append", help="names, such as 'features.*' (default: all)")
    command.add_argument("--types", metavar="TYPE", nargs="+", default=[], help="types of layers, such as Conv2d")
    _add_results(command)
    command.set_defaults(command=print_weights)


def _within(low: float, high: float, wanted: str) -> Callable[[str], Fraction]:
    def read(text: str) -> Fraction:
        try:
            number = Fraction(text)
        except (ValueError, ZeroDivisionError):
            number = Fraction(-1)
        if not low <= number < high:
            raise argparse.ArgumentTypeError(f"'{text}' is no {wanted}")
        return number

    return read


SHARE = _within(0, 1 + 1e-9, "share: write one from 0 to 1, such as 0.97")
DEVIATIONS = _within(1e-9, 1000, "number of deviations: write one such as 3")


def _add_results(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--stats", action="store_true", help="mean, range, quantiles, zeros and int8 ranges in place of shapes")
    add("--sigmas", metavar="N", type=DEVIATIONS, default=capture.SIGMAS, help="deviations that a range spans (3)")
    add("--quantiles", metavar="SHARE", nargs="+", type=SHARE, default=[], help="quantiles more, such as 0.97")
    add("--save", metavar="FILE", type=Path, help="write the values to this .npz file")
    add_format(command, what="what to print of statistics")


def print_activations(options: argparse.Namespace) -> bool:
    """Print what the chosen layers gave; incomplete where a value was NaN or Inf."""
    given = _given(options.given)
    if given is not None and options.seeds:
        raise InputError("--given and --seeds exclude each other: inputs are given, or drawn")
    inputs = capture.NamedInputs(given, tuple(dict.fromkeys(options.seeds)) or capture.SEEDS)
    selection = capture.Selection(tuple(options.layers or ("*",)), tuple(options.types))

    run = partial(capture.statistics_of, selection=selection, inputs=inputs, channel_axis=options.channels)
    return _print(options, inputs.text, run)


def print_weights(options: argparse.Namespace) -> bool:
    """Print what is stored; incomplete where a value was NaN or Inf."""
    read = partial(capture.weights_of, layers=options.layers or ("*",), types=options.types)
    return _print(options, "the stored values", read)


def _print(options: argparse.Namespace, inputs: str, capturing: Callable[..., Captured]) -> bool:
    """Print shapes or statistics, and save values where that is asked."""
    if options.save is not None and (options.save.suffix != ".npz" or not options.save.parent.is_dir()):
        raise InputError(f"--save {options.save}: name a .npz file in a folder that is there")
    if options.format == "json" and not options.stats:
        raise InputError("--format json prints statistics: add --stats")
    registry = tables()
    source = None if names_transform(options.source) else source_of(options, registry)
    with redirect_stdout(sys.stderr), searched_first(((Path.cwd(),),)), naming(options.source):
        with user_code("loading the model", SourceError):
            load = registry.formats[source.format].load if source else None
            model = load(source, registry.ops) if load and source else changed(options.source, registry)[1]
        with user_code("running the model", TransformError):
            how = {"sigmas": float(options.sigmas), "quantiles": options.quantiles}
            if options.save is None:
                captured = capturing(model, **how)
            else:
                with SavedValues(options.save) as saved:
                    captured = capturing(model, take=saved.take, **how)
    _show(captured, options, inputs)
    return not any(layer.statistics.not_finite for layer in captured.layers)


def _show(captured: Captured, options: argparse.Namespace, inputs: str) -> None:
    from pytest_modelbudget.reports import values  # which brings numpy in

    if options.format == "json":
        print_json(values.statistics_json(captured, inputs))
    else:
        print_text(values.statistics_text(captured, inputs) if options.stats else values.shapes_text(captured))


def _given(word: str | None) -> GivenInputs | None:
    """Raises InputError for what is neither a file of arrays nor a callable."""
    if word is None:
        return None
    if not word.endswith(SUFFIXES) and not names_attribute(word):
        raise InputError(f"--given '{word}' is no inputs: write data/file.npz, or package.module:callable")
    if word.endswith(SUFFIXES) and not Path(word).is_file():
        raise InputError(f"--given {word} does not exist, or is no file")
    return GivenInputs(word, Path.cwd())
