"""What changed between two reports: models, numbers and layers, the largest changes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.reports.markdown import plain
from pytest_modelbudget.reports.record import Record
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room


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


MOST_LAYERS = 20  # of one number; the rest is summed up
NOTHING = "no number changed"


def comparison_text(changes: Sequence[ModelChange]) -> str:
    """Model, number and layer on a line each, indented.

    budgets/mobile.yaml::mobilenet_v2
      params   3.50 M -> 3.73 M   +224,175 (+6.4%)
        +224,175  classifier.1   1,281,000 -> 1,505,175
    """
    lines = [line for change in changes for line in _model_lines(change)]
    return "\n".join(lines) or NOTHING


def comparison_markdown(changes: Sequence[ModelChange]) -> str:
    """A table of numbers, and a folded one of layers, for each model."""
    lines = [line for change in changes for line in _model_markdown(change)]
    return "\n".join(lines) or NOTHING


def _model_lines(change: ModelChange) -> Iterator[str]:
    yield f"{change.path}{f' ({change.words})' if change.words else ''}"
    width = max((len(number.metric) for number in change.numbers), default=0)
    for number in change.numbers:
        yield f"  {number.metric:<{width}}  {_from_to(number)}   {_delta(number)}".rstrip()
        if not change.words:
            yield from _layer_lines(number)


def _layer_lines(number: NumberChange) -> Iterator[str]:
    rows = list(_layer_rows(number))
    width = max((len(delta) for delta, _, _ in rows), default=0)
    for delta, scope, figures in rows:
        yield f"    {delta:>{width}}  {scope}   {figures}".rstrip()


def _layer_rows(number: NumberChange) -> Iterator[tuple[str, str, str]]:
    """(delta, layer, then and now) of each layer, and of the rest together."""
    for layer in number.layers[:MOST_LAYERS]:
        figures = f"{_exact(layer.before)} -> {_exact(layer.after)}"
        yield _signed(layer.delta), scope_text(layer.scope), figures
    rest = number.layers[MOST_LAYERS:]
    if rest:
        yield _signed(_total(rest)), f"({len(rest)} others)", ""


def _total(layers: Iterable[LayerChange]) -> Fraction:
    return sum((layer.delta for layer in layers), Fraction())


def _from_to(number: NumberChange) -> str:
    least = "" if number.complete else ">= "
    if number.before is None or number.after is None:
        before, after = (
            "-" if value is None else least + readable(value, number.unit)
            for value in (number.before, number.after)
        )
        return after if number.before is None else f"{before} -> {after}"
    before, after = readable_pair(number.before, number.after, number.unit)
    return f"{least}{before} -> {least}{after}"


def _delta(number: NumberChange) -> str:
    """How much more, in all digits, and as a share of what was; unknown between lower bounds."""
    if number.before is None or number.after is None:
        return ""
    if not number.complete:
        return "unknown: measured in part"
    delta = Fraction(number.after) - Fraction(number.before)
    share = f" ({room(delta / number.before, signed=True)})" if number.before else ""
    if not isinstance(number.after, int):
        return share.strip(" ()")
    return f"{_signed(delta)}{share}" if delta else "by layers only"


def _signed(delta: Fraction) -> str:
    return f"-{_exact(-delta)}" if delta < 0 else f"+{_exact(delta)}"


def _exact(value: Number) -> str:
    return exact(value, "param")  # its digits alone


def _model_markdown(change: ModelChange) -> Iterator[str]:
    yield f"### {plain(change.path)}{f' ({change.words})' if change.words else ''}"
    yield ""
    if change.numbers:
        yield "| metric | before -> after | change |"
        yield "|---|---|---|"
        for number in change.numbers:
            yield f"| {plain(number.metric)} | {_from_to(number)} | {_delta(number)} |"
        yield ""
    for number in change.numbers if not change.words else ():
        if number.layers:
            yield f"<details><summary>{plain(number.metric)} by layer</summary>"
            yield ""
            yield "| change | layer | before -> after |"
            yield "|---:|---|---|"
            for delta, scope, figures in _layer_rows(number):
                yield f"| {delta} | {plain(scope)} | {figures} |"
            yield ""
            yield "</details>"
            yield ""
