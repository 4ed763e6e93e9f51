"""Limits of a budget: a quantity, or {max, min, grow, floor, level, …}; those on ops; and waivers of limits."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from fractions import Fraction
from functools import cache
from typing import Any

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Acceptance, AnyLimit, Level, Limit, OpsLimit
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Values
from pytest_modelbudget.budget.yaml_text import Text, shown, suggestion
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.metrics.measurement import Metric, Stage
from pytest_modelbudget.units import Number, quantity, readable, some_of, unit_named

AUTO = "auto"  # in place of a max or min that --model-budget-update=create is to fill in
EVALUATING = "write evaluate: {data: data/test.npz, metric: top1, min: 97 %}"
DEPLOYING = "put it under deployments: {m55: {device: NAME, limits: ...}}"  # where a limit needs a device
OP_NAME_PATTERN = r"([A-Za-z_][\w.]*::[A-Za-z_][\w.]*|input \S.*)"

OP_NAME = grammar.word_like(OP_NAME_PATTERN, "op name", "it as the report does, aten::foo")
OP_NAMES = grammar.listed(OP_NAME, "a list of op names such as [aten::foo]", may_be_empty=True, name="op_names")
LEVELS = grammar.one_word([level.value for level in Level], "level", name="level", meaning=Level)
LEVEL = Field("level", LEVELS, "error fails the check when over, warn does not", default=Level.ERROR)
ALLOWED = Field("allow_unmeasured", OP_NAMES, "ops accepted without a formula: aten::foo", default=())
NO_GROWTH = "growth is defined for counts; give it 'max' or 'min'"

# A waiver, {to: 12.4 M, reason: "...", until: 2027-01-31}: a broken limit passes up to the amount and through the day.
# One that is past, or that its limit does not need, fails: nobody forgets one.

WAIVER = "waiver"
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DAYS: Schema = {"type": "string", "pattern": r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"}
EARLIEST = date(2020, 1, 1)  # no budget is older: a slip of the pen in the year
MOST_WORDS = 500  # characters of a reason, which stands in one line of every report
WORDS: Schema = {"type": "string", "pattern": r"\S", "maxLength": MOST_WORDS}


def day(text: str) -> date:
    """The day that a text names; raises BudgetError where it names none."""
    try:
        if DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError as error:
        raise BudgetError(f"{shown(text)} is no day of any calendar: write one such as 2027-01-31") from error
    raise BudgetError(f"{shown(text)} is no date: write one such as 2027-01-31")


def _until(word: Text, key: str, reading: Reading) -> date:
    last = day(word.text)
    if last < EARLIEST:
        raise BudgetError(f"{last} is before there were budgets: correct the year")
    return last


def _words(word: Text, key: str, reading: Reading) -> str:
    words = " ".join(word.text.split())
    if not words:
        raise BudgetError(f"no {key}: write it in words")
    if len(words) > MOST_WORDS:
        raise BudgetError(f"{len(words)} characters: write at most {MOST_WORDS}, and link to the rest")
    return words


def waiver_form(metric: str, unit: str) -> Form[Acceptance]:
    """The form of a waiver of a limit on a metric."""

    def amount(word: Text, key: str, reading: Reading) -> tuple[Number, str]:
        return quantity(word.text, unit), word.text.strip()

    def spelled(expected: str, meaning: Any, schema: Schema) -> Form[Any]:
        return grammar.spelled(expected, meaning, schema, lead=f"{metric}: {WAIVER}: {{key}}: ")

    accepted = spelled(f"a quantity of {unit}", amount, grammar.amount_schema(unit))
    until = spelled("a date such as 2027-01-31", _until, DAYS)
    reason, granter = (spelled(f"the {what}", _words, WORDS) for what in ("reason in words", "name of who granted it"))
    fields = (
        Field("to", accepted, "the amount that is accepted, itself included", required=True),
        Field("reason", reason, "why, for every report", required=True),
        Field("until", until, "the last day on which it holds, in UTC", required=True),
        Field("by", granter, "who granted it", default=""),
    )
    expected = "an exception: {to: ..., reason: ..., until: 2027-01-31}"
    return Grammar("an exception", fields, expected=expected).form(_waiver)


def _waiver(values: Values, reading: Reading) -> Acceptance | None:
    """The waiver of a mapping that has all it needs; what it lacks is refused already."""
    if not (values["to"] and values["reason"] and values["until"]):
        return None
    amount, written = values["to"]
    return Acceptance(values.key.place, amount, values["reason"], values["until"], values["by"], written)


def fitted_waiver(limit: Limit, asked: Acceptance, unit: str) -> Acceptance:
    """A waiver with the limit that it belongs to: beyond its maximum, or below its minimum.

    Raises BudgetError where it accepts nothing that the limit does not.
    """
    lead, way = f"{limit.metric}: {WAIVER}", ""
    if limit.auto:
        raise BudgetError(f"{lead}: there is no exception to 'auto', which sets no limit yet: fill it in first")
    has_most = limit.max is not None or limit.grow is not None
    if limit.min is not None and (not has_most or asked.to < limit.min):
        asked = replace(asked, to=quantity(asked.written, unit, round_up=True), end="min")
        if asked.to >= limit.min:
            way = f"below min {readable(limit.min, unit) if has_most else limit.written}"
    elif limit.max is not None and limit.grow is None and asked.to <= limit.max:  # growth may be accepted below it
        way = f"above max {limit.written}"
    if way:
        why = f"{asked.written} is not {way}, and accepts nothing"
        raise BudgetError(f"{lead}: to: {why}: correct it, or remove 'waiver'")
    return asked


# Limits on numbers.


def end_form(metric: str, unit: str, *, least: bool = False) -> Form[Number | None]:
    """An amount of a metric's unit, or auto, which is none yet; of a minimum, rounded up."""

    def meaning(word: Text, key: str, reading: Reading) -> Number | None:
        return None if word.text.strip() == AUTO else quantity(word.text, unit, round_up=least)

    schema = {"anyOf": [*grammar.amount_schema(unit)["anyOf"], {"const": AUTO}]}
    expected = f"a quantity of {unit}, or a mapping with max or min"
    return grammar.spelled(expected, meaning, schema, lead=f"{metric}: ")


def limit_grammar(key: str, unit: str) -> Grammar:
    """The keys of a limit on one metric; ratios do not grow. floor is growth that is within in any case."""
    growth = (
        Field("grow", grammar.amount("%"), "how much more than its locked value it may be"),
        Field("floor", grammar.amount(unit), "growth that is within however little grow is", default=0),
    )
    grows = unit_named(unit).whole
    return Grammar(
        "a limit",
        (
            Field("max", end_form(key, unit), "the largest value that is within, itself included"),
            Field("min", end_form(key, unit, least=True), "the smallest value that is within, itself included"),
            *(growth if grows else ()),
            LEVEL,
            ALLOWED,
            Field(WAIVER, waiver_form(key, unit), "up to what, why and through which day a broken limit passes"),
        ),
        needs=("max", "min", "grow") if grows else ("max", "min"),
        elsewhere={} if grows else {"grow": NO_GROWTH, "floor": NO_GROWTH},
    )


@cache
def limit_form(key: str, unit: str) -> Form[Limit]:
    """A limit on one metric: a quantity alone is a maximum."""
    mapping = limit_grammar(key, unit).form(lambda values, reading: _limit(values, key, unit, reading))
    return grammar.shorthand(mapping, "max", end_form(key, unit), f"limit_in_{unit.replace('/', '_per_')}")


def _limit(values: Values, key: str, unit: str, reading: Reading) -> Limit | None:
    most, least, grows = values["max"], values["min"], unit_named(unit).whole
    grow = values["grow"] if grows else None
    if "floor" in values and "grow" not in values:
        reading.refuse(values.place("floor"), "'floor' is the least that 'grow' allows: give 'grow' too")
    if "allow_unmeasured" in values and not (grows or unit_named(unit).adds):
        message = "a ratio over unmeasured ops is never known: remove 'allow_unmeasured'"
        reading.refuse(values.place("allow_unmeasured"), message)
    if most is not None and least is not None and least > most:
        ends = f"min {values.written('min')} is above max {values.written('max')}"
        reading.refuse(values.key.place, f"{ends}: nothing could be within")
    auto = tuple(end for end in ("max", "min") if values.written(end) == AUTO)
    if most is None and least is None and grow is None and not auto:
        return None
    limit = Limit(
        key,
        values.key.place,
        max=most,
        min=least,
        level=values["level"],
        allow_unmeasured=values["allow_unmeasured"],
        written=values.written("max") or values.written("min"),
        grow=None if grow is None else Fraction(grow),
        floor=int(values["floor"]) if grows else 0,
        auto=auto,
    )
    if values["waiver"] is None:
        return limit
    try:
        return replace(limit, waiver=fitted_waiver(limit, values["waiver"], unit))
    except BudgetError as error:
        reading.refuse(values.place("waiver"), str(error))
        return limit


def _known_op(word: Text, key: str, reading: Reading) -> str:
    """A kind or foreign name that a rule knows; a typo must not be green."""
    name, ops = word.text, reading.tables.ops
    if name in ops.kinds or name in ops:
        return name
    guess = suggestion(name, ops) if "::" in name else suggestion(name, sorted(ops.kinds), ops.bare_names)
    if alone := [known for known in ops if known.rpartition("::")[2].casefold() == name.casefold()]:
        guess = f"{guess.rstrip('?')}, or {some_of(alone)} alone?"
    raise BudgetError(f"no op rule knows {shown(name)}: {guess} (modelbudget ops lists all)")


SELECTOR = grammar.spelled("an op kind such as convolution", _known_op, {"type": "string"})
SELECTORS = grammar.listed(SELECTOR, "a list of op kinds such as [lstm, convolution]", name="selectors")
OP_COUNTS = grammar.named(
    grammar.amount("op"), "a mapping of op kinds to counts: {convolution: 20}", keys=SELECTOR, name="op_counts"
)
OPS_GRAMMAR = Grammar(
    "a limit on ops",
    (
        Field("allow", SELECTORS, "the only kinds (or foreign names) that may run"),
        Field("deny", SELECTORS, "kinds (or foreign names) that may not run", default=()),
        Field("max", OP_COUNTS, "how often a kind (or foreign name) may run", default={}),
        LEVEL,
        ALLOWED,
    ),
    needs=("allow", "deny", "max"),
    elsewhere={WAIVER: "it takes an amount: permit the operation, or give the limit 'level: warn'"},
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


def limits_form(
    metrics: Mapping[str, Metric], *, scoped: bool = False, deployed: bool = False
) -> Form[tuple[AnyLimit, ...]]:
    """The limits of a model, or of a part of it: on every metric that it has; deployed, of a model on a device."""
    elsewhere = {WAIVER: "write it with the limit that it is for: params: {max: 3 M, waiver: {to: ...}}"}
    fields = []
    for key, metric in metrics.items():
        form: Form[Any] = OPS_LIMIT if metric.by_kind else limit_form(metric.key, metric.unit)
        if scoped and metric.not_scoped:
            elsewhere[key] = f"of a part of a model it is not defined: {metric.not_scoped}; limit it on the model"
        elif metric.stage is Stage.DEPLOYED and not deployed:
            elsewhere[key] = f"it is measured of a model on a device: {DEPLOYING}"
        elif metric.stage is Stage.EVALUATED:
            elsewhere[key] = f"it is of a model's answers: {EVALUATING}"
        elif metric.stage in (Stage.TRAINED, Stage.SERVED) and deployed:
            elsewhere[key] = "it is measured of the model as written, not as deployed: limit it on the model"
        else:
            fields.append(Field(key, form, metric.definition, also=metric.also))
    needs = tuple(known.key for known in fields)
    table = Grammar("limits", tuple(fields), needs=needs, elsewhere=elsewhere)
    return table.form(_limits, f"{'deployed_' * deployed}{'scoped_' * scoped}limits")


def _limits(values: Values, reading: Reading) -> tuple[AnyLimit, ...]:
    limits = (values.read[key] for key in values.entries)
    return tuple(limit for limit in limits if isinstance(limit, (Limit, OpsLimit)))


GLOB = grammar.word_like(r"(?!.*(?:::|@))\S(?:.*\S)?", "glob on module paths", "one such as layer4.*")


def scopes_form(metrics: Mapping[str, Metric], *, deployed: bool = False) -> Form[tuple[AnyLimit, ...]]:
    """Limits on parts of a model, by a glob on module paths."""
    limits = limits_form(metrics, scoped=True, deployed=deployed)
    by_glob = grammar.named(limits, "scopes: a mapping of module globs to limits", keys=GLOB)

    def read(entry: Entry, reading: Reading) -> tuple[AnyLimit, ...]:
        scopes = by_glob.read(entry, reading) or {}
        return tuple(replace(limit, scope=glob) for glob, limits in scopes.items() for limit in limits)

    return Form(read, by_glob.schema, f"{'deployed_' * deployed}scopes")


def limit_fields(metrics: Mapping[str, Metric], *, deployed: bool = False) -> tuple[Field, ...]:
    """The keys of the limits below: a model, a variant, a transform, a deployment."""
    limits, scopes = limits_form(metrics, deployed=deployed), scopes_form(metrics, deployed=deployed)
    return (
        Field("limits", limits, "metric: quantity, or metric: {max, min, grow, level}", default=()),
        Field("scopes", scopes, "limits on a part of the model, by a glob on module paths", default=()),
        ALLOWED,
    )


def held_limits(values: Values) -> tuple[AnyLimit, ...]:
    """Limits on the whole model, then those on its scopes, each with what all may leave out, and on its answers."""
    allowed, evaluated = values["allow_unmeasured"], "evaluate" in values and values["evaluate"]
    limits = (
        replace(limit, allow_unmeasured=tuple(dict.fromkeys((*limit.allow_unmeasured, *allowed))))
        for limit in (*values["limits"], *values["scopes"])
    )
    return (*limits, *(evaluated.limits if evaluated else ()))
