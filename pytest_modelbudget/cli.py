"""The ``modelbudget`` command: 0 done, 1 unmeasured operations, 2 usage or unreadable source."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.json_schema import schema_text
from pytest_modelbudget.budget.plain_values import plain_value
from pytest_modelbudget.budget.problem import BudgetFileError, Problem
from pytest_modelbudget.budget.read_inputs import read_inputs, read_model_dtype
from pytest_modelbudget.budget.read_sources import read_dims
from pytest_modelbudget.budget.reading import Reading
from pytest_modelbudget.budget.yaml_nodes import Node, tree
from pytest_modelbudget.check.measuring import CostedModel, costed_model
from pytest_modelbudget.check.python_values import source_format
from pytest_modelbudget.check.tables import Tables, tables
from pytest_modelbudget.errors import InputError, MissingExtraError, ModelBudgetError
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, ModelSource
from pytest_modelbudget.reports.failure_text import one_line
from pytest_modelbudget.reports.layer_record import layer_record, op_record
from pytest_modelbudget.reports.layer_table import layer_table
from pytest_modelbudget.reports.layer_text import layer_text
from pytest_modelbudget.reports.op_text import census_text, ops_text
from pytest_modelbudget.reports.totals_text import totals_text

DONE, UNMEASURED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
PIPE_WIDTH = 120  # where no terminal says how wide it is
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


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
    top = argparse.ArgumentParser(
        prog="modelbudget", description="What a neural network costs, layer by layer."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_show(commands.add_parser("show", help="a model's layer table and totals"))
    schema = commands.add_parser("schema", help="print the JSON Schema of a budget file")
    schema.set_defaults(command=print_schema)
    _add_linear(commands.add_parser("linear", help="write one linear layer as an ONNX file"))
    _add_tile(commands.add_parser("tile", help="write an ONNX file's twin in tiles"))
    return top


def _add_show(show_parser: argparse.ArgumentParser) -> None:
    add = show_parser.add_argument
    add("source", metavar="SOURCE", help="module:callable, or a TorchScript, .pt2 or .onnx file")
    add(
        "--input",
        metavar="[NAME=]SPEC",
        action="append",
        default=[],
        help="one input, such as 'float32 1x3x224x224'; repeat it for several",
    )
    add(
        "--args",
        metavar="VALUE",
        action="append",
        default=[],
        help="an argument of the callable: a plain value, or all of them as a JSON list",
    )
    add(
        "--kwargs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a named argument of the callable, or all of them as a JSON object",
    )
    add("--dtype", metavar="DTYPE", help="convert the model, for example to bfloat16")
    add(
        "--dims",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="the size of a symbolic dimension of an exported program",
    )
    add("--depth", metavar="N", type=_depth, help="unfold this many levels (default: all)")
    add("--format", choices=("table", "json"), default="table", help="what to print")
    add("--ops", action="store_true", help="operations instead of layers: census and attributes")
    show_parser.set_defaults(command=show)


def _add_linear(linear_parser: argparse.ArgumentParser) -> None:
    add = linear_parser.add_argument
    for size, what in (("m", "rows of x"), ("k", "inputs"), ("n", "outputs")):
        add(f"--{size}", type=_size, required=True, metavar=size.upper(), help=what)
    add("--dtype", choices=("float32", "float16"), default="float32", help="default: float32")
    add("--no-bias", action="store_true", help="leave the bias out")
    add("--seed", type=int, default=0, help="of the weights (default: 0)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    linear_parser.set_defaults(command=write_linear)


def _add_tile(tile_parser: argparse.ArgumentParser) -> None:
    add = tile_parser.add_argument
    add("source", metavar="SOURCE", type=Path, help="an .onnx file")
    add("--tile", type=_size, nargs="+", default=[64], metavar="SIZE", help="64, or M K N")
    add("--form", choices=("unrolled", "batched"), default="unrolled", help="default: unrolled")
    add("--edge", choices=("ragged", "pad"), default="ragged", help="default: ragged")
    add("--layers", action="append", metavar="GLOB", help="module paths (default: all)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    tile_parser.set_defaults(command=write_tiled)


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write 1, 2, 3 ...")
    return int(text)


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no depth: write 0, 1, 2 ...")
    return int(text)


def print_schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema (draft-07) that editors check budget files with."""
    using = tables()
    print(schema_text(using.metrics, using.front_ends, using.transforms).rstrip())
    return DONE


def write_linear(options: argparse.Namespace) -> int:
    """Write x (m, k) · W + b as an ONNX file."""
    writing = _onnx_module("onnx_writing", "modelbudget linear")
    sizes = {"bias": not options.no_bias, "dtype": options.dtype, "seed": options.seed}
    model = writing.linear_model(options.m, options.k, options.n, **sizes)
    writing.write_model(model, options.out)
    print(f"wrote {options.out}")
    return DONE


def write_tiled(options: argparse.Namespace) -> int:
    """Write the tiled twin of an ONNX file, and say what became of each linear operation."""
    if len(options.tile) not in {1, 3}:
        raise InputError(f"--tile takes one size or three (M K N), not {len(options.tile)}")
    size = options.tile
    sizes = (None, *size * 2) if len(size) == 1 else tuple(size)
    tiling = _onnx_module("tile_linear_onnx", "modelbudget tile")
    layers = tuple(options.layers or ("*",))
    settings = {"tile": sizes, "edge": options.edge, "form": options.form, "layers": layers}
    source = ModelSource("onnx", str(options.source), base=Path.cwd())
    for change in tiling.write_tiled(source, settings, options.out):
        print(f"{change.scope or '(model)'}: {change.operation}: {change.became or change.why}")
    print(f"wrote {options.out}")
    return DONE


def _onnx_module(name: str, needed_for: str) -> Any:
    """A module that needs onnx; MissingExtraError where that is not installed."""
    try:
        return import_module(f"pytest_modelbudget.transforms.{name}")
    except ModuleNotFoundError as error:
        if error.name not in {"onnx", "onnxruntime", "onnx_ir"}:
            raise
        raise MissingExtraError(needed_for, package=str(error.name), extra="onnx") from error


def show(options: argparse.Namespace) -> int:
    """Print a model's layers (or operations) and totals."""
    using = tables()
    model = shown_model(source_of(options, using), using)
    as_json = options.format == "json"
    print(record_text(model, options) if as_json else table_text(model, options))
    return DONE if all(each.complete for each in model.measurements.values()) else UNMEASURED


def shown_model(source: ModelSource, using: Tables) -> CostedModel:
    """The model behind a source, fully measured; what its code prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        model = costed_model(source, using, root=source.base)
    for failure in model.failures.values():
        raise failure
    return model


def table_text(model: CostedModel, options: argparse.Namespace) -> str:
    """Layers or operations, then totals, then how the numbers came about."""
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    if options.ops:
        shown = [census_text(model.costed), ops_text(model.costed)]
    else:
        shown = [layer_text(layer_table(model.loaded, model.costed, options.depth), width)]
    traced = f"traced: {model.loaded.traced}" if model.loaded.traced else ""
    said = "\n".join(filter(None, [traced, *model.loaded.notes]))
    return "\n\n".join(filter(None, [*shown, totals_text(model.measurements, width), said]))


def record_text(model: CostedModel, options: argparse.Namespace) -> str:
    """The same as JSON."""
    table = layer_table(model.loaded, model.costed, options.depth)
    record = layer_record(model.loaded, table, model.measurements)
    if options.ops:
        record.update(op_record(model.costed))
    return json.dumps(record, indent=1, allow_nan=False)


def source_of(options: argparse.Namespace, using: Tables) -> ModelSource:
    """The model source that the command's words name."""
    base = Path.cwd()
    words = Words(Reading(base, base, using.metrics, using.front_ends, using.ops))
    key = source_format(options.source, using)
    inputs = words.inputs(options.input)
    if not inputs and not using.front_ends[key].brings_inputs:
        raise InputError(f"{options.source} needs inputs: --input 'float32 1x3x224x224'")
    return ModelSource(
        key,
        options.source,
        inputs,
        args=words.listed(options.args),
        kwargs=words.mapped("--kwargs", options.kwargs),
        dtype=words.dtype(options.dtype),
        dims=words.dims(options.dims),
        base=base,
    )


@dataclass(frozen=True, slots=True)
class Words:
    """The command line's values, read as the same words in a budget file are."""

    reading: Reading

    def inputs(self, specs: Sequence[str]) -> InputSpecs:
        """Positional inputs in their order, and those spelled NAME=SPEC by name."""
        positional: list[InputSpec] = []
        named: dict[str, InputSpec] = {}
        for word in specs:
            name, spec = _split(word)
            read = read_inputs(self._node("--input", spec), self.reading)
            self._refuse("--input", word)
            if read.named or len(read.positional) != 1:
                raise InputError(f"--input '{word}' is not one input: repeat --input for several")
            if name is None:
                positional.append(read.positional[0])
            else:
                named[name] = read.positional[0]
        return InputSpecs(tuple(positional), named)

    def listed(self, words: Sequence[str]) -> tuple[object, ...]:
        """Plain values; one JSON list stands for its items."""
        values = [self._value("--args", word) for word in words]
        if len(values) == 1 and isinstance(values[0], list):
            return tuple(values[0])
        return tuple(values)

    def mapped(self, option: str, words: Sequence[str]) -> dict[str, object]:
        """Plain values by name, from pairs or JSON objects."""
        values: dict[str, object] = {}
        for word in words:
            name, text = _split(word)
            value = self._value(option, text)
            if name is not None:
                values[name] = value
            elif isinstance(value, dict):
                values.update(value)
            else:
                raise InputError(f"{option} '{word}' is neither KEY=VALUE nor a JSON object")
        return values

    def dtype(self, name: str | None) -> str | None:
        """The name of a floating-point type."""
        if name is None:
            return None
        dtype = read_model_dtype(self._node("--dtype", name), self.reading)
        self._refuse("--dtype", name)
        return dtype

    def dims(self, words: Sequence[str]) -> Mapping[str, int]:
        """Sizes by symbol."""
        if not words:
            return {}
        pairs = json.dumps(self.mapped("--dims", words))
        dims = read_dims(self._node("--dims", pairs), self.reading)
        self._refuse("--dims", " ".join(words))
        return dims

    def _value(self, option: str, word: str) -> object:
        value = plain_value(self._node(option, word), self.reading)
        self._refuse(option, word)
        return value

    def _node(self, option: str, word: str) -> Node:
        """The words of one option as a YAML tree, of which JSON is a part."""
        try:
            node, problems = tree(word, option)
        except BudgetFileError as error:
            raise InputError(f"{option} '{word}': {_messages(error.problems)}") from error
        self.reading.problems.extend(problems)
        return node

    def _refuse(self, option: str, word: str) -> None:
        if self.reading.problems:
            raise InputError(f"{option} '{word}': {_messages(self.reading.problems)}")


def _split(word: str) -> tuple[str | None, str]:
    """(name, value) of NAME=VALUE; (None, word) of anything else."""
    match = _NAMED.fullmatch(word)
    return (match[1], match[2]) if match else (None, word)


def _messages(problems: Sequence[Problem]) -> str:
    return "; ".join(problem.message for problem in problems)


if __name__ == "__main__":
    sys.exit(main())
