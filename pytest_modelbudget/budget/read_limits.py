"""Limits of a budget: a quantity, or {max, min, grow, floor, level, …}; and those on ops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from pytest_modelbudget.budget.budget import AnyLimit, Level, Limit, OpsLimit
from pytest_modelbudget.budget.grammar import AUTO, LIMIT, OPS_LIMIT, limits_grammar
from pytest_modelbudget.budget.reading import Entry, Reading
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown, suggestion
from pytest_modelbudget.errors import UnitError
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.units import Number, quantity, unit_named

OP_NAME_PATTERN = r"[A-Za-z_][\w.]*::[A-Za-z_][\w.]*"
_OP_NAME = re.compile(OP_NAME_PATTERN)
Written = tuple[Number | None, str]  # a quantity (None: auto), and how the file spells it


def read_limits(
    node: Node, reading: Reading, *, allowed: tuple[str, ...] = (), scope: str | None = None
) -> tuple[AnyLimit, ...]:
    """The limits of a model or, with a glob, of its matching scopes; allowed adds to each."""
    if isinstance(node, Block) and not node.entries:
        reading.refuse(node.place, "no limits: give at least one, such as params: 11.7 M")
    given = reading.fields(node, limits_grammar(reading.metrics))
    if scope is not None:
        given = _scoped(given, reading)
    limits: list[AnyLimit | None] = []
    for key, entry in given.items():
        if reading.metrics[key].by_kind:
            limits.append(_ops_limit(entry, reading, allowed, scope))
        else:
            limits.append(_limit(entry, reading.metrics[key], reading, allowed, scope))
    return tuple(limit for limit in limits if limit is not None)


def read_scopes(
    node: Node, reading: Reading, *, allowed: tuple[str, ...] = ()
) -> tuple[AnyLimit, ...]:
    """Limits on parts of a model, by a glob on module paths."""
    limits: list[AnyLimit] = []
    for entry in reading.named(node, "scopes: a mapping of module globs to limits"):
        glob = entry.key.text
        if not glob or glob != glob.strip() or "::" in glob or "@" in glob or not _is_line(glob):
            message = f"{shown(glob)} is no glob on module paths: write one such as layer4.*"
            reading.refuse(entry.key.place, message)
        limits.extend(read_limits(entry.value, reading, allowed=allowed, scope=glob))
    return tuple(limits)


def read_op_names(node: Node, reading: Reading) -> tuple[str, ...]:
    """Foreign names of ops that a budget accepts without a formula, such as aten::foo."""
    names = []
    for item in reading.items(node, "a list of op names such as [aten::foo]"):
        text = reading.text(item, "an op name such as aten::foo")
        if text is not None and not _OP_NAME.fullmatch(text.text):
            message = f"{shown(text.text)} is no op name: write it as the report does, aten::foo"
            reading.refuse(text.place, message)
        elif text is not None:
            names.append(text.text)
    return tuple(names)


def _scoped(given: Mapping[str, Entry], reading: Reading) -> dict[str, Entry]:
    """The limits that a part of a model can have; the others are refused with the reason."""
    scoped = {}
    for key, entry in given.items():
        why = reading.metrics[key].not_scoped
        if why:
            message = f"'{key}' of a part of a model is not defined: {why}"
            reading.refuse(entry.key.place, f"{message}; limit it on the model")
        else:
            scoped[key] = entry
    return scoped


def _limit(
    entry: Entry, metric: Metric, reading: Reading, allowed: tuple[str, ...], scope: str | None
) -> Limit | None:
    """One metric's limit: a quantity alone is a maximum."""
    if not isinstance(entry.value, Block):
        most = _quantity(entry.value, metric, reading)
        return most and Limit(
            metric.key, entry.key.place, max=most[0], allow_unmeasured=allowed, scope=scope,
            written=most[1], auto=() if most[0] is not None else ("max",),
        )  # fmt: skip
    given = reading.fields(entry.value, LIMIT)
    if not {"max", "min", "grow"} & {key.text for key, _ in entry.value.entries}:
        reading.refuse(entry.key.place, f"the limit on {metric.key} needs 'max', 'min' or 'grow'")
        return None
    most = _quantity(given["max"].value, metric, reading) if "max" in given else None
    least = _quantity(given["min"].value, metric, reading, least=True) if "min" in given else None
    _must_leave_room(entry, least, most, reading)
    named = _allowed(given, reading, metric)
    grow, floor = _grow(given, metric, reading), _floor(given, metric, reading)
    if not most and not least and grow is None:
        return None
    return Limit(
        metric.key,
        entry.key.place,
        max=most[0] if most else None,
        min=least[0] if least else None,
        level=_level(given, reading),
        allow_unmeasured=tuple(dict.fromkeys((*named, *allowed))),
        scope=scope,
        written=(most or least or (None, ""))[1],
        grow=grow,
        floor=floor,
        auto=tuple(end for end, value in (("max", most), ("min", least)) if _is_auto(value)),
    )


def _is_auto(value: Written | None) -> bool:
    return value is not None and value[0] is None


def _grow(given: Mapping[str, Entry], metric: Metric, reading: Reading) -> Fraction | None:
    """The share of the locked value that may be added to it."""
    if "grow" not in given:
        return None
    entry = given["grow"]
    if not unit_named(metric.unit).whole:
        message = f"'grow' of {metric.key}: growth is defined for counts; give it 'max' or 'min'"
        reading.refuse(entry.key.place, message)
        return None
    text = reading.text(entry.value, "a percentage such as 2%")
    try:
        return Fraction(quantity(text.text, "%")) if text else None
    except UnitError as error:
        reading.refuse(entry.value.place, f"{metric.key}: grow: {error}")
        return None


def _floor(given: Mapping[str, Entry], metric: Metric, reading: Reading) -> int:
    """Growth that is within in any case; 0 where nothing is said."""
    if "floor" not in given:
        return 0
    entry = given["floor"]
    if "grow" not in given:
        reading.refuse(entry.key.place, "'floor' is the least that 'grow' allows: give 'grow' too")
    text = reading.text(entry.value, f"a quantity of {metric.unit}")
    if text is None or not unit_named(metric.unit).whole:
        return 0
    try:
        return int(quantity(text.text, metric.unit))
    except UnitError as error:
        reading.refuse(text.place, f"{metric.key}: floor: {error}")
        return 0


def _quantity(
    node: Node, metric: Metric, reading: Reading, *, least: bool = False
) -> Written | None:
    text = reading.text(node, f"a quantity of {metric.unit}, or a mapping with max or min")
    if text is None:
        return None
    if text.text.strip() == AUTO:
        return None, AUTO
    try:
        return quantity(text.text, metric.unit, round_up=least), text.text.strip()
    except UnitError as error:
        reading.refuse(text.place, f"{metric.key}: {error}")
        return None


def _must_leave_room(
    entry: Entry, least: Written | None, most: Written | None, reading: Reading
) -> None:
    if least and most and least[0] is not None and most[0] is not None and least[0] > most[0]:
        message = f"min {least[1]} is above max {most[1]}: nothing could be within"
        reading.refuse(entry.key.place, message)


def _allowed(given: Mapping[str, Entry], reading: Reading, metric: Metric) -> tuple[str, ...]:
    if "allow_unmeasured" not in given:
        return ()
    if not unit_named(metric.unit).whole:
        message = "a ratio over unmeasured ops is never known: remove 'allow_unmeasured'"
        reading.refuse(given["allow_unmeasured"].key.place, message)
    return read_op_names(given["allow_unmeasured"].value, reading)


def _level(given: Mapping[str, Entry], reading: Reading) -> Level:
    if "level" not in given:
        return Level.ERROR
    levels = [level.value for level in Level]
    text = reading.text(given["level"].value, f"a level: {' or '.join(levels)}")
    if text is not None and text.text in levels:
        return Level(text.text)
    if text is not None:
        message = f"{shown(text.text)} is no level: write {' or '.join(levels)}"
        reading.refuse(text.place, message)
    return Level.ERROR


def _ops_limit(
    entry: Entry, reading: Reading, allowed: tuple[str, ...], scope: str | None
) -> OpsLimit | None:
    """Which ops may run: allow, deny, and max by kind or foreign name."""
    if not isinstance(entry.value, Block):
        reading.block(entry.value, "limits on ops: a mapping such as {max: {convolution: 20}}")
        return None
    given = reading.fields(entry.value, OPS_LIMIT)
    if not {"allow", "deny", "max"} & {key.text for key, _ in entry.value.entries}:
        reading.refuse(entry.key.place, "the limit on ops needs 'allow', 'deny' or 'max'")
        return None
    named: tuple[str, ...] = ()
    if "allow_unmeasured" in given:
        named = read_op_names(given["allow_unmeasured"].value, reading)
    return OpsLimit(
        entry.key.place,
        allow=_selectors(given["allow"].value, reading) if "allow" in given else None,
        deny=_selectors(given["deny"].value, reading) if "deny" in given else (),
        max=_counts(given["max"].value, reading) if "max" in given else {},
        level=_level(given, reading),
        allow_unmeasured=tuple(dict.fromkeys((*named, *allowed))),
        scope=scope,
    )


def _selectors(node: Node, reading: Reading) -> tuple[str, ...]:
    items = reading.items(node, "a list of op kinds such as [lstm, convolution]")
    if isinstance(node, Listing) and not items:
        reading.refuse(node.place, "the list names no op: name at least one kind")
    texts = [reading.text(item, "an op kind such as convolution") for item in items]
    return tuple(text.text for text in texts if text and _is_known_op(text, reading))


def _counts(node: Node, reading: Reading) -> Mapping[str, int]:
    counts = {}
    for entry in reading.named(node, "a mapping of op kinds to counts: {convolution: 20}"):
        text = reading.text(entry.value, "a count such as 20")
        if not _is_known_op(entry.key, reading) or text is None:
            continue
        try:
            counts[entry.key.text] = int(quantity(text.text, "op"))
        except UnitError as error:
            reading.refuse(text.place, f"{entry.key.text}: {error}")
    return counts


def _is_known_op(text: Text, reading: Reading) -> bool:
    """Whether a rule knows this kind or foreign name; a typo must not be green."""
    name = text.text
    if name in reading.ops.kinds or name in reading.ops:
        return True
    known = list(reading.ops) if "::" in name else sorted(reading.ops.kinds)
    message = f"no op rule knows {shown(name)}: {suggestion(name, known)}"
    reading.refuse(text.place, message)
    return False


def _is_line(text: str) -> bool:
    return len(text.splitlines()) == 1
