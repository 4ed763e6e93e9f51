"""Values as text and JSON: which layers gave some, and their statistics in tables of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.text import aligned, cut_front, cut_middle
from pytest_modelbudget.units import several
from pytest_modelbudget.values.capture import Captured, LayerStatistics

NAME_WIDTH = 26
_figure, _share = "{:.4g}".format, "{:.2%}".format
INT8_KEYS = ("low", "high", "scale", "zero_point", "saturation")


def shapes_text(captured: Captured) -> str:
    """A line for each layer: its type, and the shape and element type of what one call gave."""
    names = _names([each.name for each in captured.layers])
    rows = [(name, each.type, "x".join(map(str, each.shape)) or "scalar", each.dtype)
            for name, each in zip(names, captured.layers, strict=True)]  # fmt: skip
    table = aligned("{:<}  {:<}  {:<}  {}", [("layer", "type", "shape", "dtype"), *rows])
    return "\n".join([*table, *captured.notes])


def statistics_text(captured: Captured, inputs: str) -> str:
    """Three tables, moments, quantiles and int8 ranges, and on what all of it was measured."""
    layers = captured.layers
    sigmas = layers[0].statistics.sigmas
    heads = [f"{float(share):.1%}" for share, _ in layers[0].statistics.quantiles]
    tables = (
        _table(("layer", "mean", "std", "min", "max", "zeros", "dead"), layers, _moments),
        _table(("quantiles", *heads), layers, lambda each: [_figure(q) for _, q in each.statistics.quantiles]),
        _table(("int8 scale, cut", "range", f"{sigmas:g} sigma", "cut", "0.1-99.9%", "cut"), layers, _int8_cells),
    )
    dtypes = ", ".join(dict.fromkeys(layer.dtype for layer in layers))
    ending = f"{several(len(layers), 'row')}, {dtypes}; measured on {inputs}"
    return "\n\n".join(["\n".join(table) for table in tables] + ["\n".join((ending, *captured.notes, *_odd(layers)))])


def _table(heads: Sequence[str], layers: Sequence[LayerStatistics], cells: Any) -> list[str]:
    names = _names([layer.name for layer in layers])
    rows = [(name, *cells(layer)) for name, layer in zip(names, layers, strict=True)]
    return aligned("{:<}" + "  {:>}" * (len(heads) - 1), [tuple(heads), *rows])


def _moments(layer: LayerStatistics) -> list[str]:
    each = layer.statistics
    dead = f"{len(each.dead)}/{each.channels}" if each.channels else "-"
    figures = map(_figure, (each.mean, each.deviation, each.min, each.max))
    return [*figures, _share(each.share_of_zeros), dead]


def _int8_cells(layer: LayerStatistics) -> list[str]:
    each = layer.statistics
    by_range, *others = each.by_range, each.by_sigma, each.by_quantile
    return [_figure(by_range.scale), *(cell for one in others for cell in (_figure(one.scale), _share(one.saturation)))]


def _odd(layers: Sequence[LayerStatistics]) -> Iterator[str]:
    for layer in layers:
        if layer.statistics.not_finite:
            yield f"{scope_text(layer.name)}: {several(layer.statistics.not_finite, 'value')} NaN or Inf, skipped"


def _names(names: Sequence[str]) -> list[str]:
    """Names cut to the width of their column, in the middle or else in front; whole where neither tells them apart."""
    whole = [scope_text(name) for name in names]
    for cut in (cut_middle, cut_front):
        short = [cut(name, NAME_WIDTH) for name in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return whole


def statistics_json(captured: Captured, inputs: str) -> dict[str, Any]:
    """Every figure, for programs."""
    layers = [
        {"name": layer.name, "scope": layer.scope, "type": layer.type, "dtype": layer.dtype,
         "shape": list(layer.shape), **_figures(layer)}
        for layer in captured.layers
    ]  # fmt: skip
    return {"measured_on": inputs, "calls": captured.calls, "notes": list(captured.notes), "layers": layers}


def _figures(layer: LayerStatistics) -> dict[str, Any]:
    each = layer.statistics
    plain = ("count", "not_finite", "mean", "variance", "deviation", "mean_abs", "min", "max", "zeros", "channels")
    ranges = {"range": each.by_range, "sigma": each.by_sigma, "quantile": each.by_quantile}
    return {
        **{name: getattr(each, name) for name in plain},
        "dead_channels": list(each.dead),
        "quantiles": {f"{float(share):g}": value for share, value in each.quantiles},
        "sigmas": each.sigmas,
        "int8": {name: {key: getattr(one, key) for key in INT8_KEYS} for name, one in ranges.items()},
    }
