"""A model's metrics as text: every exact figure, its rounded reading, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.units import exact, readable


def totals_text(measurements: Mapping[str, Measurement], width: int) -> str:
    """One line a metric, in the order of the metric table; then what could not be measured.

    What a number is the sum of continues on lines of its own where ``width`` asks for it.
    """
    cells = [
        (
            key,
            ("" if measurement.complete else ">= ") + _figure(measurement),
            readable(measurement.value, measurement.unit),
            _parts(measurement),
        )
        for key, measurement in measurements.items()
    ]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    lines = [
        line
        for key, figure, short, parts in cells
        for line in _wrapped(
            f"{key:<{widths[0]}}  {figure:>{widths[1]}}  {short:<{widths[2]}}  ", parts, width
        )
    ]
    return "\n".join([*lines, *_left_out(measurements)])


def _wrapped(start: str, parts: str, width: int) -> list[str]:
    """One line, or a line and its parts below it where they do not fit."""
    whole = (start + parts).rstrip()
    if len(whole) <= width or not parts:
        return [whole]
    return [start.rstrip(), *wrap(parts, width, initial_indent="    ", subsequent_indent="    ")]


def _figure(measurement: Measurement) -> str:
    """The exact count, or the exact pair that a ratio was made from."""
    if measurement.unreduced:
        above, below = measurement.unreduced
        return f"{above:,} / {below:,}"
    return exact(measurement.value, measurement.unit)


def _parts(measurement: Measurement) -> str:
    """What the number is the sum of: bandwidth by read, weights and write; ops by kind."""
    if measurement.convention:
        return measurement.convention
    return ", ".join(f"{name} {value:,}" for name, value in measurement.parts.items())


def _left_out(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """A line for each unmeasured operation, and the metrics that are lower bounds for it."""
    lacking: dict[tuple[str, int, str, str], list[str]] = {}
    for key, measurement in measurements.items():
        for op in measurement.unmeasured:
            lacking.setdefault((op.op, op.count, op.scope, op.why), []).append(key)
    for (name, count, scope, why), keys in lacking.items():
        place = f" in {scope}" if scope else ""
        yield f"unmeasured: {count} x {name}{place} ({', '.join(keys)}): {why}"
