"""Transforms of torch modules: applying one, and what became of the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.table import transform_table

LOSSY = Claim(Kind.LOSSY, seeds=(0,))
EXACT = Claim(seeds=(0,))


def applied(key: str, target: object, shape: tuple[int, ...], dtype: str = "float32", **settings: Any) -> Applied:
    transform = transform_table()[key]
    given = {each.key: each.default for each in transform.settings} | settings
    specs = InputSpecs((TensorSpec(dtype, shape),))
    source = ModelSource("torch", target, specs, dtype=None if dtype == "float32" else dtype)
    return apply_transform(source, Transformation(key, given), tables())


def quantisation(**given: Any) -> dict[str, Any]:
    """Settings of ``quantize``, at their defaults where nothing is given."""
    return {each.key: each.default for each in transform_table()["quantize"].settings} | given


def sources(model: nn.Module, shape: tuple[int, ...], folder: Path) -> dict[str, ModelSource]:
    """One model in every format."""
    x, specs = torch.randn(shape), InputSpecs((TensorSpec("float32", shape),))
    torch.jit.trace(model, x).save(folder / "net.pt")  # type: ignore[no-untyped-call]
    torch.export.save(torch.export.export(model, (x,)), folder / "net.pt2")
    torch.onnx.export(model, (x,), folder / "net.onnx", dynamo=False, opset_version=17)
    return {
        "torch": ModelSource("torch", model, specs),
        "torchscript": ModelSource("torchscript", "net.pt", specs, base=folder),
        "exported": ModelSource("exported", "net.pt2", base=folder),
        "onnx": ModelSource("onnx", "net.onnx", base=folder),
    }


def quantised(source: ModelSource, **given: Any) -> Applied:
    return apply_transform(source, Transformation("quantize", quantisation(**given)), tables())


def tiled(source: ModelSource, tile: Any = (None, 64, 64), **settings: Any) -> Applied:
    """Its linear layers in ragged tiles."""
    given = {"tile": tile, "edge": "ragged", "layers": ("*",)} | settings
    return apply_transform(source, Transformation("tile_linear", given), tables())


def numbers(done: Applied) -> dict[str, Any]:
    costed = CostedGraph(done.changed.model.graph, builtin_ops())
    return {
        key: metric.measure(costed).value for key, metric in metric_table().items() if metric.stage is Stage.WRITTEN
    }


def table(done: Applied) -> dict[str, str]:
    """Layers changed of those seen, by type."""
    seen = Counter(change.operation for change in done.changed.changes)
    changed = Counter(change.operation for change in done.changed.changes if change.became)
    return {kind: f"{changed[kind]} of {count}" for kind, count in seen.items()}
