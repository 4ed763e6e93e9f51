"""One torch module as a file of every format, for inputs of one shape."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.builders.one_registry import share_registry

SHAPE = (2, 3, 8, 8)
IMAGE = "float32 2x3x8x8"


def scripted(model: nn.Module, folder: Path) -> Path:
    """A TorchScript file, recorded from one run."""
    torch.jit.trace(model, (torch.zeros(SHAPE),), check_trace=False).save(str(folder / "net.pt"))
    return folder / "net.pt"


def exported(model: nn.Module, folder: Path) -> Path:
    """An exported program."""
    torch.export.save(torch.export.export(model, (torch.zeros(SHAPE),)), folder / "net.pt2")
    return folder / "net.pt2"


def onnx_file(model: nn.Module, folder: Path) -> Path:
    """An ONNX file of torch's exporter."""
    share_registry()
    torch.onnx.export(model, (torch.zeros(SHAPE),), folder / "net.onnx", dynamo=True, verbose=False)
    return folder / "net.onnx"
