"""Rewritten layers that step 1 finds wrong where they stand.

An activation behind a layer may hide from all outputs what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.array_errors import ALGEBRA
from pytest_modelbudget.equivalence.judgement import (
    ALL_FAMILIES,
    OutputPair,
    algebra_error,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


class WrongLayers:
    """Compares layers while two models run in float64; of each one keeps what first differs."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._found: dict[str, OutputPair] = {}
        self._shapes: dict[str, str] = {}

    def compare(self, scope: str, original: Values, transformed: Values) -> None:
        """Look at what a layer gave in both models, on one call."""
        if original.shape != transformed.shape:
            was, now = list(original.shape), list(transformed.shape)
            self._shapes.setdefault(scope, f"layer '{scope}' gives {now} and gave {was}")
            return
        pair = OutputPair(scope, ALL_FAMILIES, self._dtype, original, transformed, None, None)
        if scope not in self._found and algebra_error(pair) > ALGEBRA:
            self._found[scope] = pair

    def pairs(self) -> tuple[OutputPair, ...]:
        """Layers whose values differ, in the order of execution."""
        return tuple(self._found.values())

    def shapes(self) -> Iterator[str]:
        """Layers whose shapes differ, in one line each."""
        yield from self._shapes.values()
