"""``statistics:`` of a model, limits on the values of its layers, and ``runtime:``, limits on its runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any, cast

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Limit, TimedRun, ValuesRun
from pytest_modelbudget.budget.grammar import Field, Form, Grammar, Reading, Values
from pytest_modelbudget.budget.hardware_file import device_named, device_texts
from pytest_modelbudget.budget.limit_forms import LEVEL
from pytest_modelbudget.budget.source_forms import GIVEN_FORM
from pytest_modelbudget.budget.transform_forms import SEEDS_FORM, number_form
from pytest_modelbudget.formats.benchmark import REPEATS, THREADS, WARMUP, Plan, Processor
from pytest_modelbudget.formats.spellings import AMOUNT, SHARE, WHOLE, Numbers
from pytest_modelbudget.runners.timing import GROWTH, LATENCY, PEAK_MEMORY, ROOFLINE_SHARE, RUN_FIGURES, RunFigure
from pytest_modelbudget.values.capture import CHANNELS, SEEDS, SIGMAS, NamedInputs, Selection
from pytest_modelbudget.values.judgement import FIGURES

MOST_REPEATS, MOST_THREADS = 10_000, 1024

NUMBERS = {"%": SHARE, "channel": WHOLE, "": AMOUNT}  # by the unit of a figure
DEVIATIONS = Numbers("a number above 0 and below 1000, such as 3", lambda number: 0 < number < 1000)


STATISTICS_GRAMMAR = Grammar(
    "a statistics check",
    (
        Field("layers", grammar.words("a glob such as features.*"), "globs on module paths", default=("*",)),
        Field("types", grammar.words("a type of layers such as Conv2d"), "types of layers, such as [ReLU]", default=()),
        Field("inputs", GIVEN_FORM, "real inputs: data/x.npz, or package.module:callable"),
        Field("seeds", SEEDS_FORM, "seeds of drawn inputs; 0, 1 and 2", default=()),
        Field("channels", grammar.whole_number(), "the axis of channels; 1", default=CHANNELS),
        Field("sigmas", number_form(DEVIATIONS), "deviations that a range spans; 3", default=SIGMAS),
        *(Field(key, number_form(NUMBERS[figure.unit]), figure.about) for key, figure in FIGURES.items()),
        LEVEL,
    ),
    needs=tuple(FIGURES),
)


def _statistics(values: Values, reading: Reading) -> tuple[Limit, ...]:
    if "inputs" in values and "seeds" in values:
        reading.refuse(values.place("seeds"), "'seeds' draw inputs, and 'inputs' bring them: remove one of them")
    name = values.key.text
    run = ValuesRun(
        name,
        values.key.place,
        Selection(tuple(values["layers"]), tuple(values["types"])),
        NamedInputs(values["inputs"], tuple(dict.fromkeys(values["seeds"])) or SEEDS),
        values["channels"],
        float(values["sigmas"]),
    )
    how = {"level": values["level"], "scope": name, "run": run, "kind": run.kind}
    read = [key for key in values.entries if key in FIGURES and values[key] is not None]
    return tuple(Limit(key, values.place(key), values[key], written=values.written(key), **how) for key in read)


_BY_NAME = grammar.by_name("statistic", STATISTICS_GRAMMAR.form(_statistics, "statistics_check"))
STATISTICS = Field(
    "statistics",
    replace(_BY_NAME, read=lambda entry, reading: tuple(chain(*(_BY_NAME.read(entry, reading) or {}).values()))),
    "limits on the values that layers give on named inputs",
    default=(),
)


def _figure_form(key: str, figure: RunFigure) -> Form[tuple[Limit, ...]]:
    """The limits on a figure before it is known what runs: on its end, and on the growth of the latency."""
    end = Field(figure.end, grammar.amount(figure.unit, figure.example, of=key), figure.about)

    def limits(values: Values, reading: Reading) -> tuple[Limit, ...]:
        limits = []
        for word, amount in values.read.items():
            of = (GROWTH, values.place(word)) if word == "grow" else (key, values.key.place)
            ends = {"min": amount} if word == "min" else {"max": amount}
            limits += [] if amount is None else [Limit(*of, written=values.written(word), **cast("Any", ends))]
        return tuple(limits)

    growth = Field("grow", grammar.amount("%", "5%"), "how much longer than at the base one call may take")
    fields = (end, growth) if key == LATENCY else (end,)
    expected, needs = f"{key}: a mapping such as {{{figure.end}: {figure.example}}}", tuple(each.key for each in fields)
    mapping = Grammar(f"a limit on {key}", fields, needs, expected=expected).form(limits, f"run_{key}")
    return grammar.shorthand(mapping, figure.end, end.form) if figure.end == "max" else mapping


RUNTIME_GRAMMAR = Grammar(
    "runtime",
    (
        *(Field(key, _figure_form(key, figure), figure.about, default=()) for key, figure in RUN_FIGURES.items()),
        Field("device", grammar.one_word([device.value for device in Processor], "device", meaning=Processor),
              "where it runs; cpu", default=Processor.CPU),
        Field("hardware", grammar.text_form("hardware: the name of a device"), "this machine's profile, by name"),
        Field("repeats", grammar.whole_number(1, MOST_REPEATS), "calls that are counted; 20", default=REPEATS),
        Field("warmup", grammar.whole_number(0, MOST_REPEATS), "calls before them; 3", default=WARMUP),
        Field("threads", grammar.whole_number(1, MOST_THREADS), "threads of the CPU; 1", default=THREADS),
        LEVEL,
    ),
    needs=tuple(RUN_FIGURES),
)  # fmt: skip


def _runtime(values: Values, reading: Reading) -> tuple[Limit, ...]:
    if ROOFLINE_SHARE in values and "hardware" not in values:
        needs = "needs this machine's profile: write hardware: NAME (modelbudget devices lists those that are shipped)"
        reading.refuse(values.place(ROOFLINE_SHARE), f"{ROOFLINE_SHARE} {needs}")
    hardware = device_named(values.entries["hardware"], reading) if values["hardware"] else None
    counts = {key: values[key] for key in ("device", "repeats", "warmup", "threads")}
    plan = Plan(**counts, memory=PEAK_MEMORY in values, hardware=hardware)
    run = TimedRun(values.key.place, plan, grammar.flow(device_texts(hardware)) if hardware else "")
    how = {"level": values["level"], "scope": plan.device.value, "run": run, "kind": run.kind}
    read = [replace(limit, **how) for key in values.entries if key in RUN_FIGURES for limit in values[key]]
    return tuple(replace(each, run=replace(run, grow=each.max)) if each.metric == GROWTH else each for each in read)


RUNTIME = Field(
    "runtime",
    RUNTIME_GRAMMAR.form(_runtime, "runtime"),
    "limits on runs on a device, which --model-budget-runtime asks for",
    default=(),
)
