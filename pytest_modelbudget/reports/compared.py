"""Several models, or one in several sizes, in one table: a line each, with what a first budget limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.build import metric_report
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.show import unmeasured_lines
from pytest_modelbudget.reports.text import aligned, cut_middle, folded
from pytest_modelbudget.units import readable, room

LEAST_LABEL, OTHERS_WIDTH = 12, 30  # characters of a model's name, and of metrics and the change next to names
Numbers = Mapping[str, Measurement]


def compared_text(
    titles: Sequence[str], models: Mapping[str, Numbers], keys: Sequence[str], notes: Mapping[str, Sequence[str]],
    width: int,
) -> str:  # fmt: skip
    """A line for each model, below two what the second has more than the first, and what a reader must know.

    Of several titles each has a word of a label. Where that is too wide, models are the columns.
    """
    shown = _shown([*models], width) if len(titles) == 1 else [label.split() for label in models]
    rows = [(*titles, *keys)]
    for label, numbers in zip(shown, models.values(), strict=True):
        rows.append((*label, *(_figure(numbers.get(key)) for key in keys)))
    if len(models) == 2:
        first, second = models.values()
        rows.append(("change", *[""] * (len(titles) - 1), *(_growth(first.get(key), second.get(key)) for key in keys)))
    table = _table(rows)
    if max(map(len, table)) > width:
        table = _table([*zip(*rows, strict=True)])
    return "\n".join([*table, *(part for line in _remarks(models, notes) for part in folded(line, width))])


def _shown(labels: Sequence[str], width: int) -> list[tuple[str]]:
    """Labels without folders and modules where that tells them apart, each within its part of a line."""
    names = [re.split("[:/]", label)[-1] for label in labels]
    most = max(LEAST_LABEL, (width - OTHERS_WIDTH) // len(labels))
    return [(cut_middle(label, most),) for label in (names if len({*names}) == len(names) else labels)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [*aligned("  ".join(["{:<}", *["{:>}"] * (len(rows[0]) - 1)]), rows)]


def _figure(number: Measurement | None) -> str:
    is_known = number is None or number.complete or number.value
    return ("" if number is None else number.sign + readable(number.value, number.unit)) if is_known else "unmeasured"


def _growth(before: Measurement | None, after: Measurement | None) -> str:
    """By how much of the first the second is more; "" where either is a bound, or the first is 0."""
    if before is None or after is None or not (before.complete and after.complete and before.value):
        return ""
    return room(Fraction(after.value - before.value) / before.value, signed=True)


def _remarks(models: Mapping[str, Numbers], notes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Notes and unmeasured operations once, those of some models with their names."""
    labels: dict[str, list[str]] = {}
    for label, numbers in models.items():
        for line in dict.fromkeys([*notes[label], *unmeasured_lines(numbers)]):
            labels.setdefault(line, []).append(label)
    for line, some in labels.items():
        yield line if len(some) == len(models) else f"{', '.join(some)}: {line}"


def compared_record(models: Mapping[str, Numbers], notes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The same with every metric, as plain JSON values."""
    return [
        {"model": label, "metrics": {key: to_json(metric_report(number)) for key, number in numbers.items()},
         "notes": list(notes[label])}
        for label, numbers in models.items()
    ]  # fmt: skip
