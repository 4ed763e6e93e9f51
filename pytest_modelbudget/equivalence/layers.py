"""Layers of two models side by side: how far each is off, and which one is wrong.

A layer of the original is there in the changed model if anything in that has its values, under
whatever name. One that is not there may have been fused into a layer behind it, and is right where
all that read it are. So the layer that is wrong is the first one that is off and that nothing heals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, NamedTuple

from pytest_modelbudget.equivalence.figures import (
    ALGEBRA,
    Divergence,
    LayerError,
    decibels,
    reals,
    relative_error,
    rms,
    rmse,
    worst_element,
)
from pytest_modelbudget.equivalence.judgement import ALL_FAMILIES, ROUNDING, OutputPair, algebra_error, precision_limit
from pytest_modelbudget.formats.model import LayerOutput

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values


class LayersApart(NamedTuple):
    """Layers of two models side by side: the one that is wrong, None where none is, and the error of each."""

    wrong: Divergence | None = None
    errors: tuple[LayerError, ...] = ()


def compared_layers(
    original: Sequence[LayerOutput], changed: Sequence[LayerOutput], allowed: float = ALGEBRA
) -> tuple[LayerError, ...]:
    """How far a changed model is from each layer of its original."""
    gaps = _Gaps(changed)
    return tuple(gaps.of(layer, allowed) for layer in _by_call(original))


def first_divergence(
    original: Sequence[LayerOutput], changed: Sequence[LayerOutput], allowed: float = ALGEBRA
) -> LayersApart:
    """The first layer that is off and not healed by what reads it, and the error of each."""
    errors = compared_layers(original, changed, allowed)
    wrong = _first_wrong(original, errors, [error.of_its_size <= allowed for error in errors])
    return LayersApart(wrong, errors)


def is_beyond_rounding(apart: LayersApart, rounded: float) -> bool:
    """Whether a layer is off by far more than those that rounding excuses.

    Else what looks like rounding may be where the error begins, which grows from layer to layer.
    """
    excused = max((error.of_its_size for error in apart.errors if error.of_its_size <= rounded), default=0.0)
    return apart.wrong is not None and apart.wrong.error >= FAR * excused


FAR = 100  # times the error that rounding weights anew has made so far


def largest_loss(original: Sequence[LayerOutput], changed: Sequence[LayerOutput]) -> LayersApart:
    """The layer that adds most to the error, where every layer may lose something.

    What a layer adds is what is left of its error without that of its inputs. It is named with
    reservation where another one that does not come of it adds a quarter as much.
    """
    errors = compared_layers(original, changed)
    inputs = _inputs(original)
    there = {at for at, error in enumerate(errors) if isfinite(error.of_its_size)}
    added: dict[int, float] = {}
    for at in sorted(there):
        before = max((errors[each].of_its_size for each in _nearest(inputs, at, there)), default=0.0)
        added[at] = sqrt(max(0.0, errors[at].of_its_size ** 2 - before**2))
    if not added or not any(added.values()):
        return LayersApart(errors=errors)
    top = max(added, key=lambda at: (added[at], -at))
    behind = _behind(original, top)
    apart = max((size for at, size in added.items() if at != top and at not in behind), default=0.0)
    caused = max((added[at] for at in behind if at in added), default=0.0)
    is_alone = STANDS_OUT * apart <= added[top] and 2 * caused <= added[top]
    return LayersApart(replace(_divergence(errors[top]), reservation="" if is_alone else SEVERAL), errors)


STANDS_OUT = 4  # times as much as any layer beside it
SEVERAL = "no layer differs clearly, this one adds most"


def _first_wrong(
    layers: Sequence[LayerOutput], errors: Sequence[LayerError], right: Sequence[bool]
) -> Divergence | None:
    """The first layer that is neither right nor healed."""
    at = next((at for at, is_healed in enumerate(_healed(layers, errors, right)) if not is_healed), None)
    if at is None:
        return None
    reservation = _until(layers, errors, at) if errors[at].is_missing else ""
    return replace(_divergence(errors[at]), reservation=reservation)


def _until(layers: Sequence[LayerOutput], errors: Sequence[LayerError], at: int) -> str:
    """Up to where the error may lie that a layer is named for which the other model has not, as of code in numpy."""
    seen = next((errors[each].scope for each in sorted(_behind(layers, at)) if not errors[each].is_missing), "")
    end = f"'{seen}'" if seen else "the output"
    return f"{UNSEEN}: any layer from it to {end} may be the wrong one"


UNSEEN = "the other model shows no values of it"  # which other inputs would not change


def _divergence(error: LayerError) -> Divergence:
    return Divergence(error.scope, error.of_its_size, error.worst)


def _healed(layers: Sequence[LayerOutput], errors: Sequence[LayerError], right: Sequence[bool]) -> list[bool]:
    """Whether each layer is right, or made no difference to any that reads it.

    Neither does a value that no input moves and that the other model has not, such as a weight that a node
    hands on, nor a layer that leads nowhere, where it is known what leads to the outputs.
    """
    ends_known = any(layer.is_output for layer in layers)
    healed = list(right)
    for at in range(len(layers) - 1, -1, -1):
        layer = layers[at]
        is_stored = layer.is_constant and errors[at].is_missing
        readers = [each for each in layer.readers if each > at]
        leads_nowhere = ends_known and not readers
        is_lost = (bool(readers) or leads_nowhere) and all(healed[each] for each in readers)
        healed[at] = healed[at] or is_stored or (is_lost and not layer.is_output)
    return healed


def _inputs(layers: Sequence[LayerOutput]) -> Mapping[int, list[int]]:
    """Positions of the layers that each one reads."""
    inputs: dict[int, list[int]] = defaultdict(list)
    for at, layer in enumerate(layers):
        for reader in layer.readers:
            inputs[reader].append(at)
    return inputs


def _nearest(inputs: Mapping[int, list[int]], at: int, there: set[int]) -> set[int]:
    """The layers before one that the other model has, too."""
    found, waiting, seen = set[int](), list(inputs.get(at, ())), set[int]()
    while waiting:
        each = waiting.pop()
        if each in there:
            found.add(each)
        elif each not in seen:
            seen.add(each)
            waiting += inputs.get(each, ())
    return found


def _behind(layers: Sequence[LayerOutput], top: int) -> set[int]:
    """Everything that comes of a layer."""
    behind, waiting = set[int](), [top]
    while waiting:
        new = set(layers[waiting.pop()].readers) - behind
        behind |= new
        waiting += new
    return behind


class _Gaps:
    """How far a changed model is from layers of its original, wherever it comes closest.

    Values of one size are compared whatever their shapes; two marks of each keep most of them from
    that. One without a name, of an operator within a layer, stands for no layer that is there by name.
    """

    def __init__(self, changed: Sequence[LayerOutput]) -> None:
        layers = _by_call(changed)
        self._named = {layer.name: layer for layer in layers if layer.name}
        self._sized: dict[int, list[tuple[float, float, LayerOutput]]] = defaultdict(list)
        for layer in layers:
            self._sized[layer.values.size].append((*_marks(layer.values), layer))

    def of(self, layer: LayerOutput, allowed: float) -> LayerError:
        """The error of one layer: of what has its values, else of what has its name."""
        error = self.by_name(layer)
        if error.of_its_size <= allowed:
            return error
        for values in self._alike(layer.values, allowed, may_be_nameless=error.is_missing):
            elsewhere = layer_error(layer.scope, layer.values, values.reshape(layer.values.shape))
            if elsewhere.of_its_size <= allowed:
                return elsewhere
        return error

    def by_name(self, layer: LayerOutput) -> LayerError:
        """The error of what has its name and shape."""
        partner = self._named.get(layer.name)
        if partner is None or partner.values.shape != layer.values.shape:
            return LayerError(layer.scope, inf, None, None, None)
        return layer_error(layer.scope, layer.values, partner.values)

    def _alike(self, values: Values, allowed: float, *, may_be_nameless: bool) -> Iterator[Values]:
        """Values of the same size whose marks are no further off than equal ones may be."""
        size, mixture = _marks(values)
        far = 8 * allowed * size  # eight deviations of a mixture of errors that large
        for other, mixed, candidate in self._sized[values.size]:
            if abs(other - size) <= far and abs(mixed - mixture) <= far and (candidate.name or may_be_nameless):
                yield candidate.values


def _marks(values: Values) -> tuple[float, float]:
    """The length of values as a vector, and one random mixture of them."""
    import numpy as np

    flat = reals(values).ravel()
    weights = np.random.Generator(np.random.Philox(0)).standard_normal(flat.size)
    return float(np.linalg.norm(flat)), float(flat @ weights)


def layer_error(scope: str, original: Values, changed: Values) -> LayerError:
    """How far the values of one layer are off, of one shape in both models."""
    import numpy as np

    was, now = reals(original), reals(changed)
    of_its_size = relative_error(original, changed)
    gap = np.abs(now - was)
    return LayerError(
        scope,
        of_its_size if of_its_size == of_its_size else inf,
        decibels(float(np.mean(was * was)), float(np.mean(gap * gap))) if was.size else inf,
        float(gap.max()) if gap.size else 0.0,
        worst_element(original, changed) if of_its_size else None,
    )


def first_rounding(
    reference: Iterable[LayerOutput],
    original: Iterable[LayerOutput],
    changed: Sequence[LayerOutput],
    dtype: str,
    partial_sums: int,
) -> Divergence | None:
    """The first layer of both models whose error is above what step 2 allows outputs.

    reference and original are the first model's layers in float64 and in dtype, changed those of
    the second in dtype. Layers are matched by name, and by how often it has come before.
    """
    if dtype not in ROUNDING:
        return None
    exact, own, gaps = _by_call(reference), {each.name: each for each in _by_call(original)}, _Gaps(changed)
    errors = [gaps.by_name(layer) for layer in exact]

    def is_right(layer: LayerOutput, error: LayerError) -> bool:
        mine, right = own.get(layer.name), layer.values
        if error.is_missing or mine is None or right.dtype.kind != "f" or mine.values.shape != right.shape:
            return True  # what cannot be matched says nothing
        size = rms(right)
        allowed = precision_limit(size, rmse(right, mine.values), dtype, partial_sums)
        return error.of_its_size * size <= allowed if size else not error.max_abs

    return _first_wrong(exact, errors, [is_right(*each) for each in zip(exact, errors, strict=True)])


def _by_call(layers: Iterable[LayerOutput]) -> list[LayerOutput]:
    """The same layers, with the number of the call in the name of one that runs again."""
    calls: Counter[str] = Counter()
    numbered = []
    for layer in layers:
        calls[layer.name] += 1
        again = calls[layer.name] if layer.name else 1
        numbered.append(layer if again == 1 else replace(layer, name=f"{layer.name} #{again}"))
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
