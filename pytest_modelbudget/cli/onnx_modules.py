"""What the commands that write ONNX files share: their modules, imported late, and sizes."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from pytest_modelbudget.errors import MissingExtraError


def positive_size(text: str) -> int:
    """A size from the command line."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write 1, 2, 3 ...")
    return int(text)


def onnx_module(name: str, needed_for: str) -> Any:
    """A module that needs onnx; MissingExtraError where that is not installed."""
    try:
        return import_module(f"pytest_modelbudget.transforms.{name}")
    except ModuleNotFoundError as error:
        if error.name not in {"onnx", "onnxruntime", "onnx_ir"}:
            raise
        raise MissingExtraError(needed_for, package=str(error.name), extra="onnx") from error
