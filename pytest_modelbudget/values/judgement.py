"""Which figures of layers a budget may limit, and where each of them is worst.

A figure is a number of one layer. Of dead channels it is how many there are in all chosen layers; of any other, that
of the layer where it is largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.units import several, some_of

if TYPE_CHECKING:
    from pytest_modelbudget.units import Number
    from pytest_modelbudget.values.capture import LayerStatistics
    from pytest_modelbudget.values.statistics import Statistics

MOST_LAYERS = 3  # that one failure names
MOST_CHANNELS = 8  # of a layer that one failure names


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that may be limited: its unit, how it is told of a layer, and what more is said of one."""

    unit: str
    about: str
    of: Callable[[Statistics], Number]
    where: Callable[[Statistics], str]
    is_summed: bool = False


def _channel_of_max(one: Statistics) -> str:
    if not one.largest:
        return ""
    channel = max(range(one.channels), key=one.largest.__getitem__)
    return f"channel {channel}"


def _dead(one: Statistics) -> str:
    named = some_of(map(str, one.dead), MOST_CHANNELS)
    return f"channel{'s' * (len(one.dead) > 1)} {named} of {one.channels}, zero throughout"


def _ends(one: Statistics) -> str:
    return f"values from {one.min:.4g} to {one.max:.4g}"


DIGITS = 9  # which tell all float32 numbers apart


def nine_digits(value: float) -> Fraction:
    """A measured number as it is written and judged: the decimal of nine digits that is nearest."""
    return Fraction(f"{value:.{DIGITS}g}")


FIGURES: Mapping[str, Figure] = {
    "dead_channels": Figure(
        "channel", "channels that are zero throughout, of all layers", lambda one: len(one.dead), _dead, is_summed=True
    ),
    "zeros": Figure(
        "%",
        "the largest share of zeros of a layer",
        lambda one: Fraction(one.zeros, max(one.count, 1)),
        lambda one: f"{one.zeros:,} of {one.count:,} values",
    ),
    "max_abs": Figure(
        "", "the largest absolute value", lambda one: nine_digits(one.max_abs),
        lambda one: ", ".join(filter(None, (_channel_of_max(one), _ends(one)))),
    ),
    "int8_scale": Figure(
        "", "the largest int8 step that a layer's range asks for", lambda one: nine_digits(one.by_range.scale), _ends
    ),
    "saturation": Figure(
        "%",
        "the largest share of a layer's values beyond sigmas deviations",
        lambda one: Fraction(one.outside_sigma, max(one.count, 1)),
        lambda one: f"values beyond {one.by_sigma.low:.4g} to {one.by_sigma.high:.4g}",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerFigure:
    """A figure over all chosen layers, and the layers that it comes from, the worst first; why it is not known."""

    value: Number | None
    layers: tuple[tuple[str, Number, str], ...] = ()
    why_unknown: str = ""


def figure_over(key: str, layers: Sequence[LayerStatistics]) -> LayerFigure:
    """A figure over layers; it is not known where a value was NaN or Inf, or there was none of it."""
    figure = FIGURES[key]
    for layer in layers:
        if why := _why_unknown(key, layer):
            return LayerFigure(None, (), f"'{scope_text(layer.name)}' gives {why}")
    figures = [
        (scope_text(layer.name), figure.of(layer.statistics), figure.where(layer.statistics)) for layer in layers
    ]
    figures.sort(key=lambda each: -each[1])
    value = sum(each[1] for each in figures) if figure.is_summed else figures[0][1]
    return LayerFigure(value, tuple(each for each in figures if each[1])[:MOST_LAYERS])


def _why_unknown(key: str, layer: LayerStatistics) -> str:
    """A result of a layer with an unknown figure; "" of any other."""
    one = layer.statistics
    if one.not_finite:
        return f"{several(one.not_finite, 'value')} NaN or Inf"
    if not one.count:
        return "no values"
    if key == "dead_channels" and not one.channels:
        shape = "x".join(map(str, layer.shape)) or "a scalar"
        return f"{shape}, without that axis of channels: name another layer"
    return ""
