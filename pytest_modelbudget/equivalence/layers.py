"""Layers of two models side by side: the first that differs, or rounds more than it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.divergence import Divergence, Worst, worst_element
from pytest_modelbudget.equivalence.figures import ALGEBRA, relative_error, rms, rmse
from pytest_modelbudget.equivalence.judgement import ALL_FAMILIES, ROUNDING, OutputPair, algebra_error, precision_limit
from pytest_modelbudget.formats.model import LayerOutput

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values

Search = Callable[["Arrays"], "Divergence | None"]  # on one set of inputs


def first_divergence(original: Sequence[LayerOutput], changed: Sequence[LayerOutput]) -> Divergence | None:
    """The first layer of the original whose float64 output no layer of the changed model has.

    Layers are matched by name, else by value, so that names may have changed. A layer whose readers
    all have what they had was only laid out otherwise (a convolution into which a batch norm was
    folded) and is no divergence, unless it is an output.
    """
    gaps = _Gaps(changed)
    errors = [gaps.of(layer) for layer in original]
    for layer, (error, worst) in zip(original, errors, strict=True):
        is_lost = layer.readers and all(errors[at][0] <= ALGEBRA for at in layer.readers)
        if not error <= ALGEBRA and (layer.is_output or not is_lost):
            return Divergence(layer.scope, error, worst)
    return None


class _Gaps:
    """How far a changed model is from layers of its original, wherever it comes closest."""

    def __init__(self, changed: Sequence[LayerOutput]) -> None:
        self._changed = changed
        self._named = {layer.name: layer for layer in changed}

    def of(self, layer: LayerOutput) -> tuple[float, Worst | None]:
        """The error of one layer, and where it is largest; inf where shapes differ, and for NaN."""
        partner = self._named.get(layer.name)
        error = float("inf") if partner is None else relative_error(layer.values, partner.values)
        if error <= ALGEBRA:
            return error, None
        others = (other for other in self._changed if other is not partner)
        if any(relative_error(layer.values, other.values) <= ALGEBRA for other in others):
            return 0.0, None
        if partner is None or partner.values.shape != layer.values.shape:
            return float("inf"), None
        return error, worst_element(layer.values, partner.values)


def first_rounding(
    reference: Iterable[LayerOutput],
    original: Iterable[LayerOutput],
    changed: Iterable[LayerOutput],
    dtype: str,
    partial_sums: int,
) -> Divergence | None:
    """The first layer of both models whose error is above what step 2 allows outputs.

    reference and original are the first model's layers in float64 and in dtype, changed those of
    the second in dtype. Layers are matched by name, and by how often it has come before.
    """
    if dtype not in ROUNDING:
        return None
    exact, stored = _by_call(reference), _by_call(changed)
    for call, own in _by_call(original).items():
        if call not in exact or call not in stored:
            continue
        right, other = exact[call].values, stored[call].values
        if right.dtype.kind != "f" or not right.shape == own.values.shape == other.shape:
            continue
        allowed = precision_limit(rms(right), rmse(right, own.values), dtype, partial_sums)
        if rmse(right, other) > allowed:
            worst = worst_element(right, other)
            return Divergence(own.scope, relative_error(right, other), worst)
    return None


def _by_call(layers: Iterable[LayerOutput]) -> Mapping[tuple[str, int], LayerOutput]:
    calls: Counter[str] = Counter()
    numbered = {}
    for layer in layers:
        numbered[layer.name, calls[layer.name]] = layer
        calls[layer.name] += 1
    return numbered


class WrongLayers:
    """Compares layers while two models run in float64; of each one keeps what first differs."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._pairs: dict[str, OutputPair] = {}
        self._shapes: dict[str, str] = {}

    def compare(self, scope: str, original: Values, changed: Values) -> None:
        """Look at what a layer gave in both models, on one call."""
        if original.shape != changed.shape:
            was, now = list(original.shape), list(changed.shape)
            self._shapes.setdefault(scope, f"layer '{scope}' gives {now} and gave {was}")
            return
        pair = OutputPair(scope, ALL_FAMILIES, self._dtype, original, changed, None, None)
        if scope not in self._pairs and algebra_error(pair) > ALGEBRA:
            self._pairs[scope] = pair

    def pairs(self) -> tuple[OutputPair, ...]:
        """Layers whose values differ, in the order of execution."""
        return tuple(self._pairs.values())

    def shapes(self) -> Iterator[str]:
        """Layers whose shapes differ, in one line each."""
        yield from self._shapes.values()


def divergence_of(pair: OutputPair) -> Divergence:
    """A layer that step 1 finds wrong, as the place where two models part."""
    assert pair.algebra is not None, "a layer is judged by its float64 runs"
    worst = worst_element(pair.reference, pair.algebra)
    return Divergence(pair.name, algebra_error(pair), worst)
