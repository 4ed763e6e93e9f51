"""``modelbudget linear``: one linear layer as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_modelbudget.cli.exit_codes import DONE
from pytest_modelbudget.cli.onnx_modules import onnx_module, positive_size


def add_linear(command: argparse.ArgumentParser) -> None:
    """The options of ``linear``."""
    add = command.add_argument
    for size, what in (("m", "rows of x"), ("k", "inputs"), ("n", "outputs")):
        add(f"--{size}", type=positive_size, required=True, metavar=size.upper(), help=what)
    add("--dtype", choices=("float32", "float16"), default="float32", help="default: float32")
    add("--no-bias", action="store_true", help="leave the bias out")
    add("--seed", type=int, default=0, help="of the weights (default: 0)")
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    command.set_defaults(command=write_linear)


def write_linear(options: argparse.Namespace) -> int:
    """Write x (m, k) · W + b as an ONNX file."""
    writing = onnx_module("onnx_writing", "modelbudget linear")
    sizes = {"bias": not options.no_bias, "dtype": options.dtype, "seed": options.seed}
    model = writing.linear_model(options.m, options.k, options.n, **sizes)
    writing.write_model(model, options.out)
    print(f"wrote {options.out}")
    return DONE
