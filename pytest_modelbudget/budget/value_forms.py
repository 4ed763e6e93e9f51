"""``statistics:`` of a model, limits on the values of its layers, and ``runtime:``, limits on its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Limit, TimedRun, ValuesRun
from pytest_modelbudget.budget.grammar import Field, Form, Grammar, Reading, Values
from pytest_modelbudget.budget.limit_forms import LEVEL
from pytest_modelbudget.budget.transform_forms import GIVEN_FORM, SEEDS_FORM, exact_number, number_form
from pytest_modelbudget.budget.yaml_text import Text, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.benchmark import PEAK_MEMORY, REPEATS, RUN_FIGURES, THREADS, WARMUP, Plan, Processor
from pytest_modelbudget.units import Number, quantity, quantity_pattern
from pytest_modelbudget.values.capture import CHANNELS, SEEDS, SIGMAS, NamedInputs, Selection
from pytest_modelbudget.values.judgement import FIGURES

Run = ValuesRun | TimedRun
Written = tuple[Number, str]  # an amount, and how the file spells it
MOST_REPEATS, MOST_THREADS = 10_000, 1024


# Statistics.


def _amount(unit: str, written: str) -> Fraction | None:
    """A number that is not negative; a share is at most 1, and channels are counted whole."""
    number = exact_number(written)
    if number is None or number < 0 or (unit == "%" and number > 1):
        return None
    return None if unit == "channel" and (number.denominator > 1 or "%" in written) else number


WANTED: Mapping[str, str] = {
    "%": "a share such as 5%, or a number from 0 to 1",
    "channel": "a whole number such as 0",
    "": "a number such as 6.5",
}


def _words(what: str) -> Form[tuple[str, ...]]:
    return grammar.one_or_several(what, empty=f"{{key}} is empty: name at least {what}")


AXIS = grammar.whole_number("channels: the axis of channels, such as 1")
STATISTICS_GRAMMAR = Grammar(
    "a statistics check",
    (
        Field("layers", _words("a glob on module paths such as features.*"), "globs on module paths", default=("*",)),
        Field("types", _words("a type of layers such as Conv2d"), "types of layers, such as [ReLU]", default=()),
        Field("inputs", GIVEN_FORM, "real inputs: data/x.npz, or package.module:callable"),
        Field("seeds", SEEDS_FORM, "seeds of drawn inputs; 0, 1 and 2", default=()),
        Field("channels", AXIS, "the axis of channels; 1", default=CHANNELS),
        Field("sigmas", number_form("{key}: a number such as 3", exact_number), "deviations that a range spans; 3"),
        *(
            Field(key, number_form(f"{{key}}: {WANTED[figure.unit]}", partial(_amount, figure.unit)), figure.about)
            for key, figure in FIGURES.items()
        ),
        LEVEL,
    ),
    needs=tuple(FIGURES),
    lacking=f"the statistics {{name}} hold nothing: give one of {', '.join(FIGURES)}",
)


def _statistics(values: Values, reading: Reading) -> tuple[Limit, ...]:
    if "inputs" in values and "seeds" in values:
        reading.refuse(values.place("seeds"), "'seeds' draw inputs, and 'inputs' bring them: remove one of them")
    sigmas = values["sigmas"]
    if sigmas is not None and not 0 < sigmas < 1000:
        reading.refuse(values.place("sigmas"), "sigmas must be above 0 and below 1000")
    name = values.key.text
    run = ValuesRun(
        name,
        values.key.place,
        Selection(tuple(values["layers"]), tuple(values["types"])),
        NamedInputs(values["inputs"], tuple(dict.fromkeys(values["seeds"])) or SEEDS),
        values["channels"],
        float(sigmas) if sigmas else SIGMAS,
    )
    amounts = {key: (values[key], _spelled(values, key)) for key in values.entries if key in FIGURES}
    return _limits(values, amounts, name, run)


def _limits(values: Values, amounts: Mapping[str, tuple[Number | None, str]], name: str, run: Run) -> tuple[Limit, ...]:
    """The limits on one run; what could not be read has no amount."""
    return tuple(
        Limit(key, values.place(key), most, level=values["level"], scope=name, written=written, run=run, kind=run.kind)
        for key, (most, written) in amounts.items()
        if most is not None
    )


def _spelled(values: Values, key: str) -> str:
    node = values.entries[key].value
    return node.text.strip() if isinstance(node, Text) else ""


_BY_NAME = grammar.by_name("statistic", STATISTICS_GRAMMAR.form(_statistics, "statistics_check"))
STATISTICS = Field(
    "statistics",
    replace(_BY_NAME, read=lambda entry, reading: tuple(chain(*(_BY_NAME.read(entry, reading) or {}).values()))),
    "limits on the values that layers give on named inputs",
    default=(),
)


# Measured runs.


def room_for(what: str, unit: str, example: str) -> Form[Written]:
    """An amount above zero that a run, or a model, may take."""

    def meaning(word: Text, key: str, reading: Reading) -> Written:
        amount = quantity(word.text, unit)
        if amount <= 0:
            raise BudgetError(f"{shown(word.text)} leaves no room for any {what}: write an amount such as {example}")
        return amount, word.text.strip()

    schema = {"type": "string", "pattern": quantity_pattern(unit)}
    return grammar.spelled(f"{{key}}: an amount such as {example}", meaning, schema, lead="{key}: ")


def _count(least: int, most: int) -> Form[int]:
    refusal = f"{{key}} of {{number}}: it must be {least} to {most:,}"
    return grammar.whole_number(least=least, most=most, refusal=refusal, schema={"type": "integer", "minimum": least})


DEVICE: Form[Any] = grammar.one_word(
    [device.value for device in Processor], "device: cpu or cuda", "{word} is no device: {guess}", meaning=Processor
)
RUNTIME_GRAMMAR = Grammar(
    "runtime",
    (
        *(Field(key, room_for("run", known.unit, known.example), known.about) for key, known in RUN_FIGURES.items()),
        Field("device", DEVICE, "where it runs; cpu", default=Processor.CPU),
        Field("repeats", _count(1, MOST_REPEATS), "calls that are counted; 20", default=REPEATS),
        Field("warmup", _count(0, MOST_REPEATS), "calls before them; 3", default=WARMUP),
        Field("threads", _count(1, MOST_THREADS), "threads of the CPU; 1", default=THREADS),
        LEVEL,
    ),
    needs=tuple(RUN_FIGURES),
    lacking="'runtime' holds nothing: give latency or peak_memory",
)


def _runtime(values: Values, reading: Reading) -> tuple[Limit, ...]:
    device: Processor = values["device"]
    plan = Plan(device, values["repeats"], values["warmup"], values["threads"], memory=PEAK_MEMORY in values)
    amounts = {key: values[key] or (None, "") for key in values.entries if key in RUN_FIGURES}
    return _limits(values, amounts, device.value, TimedRun(values.key.place, plan))


RUNTIME = Field(
    "runtime",
    RUNTIME_GRAMMAR.form(_runtime, "runtime"),
    "limits on runs on a device, which --model-budget-runtime asks for",
    default=(),
)
