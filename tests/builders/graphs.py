"""Hand-made graphs for tests: tensors and ops in one line each."""

from __future__ import annotations

from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.ops.table import builtin_ops

FLOAT = DType("float32", 32)


def tensor(name: str, *shape: int, kind: StorageKind = StorageKind.ACTIVATION, dtype: DType = FLOAT) -> Tensor:
    """A dense tensor on memory of its own."""
    elements = 1
    for size in shape:
        elements *= size
    return dense(name, shape, dtype, Storage(name, nbytes_of(elements, dtype), kind))


def parameter(name: str, *shape: int, dtype: DType = FLOAT) -> Tensor:
    """A dense parameter."""
    return tensor(name, *shape, kind=StorageKind.PARAMETER, dtype=dtype)


def view(of: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Tensor:
    """Another tensor on the same memory."""
    return Tensor(f"{of.name}.view", shape, of.dtype, of.storage, offset, strides)


def costed(
    *ops: Op, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], weights: tuple[Weight, ...] = ()
) -> CostedGraph:
    """A graph under the project's own rules."""
    return CostedGraph(Graph(ops, inputs, outputs, weights), builtin_ops())
