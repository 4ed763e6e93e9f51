"""Torch models written as files: TorchScript, exported programs, ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.builders.one_registry import share_registry

SHAPE = (1, 3, 224, 224)


def scripted(model: nn.Module, folder: Path) -> Path:
    """A TorchScript file from the source of the forward pass."""
    path = folder / "scripted.pt"
    torch.jit.script(model).save(str(path))
    return path


def recorded(model: nn.Module, folder: Path) -> Path:
    """A TorchScript file from one run."""
    path = folder / "traced.pt"
    torch.jit.trace(model, (torch.zeros(SHAPE),), check_trace=False).save(str(path))
    return path


def exported(model: nn.Module, folder: Path) -> Path:
    """An exported program."""
    path = folder / "exported.pt2"
    torch.export.save(torch.export.export(model, (torch.zeros(SHAPE),)), path)
    return path


def export(model: nn.Module, example: torch.Tensor, path: Path, **options: Any) -> None:
    """Export without a word: the exporters print, log and warn."""
    logging.disable(logging.CRITICAL)
    share_registry()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (example,), str(path), **options)
    finally:
        logging.disable(logging.NOTSET)
