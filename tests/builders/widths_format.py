"""A model format for tests: a text file of widths, "4 8 2", is a stack of linear layers.

Needs no framework, so that a whole session takes a fraction of a second. A file that says
``raise`` cannot be loaded, one that says ``refuse`` takes no inputs, ``fail`` does not run, one that says ``exit``
ends its process. Every load is noted in the file ``loads`` beside the model.
"""

from __future__ import annotations

import os
from itertools import pairwise

from pytest_modelbudget.errors import InputError, SourceError, TraceError, user_code
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, TensorSpec
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense
from pytest_modelbudget.ops.table import OpTable

FLOAT32 = DType("float32", 32)


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The graph of the layers."""
    path = source.base / str(source.target)
    with (path.parent / "loads").open("a") as loads:
        loads.write(f"{path.name}\n")
    text = path.read_text().strip()
    with user_code(f"reading {path.name}", SourceError):
        if text == "raise":
            raise ValueError("first line\nsecond line")
    if text == "refuse":
        raise InputError("the model takes other inputs")
    if text == "fail":
        raise TraceError("the model does not run on its inputs")
    if text == "exit":
        os._exit(3)
    op = "test::mystery" if text.endswith("?") else "aten::linear"
    (spec,) = source.inputs.positional
    assert isinstance(spec, TensorSpec)
    return LoadedModel(_layers(op, spec.shape[0], [int(width) for width in text.rstrip(" ?").split()]), "widths")


def _layers(op: str, batch: int, widths: list[int]) -> Graph:
    x = _tensor("x", (batch, widths[0]), StorageKind.ACTIVATION)
    inputs, ops, weights = (x,), [], []
    for position, (before, after) in enumerate(pairwise(widths)):
        scope = f"layer{position}"
        weight = _tensor(f"{scope}.weight", (after, before), StorageKind.PARAMETER)
        out = _tensor(scope, (batch, after), StorageKind.ACTIVATION)
        ops.append(Op(op, (x, weight, None), (out,), scope=scope))
        weights.append(Weight(weight, trainable=True))
        x = out
    return Graph(tuple(ops), inputs, (x,), tuple(weights))


def _tensor(name: str, shape: tuple[int, ...], kind: StorageKind) -> Tensor:
    elements = 1
    for size in shape:
        elements *= size
    return dense(name, shape, FLOAT32, Storage(name, 4 * elements, kind))
