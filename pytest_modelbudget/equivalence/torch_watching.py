"""What the layers of torch models return, and which of them is the first to round too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.divergence import Divergence
from pytest_modelbudget.equivalence.rounding import first_rounding
from pytest_modelbudget.equivalence.torch_sides import TorchSide, array, call_of
from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.frontends.torch_layers import Layers, layer_outputs
from pytest_modelbudget.frontends.torch_running import stored_dtype

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search
    from pytest_modelbudget.equivalence.divergence import Watched
    from pytest_modelbudget.equivalence.torch_sides import Arrays


def watched(side: TorchSide, inputs: Arrays, *, float64: bool = True) -> Watched:
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
    return [(path, array(value)) for path, value in seen]


def rounding_search(
    first: TorchSide, second: TorchSide, partial_sums: Callable[[], int] = lambda: 1
) -> Search:
    """A search for the first layer that rounds more than step 2 allows."""
    dtype = stored_dtype(first.model.subject.model)

    def search(inputs: Arrays) -> Divergence | None:
        exact = watched(first, inputs)
        before, after = (watched(side, inputs, float64=False) for side in (first, second))
        return first_rounding(exact, before, after, dtype, partial_sums())

    return search
