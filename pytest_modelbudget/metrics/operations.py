"""The operations of a model as a comparison of two graphs needs them: where, of what kind, on what shapes and types.

A convolution drawn once::

    Operation("layer1.0.conv1", "convolution", ("float32 1x64x56x56",), ("float32 64x64x3x3",))
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.metrics.costs import CostedGraph

STORED = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.CONSTANT})


@dataclass(frozen=True, slots=True)
class Operation:
    """Operations of one kind in one scope whose results, and the weights that they read, are alike.

    Both are spelled as budgets spell inputs: "float32 1x64x56x56"; a scalar is "float32 ()".
    """

    scope: str
    kind: str
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    count: int = 1


def operations(costed: CostedGraph) -> tuple[Operation, ...]:
    """All executed operations but views and computations of shapes, which cost nothing, in their order."""
    counts: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for cost in costed.costs:
        op = cost.op
        if not (op.is_view or op.is_shape_computation):
            counts[op.scope, cost.kind, tuple([_spec(output) for output in op.outputs]), _weights(op)] += op.times
    return tuple(Operation(*key, count) for key, count in counts.items())


def _weights(op: Op) -> tuple[str, ...]:
    return tuple([_spec(tensor) for tensor in op.tensors() if tensor.shape and tensor.storage.kind in STORED])


def _spec(tensor: Tensor) -> str:
    return _spelled(tensor.dtype.name, tensor.shown_shape)


@lru_cache(maxsize=4096)  # shapes repeat from layer to layer
def _spelled(dtype: str, shape: tuple[int | str, ...]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or '()'}"
