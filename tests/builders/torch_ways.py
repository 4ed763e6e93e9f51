"""One forward pass, recorded on tensors without memory, on fake ones and in a run."""

from __future__ import annotations

from typing import Any

from torch import nn

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.module import module_subject
from pytest_modelbudget.torch_models.tracing import traced

WAYS = ("meta", "fake", "real")


def recorded(model: nn.Module, *specs: TensorSpec, way: str) -> CostedGraph:
    """The graph of a module, recorded in one way; raises TraceError where that way cannot."""
    source = ModelSource("torch", model, InputSpecs(specs))
    loaded = traced(module_subject(model.eval(), source, None), source.inputs, builtin_ops(), ways=(way,))
    return CostedGraph(loaded.graph, builtin_ops())


def rows(model: nn.Module, *specs: TensorSpec, way: str) -> dict[str, Any]:
    """Every number of a module, recorded in one way."""
    costed = recorded(model, *specs, way=way)
    return {metric.key: metric.measure(costed).value for metric in METRICS if metric.stage is Stage.WRITTEN}
