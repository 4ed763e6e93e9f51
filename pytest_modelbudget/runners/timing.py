"""Timed runs: their figures, the table of their operators, and their share of the roof of a hardware profile."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.formats.benchmark import CALL, MODULE, OperatorTime, Plan, Processor, Timing
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.units import Number, decimal_text, percentage, readable, several
from pytest_modelbudget.values.judgement import nine_digits

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, RunnableModel
    from pytest_modelbudget.metrics.measurement import Measurement

LATENCY, PEAK_MEMORY, ROOFLINE_SHARE = "latency", "peak_memory", "roofline_share"
GROWTH = "latency_growth"  # of runs in turn with those of the base
BETWEEN = "between operators"  # the row of what a module, or the framework, does itself
MEMORY = "[memory]"  # an event of torch's profiler: bytes that the running operator took, or gave back
MOST_OPERATORS = 8  # lines of a table, without that of the others


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure of a run that a budget may limit: its unit, a description and an example of the limit, and its end.

    of returns the figure, or why it is unknown.
    """

    unit: str
    about: str
    example: str
    of: Callable[[Timing], Number | str]
    end: str = "max"


def _share_of_roof(timing: Timing) -> Number | str:
    """The least time of the profile ÷ the median."""
    roof = timing.roof
    if isinstance(roof, str):
        return roof
    for op in roof.unmeasured:
        return f"no bound is known of {op.op}: {op.why}"
    if roof.least != roof.value:
        return f"data decide whether latency_bound is {readable(roof.least, 's')} or {readable(roof.value, 's')}"
    share = nine_digits(float(roof.value) / timing.median)
    other = f"{percentage(share)} of the roof: the profile is not this machine's: name its own under hardware"
    return other if share > 1 else share


RUN_FIGURES: Mapping[str, RunFigure] = {
    LATENCY: RunFigure(
        "s", "the largest median time of one call", "20 ms", lambda timing: nine_digits(timing.median)
    ),
    "throughput": RunFigure(
        "call/s", "the least calls a second: 1 / latency", "50 call/s",
        lambda timing: nine_digits(1 / timing.median), "min",
    ),
    ROOFLINE_SHARE: RunFigure(
        "%", "the least share of the roof of hardware: its latency_bound / latency", "30%", _share_of_roof, "min"
    ),
    PEAK_MEMORY: RunFigure(
        "B", "the most memory that one call may hold, weights and inputs among it", "60 MB",
        lambda timing: timing.peak_memory if timing.peak_memory is not None else "it was not asked for",
    ),
}  # fmt: skip


def timed(model: RunnableModel, inputs: Arrays, plan: Plan) -> Timing:
    """The timing of a model; on the CPU, with the operators of the traced call whose time is nearest to the median."""
    with TemporaryDirectory() as folder:
        trace = plan.trace or Path(folder, "trace.json")
        if plan.device is not Processor.CPU:
            return model.timed(inputs, plan)
        timing = model.timed(inputs, replace(plan, trace=trace))
        found = operators(json.loads(trace.read_bytes()), timing.median) if trace.is_file() else ()
        return replace(timing, operators=found)


@dataclass(slots=True)
class _Running:
    """An event that has not ended: its row, and its self time so far, in ns."""

    end: int
    name: str
    module: str
    ns: int
    nbytes: int = 0


def operators(trace: Any, seconds: float) -> tuple[OperatorTime, ...]:
    """The operators of one call in a Chrome trace, the slowest first: the call whose time is nearest to these seconds.

    Self times add up to the time of the call: the time outside of all operators is a row of its own.
    """
    events = [each for each in (trace["traceEvents"] if isinstance(trace, dict) else trace) if "ts" in each]
    calls = [each for each in events if each["name"] == CALL and each["ph"] == "X"]
    if not calls:
        return ()
    call = min(calls, key=lambda each: abs(each["dur"] - 1e6 * seconds))
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in _ended(_within(call, events)):
        row = found[each.name, each.module]
        for at, amount in enumerate((each.name != BETWEEN, each.ns, each.nbytes)):
            row[at] += amount
    rows = (OperatorTime(*key, calls, ns, nbytes) for key, (calls, ns, nbytes) in found.items())
    return tuple(sorted(rows, key=lambda each: -each.ns))


def _within(call: Any, events: Iterable[Any]) -> list[tuple[int, int, Any]]:
    """(begin, nanoseconds, event) of a call, and of all within it in its thread, in their order."""
    timed = ((round(1000 * each["ts"]), round(1000 * each.get("dur", 0)), each) for each in events
             if each.get("tid") == call["tid"])  # fmt: skip
    first, longest = round(1000 * call["ts"]), round(1000 * call["dur"])
    inside = (each for each in timed if first <= each[0] and each[0] + each[1] <= first + longest)
    return sorted(inside, key=lambda each: (each[0], -each[1]))


def _ended(events: Iterable[tuple[int, int, Any]]) -> Iterator[_Running]:
    """Each event with its self time: its own less that of the events in it."""
    stack: list[_Running] = []
    for begin, ns, event in events:
        while stack and stack[-1].end <= begin:
            yield stack.pop()
        said, name = event.get("args", {}), event["name"]
        if name == MEMORY and stack:
            stack[-1].nbytes += said.get("Bytes", 0)
        elif event["ph"] == "X":
            module = stack[-1].module if stack else ""
            if name.startswith(MODULE):
                name, module = BETWEEN, name.removeprefix(MODULE)
            elif name == CALL or event.get("cat") == "Session":
                name = BETWEEN
            if stack:
                stack[-1].ns -= ns
            name, module, nbytes = said.get("op_name", name), said.get("module", module), said.get("Bytes", 0)
            stack.append(_Running(begin + ns, name, module, ns, nbytes))
    yield from reversed(stack)


def with_roof(timing: Timing, roof: Measurement | str) -> Timing:
    """The timing with the least time by a profile, or why there is none; operators have their shares then."""
    by_module, bounds, total = defaultdict[str, int](int), dict[str, Fraction](), _ns(timing.operators)
    for row in timing.operators:
        by_module[row.module] += row.ns
    if not isinstance(roof, str):
        unknown = {op.scope for op in roof.unmeasured}
        bounds = {share.scope: Fraction(share.value) for share in roof.shares if share.scope not in unknown}

    def with_shares(row: OperatorTime) -> OperatorTime:
        bound, ns = bounds.get(row.module), by_module[row.module]
        of_roof = "" if bound is None or not ns else decimal_text(bound * 10**9 / ns)
        return replace(row, share=decimal_text(Fraction(row.ns, total or 1)), roof_share=of_roof)

    return replace(timing, roof=roof, operators=tuple(map(with_shares, timing.operators)))


def table(timing: Timing) -> tuple[str, ...]:
    """A line for each of the slowest operators, with the module where most of it is, and one for the others."""
    by_name: dict[str, list[OperatorTime]] = defaultdict(list)
    for row in timing.operators:
        by_name[row.name].append(row)
    named = sorted(by_name.items(), key=lambda item: -_ns(item[1]))
    others = [row for _, rows in named[MOST_OPERATORS:] for row in rows]
    shown = [*named[:MOST_OPERATORS], *([("others", others)] if others else [])]
    return tuple(", ".join(_line(name, rows, _ns(timing.operators))) for name, rows in shown)


def _ns(rows: Iterable[OperatorTime]) -> int:
    return sum(row.ns for row in rows)


def _line(name: str, rows: list[OperatorTime], total: int) -> Iterator[str]:
    calls, nbytes = sum(row.calls for row in rows), sum(row.nbytes for row in rows)
    yield f"  {name}: {several(calls, 'call')}" if calls else f"  {name}"
    yield f"{readable(Fraction(_ns(rows), 10**9), 's')} of its own"
    yield percentage(Fraction(_ns(rows), total or 1))
    if nbytes > 0:
        yield readable(nbytes, "B")
    if name != "others":
        most = max(rows, key=lambda row: row.ns)
        share = f" ({percentage(Fraction(most.roof_share))} of the roof)" if most.roof_share else ""
        yield f"most in {scope_text(most.module)}{share}"
