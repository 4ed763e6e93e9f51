"""What ``quantize`` asks for, and the integers that it gives for a tensor, alike for every format.

w ≈ s·(q - z) with integers q of b bits. A scaled grid takes s from the values: symmetric z = 0 and
s = max|w| / (2ᵇ⁻¹ - 1); otherwise it spans [min(w, 0), max(w, 0)]: s = (max - min) / (2ᵇ - 1),
z = round(-2ᵇ⁻¹ - min/s). A fixed one has s = 2^-frac, z = 0 and all 2ᵇ integers: fixed point of width b with frac
fraction bits. A scale is stored in the weight's own type, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pytest_modelbudget.equivalence.changed import Floor
from pytest_modelbudget.equivalence.user_inputs import GivenInputs
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.transform import is_chosen

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values

KEEP, DRAWN = "keep", "drawn"


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers of some bits: fixed point where frac says how many are behind the point, else scaled to the values."""

    bits: int = 8
    symmetric: bool = True
    frac: int | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        high: int = 2 ** (self.bits - 1) - 1
        return (-high if self.symmetric and self.frac is None else -high - 1), high

    @property
    def text(self) -> str:
        """The integers in a few words: "int8", "int8 with 4 fraction bits"."""
        return f"int{self.bits}" + ("" if self.frac is None else f" with {self.frac} fraction bits")

    def scale_of(self, least: Any, most: Any, dtype: Any) -> tuple[Any, Any]:
        """Scales, in their type, and zero points for values between these ends."""
        low, high = self.ends
        if self.frac is not None:
            scale = np.full(np.shape(most), 2.0**-self.frac, dtype)
            return scale, np.zeros_like(scale, np.int64)
        least, most = np.minimum(least, 0.0), np.maximum(most, 0.0)
        wide = np.maximum(-least, most) / high if self.symmetric else (most - least) / (high - low)
        scale = _rounded_up(np.where(wide > 0, wide, 1.0), dtype)
        zero = np.zeros_like(wide) if self.symmetric else np.rint(low - least / scale.astype(np.float64))
        return scale, np.clip(zero, low, high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Layer:
    """The grids of one layer's weights, results and biases; None for what stays floating."""

    weights: Grid | None
    activations: Grid | None
    bias: Grid | None


@dataclass(frozen=True, slots=True)
class Scheme:
    """The grids of all layers. group is how many weights share a scale, 0: those of a channel, or of the tensor."""

    layer: Layer
    per_channel: bool = True
    group: int = 0
    calibrate: GivenInputs | str = DRAWN
    of_layers: tuple[tuple[str, Layer], ...] = ()

    def of(self, *scopes: str) -> Layer:
        """The grids of a layer with these module paths: those of the last glob that names one of them."""
        named = (layer for glob, layer in self.of_layers[::-1] if any(is_chosen(each, (glob,)) for each in scopes))
        return next(named, self.layer)

    @property
    def text(self) -> str:
        """How many weights have one scale."""
        if self.group:
            return f"a scale for {self.group} weights"
        return f"a scale per {'channel' if self.per_channel else 'tensor'}"


STAYS = Layer(None, None, None)
Given = Mapping[str, Any]


def scheme_of(settings: Given) -> Scheme:
    """The grids that a budget asks for; raises TransformError for those that cannot be."""
    granularity = settings["granularity"]
    group = 0 if isinstance(granularity, str) else cast("int", granularity["group"])
    activations = settings["activations"]
    given = isinstance(activations, Mapping) and activations.get("calibrate")
    layers = ((glob, STAYS if each == KEEP else _layer(each, settings)) for glob, each in settings["layers"].items())
    whole, of_layers = _layer(settings, {}), tuple(layers)
    if not whole.activations and any(layer.activations for _, layer in of_layers):
        raise TransformError("quantize: layers: activations of a layer are other than all: give 'activations' of all")
    return Scheme(whole, granularity == "channel", group, given or DRAWN, of_layers)


def _layer(own: Given, around: Given) -> Layer:
    """The grids of a layer; what it does not say, all layers do."""
    form = own.get("form") or around.get("form")
    weights, activations, bias = (
        _grid(word, own.get(word) or around.get(word), is_fixed=form == "fixed")
        for word in ("weights", "activations", "bias")
    )
    if form == "scaled" and bias and not activations:
        raise TransformError("quantize: bias: its scale is that of activations times weights: give 'activations' too")
    is_grouped = isinstance(around.get("granularity", own.get("granularity")), Mapping)
    if form == "scaled" and bias and is_grouped:
        raise TransformError("quantize: bias: groups of weights have several scales: leave 'bias' out")
    if form == "scaled" and activations and weights and not bias and not is_grouped:
        bias = Grid(32)
    return Layer(weights, activations, bias)


def _grid(word: str, given: Given | str | None, *, is_fixed: bool) -> Grid | None:
    if not given or isinstance(given, str):
        return None
    bits, frac, symmetric = given["bits"], given.get("frac"), given.get("symmetric")
    if is_fixed and frac is None:
        raise TransformError(f"quantize: {word}: form: fixed needs its fraction bits: write {{bits: {bits}, frac: 4}}")
    if not is_fixed and frac is not None:
        raise TransformError(f"quantize: {word}: frac of {frac} belongs to fixed point: add form: fixed")
    if frac is not None and frac > bits:
        raise TransformError(f"quantize: {word}: frac of {frac} is above the width of {bits} bits: write 0 to {bits}")
    return Grid(bits, bool(symmetric) if symmetric is not None else word != "activations", frac)


@dataclass(frozen=True, slots=True)
class OnGrid:
    """Integers q in the shape of a weight, and scales s and zero points z, an element for each group of them.

    Rows are channels, columns groups of the other weights in their order: s and z are (channels, groups).
    """

    integers: Values
    scale: Values
    zero: Values
    rows: Values  # s·(q - z), as (channels, weights of one)

    def values(self, axes: Sequence[int], dtype: Any) -> Values:
        """The weight that they stand for."""
        shape = self.integers.shape
        others = [axis for axis in range(len(shape)) if axis not in axes]
        moved = self.rows.reshape([shape[axis] for axis in (*axes, *others)])
        return cast("Values", moved.transpose(_inverse((*axes, *others))).astype(dtype))


BLOCK = 2**17  # weights that are rounded at a time, which a cache keeps


def on_grid(weight: Values, grid: Grid, axes: Sequence[int], group: int = 0, *, name: str = "") -> OnGrid:
    """The integers nearest to a weight, on one grid for each index along axes, or group of the weights behind it."""
    if not np.isfinite(weight).all():
        raise TransformError(f"quantize: {name} has NaN or Inf, which no integer stands for: keep its layer")
    order = (*axes, *(axis for axis in range(weight.ndim) if axis not in axes))
    moved = weight.transpose(order)
    channels = int(np.prod(moved.shape[: len(axes)], dtype=np.int64))
    rows = moved.reshape(channels, -1).astype(np.float64)
    starts = np.arange(0, rows.shape[1], group or max(rows.shape[1], 1))
    least, most = (each.reduceat(rows, starts, axis=1) for each in (np.minimum, np.maximum))
    scale, zero = grid.scale_of(least, most, weight.dtype)
    step, shift = (_spread(each, starts, rows.shape[1]) for each in (scale.astype(np.float64), zero))
    integers = np.empty(rows.shape, np.int8 if grid.bits <= 8 else np.int16 if grid.bits <= 16 else np.int32)
    height = max(BLOCK // max(rows.shape[1], 1), 1)
    for part in (slice(at, at + height) for at in range(0, channels, height)):
        integers[part] = found = rounded(rows[part], step[part], shift[part], grid)
        values = step[part] * (found - shift[part])
        _must_be_near(values, rows[part], step[part], grid, name)
        rows[part] = values
    return OnGrid(integers.reshape(moved.shape).transpose(_inverse(order)), scale, zero, rows)


def rounded(values: Values, step: Any, zero: Any, grid: Grid) -> Values:
    """The integers nearest to values, half to even; those beyond the ends are the ends."""
    return cast("Values", np.clip(np.rint(values / step) + zero, *grid.ends))


def _spread(of_groups: Values, starts: Values, size: int) -> Values:
    """One of each group, for every element of it."""
    return of_groups if len(starts) < 2 else np.repeat(of_groups, np.diff(starts, append=size), axis=1)


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _must_be_near(values: Values, rows: Values, step: Values, grid: Grid, name: str) -> None:
    """Hold what integers stand for to the weight: half a step, another half where the zero point was rounded too."""
    if grid.frac is not None or not rows.size:
        return  # whose ends are not those of the values
    off = float((abs(values - rows) / step).max())
    allowed = (0.5 if grid.symmetric else 1.0) * (1 + 1e-9)  # s·(q - z) itself is rounded
    if not off <= allowed:
        words = f"quantize: {name} is {off:.3g} steps off what it was, and rounding explains {allowed:.2g}"
        raise TransformError(f"{words}: keep its layer")


def _rounded_up(wide: Any, dtype: Any) -> Any:
    """Float64 scales in the type that stores them: no peak is off the grid, however small it is."""
    near = wide.astype(dtype)
    above = np.nextafter(near, np.dtype(dtype).type(np.inf))
    return np.where(near.astype(np.float64) < wide, above, near)


PER_BIT = 6.02  # dB: half the step is a quarter of the noise
MARGIN = 12.0  # dB: 20·log10(peak/σ) - 4.77 is 11 for weights whose peak is six deviations


def floor_of(bits: int, products: int) -> Floor:
    """6.02·bits - 12 - 10·log10(products): each adds noise of about the same power, by one weight or by several."""
    decibels = PER_BIT * bits - MARGIN - 10 * log10(max(products, 1))
    return Floor(decibels, f"{PER_BIT}·{bits} - {MARGIN:.0f} - 10·log10({products})")
