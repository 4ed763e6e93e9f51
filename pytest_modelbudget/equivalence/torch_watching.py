"""What the layers of torch models return, and which of them is the first to round too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.divergence import Divergence, Layer
from pytest_modelbudget.equivalence.rounding import first_rounding
from pytest_modelbudget.equivalence.torch_sides import TorchSide, array, call_of
from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.frontends.torch_layers import Layers, layer_outputs
from pytest_modelbudget.frontends.torch_running import stored_dtype

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search
    from pytest_modelbudget.equivalence.divergence import Watched
    from pytest_modelbudget.equivalence.torch_sides import Arrays


def watched(side: TorchSide, inputs: Arrays, *, float64: bool = True) -> list[Layer]:
    """The output of every layer, in the order in which they end.

    Raises TransformError where the model cannot run so.
    """
    seen: Layers = []
    subject = side.model.exact if float64 else side.model.subject
    listening = layer_outputs(subject.model, seen)
    try:
        side.model.run(call_of(side.specs, inputs), float64=float64, listening=(listening,))
    except TraceError as error:
        raise TransformError(str(error)) from error
    return [Layer(each.path, array(each.value), each.reads_last) for each in seen]


def named(layers: Iterable[Layer]) -> Watched:
    """The outputs of layers by their names alone."""
    return [(layer.scope, layer.values) for layer in layers]


def rounding_search(
    first: TorchSide, second: TorchSide, partial_sums: Callable[[], int] = lambda: 1
) -> Search:
    """A search for the first layer that rounds more than step 2 allows."""
    dtype = stored_dtype(first.model.subject.model)

    def search(inputs: Arrays) -> Divergence | None:
        exact = named(watched(first, inputs))
        before, after = (named(watched(side, inputs, float64=False)) for side in (first, second))
        return first_rounding(exact, before, after, dtype, partial_sums())

    return search
