"""The answer to one limit: within, over or unknown."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from typing import Any

from pytest_modelbudget.budget.budget import Acceptance, AnyLimit, Check, Level, Limit, OpsLimit
from pytest_modelbudget.budget.lock_file import UPDATE, Baseline, LockedValue
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.graph import is_in_scope, paths
from pytest_modelbudget.graph.tensor import unbound_symbols
from pytest_modelbudget.metrics.branches import Branch, surplus
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.costs import NO_RULE
from pytest_modelbudget.metrics.growth import Blame, Part, blame
from pytest_modelbudget.metrics.measurement import PROGRAM, Measurement, OtherPath, UnmeasuredOp, part_of, surpluses
from pytest_modelbudget.units import Number, exact, in_a_row, readable, readable_pair, room

NO_BASELINE, NO_BLAME = Baseline(), Blame()
MOST_NAMED = 3  # offenders that one line names; the rest is counted
PLAIN_KEY = re.compile(r"[A-Za-z_][\w./-]*")  # a symbol that YAML reads without quotes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one check, of a limit that on a measurement, which for a scope's limit is that of the scope.

    reason is one line for people: what is over by how much, or why nothing is known. marked says that the number is an
    accepted lower bound (allow_unmeasured). baseline is the locked number it was compared with, allowed what growth
    allows from there, and blame says who a growth is due to. frameworks are those whose other versions alone explain
    the number, "torch 2.14.0 → 2.15.0". today is the day that the limit's exception was held
    against, where it has one. Of a check without an amount, measured and allowed are for eyes, and seen is what was
    judged. measured_on says on which inputs, or where, a run was measured, and evidence names the layers.
    """

    limit: Check
    outcome: Outcome
    measurement: Measurement | None
    reason: str
    marked: bool = False
    baseline: Baseline = NO_BASELINE
    allowed: int | str | None = None
    blame: Blame = NO_BLAME
    frameworks: str = ""
    today: date | None = None
    unit: str = ""
    measured: str | None = None
    measured_on: str = ""
    evidence: tuple[str, ...] = ()
    seen: Any = None

    @property
    def fails(self) -> bool:
        """Whether the gate must be red."""
        return is_red(self.outcome, self.limit.level)


def is_red(outcome: Outcome, level: Level) -> bool:
    """Whether an outcome fails the gate: over (or an exception unused) at level error, or unknown at any level."""
    return outcome is Outcome.UNKNOWN or (outcome in (Outcome.OVER, Outcome.UNUSED) and level is Level.ERROR)


def with_exception(verdict: Verdict, today: date) -> Verdict:
    """The verdict on a limit with its waiver, if it has one.

    What breaks the limit on that side is ACCEPTED up to the amount and through the last day; an exception to a limit
    that is kept is UNUSED. What is unknown, or a lower bound that nothing else accepts, is never accepted.
    """
    limit, part = verdict.limit, verdict.measurement
    waiver = limit.waiver if isinstance(limit, Limit) else None
    if waiver is None or part is None or not isinstance(limit, Limit):
        return verdict
    verdict = replace(verdict, today=today)
    if verdict.outcome is Outcome.WITHIN:
        why = f"{verdict.reason}   the exception to {waiver.written} is not needed"
        return replace(verdict, outcome=Outcome.UNUSED, reason=why)
    is_short = limit.min is not None and part.least < limit.min
    if verdict.outcome is not Outcome.OVER or is_short != (waiver.end == "min"):
        return verdict
    refusal = _not_accepted(verdict, waiver, part, today)
    words = f"accepted to {waiver.written} {refusal}" if refusal else waiver.words
    outcome = Outcome.OVER if refusal else Outcome.ACCEPTED
    return replace(verdict, outcome=outcome, reason=f"{verdict.reason}   {words}")


def _not_accepted(verdict: Verdict, waiver: Acceptance, part: Measurement, today: date) -> str:
    """Say why an exception does not cover what breaks its limit; "" where it does."""
    if today > waiver.until:
        return f"until {waiver.until}, which is past"
    is_least, most = waiver.end == "min", part.value if verdict.marked else part.most
    is_exact = part.complete and not (is_least and part.others)
    if not (is_exact or verdict.marked or part.is_known_on_all_paths):
        return "alone, and no lower bound is"
    is_beyond = part.least < waiver.to if is_least else most > waiver.to
    return "only" if is_beyond else ""


def judge(
    limit: Limit, measurement: Measurement, *, scopes: Iterable[str] = (), baseline: Baseline = NO_BASELINE
) -> Verdict:
    """Hold a measurement against its limit; exactly at the limit is within.

    What the limit's ``grow`` allows from the baseline is one more maximum; without a baseline
    nobody knows it, and what nothing else breaks is UNKNOWN.

    A minimum is held against the least that any path of data has, a maximum against the most.

    Any other incomplete measurement is a lower bound: it can prove a maximum broken and a minimum
    kept; everything else becomes UNKNOWN. Ops under allow_unmeasured turn it into a marked lower
    bound that is judged like any number; a ratio over unmeasured ops is no bound and is UNKNOWN.

    scopes are module paths of the model beyond those that the measurement itself names: a glob
    that matches no scope is UNKNOWN.
    """
    problem = _scope_problem(limit, measurement, scopes)
    if problem:
        return Verdict(limit, Outcome.UNKNOWN, None, problem)
    part = part_of(measurement, limit.scope)
    baseline = _fitting(limit, baseline, part)
    locked = baseline.locked
    allowed = limit.allowed(locked.value) if locked and isinstance(locked.value, int) else None
    ends = [end for end in (limit.max, allowed) if end is not None]
    base = locked.value if locked and isinstance(locked.value, int) else None
    verdict = _held(replace(limit, max=min(ends)) if ends else limit, part, base)
    why = _untold_bound(limit, baseline, part)
    if why and verdict.outcome is Outcome.WITHIN:
        verdict = Verdict(limit, Outcome.UNKNOWN, part, f"{_label(limit)} {readable(part.value, part.unit)}   {why}")
    return replace(verdict, limit=limit, baseline=baseline, allowed=allowed)


def _fitting(limit: Limit, baseline: Baseline, part: Measurement) -> Baseline:
    """The baseline, but for one that shows no growth: a number of another unit is none of this metric."""
    locked = baseline.locked
    if locked is None or limit.grow is None or (locked.unit == part.unit and isinstance(locked.value, int)):
        return baseline
    why = f"the lock holds {limit.name} in {locked.unit or 'no unit'}, and it is counted in {part.unit}"
    return Baseline(why_none=f"{why}: {UPDATE}=fix renews it")


def has_other_minimum(limit: AnyLimit, part: Measurement) -> bool:
    """Whether a minimum is asked for that is not what was counted: another path has less, or nobody knows."""
    is_asked = isinstance(limit, Limit) and "min" in limit.auto
    return is_asked and (part.least != part.value or any(other.is_open for other in part.others))


def _untold_bound(limit: Limit, baseline: Baseline, part: Measurement) -> str:
    """Say why one end of a limit holds nothing; "" where all do."""
    if has_other_minimum(limit, part):
        least = "an amount" if any(other.is_open for other in part.others) else exact(part.least, part.unit)
        return f"min is auto, which sets no limit, and data may take branches with less: write {least}"
    if limit.auto:
        return f"{' and '.join(limit.auto)} is auto, which sets no limit: {UPDATE}=create fills it"
    if limit.grow is not None and baseline.locked is None:
        return f"nothing to grow from: {baseline.why_none or 'no lock file was looked for'}"
    return ""


# A number against the ends of a limit, on every path that data may take.


def _held(limit: Limit, part: Measurement, base: int | None) -> Verdict:
    """The verdict on the ends that a limit has; WITHIN where it has none that anybody knows. base is the locked value.

    An end is broken where one path breaks it, and kept where all do; else it is unknown.
    """
    missing = _missing(part, limit)
    counted, *others = _paths(limit, part)
    below = [path for path in others if part.is_ratio or path.op not in limit.allow_unmeasured]
    ends = [("max", limit.max, [counted, *below]), ("min", limit.min, [counted, *others])]
    judged = [
        (_on_path(end, bound, path, part), end, path)
        for end, bound, paths in ends
        if bound is not None
        for path in paths
    ]
    found = {outcome for outcome, _, _ in judged} or {Outcome.UNKNOWN if missing else Outcome.WITHIN}
    outcome = next(each for each in (Outcome.OVER, Outcome.UNKNOWN, Outcome.WITHIN) if each in found)
    deciding = [(end, path) for each, end, path in judged if each is outcome]
    if outcome is Outcome.UNKNOWN:
        short = [path for end, path in deciding if end == "min"]
        return Verdict(limit, outcome, part, _why_unknown(limit, part, short if others else [], missing))
    most = [path for end, path in deciding if end == "max" and path.value > counted.value]
    least = [path for end, path in deciding if end == "min" and path.value < counted.value]
    if outcome is Outcome.OVER and any(path is counted for _, path in deciding):
        most, least = [], []
    if most:
        return _of_path(limit, part, max(most, key=lambda path: path.least), limit.max, outcome)
    if least and outcome is Outcome.OVER:
        return _of_path(limit, part, min(least, key=lambda path: path.value), limit.min, outcome)
    return Verdict(limit, outcome, part, _reason(limit, part, base), marked=not missing and bool(part.unmeasured))


def _paths(limit: Limit, part: Measurement) -> Iterator[OtherPath]:
    """Every path that data may take, first the counted one, with the unmeasured ops that the limit does not accept."""
    of_all = surpluses(part)
    missing = tuple(op for op in _missing(part, limit) if op not in of_all)
    yield OtherPath("", "the branches that are counted", part.value, unmeasured=missing, at_least=part.at_least)
    for other in part.others:
        beyond = other.unmeasured if other.is_open else _unaccepted(other.unmeasured, limit)
        yield replace(other, unmeasured=(*missing, *beyond))


def _on_path(end: str, bound: Number, path: OtherPath, part: Measurement) -> Outcome:
    """Whether a path keeps an end: of an unmeasured number only the least is known, of a ratio not even that."""
    least = None if path.is_open or (path.unmeasured and part.is_ratio) else path.least
    most = None if path.is_open or path.unmeasured else path.value
    broken, kept = (least, most) if end == "max" else (most, least)
    way = 1 if end == "max" else -1
    if broken is not None and way * broken > way * bound:
        return Outcome.OVER
    return Outcome.WITHIN if kept is not None and way * kept <= way * bound else Outcome.UNKNOWN


def _of_path(limit: Limit, part: Measurement, path: OtherPath, bound: Number | None, outcome: Outcome) -> Verdict:
    """A verdict that one path decides: "macs 8 MAC < 9 MAC (-11.1%) where data take ..."."""
    assert bound is not None, "a path was compared with it"
    words = compared(path.value, bound, part.unit, is_broken=outcome is Outcome.OVER)
    return Verdict(limit, outcome, part, f"{_label(limit)} {words} where data take {path.branches}")


def _why_unknown(limit: Limit, part: Measurement, short: Sequence[OtherPath], missing: Sequence[UnmeasuredOp]) -> str:
    """Why a verdict is unknown; short are paths of several that may have less than its minimum."""
    label = _label(limit)
    if short and limit.min is not None:
        path = min(short, key=lambda each: each.value)
        actual, held = readable_pair(path.value, limit.min, part.unit)
        why = f"between {readable(path.least, part.unit)} and {actual} where data take {path.branches}"
        if path.is_open:
            why = f"how much {path.branches} has is not known: only a maximum can be checked"
        elif path.unmeasured:
            named = f"{named_ops(path.unmeasured)}{_way_out(path.unmeasured)}"
            why = f"{actual} or more where data take {path.branches}   unmeasured: {named}"
        return f"{label} unknown, min {held}   {why}"
    if not missing:
        least, most, held = (readable(number or 0, part.unit) for number in (part.at_least, part.value, limit.max))
        if told := ", ".join(f"{name} {count:,}" for name, count in part.parts.items()):
            return f"{label} unknown, max {held}   {least} to {most} by too few labelled answers ({told}): add data"
        return f"{_reason(limit, part)}   not proved to be the least: that is {least} or more"
    if untold := _untold(missing):
        return f"{label} unknown: {untold}"
    if part.is_ratio:
        return f"{label} unknown: a ratio over unmeasured ops: {named_ops(missing)}{_binding(missing)}"
    end, held_at = ("max", limit.max) if limit.max is not None else ("min", limit.min)
    if held_at is None:
        least = readable(part.value, part.unit)
        return f"{label} {least} or more   unmeasured: {named_ops(missing)}{_binding(missing)}"
    actual, bound = readable_pair(part.value, held_at, part.unit)
    return f"{label} {actual} or more, {end} {bound}   unmeasured: {named_ops(missing)}{_way_out(missing)}"


def with_blame(verdict: Verdict, parts: Iterable[Part]) -> Verdict:
    """The verdict with who the growth is due to, where there is growth; parts are today's."""
    locked, measurement = verdict.baseline.locked, verdict.measurement
    if locked is None or measurement is None or not isinstance(locked.value, int):
        return verdict
    growth = measurement.value - locked.value
    if not isinstance(growth, int) or growth <= 0:
        return verdict
    today = [part for part in parts if is_in_scope(part.scope, verdict.limit.scope)]
    return replace(verdict, blame=blame(locked.parts, today, total=growth, cut=locked.cut))


def with_frameworks(verdict: Verdict, parts: Mapping[str, Sequence[Part]], versions: Mapping[str, str]) -> Verdict:
    """The verdict on a broken limit with the frameworks that changed, where parameters and shapes are as locked.

    parts are today's, by metric. Parameters are compared where the lock has any number that is made of them.
    """
    locked, known, limit = verdict.baseline.locked, verdict.baseline.model, verdict.limit
    if verdict.outcome is not Outcome.OVER or locked is None:
        return verdict
    changed = [
        f"{name} {version} → {versions[name]}"
        for name, version in locked.versions.items()
        if versions.get(name, version) != version
    ]
    stored = {name: each for name, each in known.items() if name in parts and any(part.name for part in each.parts)}
    own = [part for part in parts.get(limit.metric, ()) if is_in_scope(part.scope, limit.scope)]
    is_same = bool(stored) and all(_has_parts(each, parts[name], by_value=True) for name, each in stored.items())
    if not (changed and is_same and _has_parts(locked, own)):
        return verdict
    return replace(verdict, frameworks=", ".join(changed))


def _has_parts(locked: LockedValue, today: Sequence[Part], *, by_value: bool = False) -> bool:
    """Whether the parts of a locked number have the shapes, and by_value the amounts, of today's."""
    now = {part.key: (part.shape, part.value if by_value else None) for part in today}
    then = {part.key: (part.shape, part.value if by_value else None) for part in locked.parts}
    return len(then) + locked.cut == len(now) and then.items() <= now.items()


def judge_ops(
    limit: OpsLimit,
    measurement: Measurement,
    counts: Sequence[OpCount],
    branches: Sequence[Branch] = (),
    *,
    scopes: Iterable[str] = (),
    baseline: Baseline = NO_BASELINE,
) -> Verdict:
    """Hold a census of ops, and the branches that data may take in place of those counted, against what may run.

    An op that no rule knows could be of any kind: unless it is allowed, a limit on kinds that
    nothing else breaks is UNKNOWN. Foreign names are known, unless no operation is.
    """
    of_branches = {scope for branch in branches for row in branch.ops for scope, _ in row.places}
    problem = _scope_problem(limit, measurement, {*scopes, *of_branches})
    if problem:
        return Verdict(limit, Outcome.UNKNOWN, None, problem)
    part = part_of(measurement, limit.scope)
    rows = _within(counts, limit.scope)
    branches = [replace(branch, ops=_within(branch.ops, limit.scope)) for branch in branches]
    held = replace(part, unmeasured=(*part.unmeasured, *_unruled_in(branches)))
    unruled, missing = {op.op for op in held.unmeasured}, _missing(held, limit)
    executed, why = f"{_label(limit)} {readable(part.value, 'op')} executed", ""
    if broken := [*_refused(limit, rows, branches, unruled), *_too_many(limit, rows, branches, unruled)]:
        return Verdict(limit, Outcome.OVER, part, f"{_label(limit)} {'; '.join(_first(broken))}", baseline=baseline)
    if untold := _untold(held.unmeasured):
        why = f"{_label(limit)} unknown: {untold}"
    elif missing and (limit.allow is not None or any("::" not in selector for selector in (*limit.deny, *limit.max))):
        why = f"{executed}, some of unknown kind: {named_ops(missing)}{_way_out(missing)}"
    elif uncounted := _uncounted(limit, branches, unruled):
        why = f"{_label(limit)} unknown: {uncounted}"
    elif foreign := _of_another_format(limit, [*rows, *(row for branch in branches for row in branch.ops)]):
        why = f"{_label(limit)} unknown: {foreign} is no operator of this model's format: name the kind of it"
    if why:
        return Verdict(limit, Outcome.UNKNOWN, part, why, baseline=baseline)
    marked = bool(unruled) and not missing
    return Verdict(limit, Outcome.WITHIN, part, f"{executed}, all of them within", marked, baseline)


def known_scopes(measurements: Iterable[Measurement]) -> frozenset[str]:
    """Every module path that any of these measurements names."""
    return frozenset(scope for measurement in measurements for scope in _named_scopes(measurement))


def _named_scopes(measurement: Measurement) -> Iterator[str]:
    yield from (share.scope for share in measurement.shares)
    yield from (op.scope for op in measurement.unmeasured)
    for other in measurement.others:
        yield from (share.scope for share in other.differences)
        yield from (op.scope for op in other.unmeasured)


def _scope_problem(limit: AnyLimit, measurement: Measurement, scopes: Iterable[str]) -> str | None:
    """Say why a limit on a part of the model cannot be judged, or None."""
    if limit.scope is None:
        return None
    if measurement.is_ratio:
        return f"{_label(limit)} is not defined: a ratio has no part for a scope; limit the model"
    if sum(share.value for share in measurement.shares) != measurement.value:
        return f"{_label(limit)} is not defined: it has no shares by module; limit the model"
    known = {path for scope in (*scopes, *_named_scopes(measurement)) for path in paths(scope) if path}
    if any(is_in_scope(path, limit.scope) for path in known):
        return None
    guess = suggestion(limit.scope.removesuffix(".*"), sorted(known))
    return f"{_label(limit)} unknown: no module of the model matches '{limit.scope}': {guess}"


def _missing(part: Measurement, limit: AnyLimit) -> tuple[UnmeasuredOp, ...]:
    """Unmeasured ops that the limit does not accept; a ratio accepts none."""
    if isinstance(limit, Limit) and part.is_ratio:
        return part.unmeasured
    return _unaccepted(part.unmeasured, limit)


def _unaccepted(ops: Iterable[UnmeasuredOp], limit: AnyLimit) -> tuple[UnmeasuredOp, ...]:
    return tuple(op for op in ops if op.op not in limit.allow_unmeasured)


def _reason(limit: Limit, part: Measurement, base: int | None = None) -> str:
    """One line: the number beside the end that it breaks; else the maximum, or the minimum of a limit without.

    No end is known of a limit that is still to be filled in, or grown from nothing that is locked.
    """
    value, unit = part.value, part.unit
    is_short = limit.min is not None and value < limit.min
    bound = limit.min if limit.max is None or is_short else limit.max
    if bound is None:
        return f"{_label(limit)} {readable(value, unit)}"
    is_over = is_short or (limit.max is not None and value > limit.max)
    if not part.unmeasured:
        return f"{_label(limit)} {compared(value, bound, unit, is_broken=is_over, base=base)}"
    is_known = limit.max is None or value > limit.max
    words = compared(value, bound, unit, is_broken=is_over, base=base, more=" or more", has_share=is_known)
    return f"{_label(limit)} {words}   lower bound: {named_ops(part.unmeasured)}"


def compared(
    value: Number, bound: Number, unit: str, *, is_broken: bool, base: Number | None = None, more: str = "",
    has_share: bool = True, binary: bool = False,
) -> str:  # fmt: skip
    """A number next to an end: "9 MAC < 10 MAC (10.0% left)", "12 MAC > 10 MAC (+20.0%)".

    The share of what is broken is its growth since the base where it grew that way ("+20.0% vs base"), else of the end.
    """
    actual, end = in_a_row(value, bound, unit, binary=binary)
    sign = ">" if value > bound else "<" if value < bound else "="
    words = f"{actual}{more} {sign} {end}"
    if not (bound and has_share) or value == bound:
        return words
    if not is_broken:
        return f"{words} ({room(abs(Fraction(value) - bound) / bound)} left)"
    has_moved = base and base != value and (value > base) is (value > bound)
    start, of = (base, " vs base") if base and has_moved else (bound, "")
    return f"{words} ({room((Fraction(value) - start) / start, signed=True)}{of})"


# Lines for what is unknown.


def _label(limit: AnyLimit) -> str:
    return limit.metric if limit.scope is None else f"{limit.metric} of {limit.scope}"


def _first(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], f"and {rest} more"] if rest > 0 else list(lines)


def named_ops(ops: Sequence[UnmeasuredOp]) -> str:
    """Unmeasured ops with count, place and cause: "3 aten::foo in head (no rule)"."""
    scopes = [f" in {op.scope}" if op.scope else "" for op in ops]
    words = [f"{op.count} {op.op}{scope} ({' '.join(op.why.split())})" for op, scope in zip(ops, scopes, strict=True)]
    return ", ".join(_first(words))


def _way_out(ops: Sequence[UnmeasuredOp]) -> str:
    """Sizes for symbols that dims does not bind; which ops to accept only where that measures none of them."""
    names = _first([name for name in dict.fromkeys(op.op for op in ops) if name != PROGRAM])
    accepting = f"; allow_unmeasured: [{', '.join(names)}] accepts a lower bound" if names else ""
    return _binding(ops) or accepting


def _binding(ops: Sequence[UnmeasuredOp]) -> str:
    """The line that binds symbols: "; write dims: {batch: 1}"; "" where no symbol is in the way."""
    symbols = dict.fromkeys(symbol for op in ops for symbol in unbound_symbols(op.why))
    words = [name if PLAIN_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in symbols]
    return f"; write dims: {{{', '.join(f'{word}: 1' for word in words)}}}, or other sizes" if words else ""


def _untold(unmeasured: Iterable[UnmeasuredOp]) -> str:
    """Why nothing at all is known of what a program runs; "" where something is."""
    return next((op.why for op in unmeasured if op.op == PROGRAM), "")


def _within(rows: Sequence[OpCount], glob: str | None) -> tuple[OpCount, ...]:
    """The rows of a census within the scopes of a glob."""
    if glob is None:
        return tuple(row for row in rows if row.count)
    places = [tuple(place for place in row.places if is_in_scope(place[0], glob)) for row in rows]
    cut = [(row, sum(count for _, count in kept), kept) for row, kept in zip(rows, places, strict=True)]
    return tuple(replace(row, count=count, places=kept) for row, count, kept in cut if count)


def _unruled_in(branches: Iterable[Branch]) -> Iterator[UnmeasuredOp]:
    """Operations without a rule in branches that are not counted."""
    rows = ((branch, row) for branch in branches if not branch.is_counted for row in branch.ops)
    for branch, row in rows:
        if row.name in branch.unruled:
            why = f"{NO_RULE}, {branch.name}"
            yield from (UnmeasuredOp(row.name, count, scope, why) for scope, count in row.places)


def _is_selected(row: OpCount, selector: str, unruled: set[str]) -> bool:
    """Whether a kind or foreign name refuses this row, or another name of it; an op without a rule has no kind."""
    return selector in row.also or _is_named(row, selector, unruled)


def _is_named(row: OpCount, selector: str, unruled: set[str]) -> bool:
    """Whether this is the kind or foreign name of a row itself, as what is allowed has to be."""
    return row.name == selector or (row.kind == selector and row.name not in unruled)


# Namespaces of operators, by the formats that have them; others are anybody's.
TORCH = frozenset({"aten", "prim", "prims", "quantized", "torch", "torchvision"})
ONNX = frozenset({"onnx", "ai.onnx.ml", "ai.onnx.preview", "com.microsoft", "com.microsoft.nchwc"})
FAMILIES = TORCH, ONNX, frozenset({"tflite"})


def _of_another_format(limit: OpsLimit, rows: Iterable[OpCount]) -> str:
    """A foreign name that is refused, and that no operator of these formats has; "" where some name is of theirs."""
    known = [family for family in FAMILIES if any(_namespace(row.name) in family for row in rows)]
    refused = [name for name in (*limit.deny, *limit.max) if any(_namespace(name) in family for family in FAMILIES)]
    has_own = any(_namespace(name) in family for name in refused for family in known)
    return refused[0] if refused and known and not has_own else ""


def _namespace(name: str) -> str:
    return name.rpartition("::")[0]


def _refused(limit: OpsLimit, rows: Iterable[OpCount], branches: Iterable[Branch], unruled: set[str]) -> Iterator[str]:
    known: set[tuple[str, tuple[str, ...]]] = set()
    others = ((row, f", in the {branch.name}, which is not counted") for branch in branches for row in branch.ops)
    for row, branch in (*((row, "") for row in rows), *others):
        if (row.name, row.also) in known:
            continue
        known.add((row.name, row.also))
        where = (", first in " + (row.places[0][0] or "the model itself") if row.places else "") + branch
        denying = [selector for selector in limit.deny if _is_selected(row, selector, unruled)]
        if denying:
            other = "" if any(_is_named(row, each, unruled) for each in denying) else f" as {denying[0]}"
            yield f"{row.count} {row.name} > 0   denied{other}{where}"
            continue
        is_allowed = limit.allow is None or any(_is_named(row, selector, unruled) for selector in limit.allow)
        if not is_allowed and row.name not in unruled:
            yield f"{row.count} {row.name} > 0   not allowed{where}"


def _too_many(limit: OpsLimit, rows: Sequence[OpCount], branches: Sequence[Branch], unruled: set[str]) -> Iterator[str]:
    for selector, most in limit.max.items():
        selected = _selected(rows, selector, unruled)
        more, taken = surplus(branches, lambda branch: _count(_selected(branch.ops, selector, unruled)))  # noqa: B023
        count = _count(selected) + more
        if count > most:
            scopes = [scope for row in selected for scope, _ in row.places if scope]
            where = f", the last in {scopes[-1]}" if scopes else ""
            if more:
                where = f", where data take the {', the '.join(_first([branch.name for branch in taken]))}"
            yield f"{count:,} {selector} > {most:,}{where}"


def _selected(rows: Iterable[OpCount], selector: str, unruled: set[str]) -> list[OpCount]:
    return [row for row in rows if _is_selected(row, selector, unruled)]


def _count(rows: Iterable[OpCount]) -> int:
    return sum(row.count for row in rows)


def _uncounted(limit: OpsLimit, branches: Iterable[Branch], unruled: set[str]) -> str:
    """Operations with a maximum that run an unknown number of times; "" where nothing is, or the budget accepts it."""
    for branch in branches:
        if branch.is_certain or branch.operator in limit.allow_unmeasured:
            continue
        for selector in limit.max:
            if _selected(branch.ops, selector, unruled):
                way_out = f"allow_unmeasured: [{branch.operator}] accepts a lower bound"
                return f"how often {selector} runs in the {branch.name} is not known; {way_out}"
    return ""
