"""Whether a model fits, as text: how full memories are, what lives at the peak, and what takes the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from textwrap import wrap

from pytest_modelbudget.budget.deployment_forms import lower_texts
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.deployment.device import HOLDS, Device
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.tensor import DType, nbytes_of, unbound_symbols
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.on_device import ACTIVATION_ARENA, MemoryUse, Timed
from pytest_modelbudget.reports.build import metric_report
from pytest_modelbudget.reports.devices import deployment_notes, peak_lines, peak_report
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.show import binding
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.units import exact, percentage, readable, readable_pair, several

SAYS = {Outcome.WITHIN: "it fits", Outcome.OVER: "it does not fit", Outcome.UNKNOWN: "whether it fits is unknown"}
ARRAY_KEYS = frozenset({"array_cycles", "array_utilisation", "array_mapping", "array_traffic"})


def fit_text(title: str, model: DeployedModel, verdict: Verdict, width: int, way_out: str = "") -> str:
    """The verdict with its fix, memories, what lives at the peak, order and arena, time by what takes it, notes."""
    settings = ", ".join(f"{key} {text}" for key, text in lower_texts(model.deployment.lowering).items())
    lowered = [] if model.deployment.is_trained else wrap(f"lowered: {settings}", width, subsequent_indent="  ")
    head = [f"{SAYS[verdict.outcome]}: {title} on {model.deployment.device.name}"]
    for reason in verdict.reason.split("; ") if verdict.fails else ():
        head += wrap(reason, width, initial_indent="  ", subsequent_indent="    ")
    head += [*filter(None, [way_out]), ""]
    lines = [*head, *_measured(model), *_notes(model, width), *lowered]
    return "\n".join(lines)


def _measured(model: DeployedModel) -> Iterator[str]:
    if model.fitting is None:
        return
    rows = [_memory_row(use) for use in model.fitting.uses]
    memories = aligned("  {:<}  {}  {:>}  {:>}  {:>}  {}", rows)
    peak = peak_lines(peak_report(model.fitting))
    blocks = [memories, peak]
    if model.timed is not None and not model.deployment.is_trained:
        of_time, of_array = _time_lines(model.timed), _array_lines(model.measured.measurements)
        blocks = [memories, chain(peak, _placing(model)), of_time, of_array]
    for lines in filter(None, map(list, blocks)):
        yield from (*lines, "")


BAR = 10  # letters of one


def _memory_row(use: MemoryUse) -> tuple[str, ...]:
    """A memory without what is reserved of it: "flash", a bar, "3.45 of 8.00 MiB", "43%", "4,774,400 B left"."""
    memory, least, most = use.memory, *((">= ", "<= ") if use.unmeasured else ("", ""))
    filled = Fraction(use.used, memory.room) if memory.room else Fraction(use.used > 0)
    share = least + percentage(filled)
    left = f"{exact(-use.headroom, 'B')} over" if use.headroom < 0 else f"{most}{exact(use.headroom, 'B')} left"
    return (memory.name, bar(filled), least + _amounts(use), share, left, " and ".join(memory.holds))


def bar(filled: Fraction) -> str:
    """A share as a bar, full where nothing is left."""
    full = BAR if filled >= 1 else min(round(filled * BAR), BAR - 1)
    return "█" * full + "░" * (BAR - full)


def _amounts(use: MemoryUse) -> str:
    """What is used of what there is: "3.45 of 8.00 MiB"."""
    used, room = readable_pair(use.used, use.memory.room, "B", binary=use.memory.binary)
    amount, unit = used.rsplit(" ", 1)
    return f"{amount if room.endswith(f' {unit}') else used} of {room}"


def _placing(model: DeployedModel) -> Iterator[str]:
    """What lives at once in the best order, and what placing it takes; nothing where sizes are unknown."""
    known = model.measured.measurements.get(ACTIVATION_ARENA.key)
    if model.order is None or model.arena is None or known is None or not known.complete:
        return
    word = "proved" if model.order.proved else f"not proved: none needs less than {exact(model.order.bound, 'B')}"
    yield f"  {exact(model.order.nbytes, 'B')} in the best order of operations ({word})"
    arena = model.arena
    yield f"  {exact(arena.nbytes, 'B')} in an arena by {arena.planner}, aligned to {exact(arena.align, 'B')}"


def _time_lines(timed: Timed) -> Iterator[str]:
    """The least time, by the side that binds each operation; a bound of those alone that could be bounded."""
    seconds: defaultdict[str, Fraction] = defaultdict(Fraction)
    count: defaultdict[str, int] = defaultdict(int)
    for op in timed.ops:
        seconds[op.bound.binds] += op.bound.seconds
        count[op.bound.binds] += 1
    if timed.ops:
        yield f"  {readable(sum(seconds.values(), Fraction(0)), 's')} at the least, one operation after another"
        rows = [(readable(seconds[side], "s"), side, several(count[side], "operation")) for side in seconds]
        yield from aligned("  {:>}  bound by {:<}  {:>}", rows)
    reasons: defaultdict[str, int] = defaultdict(int)
    for _, _, why in timed.missing:
        reasons[why] += 1
    yield from (f"  {several(number, 'operation')} without a bound: {why}" for why, number in reasons.items())


def _array_lines(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """What the device's array has to do; nothing where it has none."""
    numbers = [(key, number) for key, number in measurements.items() if key in ARRAY_KEYS]
    rows = [
        (readable(number.value, number.unit) + ("" if number.complete else " or more"), key) for key, number in numbers
    ]
    yield from aligned("  {:>}  {}", rows)


def _notes(model: DeployedModel, width: int) -> Iterator[str]:
    notes = [*deployment_notes(model), *model.measured.notes]
    for note in notes:
        symbols = unbound_symbols(note)
        way_out = f"; {binding(dict.fromkeys(symbols, 1))}" if symbols else ""
        yield from wrap(f"{note}{way_out}", width, subsequent_indent="  ")
    if notes:
        yield ""


IN_SHORT = {Outcome.WITHIN: "fits", Outcome.OVER: "too small", Outcome.UNKNOWN: "unknown"}


def devices_fit_text(title: str, models: Iterable[tuple[DeployedModel, Verdict]]) -> str:
    """One model on several devices: how full each memory is, the least time, and whether it fits."""
    rows: list[tuple[str, ...]] = [("device", *HOLDS, "at least", "")]
    for model, verdict in models:
        latency = model.measured.measurements.get("latency_bound")
        seconds = readable(latency.value, latency.unit) if latency is not None and latency.complete else "?"
        uses = model.fitting.uses if model.fitting else ()
        rows.append(
            (model.deployment.device.name, *(_full(uses, what) for what in HOLDS), seconds, IN_SHORT[verdict.outcome])
        )
    return "\n".join([title, *aligned("  {:<}  {:>}  {:>}  {:>}  {}", rows)])


def _full(uses: Iterable[MemoryUse], what: str) -> str:
    """How full the memory is that holds this: "86% of 4.00 MiB"; "?" where nobody knows."""
    use = next((use for use in uses if what in use.memory.holds and use.memory.room), None)
    if use is None:
        return "?"
    percent = 100 * use.used // use.memory.room
    share = f"{percent}%" if percent or not use.used else "<1%"
    sign = ">= " * bool(use.unmeasured)
    return f"{sign}{share} of {readable(use.memory.room, 'B', binary=use.memory.binary)}"


def fit_record(model: DeployedModel, verdict: Verdict) -> dict[str, object]:
    """The same as plain JSON values; amounts in bytes and seconds."""
    deployment, fit = model.deployment, model.fitting
    uses = fit.uses if fit else ()
    peak = peak_report(fit) if fit else None
    return {
        "device": deployment.device.name,
        "lower": lower_texts(deployment.lowering),
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "memories": [
            {"name": use.memory.name, "holds": list(use.memory.holds), "used": use.used, "size": use.memory.size,
             "reserve": use.memory.reserve, "headroom": use.headroom, "complete": not use.unmeasured}
            for use in uses
        ],
        "peak": to_json(peak) if peak else None,
        "metrics": {key: to_json(metric_report(number)) for key, number in model.measured.measurements.items()},
        "notes": [*deployment_notes(model), *model.measured.notes],
    }  # fmt: skip


def device_text(device: Device, width: int) -> str:
    """A device's figures, one a line, each with where it is from."""
    rows = []
    for memory in device.memories:
        reserve = f", {readable(memory.reserve, 'B')} of it reserved" if memory.reserve else ""
        speed = f", {readable(memory.bandwidth, 'B/s')}" if memory.bandwidth else ""
        size = readable(memory.size, "B", binary=memory.binary)
        rows.append((memory.name, f"{size} for {' and '.join(memory.holds)}{reserve}{speed}"))
    rows += [(f"macs of {name}", readable(rate, "MAC/s")) for name, rate in device.macs.items()]
    if device.array is not None:
        array, clock = device.array, f", {readable(device.clock, 'Hz')}" if device.clock else ""
        rows.append(("array", f"{array.rows} x {array.columns}, {array.dataflow}{clock}"))
    rules = device.arena
    place = "inside" if rules.io_inside else "outside"
    rows.append(("arena", f"{rules.planner}, aligned to {rules.align} B, inputs and outputs {place}"))
    sources = [
        *filter(None, [device.source]),
        *(f"{memory.name}: {memory.source}" for memory in device.memories if memory.source),
    ]
    lines = [line for source in sources for line in wrap(source, width, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join([device.name, *aligned("  {:<}  {}", rows), *lines])


# A language model in service: what fills a memory, and what other types and sizes of it would.

MEMORY = "serving_memory"
TYPES = (DType("float32", 32), DType("bfloat16", 16), DType("int8", 8), DType("int4", 4))


def serving_text(title: str, numbers: Mapping[str, Measurement], room: int | None, found: Mapping[str, int]) -> str:
    """The verdict, a bar for each part of the memory, MACs, the same weights in other types, and what fits."""
    memory = numbers[MEMORY]
    parts, total = dict(memory.parts), int(memory.value)
    shares = [
        (name, nbytes, Fraction(nbytes, room or total or 1)) for name, nbytes in (*parts.items(), ("total", total))
    ]
    rows = [(name, bar(share), exact(nbytes, "B"), percentage(share)) for name, nbytes, share in shares]
    macs = [(key, exact(numbers[key].value, "MAC")) for key in ("prefill_macs", "decode_macs") if key in numbers]
    needed = ("" if memory.complete else ">= ") + readable(total, "B")
    words = {True: "it fits", False: "it does not fit", None: "whether it fits is unknown"}[fits(memory, room)]
    verdict = f"needs {needed}" if room is None else f"{words}, {needed} of {readable(room, 'B')}"
    types = aligned("  {:<}  {:>}  {:>}  {}", list(_in_types(numbers["params"], memory, room)))
    lines = [f"{title}: {verdict}", "", *aligned("  {:<}  {}  {:>}  {:>}", rows), "", *aligned("  {:<}  {:>}", macs)]
    lines += ["", "  the weights alone in other types, and all of it:", *types]
    return "\n".join([*lines, *(f"  {what}: {most:,}" for what, most in found.items())])


def fits(memory: Measurement, room: int | None) -> bool | None:
    """Whether it fits; None where that is not known, or no memory is named."""
    if room is not None and int(memory.value) > room:
        return False
    return True if memory.complete and room is not None else None


def _in_types(params: Measurement, memory: Measurement, room: int | None) -> Iterator[tuple[str, ...]]:
    """Values of each type alone, without scales; cache and activations as they are. A lower bound never fits."""
    rest = sum(nbytes for name, nbytes in memory.parts.items() if name != "weights")
    under = "fits" if params.complete and memory.complete else "unknown"
    for dtype in TYPES:
        weights = nbytes_of(int(params.value), dtype)
        fit = "" if room is None else under if weights + rest <= room else "does not fit"
        yield dtype.name, readable(weights, "B"), readable(weights + rest, "B"), fit
