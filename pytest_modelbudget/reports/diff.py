"""The changes between two reports: models, numbers, layers and operations, the largest changes of a number first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.markdown import plain
from pytest_modelbudget.reports.record import ExecutedOps, MeasuredMetric, Report, SubjectReport
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The contribution of one layer before and after; 0 where it is not there."""

    scope: str
    before: Number
    after: Number

    @property
    def delta(self) -> Fraction:
        return Fraction(self.after) - Fraction(self.before)


@dataclass(frozen=True, slots=True)
class NumberChange:
    """One metric before and after; None if it is unknown. bounds: whether before, and after, is a lower bound."""

    metric: str
    unit: str
    before: Number | None
    after: Number | None
    bounds: tuple[bool, bool]
    complete: bool
    layers: tuple[LayerChange, ...]


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One model, or one transform of it: what became of its numbers and operations; words say more than that."""

    path: str
    numbers: tuple[NumberChange, ...] = ()
    words: str = ""
    operations: tuple[OperationChange, ...] = ()
    is_aligned: bool = True

    @property
    def title(self) -> str:
        return f"{self.path}{f' ({self.words})' if self.words else ''}"


NEW = SubjectReport(id="")  # in place of the model that was not there


def changes(before: Report, after: Report) -> tuple[ModelChange, ...]:
    """Every model of either report that is not the same in both, in the order of their names."""
    then, now = dict(_subjects(before)), dict(_subjects(after))
    changed = []
    for path in sorted({*then, *now}):
        if path not in now:
            changed.append(ModelChange(path, words="not selected" if after.selected else "gone"))
        elif path not in then:
            changed.append(ModelChange(path, _numbers(NEW, now[path]), "new"))
        else:
            numbers = tuple(
                number
                for number in _numbers(then[path], now[path])
                if number.before != number.after or number.layers or not number.complete
            )
            sides = then[path], now[path]
            operations = operation_changes(*(side.operations for side in sides))
            is_aligned = all(side.operations or not any(op.count for op in side.ops) for side in sides)
            if numbers or operations or not is_aligned:
                changed.append(ModelChange(path, numbers, "", operations if is_aligned else (), is_aligned))
    return tuple(changed)


def _subjects(report: Report) -> Iterator[tuple[str, SubjectReport]]:
    """Every model, every transform of it, and both on every device, by id."""
    for model in report.models:
        yield from ((subject.id, subject) for subject in model.subjects())


def _numbers(then: SubjectReport, now: SubjectReport) -> tuple[NumberChange, ...]:
    return tuple(_number(key, then, now) for key in {**now.metrics, **then.metrics})


def _number(key: str, then: SubjectReport, now: SubjectReport) -> NumberChange:
    before, after = then.measured(key), now.measured(key)
    known = [number for number in (before, after) if number]
    is_failed = any(key in side.metrics and not side.measured(key) for side in (then, now))
    return NumberChange(
        key,
        known[-1].unit if known else "",
        _value(before),
        _value(after),
        (bool(before and not before.complete), bool(after and not after.complete)),
        all(number.complete for number in known) and not is_failed,
        () if any(number.exact for number in known) else _layers(before, after),
    )


def _value(number: MeasuredMetric | None) -> Number | None:
    if number is None:
        return None
    if number.exact and number.exact[1] == 0:
        raise InputError(f"a report divides {number.exact[0]} by 0: write it again with --model-budget-report=json")
    return Fraction(*number.exact) if number.exact else number.value


def _layers(before: MeasuredMetric | None, after: MeasuredMetric | None) -> tuple[LayerChange, ...]:
    """Layers that contribute another amount, the largest difference first."""
    then, now = ({share.scope: share.value for share in number.shares} if number else {} for number in (before, after))
    layers = (LayerChange(scope, then.get(scope, 0), now.get(scope, 0)) for scope in {**then, **now})
    return tuple(sorted((layer for layer in layers if layer.delta), key=lambda layer: (-abs(layer.delta), layer.scope)))


MOST_LAYERS = 20  # of one number; the rest is summed up
MOST_OPERATIONS = 40  # of one model; the rest is counted
NOTHING = "no number changed"


def comparison_text(changes: Sequence[ModelChange]) -> str:
    """Model, number and layer on a line each, indented."""
    lines = [line for change in changes for line in _model_lines(change)]
    return "\n".join(lines) or NOTHING


def comparison_markdown(changes: Sequence[ModelChange]) -> str:
    """A table of numbers, and a folded one of layers, for each model."""
    lines = [line for change in changes for line in _model_markdown(change)]
    return "\n".join(lines) or NOTHING


def _model_lines(change: ModelChange) -> Iterator[str]:
    yield change.title
    rows = [(number.metric, _from_to(number), _delta(number)) for number in change.numbers]
    for number, line in zip(change.numbers, aligned("  {:<}  {}   {}", rows), strict=True):
        yield line
        if not change.words:
            yield from aligned("    {:>}  {}   {}", list(_layer_rows(number)))
    if sentence := _operations_sentence(change):
        yield f"  operations: {sentence}"
        yield from aligned("    {:<}  {:<}  {:<}  {}", list(operation_rows(change.operations[:MOST_OPERATIONS])))
        yield from _left_out(change)


def _operations_sentence(change: ModelChange) -> str:
    """How many operations changed; "" where none did, and why nobody knows where a report does not say."""
    if not change.is_aligned:
        return "not compared: write both reports again with --model-budget-report=json"
    return counted_changes(change.operations)


def _left_out(change: ModelChange) -> Iterator[str]:
    if (left := len(change.operations) - MOST_OPERATIONS) > 0:
        yield f"    and {left:,} more"


def _layer_rows(number: NumberChange) -> Iterator[tuple[str, str, str]]:
    """(delta, layer, then and now) of each layer, and of the rest together."""
    for layer in number.layers[:MOST_LAYERS]:
        before, after = (_exact(value, number.unit) for value in (layer.before, layer.after))
        yield _signed(layer.delta, number.unit), scope_text(layer.scope), f"{before} -> {after}"
    if rest := number.layers[MOST_LAYERS:]:
        yield _signed(sum((layer.delta for layer in rest), Fraction()), number.unit), f"({len(rest)} others)", ""


def _from_to(number: NumberChange) -> str:
    then, now = (">= " if is_bound else "" for is_bound in number.bounds)
    if number.before is None:
        return "-" if number.after is None else now + readable(number.after, number.unit)
    if number.after is None:
        return f"{then}{readable(number.before, number.unit)} -> -"
    before, after = readable_pair(number.before, number.after, number.unit)
    return f"{then}{before} -> {now}{after}"


def _delta(number: NumberChange) -> str:
    """The difference, in all digits, and as a share of what was; unknown between lower bounds."""
    if number.before is None or number.after is None:
        return ""
    if not number.complete:
        return "unknown: measured in part"
    delta = Fraction(number.after) - Fraction(number.before)
    share = f" ({room(delta / number.before, signed=True)})" if number.before else ""
    if not isinstance(number.after, int):
        return share.strip(" ()")
    return f"{_signed(delta)}{share}" if delta else "by layers only"


def _signed(delta: Fraction, unit: str = "param") -> str:
    return f"-{_exact(-delta, unit)}" if delta < 0 else f"+{_exact(delta, unit)}"


def _exact(value: Number, unit: str) -> str:
    """Its digits alone; of seconds, which are fractions of one, three digits and their unit."""
    return readable(value, unit) if unit == "s" else exact(value, "param")


def _model_markdown(change: ModelChange) -> Iterator[str]:
    yield from (f"### {plain(change.title)}", "")
    if change.numbers:
        yield from ("| metric | before -> after | change |", "|---|---|---|")
        for number in change.numbers:
            yield f"| {plain(number.metric)} | {_from_to(number)} | {_delta(number)} |"
        yield ""
    for number in change.numbers if not change.words else ():
        if number.layers:
            yield from (f"<details><summary>{plain(number.metric)} by layer</summary>", "")
            yield from ("| change | layer | before -> after |", "|---:|---|---|")
            for delta, scope, figures in _layer_rows(number):
                yield f"| {delta} | {plain(scope)} | {figures} |"
            yield from ("", "</details>", "")
    if sentence := _operations_sentence(change):
        yield from (f"<details><summary>operations: {plain(sentence)}</summary>", "")
        yield from ("| what | layer | operation | before -> after |", "|---|---|---|---|")
        for row in operation_rows(change.operations[:MOST_OPERATIONS]):
            yield f"| {' | '.join(map(plain, row))} |"
        yield from (*_left_out(change), "", "</details>", "")


# Operations, aligned by scope and kind; what is the same on both sides is left out:
# reshaped  classifier.1  linear  float32 1x1000 -> 1x1175, weights 1000x1280 -> 1175x1280
# added     classifier.2  relu    float32 1x1175

Specs = tuple[str, ...]
Signature = tuple[Specs, Specs]  # of an operation: its results, and the weights that it reads
WORDS = ("added", "removed", "reshaped", "retyped")


@dataclass(frozen=True, slots=True)
class OperationChange:
    """Operations of one kind in one scope that are not as they were; before (after) is None of what is new (gone)."""

    scope: str
    kind: str
    before: Signature | None
    after: Signature | None
    count: int = 1

    @property
    def words(self) -> tuple[str, ...]:
        """What became of it: one word, or two where shape and type are others."""
        if self.before is None or self.after is None:
            return ("added" if self.before is None else "removed",)
        before, after = (
            [_type_and_shape(spec) for specs in each for spec in specs] for each in (self.before, self.after)
        )
        return tuple(
            word
            for word, part in (("reshaped", 1), ("retyped", 0))
            if [each[part] for each in before] != [each[part] for each in after]
        )

    @property
    def text(self) -> str:
        """Results and weights, then and now."""
        results, weights = (
            _specs_from_to(self.before and self.before[side], self.after and self.after[side]) for side in (0, 1)
        )
        times = f"{self.count:,} of " if self.count > 1 else ""
        return f"{times}{results}{f', weights {weights}' if weights else ''}"


def operation_changes(before: Iterable[ExecutedOps], after: Iterable[ExecutedOps]) -> tuple[OperationChange, ...]:
    """Every operation that is not the same in both, in the order of the later graph, what is gone last."""
    then, now = _by_place(before), _by_place(after)
    changes: list[OperationChange] = []
    for place in {**now, **then}:
        old, new = then.get(place, Counter()), now.get(place, Counter())
        pairs = Counter(zip_longest((old - new).elements(), (new - old).elements()))  # one by one in their order
        changes += (OperationChange(*place, *pair, count) for pair, count in pairs.items())
    return tuple(changes)


def _by_place(operations: Iterable[ExecutedOps]) -> dict[tuple[str, str], Counter[Signature]]:
    places: dict[tuple[str, str], Counter[Signature]] = {}
    for each in operations:
        places.setdefault((each.scope, each.kind), Counter())[each.outputs, each.weights] += each.count
    return places


def operation_rows(changes: Iterable[OperationChange]) -> Iterator[tuple[str, str, str, str]]:
    """(what, where, kind, then and now) of each change."""
    yield from ((", ".join(change.words), scope_text(change.scope), change.kind, change.text) for change in changes)


def counted_changes(changes: Iterable[OperationChange]) -> str:
    """How many operations changed in which way: "1 added, 2 reshaped"."""
    counts: Counter[str] = Counter()
    for change in changes:
        counts.update(dict.fromkeys(change.words, change.count))
    return ", ".join(f"{counts[word]:,} {word}" for word in WORDS if counts[word])


def _specs_from_to(before: Specs | None, after: Specs | None) -> str:
    """Specs then and now; the type is named once where it is the same."""
    if before is None or after is None or before == after:
        return ", ".join((before if after is None else after) or ())
    texts = []
    for old, new in zip_longest(before, after, fillvalue=""):
        (old_type, _), (new_type, shape) = _type_and_shape(old), _type_and_shape(new)
        now = shape if old and new and old_type == new_type else new
        texts.append(old if old == new else f"{old or 'none'} -> {now or 'none'}")
    return ", ".join(texts)


def _type_and_shape(spec: str) -> tuple[str, str]:
    dtype, _, shape = spec.partition(" ")
    return dtype, shape
