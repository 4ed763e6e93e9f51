"""Limits of a budget: a quantity, or {max, min, grow, floor, level, …}; and those on ops."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, Union

from pytest_modelbudget.budget import exceptions, grammar
from pytest_modelbudget.budget.budget import AnyLimit, Level, Limit, OpsLimit
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Values
from pytest_modelbudget.budget.yaml_text import Block, Text, shown, suggestion
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.metrics.measurement import Metric, Stage
from pytest_modelbudget.units import Number, quantity, quantity_pattern, some_of, unit_named

AUTO = "auto"  # in place of a max or min that --model-budget-update=create is to fill in
DEPLOYING = "put it under deployments: {m55: {device: NAME, limits: ...}}"  # where a limit needs a device
OP_NAME_PATTERN = r"([A-Za-z_][\w.]*::[A-Za-z_][\w.]*|input \S.*)"
Written = tuple[Union[Number, None], str]  # a quantity (None: auto), and how the file spells it
NOT_WRITTEN: Written = (None, "")


def _amounts(unit: str) -> list[Schema]:
    """Quantities of a unit, for editors."""
    return [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": quantity_pattern(unit)}]


def _op_name(word: Text, key: str, reading: Reading) -> str:
    if re.fullmatch(OP_NAME_PATTERN, word.text):
        return word.text
    raise BudgetError(f"{shown(word.text)} is no op name: write it as the report does, aten::foo")


OP_NAME = grammar.spelled(
    "an op name such as aten::foo", _op_name, {"type": "string", "pattern": f"^{OP_NAME_PATTERN}$"}
)
OP_NAMES = grammar.listed(OP_NAME, "a list of op names such as [aten::foo]", name="op_names")
_LEVELS = " or ".join(level.value for level in Level)
LEVELS = grammar.one_word(
    [level.value for level in Level],
    f"a level: {_LEVELS}",
    f"{{word}} is no level: write {_LEVELS}",
    name="level",
    meaning=Level,
)
LEVEL = Field("level", LEVELS, "error fails the check when over, warn does not", default=Level.ERROR)
ALLOWED = Field("allow_unmeasured", OP_NAMES, "ops accepted without a formula: aten::foo", default=())


def _quantity(key: str, unit: str, *, least: bool = False) -> Form[Written]:
    """An amount of a metric's unit, or auto; of a minimum, rounded up."""

    def meaning(word: Text, _: str, reading: Reading) -> Written:
        written = word.text.strip()
        return None if written == AUTO else quantity(written, unit, round_up=least), written

    expected = f"a quantity of {unit}, or a mapping with max or min"
    return grammar.spelled(expected, meaning, {"anyOf": [*_amounts(unit), {"const": AUTO}]}, lead=f"{key}: ")


NO_GROWTH = "growth is defined for counts; give it 'max' or 'min'"


def _grow(key: str) -> Field:
    """The share of a locked value that may be added to it."""
    form = grammar.spelled(
        "a percentage such as 2%",
        lambda word, _, reading: Fraction(quantity(word.text, "%")),
        {"type": "string", "pattern": quantity_pattern("%")},
        "percentage",
        lead=f"{key}: grow: ",
    )
    return Field("grow", form, "how much more than its locked value it may be")


def limit_grammar(key: str, unit: str) -> Grammar:
    """The keys of a limit on one metric; ratios do not grow. floor is growth that is within in any case."""
    grows = unit_named(unit).whole
    floor = grammar.spelled(
        f"a quantity of {unit}",
        lambda word, _, reading: int(quantity(word.text, unit)) if grows else 0,
        {"anyOf": _amounts(unit)},
        lead=f"{key}: floor: ",
    )
    most, least = _quantity(key, unit), _quantity(key, unit, least=True)
    waiver = exceptions.acceptance_form(key, unit, {"anyOf": _amounts(unit)})
    return Grammar(
        "a limit",
        (
            Field("max", most, "the largest value that is within, itself included"),
            Field("min", least, "the smallest value that is within, itself included"),
            _grow(key) if grows else grammar.refused("grow", f"'grow' of {key}: {NO_GROWTH}"),
            Field("floor", floor, "growth that is within however little grow is", default=0, offered=grows),
            LEVEL,
            ALLOWED,
            Field("waiver", waiver, "an exception: up to what, why and through which day a broken limit passes"),
        ),
        needs=("max", "min", "grow"),
        lacking=f"the limit on {key} needs 'max', 'min' or 'grow'",
        more={"dependencies": {"floor": ["grow"]}},
    )


@cache
def limit_form(key: str, unit: str) -> Form[Limit]:
    """A limit on one metric: a quantity alone is a maximum."""
    table, alone = limit_grammar(key, unit), _quantity(key, unit)
    mapping = table.form(lambda values, reading: _limit(values, key, unit, reading))

    def read(entry: Entry, reading: Reading) -> Limit | None:
        if isinstance(entry.value, Block):
            return mapping.read(entry, reading)
        most = alone.read(entry, reading)
        auto = ("max",) if most and most[0] is None else ()
        return most and Limit(key, entry.place, most[0], written=most[1], auto=auto)

    name = f"limit_in_{unit.replace('/', '_per_')}"
    return Form(read, {"anyOf": [alone.schema, mapping.schema]}, name, uses=mapping.uses)


def _limit(values: Values, key: str, unit: str, reading: Reading) -> Limit | None:
    most, least, grow = values["max"], values["min"], values["grow"]
    if "floor" in values and "grow" not in values:
        reading.refuse(values.place("floor"), "'floor' is the least that 'grow' allows: give 'grow' too")
    if "allow_unmeasured" in values and not (unit_named(unit).whole or unit_named(unit).adds):
        message = "a ratio over unmeasured ops is never known: remove 'allow_unmeasured'"
        reading.refuse(values.place("allow_unmeasured"), message)
    auto = tuple(end for end in ("max", "min") if values[end] and values[end][0] is None)
    if most and least and not auto and least[0] > most[0]:
        reading.refuse(values.key.place, f"min {least[1]} is above max {most[1]}: nothing could be within")
    if not most and not least and grow is None:
        return None
    limit = Limit(
        key,
        values.key.place,
        max=(most or NOT_WRITTEN)[0],
        min=(least or NOT_WRITTEN)[0],
        level=values["level"],
        allow_unmeasured=values["allow_unmeasured"],
        written=(most or least or NOT_WRITTEN)[1],
        grow=grow,
        floor=values["floor"],
        auto=auto,
    )
    return _with_exception(limit, values, unit, reading)


def _with_exception(limit: Limit, values: Values, unit: str, reading: Reading) -> Limit:
    """The limit with the exception that stands beside it."""
    if values["waiver"] is None:
        return limit
    try:
        return replace(limit, waiver=exceptions.beside(limit, values["waiver"], unit))
    except BudgetError as error:
        reading.refuse(values.place("waiver"), str(error))
        return limit


def _known_op(word: Text, key: str, reading: Reading) -> str:
    """A kind or foreign name that a rule knows; a typo must not be green."""
    name = word.text
    if name in reading.tables.ops.kinds or name in reading.tables.ops:
        return name
    ops = reading.tables.ops
    guess = suggestion(name, ops) if "::" in name else suggestion(name, sorted(ops.kinds), ops.bare_names)
    if alone := [known for known in ops if known.rpartition("::")[2].casefold() == name.casefold()]:
        guess = f"{guess.rstrip('?')}, or {some_of(alone)} alone?"
    raise BudgetError(f"no op rule knows {shown(name)}: {guess} (modelbudget ops lists all)")


SELECTOR = grammar.spelled("an op kind such as convolution", _known_op, {"type": "string"})
SELECTORS = grammar.listed(
    SELECTOR,
    "a list of op kinds such as [lstm, convolution]",
    empty="the list names no op: name at least one kind",
    name="selectors",
)
OP_COUNTS = grammar.named(
    grammar.spelled(
        "a count such as 20",
        lambda word, key, reading: int(quantity(word.text, "op")),
        {"anyOf": _amounts("op")},
        lead="{key}: ",
    ),
    "a mapping of op kinds to counts: {convolution: 20}",
    check=SELECTOR.of,
    name="op_counts",
)
NO_AMOUNT = grammar.refused(
    exceptions.KEY,
    "'waiver' takes an amount, and a limit on ops has none: permit the operation, or give it 'level: warn'",
)
OPS_GRAMMAR = Grammar(
    "a limit on ops",
    (
        Field("allow", SELECTORS, "the only kinds (or foreign names) that may run"),
        Field("deny", SELECTORS, "kinds (or foreign names) that may not run", default=()),
        Field("max", OP_COUNTS, "how often a kind (or foreign name) may run", default={}),
        LEVEL,
        ALLOWED,
        NO_AMOUNT,
    ),
    needs=("allow", "deny", "max"),
    lacking="the limit on ops needs 'allow', 'deny' or 'max'",
    expected="limits on ops: a mapping such as {max: {convolution: 20}}",
)


def _ops_limit(values: Values, reading: Reading) -> OpsLimit | None:
    """Which ops may run; None of a limit that says nothing."""
    if not {"allow", "deny", "max"} & values.entries.keys():
        return None
    if both := [name for name in values["deny"] if name in (values["allow"] or ())]:
        reading.refuse(values.place("deny"), f"{some_of(both)} is both allowed and denied: name it in one of the two")
    keys = ("allow", "deny", "max", "level", "allow_unmeasured")
    return OpsLimit(values.key.place, **{key: values[key] for key in keys})


OPS_LIMIT = OPS_GRAMMAR.form(_ops_limit, "ops_limit")


# Limits of a model, and of its scopes.

MISPLACED = grammar.refused(
    exceptions.KEY, "'waiver' stands beside the one limit that it is for: params: {max: 3 M, waiver: {to: 3.2 M, ...}}"
)


def limits_grammar(metrics: Mapping[str, Metric], *, scoped: bool = False, deployed: bool = False) -> Grammar:
    """The keys of limits: every metric that a model has, or a part of it; deployed, it runs on a device."""
    fields = []
    for key, metric in metrics.items():
        form: Form[Any] = OPS_LIMIT if metric.by_kind else limit_form(metric.key, metric.unit)
        why = ""
        if scoped and metric.not_scoped:
            why = f"'{key}' of a part of a model is not defined: {metric.not_scoped}; limit it on the model"
        elif metric.stage is Stage.DEPLOYED and not deployed:
            why = f"'{key}' is measured of a model on a device: {DEPLOYING}"
        elif metric.stage is Stage.TRAINED and deployed:
            why = f"'{key}' is measured of the model as written, which is trained: limit it on the model"
        known = Field(key, form, metric.definition, also=metric.also)
        fields.append(grammar.refused(key, why, metric.also) if why else known)
    return Grammar("limits", (*fields, MISPLACED), empty="no limits: give at least one, such as params: 11.7 M")


def limits_form(
    metrics: Mapping[str, Metric], *, scoped: bool = False, deployed: bool = False
) -> Form[tuple[AnyLimit, ...]]:
    """The limits of a model, or of a part of it; deployed, of a model on a device."""
    table = limits_grammar(metrics, scoped=scoped, deployed=deployed)
    return table.form(_limits, f"{'deployed_' * deployed}{'scoped_' * scoped}limits")


def _limits(values: Values, reading: Reading) -> tuple[AnyLimit, ...]:
    limits = (values.read[key] for key in values.entries)
    return tuple(limit for limit in limits if isinstance(limit, (Limit, OpsLimit)))


def _must_be_a_glob(key: Text, reading: Reading) -> None:
    glob = key.text
    if glob != glob.strip() or "::" in glob or "@" in glob or len(glob.splitlines()) != 1:
        reading.refuse(key.place, f"{shown(glob)} is no glob on module paths: write one such as layer4.*")


def scopes_form(metrics: Mapping[str, Metric], *, deployed: bool = False) -> Form[tuple[AnyLimit, ...]]:
    """Limits on parts of a model, by a glob on module paths."""
    by_glob = grammar.named(
        limits_form(metrics, scoped=True, deployed=deployed),
        "scopes: a mapping of module globs to limits",
        names={"pattern": r"^(?!.*(::|@))\S(.*\S)?$"},
        check=_must_be_a_glob,
    )

    def read(entry: Entry, reading: Reading) -> tuple[AnyLimit, ...]:
        scopes = by_glob.read(entry, reading) or {}
        return tuple(replace(limit, scope=glob) for glob, limits in scopes.items() for limit in limits)

    return Form(read, by_glob.schema, f"{'deployed_' * deployed}scopes", uses=by_glob.uses)


def limit_fields(metrics: Mapping[str, Metric], *, deployed: bool = False) -> tuple[Field, ...]:
    """The keys of whatever limits stand below: a model, a variant, a transform, a deployment."""
    limits, scopes = limits_form(metrics, deployed=deployed), scopes_form(metrics, deployed=deployed)
    return (
        Field("limits", limits, "metric: quantity, or metric: {max, min, grow, level}", default=()),
        Field("scopes", scopes, "limits on a part of the model, by a glob on module paths", default=()),
        ALLOWED,
    )


def held_limits(values: Values) -> tuple[AnyLimit, ...]:
    """Limits on the whole model, then those on its scopes, each with what all may leave out."""
    allowed = values["allow_unmeasured"]
    return tuple(
        replace(limit, allow_unmeasured=tuple(dict.fromkeys((*limit.allow_unmeasured, *allowed))))
        for limit in (*values["limits"], *values["scopes"])
    )
