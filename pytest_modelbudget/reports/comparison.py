"""What changed between two reports: models, numbers and layers, the largest changes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.units import Number


@dataclass(frozen=True, slots=True)
class LayerChange:
    """What one layer contributes before and after; 0 where it is not there."""

    scope: str
    before: Number
    after: Number

    @property
    def delta(self) -> Fraction:
        return Fraction(self.after) - Fraction(self.before)


@dataclass(frozen=True, slots=True)
class NumberChange:
    """One metric before and after; None where nobody knows it.

    complete is False where either is a lower bound, so that the difference is none.
    """

    metric: str
    unit: str
    before: Number | None
    after: Number | None
    complete: bool
    layers: tuple[LayerChange, ...]

    @property
    def is_change(self) -> bool:
        return self.before != self.after or bool(self.layers) or not self.complete


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One model, or one transform of it: what became of its numbers; words say more than that."""

    path: str
    numbers: tuple[NumberChange, ...] = ()
    words: str = ""


def changes(before: Record, after: Record) -> tuple[ModelChange, ...]:
    """Every model of either report that is not the same in both, in the order of their names."""
    then, now = dict(_measured(before)), dict(_measured(after))
    found = []
    for path in sorted({*then, *now}):
        if path not in now:
            words = "not selected" if after["selected"] else "gone"
            found.append(ModelChange(path, words=words))
        elif path not in then:
            found.append(ModelChange(path, _numbers({}, now[path]), "new"))
        else:
            numbers = tuple(each for each in _numbers(then[path], now[path]) if each.is_change)
            if numbers:
                found.append(ModelChange(path, numbers))
    return tuple(found)


def _measured(report: Record) -> Iterator[tuple[str, Record]]:
    """(id, metrics) of every model and of every transform of it."""
    for model in report["models"]:
        yield model["id"], model["metrics"]
        for transform in model["transforms"]:
            yield f"{model['id']}::{transform['name']}", transform["metrics"]


def _numbers(before: Record, after: Record) -> tuple[NumberChange, ...]:
    return tuple(
        _number(key, before.get(key, {}), after.get(key, {})) for key in {**after, **before}
    )


def _number(key: str, before: Record, after: Record) -> NumberChange:
    known = [each for each in (before, after) if "value" in each]
    layers = () if any("exact" in each for each in known) else _layers(before, after)
    return NumberChange(
        key,
        known[-1]["unit"] if known else "",
        _value(before),
        _value(after),
        all(each["complete"] for each in known) and not _failed(before, after),
        layers,
    )


def _failed(before: Record, after: Record) -> bool:
    """Whether either could not be measured at all."""
    return "error" in before or "error" in after


def _value(number: Record) -> Number | None:
    if "value" not in number:
        return None
    if "exact" in number:
        return Fraction(*number["exact"])
    value = number["value"]
    return Fraction(value) if isinstance(value, str) else int(value)


def _layers(before: Record, after: Record) -> tuple[LayerChange, ...]:
    """Layers that contribute another amount, the largest difference first."""
    then, now = _shares(before), _shares(after)
    found = [
        LayerChange(scope, then.get(scope, 0), now.get(scope, 0))
        for scope in {**then, **now}
        if then.get(scope, 0) != now.get(scope, 0)
    ]
    return tuple(sorted(found, key=lambda each: (-abs(each.delta), each.scope)))


def _shares(number: Record) -> dict[str, Number]:
    return {
        share["scope"]: Fraction(share["value"]) if isinstance(share["value"], str)
        else int(share["value"])
        for share in number.get("shares", ())
    }  # fmt: skip
