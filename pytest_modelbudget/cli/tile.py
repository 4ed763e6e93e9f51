"""``modelbudget tile``: an ONNX file's twin whose linear operations are products of tiles."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_modelbudget.cli.exit_codes import DONE
from pytest_modelbudget.cli.onnx_modules import onnx_module, positive_size
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.frontends.model_source import ModelSource


def add_tile(command: argparse.ArgumentParser) -> None:
    """The options of ``tile``."""
    add = command.add_argument
    add("source", metavar="SOURCE", type=Path, help="an .onnx file")
    add("--tile", type=positive_size, nargs="+", default=[64], metavar="SIZE", help="64, or M K N")
    add("--form", choices=("unrolled", "batched"), default="unrolled", help="default: unrolled")
    add("--edge", choices=("ragged", "pad"), default="ragged", help="default: ragged")
    add("--layers", action="append", metavar="GLOB", help="module paths (default: all)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    command.set_defaults(command=write_tiled)


def write_tiled(options: argparse.Namespace) -> int:
    """Write the tiled twin of an ONNX file, and say what became of each linear operation."""
    if len(options.tile) not in {1, 3}:
        raise InputError(f"--tile takes one size or three (M K N), not {len(options.tile)}")
    size = options.tile
    sizes = (None, *size * 2) if len(size) == 1 else tuple(size)
    tiling = onnx_module("tile_linear_onnx", "modelbudget tile")
    layers = tuple(options.layers or ("*",))
    settings = {"tile": sizes, "edge": options.edge, "form": options.form, "layers": layers}
    source = ModelSource("onnx", str(options.source), base=Path.cwd())
    for change in tiling.write_tiled(source, settings, options.out):
        print(f"{change.scope or '(model)'}: {change.operation}: {change.became or change.why}")
    print(f"wrote {options.out}")
    return DONE
