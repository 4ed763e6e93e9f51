"""``modelbudget lab linear`` and ``modelbudget lab tile``: linear layers and tiled twins as ONNX files."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_modelbudget.cli.options import SEED, whole_number
from pytest_modelbudget.cli.screen import print_text
from pytest_modelbudget.errors import InputError, MissingExtraError, TransformError, user_code
from pytest_modelbudget.formats.source import LARGEST_SIZE, ModelSource
from pytest_modelbudget.gate.from_python import source_format
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.registry import tables

SIZE = whole_number("size", least=1, most=LARGEST_SIZE)
BYTES_DRAWN = 8  # of a weight as it is drawn


def add_linear(linear_parser: argparse.ArgumentParser) -> None:
    """Sizes, type and place of one linear layer."""
    add = linear_parser.add_argument
    for size, what in (("m", "rows of x"), ("k", "inputs"), ("n", "outputs")):
        add(f"--{size}", type=SIZE, required=True, metavar=size.upper(), help=what)
    add("--dtype", choices=("float32", "float16"), default="float32", help="default: float32")
    add("--no-bias", action="store_true", help="leave the bias out")
    add("--seed", type=SEED, default=0, help="of the weights (default: 0)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    linear_parser.set_defaults(command=write_linear)


def add_tile(tile_parser: argparse.ArgumentParser) -> None:
    """The file, and how it is cut into tiles."""
    add = tile_parser.add_argument
    add("source", metavar="SOURCE", type=Path, help="an .onnx file")
    add("--tile", type=SIZE, nargs="+", default=[64], metavar="SIZE", help="64, or M K N")
    add("--form", choices=("unrolled", "batched"), default="unrolled", help="default: unrolled")
    add("--edge", choices=("ragged", "pad"), default="ragged", help="default: ragged")
    add("--layers", action="append", metavar="GLOB", help="module paths (default: all)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    tile_parser.set_defaults(command=write_tiled)


def write_linear(options: argparse.Namespace) -> bool:
    """Write x (m, k) · W + b as an ONNX file."""
    tiling = _onnx_module("transforms.tile.linear_on_onnx", "modelbudget lab linear")
    if options.k * options.n * BYTES_DRAWN > LARGEST_SIZE:
        raise InputError(f"--k {options.k} --n {options.n}: no memory can hold so many weights")
    sizes = {"bias": not options.no_bias, "dtype": options.dtype, "seed": options.seed}
    model = tiling.linear_model(options.m, options.k, options.n, **sizes)
    tiling.write_model(model, options.out)
    print(f"wrote {options.out}")
    return True


def write_tiled(options: argparse.Namespace) -> bool:
    """Write the tiled twin of an ONNX file, and say what became of each linear operation."""
    if len(options.tile) not in {1, 3}:
        raise InputError(f"--tile takes one size or three (M K N), not {len(options.tile)}")
    sizes = (None, *options.tile * 2) if len(options.tile) == 1 else tuple(options.tile)
    tiling = _onnx_module("transforms.tile.linear_on_onnx", "modelbudget lab tile")
    layers = tuple(options.layers or ("*",))
    settings = {"tile": sizes, "edge": options.edge, "form": options.form, "layers": layers}
    source_format(options.source, tables(), Path.cwd())  # that there is such a file
    source = ModelSource("onnx", str(options.source), base=Path.cwd())
    with user_code(f"tiling {options.source}", TransformError):
        changes = tiling.write_tiled(source, settings, options.out)
    for change in changes:
        print_text(f"{scope_text(change.scope)}: {change.operation}: {change.became or change.why}")
    print(f"wrote {options.out}")
    return True


def _onnx_module(name: str, needed_for: str) -> Any:
    """A module that needs onnx; MissingExtraError where that is not installed."""
    try:
        return import_module(f"pytest_modelbudget.{name}")
    except ModuleNotFoundError as error:
        if error.name not in {"onnx", "onnxruntime"}:
            raise
        raise MissingExtraError(needed_for, package=str(error.name), extra="onnx") from error
