"""Lock files and the change since the base, for the report and on disk; no pytest, no printing."""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from pytest_modelbudget.budget import base_inventory, git, revision, yaml_text
from pytest_modelbudget.budget.base_inventory import Baselines, Move
from pytest_modelbudget.budget.budget import DEPLOYED, Address, Budget, Loosen, Place, path_of
from pytest_modelbudget.budget.changes import CheckKey, Redefinition, lock_loosenings, loosenings, redefinitions
from pytest_modelbudget.budget.history import branch_history
from pytest_modelbudget.budget.kinds import Loosening, judge_limit
from pytest_modelbudget.budget.lock_file import (
    UPDATE,
    Lock,
    LockedValue,
    lock_path,
    lock_text,
    read_value,
    replace_file,
)
from pytest_modelbudget.budget.read_budget import budget_text, is_budget, read_budget
from pytest_modelbudget.budget.update import NO_EXCEPTIONS, Exempt, Update, UpdateMode, update
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.gate.measuring import lockable
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.reports import build, record
from pytest_modelbudget.reports.history import point_text
from pytest_modelbudget.reports.record import LockReport, LoosenedLimit, RedefinedModel
from pytest_modelbudget.reports.shard import LockComparison, LockedNumber
from pytest_modelbudget.units import readable_pair, several, some_of

Numbers = Mapping[str, Mapping[str, Any]]  # measured ones by node id, as lock files have them

UNFIT = ("stale", "missing", "broken")  # states that fail where locks are checked
MEASURED_BY = ("baseline raised", "baseline lowered")  # what is told from today's numbers


@dataclass(frozen=True, slots=True)
class MeasuredBudget:
    """A budget file with its completely measured numbers, sorted, and its checks with exceptions."""

    path: Path
    numbers: Mapping[CheckKey, LockedValue]
    exempt: Exempt = NO_EXCEPTIONS


def measured_budgets(
    report: record.Report, numbers: Numbers, files: Iterable[Path], root: Path
) -> list[MeasuredBudget]:
    """The budget files of a session, out of the statements of its checks."""
    measured: dict[Path, dict[CheckKey, LockedValue]] = defaultdict(dict)
    for node_id, number in sorted(numbers.items()):
        address = Address.parse(node_id)
        value = read_value({key: number[key] for key in number if key != "budget"})
        measured[Path(number["budget"])][address.above.path, address.name] = value
    accepted: dict[Path, set[CheckKey]] = defaultdict(set)
    idle: dict[Path, set[CheckKey]] = defaultdict(set)
    for case in report.cases():
        if case.check.waiver is not None:
            path = Path(numbers[case.id]["budget"]) if case.id in numbers else root / case.file
            key = case.address.above.path, case.name
            if case.check.outcome is Outcome.ACCEPTED:
                accepted[path].add(key)
            elif case.check.outcome in (Outcome.UNUSED, Outcome.WITHIN) or case.check.waiver.is_past:
                idle[path].add(key)
    return [
        MeasuredBudget(path, measured[path], Exempt(frozenset(accepted[path]), frozenset(idle[path]))) for path in files
    ]


# Lock files.


def lock_comparison(budget: MeasuredBudget, baselines: Baselines) -> LockComparison:
    """One budget's lock, in the working tree and at the base, compared with the measured numbers."""
    path, today, accepted = budget.path, budget.numbers, budget.exempt.accepted
    here, file = baselines.in_working_tree(path), baselines.shown(path)
    beside = {
        str(Address(file) / path_of(*key)): _beside(number, key, here.lock.value(*key), is_accepted=key in accepted)
        for key, number in today.items()
    } if here.lock else {}  # fmt: skip
    lock = baselines.shown(lock_path(path))
    compared = LockComparison(budget=file, file=lock, is_there=here.is_there, problem=here.problem, numbers=beside)
    if baselines.base is None or not baselines.base.commit:
        return compared
    there = baselines.at_base(path)
    has_moved = False
    with suppress(BudgetError):  # which leaves growth unknown
        has_moved = any(baselines.homes(path, model) != (path,) for model, _ in today)
    return replace(compared, is_at_base=there.is_there or has_moved, base_problem=there.problem)


def _beside(today: LockedValue, key: CheckKey, locked: LockedValue | None, *, is_accepted: bool) -> LockedNumber:
    """A number of today compared with the locked one."""
    if locked is None:
        return LockedNumber(is_locked=False, difference=f"{key[1]} of {key[0]}")
    drift = tuple(
        f"{name} {version}" for name, version in locked.versions.items() if today.versions.get(name) != version
    )
    if locked.value == today.value or is_accepted:
        return LockedNumber(drift=drift)
    before, after = readable_pair(locked.value, today.value, today.unit)
    return LockedNumber(difference=f"{key[1]} of {key[0]} {before} -> {after}", drift=drift)


def with_locks(report: record.Report, comparisons: Iterable[LockComparison], *, is_checked: bool) -> record.Report:
    """The report with the state of each lock file, behind what it says of the base."""
    return replace(report, lock=(*report.lock, *_lock_reports(report, comparisons, is_checked=is_checked)))


def _lock_reports(
    report: record.Report, comparisons: Iterable[LockComparison], *, is_checked: bool
) -> Iterator[LockReport]:
    """The state of each lock file, in the order of the files; where locks are checked, what is unfit fails."""
    growing = [case for case in report.cases() if case.check.grow is not None]
    grows = {case.model.file for case in growing}
    grown_from = {case.model.file for case in growing if case.check.baseline is not None}
    broken = {case.id for case in report.cases() if case.check.fails}  # whose failures say how to renew their numbers
    for compared in comparisons:
        state, text = _state(compared, () if is_checked else broken)
        if state == "missing" and not is_checked and compared.budget not in grows:
            continue
        # It was there when growth was told from it, and no longer says so now.
        is_gone = not report.base_name and state in ("missing", "broken") and compared.budget in grown_from
        locks = [LockReport(file=compared.file, state=state, text=text, fails=is_gone)] if text else []
        if report.base:
            locks.extend(_at_base(compared, revision.short(revision.BaseRevision(report.base_name, report.base))))
        for lock in locks:
            yield replace(lock, fails=lock.fails or (is_checked and lock.state in UNFIT))


def unknown_base(why: str) -> LockReport:
    """The state of all locks of a base that is not here, or whose budgets git cannot list: that fails."""
    return LockReport(file=None, state="unreachable", text=why, fails=True)


def _state(compared: LockComparison, broken: Collection[str]) -> tuple[str, str]:
    """(state, text) of the lock in the working tree; no text where all that it lacks is of limits that are broken."""
    file, numbers = compared.file, compared.numbers
    if compared.problem:
        return "broken", compared.problem
    if not compared.is_there:
        return "missing", f"there is no {file}: {UPDATE}=create writes it"
    different = {key: number for key, number in numbers.items() if number.difference}
    told = [number for key, number in different.items() if key not in broken]
    stale = [number.difference for number in told if number.is_locked]
    lacking = [number.difference for number in told if not number.is_locked]
    if stale:
        others = {version for number in numbers.values() for version in number.drift}
        drift = f" (locked with {', '.join(sorted(others))})" if others else ""
        return "stale", f"lock stale: {file}: {some_of(stale)}{drift}: {UPDATE}=fix renews it"
    if lacking:
        return "stale", f"lock stale: {file} lacks {some_of(lacking)}: {UPDATE}=create adds them"
    if different:
        return "stale", ""
    return "fresh", f"{file} holds what was measured"


def _at_base(compared: LockComparison, base: str) -> Iterator[LockReport]:
    file = compared.file
    if compared.base_problem:
        yield LockReport(file=file, state="broken", text=compared.base_problem)
        return
    if not compared.is_at_base:
        yield LockReport(file=file, state="missing", text=f"{base} has no {file}: compared with the working tree's")


MOST_COMMITS, MOST_BYTES = 200, 50_000_000  # of lock files that a page reads


def with_history(report: record.Report, files: Iterable[Path], root: Path) -> record.Report:
    """The report with how locked numbers went that ever changed, out of the newest commits; as it is outside of git."""
    nbytes = sum(lock_path(path).stat().st_size for path in files if lock_path(path).is_file())
    if not nbytes:
        return report
    try:
        series = branch_history(root, newest=max(1, min(MOST_COMMITS, MOST_BYTES // nbytes))).series
    except git.BaseError:
        return report
    past = {
        each.id: tuple(record.PastNumber(value=point.value, text=point_text(point)) for point in each.points)
        for each in series
        if len(each.points) > 1
    }
    return replace(report, history=past)


# Loosened limits, and redefined models.


class ComparedBudgets:
    """The budgets of a session compared with the base's, model by model: one that moved keeps its base.

    others are budget files that are there and were not collected. Raises GitError where git cannot read the base, so
    that nobody knows whether it forbids.
    """

    def __init__(
        self, baselines: Baselines, registry: Tables, budgets: Iterable[MeasuredBudget], others: Iterable[Path]
    ) -> None:
        self.baselines, self.registry = baselines, registry
        assert baselines.base is not None  # only asked for where there is one
        self.base = baselines.base
        self.measured = {budget.path: budget for budget in budgets}
        self.today: dict[Path, Budget] = {}
        for path in self.measured:
            with suppress(yaml_text.BudgetFileError):  # a broken budget fails by itself
                self.today[path] = read_budget(path, registry, root=baselines.root)
        self.moves: tuple[Move, ...] = ()
        self._read: dict[Path, Budget | None] = {}
        if (inventory := baselines.inventory) is not None:
            models = {path: inventory.models_today(path) for path in others if path not in self.measured}
            models |= {path: frozenset(model.name for model in now.models) for path, now in self.today.items()}
            self.moves = tuple(inventory.moves(models))

    def changes(
        self, report: record.Report, dropped: Iterable[Path]
    ) -> tuple[tuple[LoosenedLimit, ...], tuple[RedefinedModel, ...]]:
        """All that the change since the base loosens, exceptions first, and redefines, each by file and line."""
        judged = {case.id for case in report.cases()}
        changes: list[LoosenedLimit | RedefinedModel] = []
        for path in dict.fromkeys((*self.today, *dropped)):
            found = list(self._of_budget(path, self.today.get(path)))
            ban = next((change.forbidden_by for change in found if change.forbidden), "")
            changes += [*found, *self._of_lock(path, ban, judged)]
        changes.sort(key=lambda change: (change.file, change.line))
        loosened = [change for change in changes if isinstance(change, LoosenedLimit)]
        loosened.sort(key=lambda change: not change.grants_exception)
        return tuple(loosened), tuple(change for change in changes if isinstance(change, RedefinedModel))

    def _of_lock(self, path: Path, ban: str, judged: Collection[str]) -> Iterator[LoosenedLimit]:
        """Locked numbers that let a budget's models grow further than those of the base.

        Selection leaves out what it would have measured: said aloud, and judged by a session without it.
        """
        now, measured = self.today.get(path), self.measured.get(path)
        if now is None or measured is None or not self.base.commit:
            return
        with suppress(BudgetError):  # a base that cannot be read is told of where growth is judged
            for loosening in lock_loosenings(
                now, self.baselines.in_working_tree(path).lock, self.baselines.shown(lock_path(path)),
                at_base=lambda model, check: self.baselines.model_at_base(path, model, check).get(check),
                measured=measured.numbers, metrics=self.registry.metrics, accepted=measured.exempt.accepted,
            ):  # fmt: skip
                change = build.loosened_limit(loosening, forbidden_by=ban or _ban(now))
                is_left_out = change.what in MEASURED_BY and change.id not in judged
                yield replace(change, forbidden=False, forbidden_by="") if is_left_out else change

    def _of_budget(self, path: Path, now: Budget | None) -> Iterator[LoosenedLimit | RedefinedModel]:
        """List the limits that one budget file loosens and redefines; now is None of one that is dropped."""
        ban, metrics = _ban(now), self.registry.metrics
        try:
            if not self.base.commit:
                raise git.BaseError(self.base.why_not)
            before = self._before(path)
        except git.GitError:
            raise
        except BudgetError as error:
            if ban or self.base.commit:
                why_not, *_ = str(error).split("\n")
                words = f"not compared with the base, so possibly loosened: {why_not}"
                unknown = Loosening(Place(self.baselines.shown(path), 1), "", None, None, "unknown", None, None, words)
                yield build.loosened_limit(unknown, forbidden_by=ban)
            return
        ban = _ban(before, f" at {revision.short(self.base)}") or ban
        for moved in self._moved(path, now):
            yield build.redefined_model(moved, forbidden_by="")
        for loosening in loosenings(before, now, metrics):
            yield build.loosened_limit(loosening, forbidden_by=ban)
        for redefinition in redefinitions(before, now, self.registry.transforms):
            yield build.redefined_model(redefinition, forbidden_by=ban)

    def _before(self, path: Path) -> Budget:
        """The base's limits on the models that a file has today, or had and nothing has today."""
        own = self._at_base(path) or Budget(self.baselines.shown(path), ())
        away = {move.model for move in self.moves if move.home == path}
        arrived = [(move, self._at_base(move.home)) for move in self.moves if move.path == path]
        models = [model for model in own.models if model.name not in away]
        models += [model for move, home in arrived if home for model in home.models if model.name == move.model]
        forbidding = next((each for each in (own, *(home for _, home in arrived)) if each and _ban(each)), own)
        return dataclasses.replace(own, models=tuple(models), loosen=forbidding.loosen, loosen_at=forbidding.loosen_at)

    def _at_base(self, path: Path) -> Budget | None:
        """A budget file of the base; None where there was none."""
        if path not in self._read:
            text, root = base_inventory.text_at(self.base, path), self.baselines.root
            has_marker = text is not None and is_budget(text)
            before = read_budget(path, self.registry, root=root, text=text, read=self._text_at) if has_marker else None
            self._read[path] = before
        return self._read[path]

    def _text_at(self, path: Path, file: str) -> str:
        """The text of a file of the base that its budget names."""
        text = base_inventory.text_at(self.base, path)
        if text is None:
            raise git.BaseError(f"{revision.short(self.base)} has no {file}, which its budget names")
        return text

    def _moved(self, path: Path, now: Budget | None) -> Iterator[Redefinition]:
        """A sentence for each model that was in another file."""
        places = {model.name: model.place for model in reversed(now.models)} if now else {}
        for move in (move for move in self.moves if move.path == path and move.model in places):
            was, is_now = self.baselines.shown(move.home), self.baselines.shown(path)
            text = f"model moved: {was} -> {is_now}, compared with its limits there"
            yield Redefinition(places[move.model], move.model, "file", was, is_now, text)


def _ban(budget: Budget | None, at: str = "") -> str:
    """Where a budget forbids to loosen it: "budgets/a.yaml:2 at main (1a2b3c4)"; "" where it does not."""
    if budget is None or budget.loosen is not Loosen.FORBID:
        return ""
    return f"{budget.loosen_at or budget.file}{at}"


class Change(NamedTuple):
    """One thing that an update wrote, as a line, and the limit that it is of; "" of the lock file."""

    limit: str
    text: str


WRITTEN = {UpdateMode.CREATE: "filled", UpdateMode.TRIM: "trimmed", UpdateMode.FIX: "accepted"}  # of limits


NOT_ADDED = "{} without a complete lock file, which CI does not write: commit what a local run adds"


def to_review(mode: UpdateMode, changes: Iterable[Change], file: str) -> str:
    """The last line on a budget that an update wrote: how many limits are to be reviewed."""
    limits = {change.limit for change in changes if change.limit}
    counted = f"{several(len(limits), 'limit')} {WRITTEN[mode]} in {file}"
    return f"{counted if limits else f'{lock_path(Path(file)).as_posix()} written'}: review and commit"


def write_update(
    mode: UpdateMode, measured: MeasuredBudget, baselines: Baselines, registry: Tables
) -> Iterator[Change]:
    """Writes one budget file and its lock, and yields each change.

    Raises BudgetError where it cannot be edited, and OSError where it cannot be written.
    """
    path, root, file = measured.path, baselines.root, baselines.shown(measured.path)
    here = baselines.in_working_tree(path)
    if here.problem:
        raise BudgetError(here.problem)
    text = budget_text(path, file)
    budget = read_budget(path, registry, root=root, text=text)
    lock = here.lock or Lock()
    planned = update(
        mode, budget, measured.numbers, lock,
        baseline=lambda model, check: baselines.of(path, model, check), exempt=measured.exempt,
    )  # fmt: skip
    new_text = yaml_text.edited(text, file, planned.edits)
    _must_differ_only_in(planned.edits, budget, read_budget(path, registry, root=root, text=new_text))
    if new_text != text:
        replace_file(path, new_text)
        yield from _changes(mode, planned, text, file)
    if lock_text(planned.lock) != lock_text(lock):
        replace_file(lock_path(path), lock_text(planned.lock))
        yield Change("", f"{baselines.shown(lock_path(path))}: {_changes_counted(lock, planned.lock)}")


def lacking_numbers(measured: MeasuredBudget, baselines: Baselines) -> dict[CheckKey, LockedValue]:
    """The measured numbers of a budget that its lock lacks; none where the lock cannot be read."""
    here = baselines.in_working_tree(measured.path)
    known = here.lock.numbers if here.lock else {}
    return {} if here.problem else {key: value for key, value in measured.numbers.items() if key not in known}


def write_lock(budget: Path, numbers: Mapping[CheckKey, LockedValue]) -> None:
    """Write the lock file of a budget. Raises OSError."""
    models: dict[str, dict[str, LockedValue]] = defaultdict(dict)
    for (path, name), value in numbers.items():
        models[path][name] = value
    replace_file(lock_path(budget), lock_text(Lock(models)))


def first_numbers(
    budget: Budget, model: MeasuredModel, deployed: MeasuredModel, registry: Tables
) -> dict[CheckKey, LockedValue]:
    """The numbers of a drafted budget, of a model and of it on a device, as its lock has them."""
    numbers: dict[CheckKey, LockedValue] = {}
    for path, _, subject in budget.subjects():
        measured = deployed if subject.kind == DEPLOYED else model
        for limit in subject.limits:
            locked = lockable(judge_limit(limit, measured), measured, registry.versions(model.format))
            if locked is not None:
                numbers[path, limit.name] = locked
    return numbers


def write_drafted(
    path: Path, draft: str, numbers: Mapping[CheckKey, LockedValue], registry: Tables, *, is_added: bool
) -> None:
    """Write a drafted budget and its lock, or add its model to those that are there.

    Raises BudgetError where they cannot take it, and OSError where they cannot be written.
    """
    known = Baselines(Path.cwd()).in_working_tree(path)
    if is_added and known.problem:
        raise BudgetError(known.problem)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, _with_model(path, draft, registry) if is_added else draft)
    write_lock(path, {**(known.lock.numbers if is_added and known.lock else {}), **numbers})


def _with_model(path: Path, draft: str, registry: Tables) -> str:
    """The text of a budget with the model of a draft."""

    def names(text: str) -> set[str]:
        return {model.name for model in read_budget(path, registry, root=Path.cwd(), text=text).models}

    before, models = budget_text(path, str(path)), draft.partition("\nmodels:\n")[2]
    known, added = names(before), names(draft)
    if known & added:
        raise BudgetError(f"{path} already has a model {min(known & added)}: choose another --name")
    if "\nhardware: " in draft:
        raise BudgetError(f"{path} may name other hardware: name its file, and add the deployment by hand")
    text = yaml_text.with_entries(before, str(path), "models", models)
    if names(text) != known | added:
        raise BudgetError(f"the models of {path} cannot be added to: write this below them:\n{models}")
    return text


def numbers_added(budgets: Iterable[MeasuredBudget], baselines: Baselines) -> Iterator[str]:
    """Add the numbers that locks lack to them; a line for each."""
    for budget in budgets:
        lacking, file = lacking_numbers(budget, baselines), baselines.shown(lock_path(budget.path))
        if not lacking:
            continue
        known = baselines.in_working_tree(budget.path).lock or Lock()
        try:
            write_lock(budget.path, {**known.numbers, **lacking})
        except OSError as error:
            yield f"{file} not written: {error.strerror or error}"
        else:
            yield f"{several(len(lacking), 'number')} added to {file}: commit it"


def _must_differ_only_in(edits: tuple[yaml_text.Edit, ...], before: Budget, after: Budget) -> None:
    """Refuse to write what would change any other limit; that would be our mistake."""
    pairs = zip(before.held(), after.held(), strict=True)
    changed = {path_of(*old.key) for old, new in pairs if old.check != new.check}
    assert changed == {edit.subject for edit in edits}, "an edit changed more than its own limit"


def _changes(mode: UpdateMode, planned: Update, text: str, file: str) -> Iterator[Change]:
    """The changes of a budget file: "accepted  net::params 1.23 k → 1.84 k   budgets/a.yaml:8"."""
    root = yaml_text.tree(text, file)
    for edit in planned.edits:
        if edit.quantity is None:
            block, position = yaml_text.key_at(root, edit.keys)
            line, became = block.entries[position][0].place.line, f" {edit.keys[-1]} removed"
            yield Change(edit.subject, f"{WRITTEN[mode]}  {edit.subject}{became}   {file}:{line}")
            continue
        scalar = yaml_text.scalar_at(root, edit.keys)
        assert scalar is not None  # it has just been replaced
        end = "" if edit.keys[-1] == "max" else f" {edit.keys[-1]}"
        became = f"{end} {scalar.text} → {edit.quantity}"
        yield Change(edit.subject, f"{WRITTEN[mode]}  {edit.subject}{became}   {file}:{scalar.place.line}")


def _changes_counted(before: Lock, after: Lock) -> str:
    """The number of values that were added, changed and removed."""
    old, new = before.numbers, after.numbers
    counts = {
        "added": len(new.keys() - old.keys()),
        "changed": sum(old[key] != new[key] for key in old.keys() & new.keys()),
        "removed": len(old.keys() - new.keys()),
    }
    return ", ".join(f"{several(count, 'number')} {what}" for what, count in counts.items() if count)
