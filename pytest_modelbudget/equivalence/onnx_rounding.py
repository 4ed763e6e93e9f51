"""Which layer of an ONNX graph is the first to round more than it must."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
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

    there = {name for node in other.graph.node for name in node.output}
    scopes = {
        name: scope_of(node)
        for node in original.graph.node
        for name in node.output
        if name and name in there
    }

    @cache
    def runs() -> tuple[OnnxRun, OnnxRun, OnnxRun]:
        return (
            OnnxRun(exact, float64=True, watched=scopes),
            OnnxRun(original, watched=scopes),
            OnnxRun(other, watched=scopes),
        )

    def search(inputs: Feeds) -> Divergence | None:
        reference, first, second = runs()
        return first_rounding(
            _watched(reference(upcast(inputs)), scopes),
            _watched(first(inputs), scopes),
            _watched(second(inputs), scopes),
            dtype,
            partial_sums,
        )

    return search


def _watched(found: Feeds, scopes: Mapping[str, str]) -> Watched:
    """The tensors of a run by the layers that gave them."""
    return [
        (scope, each) for name, scope in scopes.items() for _, each in tensors_in(name, found[name])
    ]
