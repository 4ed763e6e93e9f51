"""The parts of one run merged: their results are replayed, and give the report and exit code of one machine.

What cannot be one run is refused: parts that are doubled or missing, or come from another commit, collection, base or
environment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.gate.locks import MEASURED_BY, with_locks
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.build import Assembly
from pytest_modelbudget.reports.shard import CutRun, LockComparison, Part
from pytest_modelbudget.units import several, some_of

FAILED = 1  # pytest's exit code
SAME = "cut one checkout in one environment, with the same options and one --model-budget-date"


@dataclass(frozen=True, slots=True)
class PartFile:
    """The part of one shard, and the name of its file for people."""

    file: str
    part: Part

    def __str__(self) -> str:
        return f"{self.file} (shard {self.part.name})"


@dataclass(frozen=True, slots=True)
class Merged:
    """A whole run: its report, its exit code, and the names of shards that are missing."""

    report: record.Report
    exit: int
    missing: tuple[str, ...] = ()


def merged(files: Sequence[PartFile], *, allow_missing: bool = False) -> Merged:
    """One run of all its parts, in whichever order they are given.

    Raises InputError, by name, where they are not the parts of one run, or some are missing and that is not allowed:
    then their limits are unanswered, and the exit code is never 0.
    """
    files = sorted(files, key=lambda file: file.part.number)
    _must_be_of_one_run(files)
    _must_not_be_doubled(files)
    parts = [file.part for file in files]
    run, there = parts[0].run, {part.number for part in parts}
    missing = tuple(f"{n}/{run.number_of_shards}" for n in range(1, run.number_of_shards + 1) if n not in there)
    if missing and not allow_missing:
        verb = "shards {} are" if len(missing) > 1 else "shard {} is"
        raise InputError(f"{verb.format(some_of(missing))} missing: give its report json, or --allow-missing")
    assembly = Assembly()
    for result in chain.from_iterable(part.results for part in parts):
        assembly.add(result)
    unanswered = sum(part.session.unanswered for part in parts)
    lost = run.number_of_limits - assembly.answered - unanswered
    if lost and not (missing and lost > 0):
        total = several(run.number_of_limits, "limit")
        raise InputError(
            f"the parts have {run.number_of_limits - lost} of {total}: "
            "another plugin cut them too, or their lock files differ"
        )
    report = _replayed(parts, assembly, unanswered + lost)
    is_red = bool(missing or report.unanswered or report.failing_locks)
    return Merged(report, max([*(part.exit for part in parts), FAILED * is_red]), missing)


def _must_be_of_one_run(files: Sequence[PartFile]) -> None:
    """Refuse parts that name their run differently; what one does not name is as in the others."""
    for name in CutRun.__struct_fields__:
        told: dict[str, PartFile] = {}
        for file in files:
            if (value := getattr(file.part.run, name)) is not None:
                words = ", ".join(map(" ".join, value.items())) if isinstance(value, Mapping) else str(value)
                told.setdefault(words, file)
        if len(told) > 1:
            (there, first), (here, file), *_ = told.items()
            unlike = f"{_beyond(here, there)}, not {_beyond(there, here)}"
            raise InputError(f"{file} has another {name.replace('_', ' ')} than {first}: {unlike}: {SAME}")


def _beyond(words: str, others: str) -> str:
    """The words that the others lack: "torch 2.14.0"."""
    return ", ".join(word for word in words.split(", ") if word and word not in others.split(", ")) or "none"


def _must_not_be_doubled(files: Sequence[PartFile]) -> None:
    by_number: dict[int, PartFile] = {}
    by_id: dict[str, PartFile] = {}
    for file in files:
        if (other := by_number.setdefault(file.part.number, file)) is not file:
            raise InputError(f"{file.file} and {other.file} are both shard {file.part.name}: give one of them")
        for result in file.part.results:
            if (other := by_id.setdefault(result.id, file)) is not file:
                raise InputError(f"{result.id} is in {other} and in {file}: they were cut by other lock files")


def _replayed(parts: Sequence[Part], assembly: Assembly, unanswered: int) -> record.Report:
    """The report of all results, as the session that measured all of it would have made it."""
    session = replace(
        parts[0].session,
        selected=any(part.session.selected for part in parts),
        unanswered=unanswered,
        broken=tuple(chain.from_iterable(part.session.broken for part in parts)),  # several see one that went
        loosened=tuple(_loosened(parts)),
        extra={key: value for part in reversed(parts) for key, value in part.extra.items()},
    )
    return with_locks(assembly.report(session), _compared(parts), is_checked=parts[0].run.lock_check)


def _loosened(parts: Sequence[Part]) -> Iterator[record.LoosenedLimit]:
    """What the first part tells; of what today's numbers decide, the part that measured the number has the word.

    The others did not measure it, and tell of it whenever the lock moved: so what is left stands in each part.
    """
    judges = {result.id: part for part in parts for result in part.results}
    for change in parts[0].session.loosened:
        if change.what not in MEASURED_BY:
            yield change
            continue
        told = judges.get(change.id, parts[0]).session.loosened
        yield from (known for known in told if (known.id, known.what) == (change.id, change.what))


def _compared(parts: Sequence[Part]) -> Iterator[LockComparison]:
    """Each lock file compared with the numbers of all parts."""
    by_file: dict[str, list[LockComparison]] = {}
    for compared in chain.from_iterable(part.locks for part in parts):
        by_file.setdefault(compared.file, []).append(compared)
    for same in by_file.values():
        numbers = {key: number for compared in same for key, number in compared.numbers.items()}
        is_at_base = any(compared.is_at_base for compared in same)  # also of models that moved
        yield replace(same[0], numbers=dict(sorted(numbers.items())), is_at_base=is_at_base)
