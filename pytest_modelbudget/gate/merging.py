"""The parts of one run joined: the report that one machine would have written, and its exit code.

Every limit is in one part, and a lock file's state is made anew from all its numbers. What cannot be one run is
refused: parts that are doubled or missing, or come from another commit, collection, base or environment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from pytest_modelbudget.budget.git import NOT_TOLD
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.gate.locks import MEASURED_BY, lock_reports
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.build import place_in_order
from pytest_modelbudget.reports.shard import LockComparison, Shard
from pytest_modelbudget.units import several, some_of

FAILED = 1  # pytest's exit code
MOST_SHARDS = 9_999
CHANGED = "its file was changed"
WITHOUT_NUMBERS = ("unreachable", "stray")  # states of locks that every part tells alike


@dataclass(frozen=True, slots=True)
class RunPart:
    """The report of one shard, and the name of its file for people."""

    file: str
    report: record.Report
    shard: Shard

    def __str__(self) -> str:
        return f"{self.file} (shard {self.shard.name})"


@dataclass(frozen=True, slots=True)
class Merged:
    """A whole run: its report, its exit code, and the names of shards that are missing."""

    report: record.Report
    exit: int
    missing: tuple[str, ...] = ()


# Told in words, or several behind commas, of which a refusal names those that differ.
SAME: Mapping[str, Callable[[RunPart], str]] = {
    "number of shards": lambda part: str(part.shard.of),
    "commit": lambda part: part.shard.commit,
    "working tree": lambda part: f"changes {part.shard.uncommitted[:12]}" if part.shard.uncommitted else "as committed",
    "base": lambda part: f"{part.report.base_name} {part.report.base or ''}".strip(),
    "environment": lambda part: ", ".join(" ".join(pair) for pair in part.report.environment.items()),
    "place in its repository": lambda part: part.shard.root or "its top",
    "check of lock files": lambda part: "check" if part.shard.checks_locks else "no check",
    "collection of limits, or text of budgets,": lambda part: (
        f"{several(part.shard.limits, 'limit')}, {part.shard.collection}"
    ),
}


def part_of(file: str, report: record.Report) -> RunPart:
    """The part that a file holds; raises InputError where it is a whole run's report."""
    if report.shard is None:
        raise InputError(f"{file} is the report of a whole run, and no shard's: write it with --model-budget-shard")
    return RunPart(file, report, report.shard)


def merged(parts: Sequence[RunPart], *, allow_missing: bool = False) -> Merged:
    """One run of all its parts, in whichever order they are given.

    Raises InputError, by name, where they are not the parts of one run, or some are missing and that is not allowed:
    then their limits are unanswered, and the exit code is never 0.
    """
    parts = sorted(parts, key=lambda part: part.shard.number)
    _must_be_of_one_run(parts)
    _must_be_of_one_day(parts)
    _must_not_be_doubled(parts)
    of, there = parts[0].shard.of, {part.shard.number for part in parts}
    missing = tuple(f"{number}/{of}" for number in range(1, of + 1) if number not in there)
    if missing and not allow_missing:
        verb = "shards {} are" if len(missing) > 1 else "shard {} is"
        raise InputError(
            f"{verb.format(some_of(missing))} missing: give what --model-budget-json wrote there, or --allow-missing"
        )
    unaccounted = parts[0].shard.limits - sum(part.shard.answered + part.report.unanswered for part in parts)
    if unaccounted < 0 or (unaccounted and not missing):
        total = several(parts[0].shard.limits, "limit")
        raise InputError(
            f"the parts have {parts[0].shard.limits - unaccounted} of {total}: "
            "another plugin cut them too, or their lock files differ"
        )
    report = _joined(parts, unanswered=unaccounted)
    exits = [part.shard.exit for part in parts]
    return Merged(report, max([*exits, FAILED if missing or _is_red(report) else 0]), missing)


def _must_be_of_one_run(parts: Sequence[RunPart]) -> None:
    for part in parts:
        if part.shard.uncommitted == NOT_TOLD:
            raise InputError(f"{part}: git could not compare its working tree with its commit: try git diff HEAD there")
    first = parts[0]
    for part in parts[1:]:
        for what, told in SAME.items():
            here, there = told(part).split(", "), told(first).split(", ")
            if here != there:
                raise InputError(f"{part} has another {what} than {first}: {_unlike(here, there)}")


def _unlike(here: Sequence[str], there: Sequence[str]) -> str:
    """The words of each that the other lacks: "torch 2.14.0, not torch 2.15.0"."""
    own, other = (
        ", ".join(word for word in some if word and word not in rest) or "none"
        for some, rest in ((here, there), (there, here))
    )
    return f"{own}, not {other}"


def _must_be_of_one_day(parts: Sequence[RunPart]) -> None:
    """Refuse parts of which one had an exception that was past for another."""
    days: dict[str, RunPart] = {}
    for part in parts:
        for case in part.report.cases():
            if case.check.accept:
                days.setdefault(case.check.accept.today, part)
    if len(days) > 1:
        (day, other), (another, part), *_ = days.items()
        raise InputError(
            f"{part} held exceptions against {another}, and {other} against {day}: give all --model-budget-today"
        )


def _must_not_be_doubled(parts: Sequence[RunPart]) -> None:
    by_number: dict[int, RunPart] = {}
    by_id: dict[str, RunPart] = {}
    for part in parts:
        if not 1 <= part.shard.number <= part.shard.of <= MOST_SHARDS:
            raise InputError(f"{part} is no shard of {part.shard.of:,}: {CHANGED}")
        measured = sum(1 for _ in part.report.cases()) + len(part.report.broken)
        if measured < part.shard.answered:
            raise InputError(f"{part} has {measured} of its {several(part.shard.answered, 'limit')}: {CHANGED}")
        other = by_number.setdefault(part.shard.number, part)
        if other is not part:
            raise InputError(f"{part.file} and {other.file} are both shard {part.shard.name}: give one of them")
        for case in part.report.cases():
            if not case.name or case.file != case.model.file:
                raise InputError(f"{part} has '{case.id}' in the budget '{case.model.file}': {CHANGED}")
            if by_id.get(case.id) is part:
                raise InputError(f"{part} has {case.id} twice: {CHANGED}")
            other = by_id.setdefault(case.id, part)
            if other is not part:
                raise InputError(f"{case.id} is in {other} and in {part}: they were cut by other lock files")


def _joined(parts: Sequence[RunPart], *, unanswered: int) -> record.Report:
    """The report of all, as the session that measured all of it would have assembled it."""
    reports = [part.report for part in parts]
    broken = {file.id: file for report in reports for file in report.broken}  # several see one that went meanwhile
    timings = chain.from_iterable(report.timings.items() for report in reports)
    whole = replace(
        reports[0],
        extra={key: value for report in reversed(reports) for key, value in report.extra.items()},
        selected=any(report.selected for report in reports),
        unanswered=unanswered + sum(report.unanswered for report in reports),
        models=tuple(sorted((model for report in reports for model in report.models), key=place_in_order)),
        broken=tuple(broken[key] for key in sorted(broken)),
        timings=dict(sorted(timings)),
        loosened=tuple(_loosened(reports)),
        shard=None,
    )
    told = {state: [lock for lock in reports[0].lock if lock.state == state] for state in WITHOUT_NUMBERS}
    comparisons = _compared(parts)
    locks = lock_reports(whole, comparisons, is_checked=parts[0].shard.checks_locks)
    return replace(whole, lock=(*told["unreachable"], *locks, *told["stray"]))


def _loosened(reports: Sequence[record.Report]) -> Iterator[record.LoosenedLimit]:
    """What the first part tells; of what today's numbers decide, the part that measured the number has the word.

    The others did not measure it, and tell of it whenever the lock moved: so what is left stands in each part.
    """
    judges = {case.id: report for report in reports for case in report.cases()}
    for change in reports[0].loosened:
        if change.what not in MEASURED_BY:
            yield change
            continue
        judge = judges.get(change.id, reports[0])
        yield from (known for known in judge.loosened if (known.id, known.what) == (change.id, change.what))


def _compared(parts: Sequence[RunPart]) -> Iterator[LockComparison]:
    """Each lock file beside the numbers of all parts."""
    by_file: dict[str, list[LockComparison]] = {}
    for compared in chain.from_iterable(part.shard.locks for part in parts):
        by_file.setdefault(compared.file, []).append(compared)
    for same in by_file.values():
        numbers = {key: number for compared in same for key, number in compared.numbers.items()}
        moved = {key: homes for compared in same for key, homes in compared.moved.items()}
        yield replace(same[0], numbers=dict(sorted(numbers.items())), moved=dict(sorted(moved.items())))


def _is_red(report: record.Report) -> bool:
    """Whether a session with this report fails, whatever else it ran."""
    fails = any(case.check.fails for case in report.cases()) or any(change.forbidden for change in report.changes)
    return bool(fails or report.broken or report.failing_locks or report.unanswered)
