"""Commands that write model files: ``modelbudget build``, ``modelbudget lab linear`` and ``modelbudget lab tile``."""

import argparse
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import SUFFIXES
from pytest_modelbudget.budget.budget import BETWEEN, Subject, Transformation
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.cli.options import SEED, whole_number
from pytest_modelbudget.cli.screen import print_text
from pytest_modelbudget.errors import InputError, MissingExtraError, TransformError, user_code
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import LARGEST_SIZE, ModelSource
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.from_python import source_format
from pytest_modelbudget.gate.measuring import CostedModel, costed
from pytest_modelbudget.gate.project import importing_as_pytest, project_around
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.registry import Tables, tables

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


def add_build(command: argparse.ArgumentParser) -> None:
    """Which transform, and where it is written."""
    command.add_argument("transform", metavar="BUDGET::MODEL::TRANSFORM", help="a transform of a budget file")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help=".onnx, .pt2 or .safetensors")
    command.set_defaults(command=build)


def build(options: argparse.Namespace) -> bool:
    """Write the changed model once its claim holds, and its certificate."""
    registry, root = tables(), project_around(Path.cwd()).root
    model, change = named(options.transform, registry, root)
    with importing_as_pytest(Path.cwd()), redirect_stdout(sys.stderr):
        certificate = transforming.build(model, change, registry, root=root, out=options.out)
    print_text(f"wrote {options.out} and {certificate}")
    return True


def named(words: str, registry: Tables, root: Path) -> tuple[Subject[ModelSource], Subject[Transformation]]:
    """The model and the transform of BUDGET::MODEL::TRANSFORM. Raises InputError where there is no such one."""
    file, _, path = words.partition(BETWEEN)
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist: write budgets/x.yaml{BETWEEN}MODEL{BETWEEN}TRANSFORM")
    known: dict[str, tuple[Subject[ModelSource], Subject[Transformation]]] = {}
    for model in read_budget(Path(file), registry, root=root).models:
        known |= {f"{model.path}{BETWEEN}{part.name}": (model, part) for part in model.transforms}
    if path not in known:
        raise InputError(f"{file} has no transform {path!r}: it has {', '.join(known) or 'none'}")
    return known[path]


def names_transform(words: str) -> bool:
    """Whether a source is spelled BUDGET::MODEL::TRANSFORM."""
    return words.partition(BETWEEN)[0].endswith(SUFFIXES)


def changed(words: str, registry: Tables) -> tuple[ModelSource, Model]:
    """What BUDGET::MODEL::TRANSFORM makes, and the source that it is made of."""
    model, part = named(words, registry, root := project_around(Path.cwd()).root)
    with searched_first(model.made.searched(root)), user_code(f"applying {part.made.transform}", TransformError):
        return model.made, transforming.apply_transform(model.made, part.made, registry).changed.model


def measured_change(words: str, registry: Tables) -> CostedModel:
    """The numbers of what BUDGET::MODEL::TRANSFORM makes."""
    with redirect_stdout(sys.stderr):
        source, model = changed(words, registry)
        return costed(model, registry, source)
