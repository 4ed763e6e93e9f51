"""What the page shows of a model's transforms: each metric before and after, and what diverges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pytest_modelbudget.reports.html_rows import MARK, exact_number, number
from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.units import room

ERRORS = ("algebra", "precision", "max_abs", "mse", "sqnr", "cosine", "top1")
BOUND = "1e-10"  # of the relative error in float64: what exact algebra may differ by


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before and after; fill is the length of after where before fills MARK per cent."""

    metric: str
    before: str
    after: str
    exact: str
    change: str
    fill: str
    direction: str  # "up", "down" or "same"


@dataclass(frozen=True, slots=True)
class TransformView:
    """One transform of a model. columns and outputs are the table of its equivalence check."""

    name: str
    error: str
    changes: tuple[Change, ...]
    checks: tuple[Record, ...]
    outcome: str
    summary: str
    reason: str
    columns: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]
    first_divergence: tuple[tuple[str, str], ...]
    divergence: tuple[tuple[str, str], ...]


def transform_views(model: Record) -> Iterator[TransformView]:
    """Every transform of a model, in the order of its budget."""
    for transform in model.get("transforms", ()):
        equivalence = transform.get("equivalence") or {}
        outputs = equivalence.get("outputs", ())
        columns = tuple(key for key in ERRORS if any(key in output for output in outputs))
        told = (str(equivalence.get("kind", "")), str(equivalence.get("weights", "")))
        yield TransformView(
            name=str(transform["name"]),
            error=str(transform.get("error", "")),
            changes=tuple(_changes(model["metrics"], transform.get("metrics", {}))),
            checks=tuple(transform.get("checks", ())),
            outcome=str(equivalence.get("outcome", "")),
            summary=", ".join(filter(None, (told[0], told[1] and f"weights {told[1]}"))),
            reason=str(equivalence.get("reason", "")),
            columns=columns,
            outputs=tuple(_output(output, columns) for output in outputs),
            first_divergence=tuple(_divergence(equivalence.get("first_divergence"))),
            divergence=tuple(
                (f"{output.get('name', '')}, {output.get('family', '')}", str(output["algebra"]))
                for output in outputs
                if output.get("algebra") is not None
            ),
        )


def _changes(before: Record, after: Record) -> Iterator[Change]:
    """Metrics that both sides have a value of."""
    for key, new in after.items():
        old = before.get(key, {})
        if old.get("value") is None or new.get("value") is None:
            continue
        first, second, unit = Fraction(old["value"]), Fraction(new["value"]), new["unit"]
        part = (second - first) / first if first else None
        same = first == second
        yield Change(
            metric=key,
            before=number(old["value"], unit),
            after=number(new["value"], unit),
            exact=f"{exact_number(old['value'], unit)} → {exact_number(new['value'], unit)}",
            change="same" if same else room(part, signed=True) if part is not None else "new",
            fill=f"{float(min(second / first * MARK, Fraction(100))):.1f}" if first else "",
            direction="same" if same else "up" if second > first else "down",
        )


def _output(output: Record, columns: tuple[str, ...]) -> tuple[str, ...]:
    figures = (output.get(column) for column in columns)
    cells = ("–" if figure is None else str(figure) for figure in figures)
    return (str(output.get("name", "")), str(output.get("family", "")), *cells)


def _divergence(found: Any) -> Iterator[tuple[str, str]]:
    """Where outputs first differ, as names and values, however much is told of it."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield str(key).replace("_", " "), str(value)
    elif found:
        yield "layer", str(found)
