"""The sentences about one check, for pytest's items and for every report file alike.

An item's failure::

    params 3.729 M > 3.510 M (+6.4%)   base 3.506 M   budgets/mobile.yaml:8
      classifier.1   1280→1000 becomes 1280→1175
    fix: shrink the layer above, or accept: pytest --model-budget --model-budget-update=fix ...
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import nlargest
from math import prod
from shlex import join, quote, split

from pytest_modelbudget.budget.budget import FITS, Address, path_of
from pytest_modelbudget.budget.verdict import compared
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.judgement import Basis
from pytest_modelbudget.graph.graph import is_in_scope, scope_text
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import EquivalenceReport, WorstElement
from pytest_modelbudget.reports.devices import peak_lines
from pytest_modelbudget.reports.text import aligned, cut_middle, one_line, share_lines
from pytest_modelbudget.units import exact, in_a_row, percentage, readable, readable_pair, room, several, unit_named

MOST_SHARES = 5  # that a report names
MOST_LAYERS_BELOW = 3  # a headline, of the largest
FIGURES = {"actual": "measured", "limit": "limit", "min": "minimum", "least": "least of any branch",
           "most": "most of any branch", "baseline": "base", "allowed": "allowed growth to"}  # fmt: skip
CLAIMED = {"measured": "measured", "allowed": "allowed"}  # of an equivalence, as text
NARROW = frozenset({Basis.LAYERS.value, Basis.NOTHING.value})  # less than step 1 on the network


# Layers.


def grown_lines(blame: Sequence[record.AnyGrowth]) -> Iterator[str]:
    """A line for each entry of a check's blame, in columns; none where nothing is blamed."""
    rows = [(f"{entry.delta:+,}", grown_name(entry), shapes(entry)) for entry in blame]
    yield from aligned("  {:>}  {:<}   {}", rows)


def grown_name(entry: record.AnyGrowth) -> str:
    """The parameter or scope that grew; "(3 others)" for the rest of a long list."""
    if isinstance(entry, record.OtherGrowth):
        others = "one other" if entry.count == 1 else f"{entry.count} others"
        return f"({others if entry.count else 'not distinguished'})"
    return scope_text(".".join(filter(None, (entry.scope, entry.name))))


def shapes(entry: record.AnyGrowth) -> str:
    """The shape then and now: "[1000, 1280] -> [1175, 1280]", "new [64, 3]", "gone", or ""."""
    if isinstance(entry, record.OtherGrowth):
        return ""
    before, after = ("" if sizes is None else str(list(sizes)) for sizes in (entry.shape_before, entry.shape_after))
    if entry.before is None:
        return f"new {after}".rstrip()
    if entry.after is None:
        return f"gone {before}".rstrip()
    return f"{after}{_retyped(entry)}" if before == after else f"{before} -> {after}"


def _retyped(entry: record.Growth) -> str:
    """The width of a tensor's elements then and now, where its bytes are others and its shape is not."""
    elements = prod(entry.shape_after or (0,))
    if entry.name is None or entry.before is None or entry.after is None or not elements:
        return ""
    before, after = (Fraction(8 * nbytes, elements) for nbytes in (entry.before, entry.after))
    return f" retyped: {before} -> {after} bits" if before.denominator == after.denominator == 1 else ""


def largest_shares(case: record.Case) -> list[tuple[str, Fraction]]:
    """The scopes with the largest parts of a check's number, and those parts."""
    inside = (share for share in case.shares if is_in_scope(share.scope, case.check.scope))
    largest = nlargest(MOST_SHARES, inside, key=lambda share: share.value)  # a deep model has many thousands
    return [(share.scope, Fraction(share.value)) for share in largest]


def largest_lines(case: record.Case, most: int = MOST_SHARES) -> Iterator[str]:
    """A heading and a line for each of the largest shares, where it is a maximum that they add up to."""
    shares = largest_shares(case)[:most] if case.check.maximum is not None else []
    unit = unit_named(case.check.unit)
    if unit.adds:  # of seconds and joules, each with a unit of its size
        head, rows = "", [(scope, readable(value, case.check.unit)) for scope, value in shares]
    else:
        head = unit.shown and f", in {unit.shown}"
        rows = [(scope, f"{int(value):,}") for scope, value in shares if value.denominator == 1]
    if rows:
        yield f"  largest layers by {case.check.metric}{head}"
        yield from share_lines(rows)


def uncovered(numbers: Mapping[str, Measurement | record.MeasuredMetric]) -> dict[tuple[str, int, str, str], list[str]]:
    """Each unmeasured operation (its name, count, scope and why) with the metrics that are lower bounds for it."""
    keys: dict[tuple[str, int, str, str], list[str]] = {}
    for key, number in numbers.items():
        for op in number.unmeasured:
            keys.setdefault((op.op, op.count, op.scope, op.why), []).append(key)
    return keys


# A check that fails.


def failure_lines(case: record.Case, place: object) -> tuple[str, ...]:
    """The text of an item: the first line says everything; the others help to mend it."""
    return (f"{headline(case)}{_baseline(case.check)}   {place}", *layer_lines(case), *way_out(case))


def layer_lines(case: record.Case) -> Iterator[str]:
    """The layers that grew, else the largest; of a run those that it names, and what it was measured on."""
    check = case.check
    if check.measured_on:
        yield from (*check.evidence, f"  {check.measured_on}")
    elif check.frameworks:
        yield _executed_otherwise(check)
    elif check.is_claim:
        yield from claim_lines(case)
    elif _grown(check):
        yield from changed_layers([case])
    elif _is_maximum(check):
        yield from largest_lines(case, MOST_LAYERS_BELOW)


# What fails of one model, as one block.

MOST_CHANGED = 4  # layers that a block names
MOST_LINES = 8  # of layers and limits
WIDTH = 76  # of a line of limits, behind its indent and before its comma
SEE = "see "  # before the model whose block has the figures


def is_over(check: record.Check) -> bool:
    """Whether it is a limit on a number that fails by being over, as others of its model may for the same cause."""
    is_number = check.actual is not None and not (check.is_claim or check.ops or check.measured_on)
    return is_number and check.fails and check.outcome is Outcome.OVER


def cause_lines(cases: Sequence[record.Case], base: str = "") -> tuple[str, ...]:
    """The limits of one model that are over: the verdict, the layers that changed, the limits, one command.

    cases are all of its limits, base is the base as people name it. None where no limit is over; one limit has the
    text of its own failure. At most 11 lines at 80 columns, whatever the number of limits.
    """
    failing = [case for case in cases if is_over(case.check)]
    if len(failing) < 2:
        return tuple(line for case in failing for line in failure_lines(case, case.place))
    owner = next((case.owner for case in failing if case.owner.id == case.program), failing[0].model)
    since = f", base {base}" if base and any(case.check.growth_text for case in failing) else ""
    place = failing[0].model.defined_at or f"{owner.file}:{owner.line or 1}"
    head = f"{owner.address.title}: {len(failing)} of {several(len(cases), 'limit')} over{since}   {place}"
    is_same = len({case.check.frameworks for case in failing}) == 1 and failing[0].check.frameworks
    layers = [_executed_otherwise(failing[0].check)] if is_same else changed_layers(failing)
    layers = layers or list(largest_lines(failing[0], MOST_LAYERS_BELOW))
    limits = _packed([limit_text(case) for case in failing], MOST_LINES - len(layers))
    return (head, *layers, *limits, f"fix: {_accepting(failing, has_layers=bool(layers))}")


def unknown_lines(subject: str, count: int, why: str, place: object) -> tuple[str, ...]:
    """The limits of what could not be measured, as one block: "net: 3 limits unknown: net.onnx does not exist ..."."""
    return (f"{subject}: {several(count, 'limit')} unknown: {one_line(why)}   {place}",)


def changed_layers(cases: Sequence[record.Case]) -> list[str]:
    """A line for each layer that changed since the base, in execution order: "fc  64→10 becomes 96→10"."""
    operations = {each.scope: each for each in cases[0].owner.operations}
    blame = [entry for case in cases for entry in case.check.blame]
    grown = [entry for entry in blame if isinstance(entry, record.Growth) and entry.delta]
    layers, ranks = dict[str, record.Growth](), dict[str, int]()
    for entry in [each for each in grown if each.name is not None] or grown:
        if len(entry.shape_after or entry.shape_before or ()) > ranks.get(entry.scope, -1):
            layers[entry.scope], ranks[entry.scope] = entry, len(entry.shape_after or entry.shape_before or ())
    order = {scope: position for position, scope in enumerate(operations)}
    rows = [
        (scope_text(scope), becomes(layers[scope], operations.get(scope)))
        for scope in sorted(layers, key=lambda scope: order.get(scope, len(order)))
    ]
    others = max((entry.count for entry in blame if isinstance(entry, record.OtherGrowth)), default=0)
    most = MOST_CHANGED + (len(rows) == MOST_CHANGED + 1 and not others)  # the last one instead of "1 other layer"
    left = len(rows) - most
    known = f"{left} or more other layers" if others else f"{left} other layers"
    known = known if left > 0 else several(others, "other") if others else ""
    return [*aligned("  {:<}   {}", rows[:most]), *([f"  and {known}"] if known else [])]


def _executed_otherwise(check: record.Check) -> str:
    """The line where only the frameworks changed, which is no fault of the model."""
    return f"  the same parameters and shapes as locked, but {check.frameworks} executes it otherwise"


def becomes(entry: record.Growth, operation: record.ExecutedOps | None) -> str:
    """A layer then and now, only the axes that changed: "3→32 becomes 3→48 filters", "new 64→10", or its growth."""
    before, after = entry.shape_before, entry.shape_after
    if entry.before is None or entry.after is None or before == after or not (before and after):
        same = shapes(entry)
        return same if same and before != after else f"{same}   {entry.delta:+,}".strip()
    out = _out(operation)
    if out is None or out != after[0] or len(before) != len(after) or len(after) < 2:
        return f"{_sizes(before)} becomes {_sizes(after)}"
    pairs = [(f"{shape[1]}→{shape[0]}", _sizes(shape[2:])) for shape in (before, after)]
    nouns = (" filters" if len(after) > 2 else "", " kernels")
    axes = zip(*pairs, nouns, strict=True)
    return ", ".join(f"{was} becomes {now}{noun}" for was, now, noun in axes if was != now)


def _out(operation: record.ExecutedOps | None) -> int | None:
    """The channels or features that a convolution or a linear layer gives; None of any other operation."""
    axis = {"convolution": 1, "linear": -1}.get(operation.kind) if operation else None
    if operation is None or axis is None:
        return None
    sizes = operation.outputs[0].partition(" ")[2].split("x")
    return int(sizes[axis]) if len(sizes) > 1 and sizes[axis].isdigit() else None


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def limit_text(case: record.Case) -> str:
    """A limit that is over, in short: "params 1.836 k > 1.230 k (+49.6% vs base)"."""
    check = case.check
    is_short = check.min is not None and (check.lowest or 0) < check.min
    bound = Fraction(check.min or 0) if is_short else check.maximum
    actual = check.lowest if is_short else check.highest
    if bound is None or actual is None:
        return headline(case)
    name = path_of(*case.address.names[len(case.model.address.names) :])
    return f"{name} {compared(actual, bound, check.unit, is_broken=True, base=check.baseline)}"


def _packed(texts: Sequence[str], most_lines: int) -> list[str]:
    """Texts with commas between them, in a few lines; behind them the number of those that have no place there."""
    lines = [""]
    for number, text in enumerate(texts):
        left = len(texts) - number
        joined = f"{lines[-1]}, {text}" if lines[-1] else text
        room_left = WIDTH - len(", and 99 more") * (len(lines) == most_lines and left > 1)
        if len(joined) <= room_left or not lines[-1]:
            lines[-1] = joined
        elif len(lines) < most_lines:
            lines[-1] += ","
            lines.append(text)
        else:
            lines[-1] += f", and {left} more"
            break
    return [f"  {line}" for line in lines]


def _accepting(failing: Sequence[record.Case], *, has_layers: bool) -> str:
    """What mends all of them, with the one command that accepts them."""
    updates = [(case, case.check.update) for case in failing if case.check.update]
    first = "shrink the layers above" if has_layers else "change the model"
    if not updates:
        return f"{first}, or raise the limits in {failing[0].file}"
    case, update = max(updates, key=lambda pair: len(split(pair[1])))  # one names the base that growth is seen from
    *words, node_id = split(update)
    address = Address.parse(node_id)
    below = len(case.address.names) - len(case.model.address.names)
    words.append(path_of(address.file, *address.names[: len(address.names) - below]))
    if all(case.check.frameworks for case in failing):
        return f"renew the lock with {join(words)}"
    many = f"all {len(failing)}" if len(updates) == len(failing) else f"{len(updates)} of them"
    return f"{first}, or accept {many}: {join(words)}"


def _grown(check: record.Check) -> bool:
    return any(isinstance(entry, record.Growth) for entry in check.blame)


def _baseline(check: record.Check) -> str:
    """The locked number that a number is compared with, and what may be added to it."""
    if check.baseline is None or check.actual is None:
        return ""
    before, _ = in_a_row(check.baseline, check.actual, check.unit)
    allowance = "" if check.grow is None else f", grow {percentage(Fraction(check.grow))}"
    return f"   base {before}{allowance}"


def _is_maximum(check: record.Check) -> bool:
    """Whether it is a maximum that is broken, of what its shares add up to."""
    actual, most = check.actual, check.maximum
    is_over = actual is not None and most is not None and actual > most
    adds_up = isinstance(actual, int) or unit_named(check.unit).adds
    return is_over and adds_up and check.ops is None and not check.measured_on


def fix(case: record.Case) -> str:
    """What mends a broken limit, in words that end with the command that accepts it; "" of any other."""
    check = case.check
    removed = f"remove 'waiver' at {case.file}:{check.waiver.line}" if check.waiver else ""
    if check.outcome is Outcome.UNUSED:
        return f"{removed}: {check.update}"
    if check.outcome is not Outcome.OVER or check.actual is None or check.is_claim:
        return ""
    if check.frameworks and check.update:
        return f"renew the lock with {check.update}"
    then = f"{removed}, then " if check.waiver and check.waiver.is_past else ""
    if check.ops:
        return f"{then}replace these operations, or permit them at {case.place}"
    accepting = f"accept: {check.update}" if check.update else ""
    if not _is_maximum(check) or next(layer_lines(case), None) is None:
        return f"{then}change the model, or {accepting or f'the limit at {case.place}'}"
    shrunk = "the layer" if _grown(check) else "what is largest"
    return f"{then}shrink {shrunk} above, or {accepting or f'raise the limit at {case.place}'}"


# A check in a report.


def headline(case: record.Case) -> str:
    """One line that says everything: "params 3.729 M > 3.510 M (+6.4% vs base)"."""
    reason, outcome = one_line(case.check.reason), f"{case.name} {case.check.outcome.value}"
    is_whole = not case.check.is_claim or reason.startswith(f"{outcome}: ")
    return (reason or outcome) if is_whole else f"{outcome}: {reason}"


def figures(case: record.Case) -> Iterator[tuple[str, str]]:
    """The amounts that were measured and checked, in every digit and with their unit."""
    check = case.check
    for key, label in CLAIMED.items() if case.check.is_claim else FIGURES.items():
        value = getattr(check, key)
        if value is not None:
            yield label, value if case.check.is_claim else exact(value, check.unit)
    if left := check.change_text:
        yield "change", left
    if check.waiver:
        yield "accepted to", f"{exact(check.waiver.to, check.unit)} until {check.waiver.until}"
    yield "outcome", check.outcome.value
    yield "level", check.level.value


def detail_lines(case: record.Case) -> Iterator[str]:
    """Figures, then the layers that grew, else those that the number is mostly made of."""
    yield from aligned("{:<}  {}", list(figures(case)))
    if case.check.measured_on:
        yield from (case.check.measured_on, *case.check.evidence)
    elif case.check.is_claim:
        yield from claim_lines(case)
    elif case.check.blame:
        yield from ("grown since the base", *grown_lines(case.check.blame))
    else:
        yield from largest_lines(case)


def way_out(case: record.Case) -> Iterator[str]:
    """What mends a failing limit, with the command that accepts it; or the command that compares outputs again."""
    if case.outputs_differ:
        yield f"repeat: {repeated(case)}"
    elif isinstance(case.owner, record.DeploymentReport) and case.check.metric == FITS:
        if case.check.outcome is Outcome.OVER:
            device = case.owner.device
            yield f"fix: shrink the model or what is alive there, or give {device} another memory or device"
    elif words := fix(case):
        yield f"fix: {words}"


def repeated(case: record.Case) -> str:
    """The command that judges one check again."""
    return f"pytest --model-budget {quote(case.id)}"


def claim_lines(case: record.Case) -> Iterator[str]:
    """What a check without an amount rests on: a comparison of outputs, or what is alive in a device's memory."""
    if isinstance(case.owner, record.DeploymentReport):
        yield from peak_lines(case.owner.peak) if case.owner.peak else ()
    else:
        yield from evidence_lines(case.evidence)


def evidence_lines(equivalence: EquivalenceReport) -> Iterator[str]:
    """The layer where outputs part from the model's, the element that is furthest off, and what was compared."""
    if divergence := equivalence.first_divergence:
        kept = f" ({divergence.reservation})" if divergence.reservation else ""
        where = f"{scope_text(divergence.scope)}, by {divergence.error} of its size{_most(divergence.worst)}"
        yield f"  first layer that differs: {where}{kept}"
    for output in equivalence.outputs:
        if output.furthest:
            yield f"  worst output element: '{output.name}', {output.family} inputs{_most(output.worst)}"
    if equivalence.decided:
        yield f"  decided by: {equivalence.decided}"
    if equivalence.weights:
        seeds = ", ".join(map(str, equivalence.seeds))
        yield f"  weights: {equivalence.weights}{f'; inputs: seeds {seeds}' if seeds else ''}"
    yield from (f"  {one_line(note)}" for note in equivalence.notes)


def _most(worst: WorstElement | None) -> str:
    return f", most at {list(worst.index)}: {worst.original} -> {worst.transformed}" if worst else ""


SCOPE_WIDTH = 44  # of a layer's path in a table, so that one long path leaves all figures on the line


def error_lines(equivalence: EquivalenceReport) -> Iterator[str]:
    """A line for each layer: how far the changed model is from it; "fused or gone" where it has nothing of it."""
    scopes = [cut_middle(scope_text(layer.scope), SCOPE_WIDTH) for layer in equivalence.layers]
    rows = [("layer", "SQNR", "max abs")] + [
        (scope, f"{layer.sqnr} dB", layer.max_abs or "0") if layer.sqnr is not None else (scope, "fused or gone", "")
        for scope, layer in zip(scopes, equivalence.layers, strict=True)
    ]
    if equivalence.layers:
        yield from aligned("{:<}  {:>}  {:>}", rows)


def reservations(case: record.Case) -> Iterator[str]:
    """The bound that decided, and what a claim that holds rests on less firmly than it usually does."""
    if case.check.measured_on:
        yield case.check.measured_on
    is_kept = case.check.is_claim and case.outcome == "within"
    if not is_kept or isinstance(case.owner, record.DeploymentReport):
        return
    basis, notes = case.evidence.basis, case.evidence.notes
    if case.evidence.decided:
        yield case.evidence.decided
    if basis in NARROW and not any(note.startswith(basis) for note in notes):
        yield basis
    yield from map(one_line, notes)


# A model and a transform of it.


def costs(model: record.ModelReport, transform: record.TransformReport) -> list[str]:
    """The number of changes, the metrics that differ with both numbers, then the others."""
    counts: dict[str, list[bool]] = {}
    for change in transform.changes:
        counts.setdefault(change.operation, []).append(bool(change.became))
    changed = "; ".join(f"{sum(became)} of {len(became)} {name} changed" for name, became in counts.items())
    texts, same = [changed] if changed else [], []
    for key in model.metrics:
        before, after = model.measured(key), transform.measured(key)
        if before is None or after is None:
            continue
        first, second = Fraction(before.value), Fraction(after.value)
        if first == second:
            same.append(key)
            continue
        share = f" ({room((second - first) / first, signed=True)})" if first else ""
        least = "" if before.complete and after.complete else ", a lower bound"
        texts.append(f"{key} {' -> '.join(readable_pair(first, second, before.unit))}{share}{least}")
    if same and texts:  # a golden file or a runner changes nothing
        texts.append(f"{', '.join(same)} unchanged")
    return texts


# A change since the base.


def bans(changes: Iterable[record.LoosenedLimit | record.RedefinedModel]) -> dict[str, tuple[str, ...]]:
    """Of each budget file that forbids some of these changes: where it does so, and the way out, as lines."""
    by_file: dict[str, list[record.LoosenedLimit | record.RedefinedModel]] = {}
    for change in changes:
        if change.forbidden_by:
            by_file.setdefault(change.file, []).append(change)
    return {file: tuple(_ban_lines(some)) for file, some in by_file.items()}


def _ban_lines(changes: Sequence[record.LoosenedLimit | record.RedefinedModel]) -> Iterator[str]:
    """Below forbidden changes of one budget file: where it forbids them, and the way out."""
    ban, kinds = changes[0].forbidden_by, {change.what for change in changes}
    yield f"forbidden by loosen: forbid   {ban}"
    if kinds == {"unknown"}:  # whose words say what to do about the base
        return
    if not ban.endswith(")"):  # the change's own: no base stands behind its line
        yield "fix: take that back, or leave loosen: forbid to a change of its own, after this one"
    elif kinds == {"loosen removed"}:
        yield "fix: take that back, or have a person merge it past this check, by itself"
    else:
        yield "fix: take that back, or first merge a change that only sets loosen: warn, past this check"
