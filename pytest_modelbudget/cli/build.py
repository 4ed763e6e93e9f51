"""Commands that write models, or bits for their layers: ``build``, ``search``, ``lab linear`` and ``lab tile``."""

import argparse
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.read_budget import subject_named
from pytest_modelbudget.cli.options import SEED, add_deployment, add_format, deployment_of, whole_number
from pytest_modelbudget.cli.screen import RED, print_json, print_lines, print_text
from pytest_modelbudget.errors import InputError, TransformError, user_code
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import LARGEST_SIZE, ModelSource
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.from_python import source_format
from pytest_modelbudget.gate.measuring import CostedModel, costed
from pytest_modelbudget.gate.project import importing_as_pytest, project_around
from pytest_modelbudget.gate.watch import progress
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.search.asked import asked_search

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
    if options.k * options.n * BYTES_DRAWN > LARGEST_SIZE:
        raise InputError(f"--k {options.k} --n {options.n}: no memory can hold so many weights")
    sizes = {"bias": not options.no_bias, "dtype": options.dtype, "seed": options.seed}
    _tiling().write_model(_tiling().linear_model(options.m, options.k, options.n, **sizes), options.out)
    print(f"wrote {options.out}")
    return True


def write_tiled(options: argparse.Namespace) -> bool:
    """Write the tiled twin of an ONNX file, and say what became of each linear operation."""
    if len(options.tile) not in {1, 3}:
        raise InputError(f"--tile takes one size or three (M K N), not {len(options.tile)}")
    sizes = (None, *options.tile * 2) if len(options.tile) == 1 else tuple(options.tile)
    tiling = _tiling()
    settings = {"tile": sizes, "edge": options.edge, "form": options.form, "layers": tuple(options.layers or ("*",))}
    source_format(options.source, tables(), Path.cwd())  # that there is such a file
    source = ModelSource("onnx", str(options.source), base=Path.cwd())
    with user_code(f"tiling {options.source}", TransformError):
        changes = tiling.write_tiled(source, settings, options.out)
    for change in changes:
        print_text(f"{scope_text(change.scope)}: {change.operation}: {change.became or change.why}")
    print(f"wrote {options.out}")
    return True


def _tiling() -> Any:
    """The module that writes them; MissingExtraError where it lacks onnx."""
    registry = tables()
    registry.transforms["tile_linear"].applied_to(registry.formats["onnx"])
    return import_module("pytest_modelbudget.transforms.tile.linear_on_onnx")


def add_build(command: argparse.ArgumentParser) -> None:
    """Which transform, and where it is written."""
    command.add_argument("transform", metavar="BUDGET::MODEL::TRANSFORM", help="a transform of a budget file")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help=".onnx, .pt2 or .safetensors")
    command.set_defaults(command=build)


def build(options: argparse.Namespace) -> bool:
    """Write the changed model once its claim holds, and its certificate."""
    registry, root = tables(), project_around(Path.cwd()).root
    model, change = subject_named(options.transform, registry, root)
    with importing_as_pytest(Path.cwd()), redirect_stdout(sys.stderr):
        certificate = transforming.build(model, change, registry, root=root, out=options.out)
    print_text(f"wrote {options.out} and {certificate}")
    return True


def changed(words: str, registry: Tables) -> tuple[ModelSource, Model]:
    """What BUDGET::MODEL names or BUDGET::MODEL::TRANSFORM makes, and the source that it is made of."""
    model, part = subject_named(words, registry, root := project_around(Path.cwd()).root)
    with searched_first(model.made.searched(root)), user_code(f"making {words}", TransformError):
        if part is None:
            return model.made, registry.formats[model.made.format].load(model.made, registry.ops)
        return model.made, transforming.apply_transform(model.made, part.made, registry).changed.model


def measured_change(words: str, registry: Tables) -> CostedModel:
    """The numbers of a model or a transform of a budget."""
    with redirect_stdout(sys.stderr):
        source, model = changed(words, registry)
        return costed(model, registry, source)


def add_search(command: argparse.ArgumentParser) -> None:
    """Which model, what to keep, and what to have the least of."""
    add = command.add_argument
    add("model", metavar="BUDGET::MODEL", help="a model, or ::TRANSFORM, a quantize of it whose other settings stay")
    add("--bits", default="8,4,3", help="widths of weights to choose from (default: 8,4,3)")
    add("--keep", metavar="BOUND", required=True, help="a bound of equivalence, such as 'sqnr 20 dB'")
    add("--least", metavar="METRIC", default="bytes", help="bytes, bops or another metric (default: bytes)")
    add("--out", metavar="FILE", type=Path, help="write the plan there, too")
    add_deployment(command)
    add_format(command)
    command.set_defaults(command=print_search)


def print_search(options: argparse.Namespace) -> bool:
    """Print layers by sensitivity, the front and the plan; incomplete where no plan keeps the bound."""
    from pytest_modelbudget.search import shown, trials  # which bring numpy in

    registry, root = tables(), project_around(Path.cwd()).root
    words = (options.model, options.bits, options.keep, options.least, deployment_of(options, registry))
    with importing_as_pytest(Path.cwd()), redirect_stdout(sys.stderr):
        found = trials.search(asked_search(*words, registry, root=root), registry, progress, root=root)
    plan = shown.plan_yaml(found) if found.best else ""
    if options.format == "json":
        print_json(shown.search_record(found))
    else:
        print_text(shown.search_text(found))
        print_lines([(shown.ending(found), "" if plan else RED), *[("", ""), (plan, "")] * bool(plan)])
    if options.out and plan:
        options.out.write_text(f"{plan}\n", encoding="utf-8")
    return bool(found.best)
