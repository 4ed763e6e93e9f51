"""Which layer of an ONNX graph is the first to round more than it must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from pytest_modelbudget.equivalence.divergence import Divergence, Watched
from pytest_modelbudget.equivalence.onnx_running import Feeds, OnnxRun, tensors_in, upcast
from pytest_modelbudget.equivalence.rounding import first_rounding
from pytest_modelbudget.frontends.onnx_scopes import scope_of

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search


def rounding_search(
    models: tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto], dtype: str, partial_sums: int
) -> Search:
    """A search among results that both models have under one name, by their layers.

    models are the original for float64 and as it is stored, and the other as it is stored.
    """
    exact, original, other = models

    def search(inputs: Feeds) -> Divergence | None:
        there = {name for node in other.graph.node for name in node.output}
        scopes = {
            name: scope_of(node)
            for node in original.graph.node
            for name in node.output
            if name and name in there
        }

        def watched(model: onnx.ModelProto, *, float64: bool = False) -> Watched:
            run = OnnxRun(model, float64=float64, watched=list(scopes))
            found = run(upcast(inputs) if float64 else inputs)
            return [
                (scopes[name], each) for name in scopes for _, each in tensors_in(name, found[name])
            ]

        reference = watched(exact, float64=True)
        return first_rounding(reference, watched(original), watched(other), dtype, partial_sums)

    return search
