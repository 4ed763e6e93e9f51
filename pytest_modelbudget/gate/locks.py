"""Lock files and the change since the base, for the report and on disk; no pytest, no printing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import revision, yaml_text
from pytest_modelbudget.budget.budget import Address, AnyLimit, Budget, Loosen, Place, path_of
from pytest_modelbudget.budget.changes import Loosening, loosenings, redefinitions
from pytest_modelbudget.budget.lock_file import UPDATE, Baselines, Lock, LockedValue, lock_path, lock_text, read_value
from pytest_modelbudget.budget.read_budget import budget_text, read_budget
from pytest_modelbudget.budget.update import CheckKey, Update, UpdateMode, update
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.reports import assembly, record
from pytest_modelbudget.reports.cases import cases
from pytest_modelbudget.units import readable_pair

Numbers = Mapping[str, Mapping[str, Any]]  # measured ones by node id, as lock files have them

MOST_NAMED = 3  # stale numbers that one line names


def measured_numbers(numbers: Numbers, budget: Path) -> dict[CheckKey, LockedValue]:
    """The completely measured numbers of one budget file, out of the statements of its checks."""
    addressed = ((Address.parse(node_id), number) for node_id, number in numbers.items())
    return {
        (address.above.path, address.name): read_value(number)
        for address, number in addressed
        if number["budget"] == str(budget)
    }


# Lock files.


def lock_reports(
    report: record.Report, numbers: Numbers, files: Iterable[Path], baselines: Baselines, *, all_needed: bool
) -> list[record.LockReport]:
    """The state of each lock file, in the order of the files.

    One that does not exist is only spoken of where limits grow from it, or all_needed.
    """
    locks: list[record.LockReport] = []
    base = baselines.base
    if base is not None and not base.commit:
        locks.append(record.LockReport(file=None, state="unreachable", text=base.why_not))
    grows = {case.model.file for case in cases(report) if case.check.grow is not None}
    for path in files:
        file = baselines.shown(path)
        today = measured_numbers(numbers, path)
        state, text = _state(path, today, baselines)
        if state == "missing" and not all_needed and file not in grows:
            continue
        locks.append(record.LockReport(file=baselines.shown(lock_path(path)), state=state, text=text))
        if base is not None and base.commit:
            locks.extend(_at_base(path, base, baselines))
    return locks


def _state(path: Path, today: Mapping[CheckKey, LockedValue], baselines: Baselines) -> tuple[str, str]:
    """(state, text) of the lock in the working tree, seen from what was measured."""
    file, here = baselines.shown(lock_path(path)), baselines.in_working_tree(path)
    if here.problem:
        return "broken", here.problem
    if here.lock is None:
        return "missing", f"there is no {file}: {UPDATE}=create writes it"
    known = {key: here.lock.value(*key) for key in today}
    stale = [_stale(key, locked, today[key]) for key, locked in known.items()
             if locked is not None and locked.value != today[key].value]  # fmt: skip
    lacking = [f"{check} of {model}" for (model, check), locked in known.items() if locked is None]
    if stale:
        others = {f"{name} {version}" for key, locked in known.items() if locked is not None
                  for name, version in locked.versions.items() if today[key].versions.get(name) != version}  # fmt: skip
        drift = f" (locked with {', '.join(sorted(others))})" if others else ""
        return "stale", f"lock stale: {file}: {_named(stale)}{drift}: {UPDATE}=fix renews it"
    if lacking:
        return "stale", f"lock stale: {file} lacks {_named(lacking)}: {UPDATE}=create adds them"
    return "fresh", f"{file} holds what was measured"


def _stale(key: CheckKey, locked: LockedValue, today: LockedValue) -> str:
    before, after = readable_pair(locked.value, today.value, today.unit)
    return f"{key[1]} of {key[0]} {before} -> {after}"


def _named(texts: Sequence[str]) -> str:
    rest = len(texts) - MOST_NAMED
    return ", ".join([*texts[:MOST_NAMED], *([f"and {rest} more"] if rest > 0 else [])])


def _at_base(path: Path, base: revision.BaseRevision, baselines: Baselines) -> Iterator[record.LockReport]:
    there, file = baselines.at_base(path), baselines.shown(lock_path(path))
    if there.problem:
        yield record.LockReport(file=file, state="broken", text=there.problem)
    elif not there.is_there:
        text = f"{revision.short(base)} has no {file}: compared with the working tree's"
        yield record.LockReport(file=file, state="missing", text=text)


# Loosened limits, and redefined models.


def budget_changes(
    files: Iterable[Path], gone: Iterable[Path], base: revision.BaseRevision, registry: Tables, *, root: Path
) -> tuple[tuple[record.LoosenedLimit, ...], tuple[record.RedefinedModel, ...]]:
    """All that the change since the base loosens, and redefines, each by file and line.

    gone are budget files that the base has and the working tree has not.
    """
    changes: list[record.LoosenedLimit | record.RedefinedModel] = []
    for path in (*files, *gone):
        try:
            now = read_budget(path, registry, root=root) if path.exists() else None
        except yaml_text.BudgetFileError:
            continue  # a broken budget fails by itself
        changes.extend(_changes(path, now, base, registry, root))
    changes.sort(key=lambda change: (change.file, change.line))
    loosened = tuple(change for change in changes if isinstance(change, record.LoosenedLimit))
    return loosened, tuple(change for change in changes if isinstance(change, record.RedefinedModel))


def _changes(
    path: Path, now: Budget | None, base: revision.BaseRevision, registry: Tables, root: Path
) -> Iterator[record.LoosenedLimit | record.RedefinedModel]:
    is_forbidden = now is not None and now.loosen is Loosen.FORBID
    file = now.file if now else path.relative_to(root).as_posix()
    try:
        if not base.commit:
            raise revision.BaseError(base.why_not)
        text = revision.text_at(base, path)
        before = read_budget(path, registry, root=root, text=text) if text is not None else None
    except BudgetError as error:
        if is_forbidden or base.commit:
            why_not, *_ = str(error).split("\n")
            words = f"not compared with the base, so possibly loosened: {why_not}"
            unknown = Loosening(Place(file, 1), "", None, None, "unknown", None, None, words)
            yield assembly.loosened_limit(unknown, forbidden=is_forbidden)
        return
    if before is None:
        return  # new since the base
    is_forbidden = is_forbidden or before.loosen is Loosen.FORBID
    for loosening in loosenings(before, now, registry.metrics):
        yield assembly.loosened_limit(loosening, forbidden=is_forbidden)
    for redefinition in redefinitions(before, now, registry.transforms):
        yield assembly.redefined_model(redefinition, forbidden=is_forbidden)


def written(
    mode: UpdateMode, path: Path, measured: Mapping[CheckKey, LockedValue], baselines: Baselines, registry: Tables
) -> Iterator[str]:
    """Writes one budget file and its lock; a line for each thing that changed.

    Raises BudgetError where it cannot be edited, and OSError where it cannot be written.
    """
    here = baselines.in_working_tree(path)
    if here.problem:
        raise BudgetError(here.problem)
    root, file = baselines.root, baselines.shown(path)
    text = budget_text(path, file)
    budget = read_budget(path, registry, root=root, text=text)
    lock = here.lock or Lock()
    planned = update(
        mode, budget, measured, lock, metrics=registry.metrics,
        baseline=lambda model, check: baselines.of(path, model, check),
    )  # fmt: skip
    new_text = yaml_text.edited(text, file, planned.edits)
    _must_differ_only_in(planned.edits, budget, read_budget(path, registry, root=root, text=new_text))
    if new_text != text:
        yaml_text.replace_file(path, new_text)
        yield from _said(planned, text, file)
    if lock_text(planned.lock) != lock_text(lock):
        yaml_text.replace_file(lock_path(path), lock_text(planned.lock))
        yield f"{baselines.shown(lock_path(path))}: {_changes_counted(lock, planned.lock)}"


def _must_differ_only_in(edits: tuple[yaml_text.Edit, ...], before: Budget, after: Budget) -> None:
    """Refuse to write what would change any other limit; that would be our mistake."""
    pairs = zip(before.held(), after.held(), strict=True)
    changed = {path_of(*old.check) for old, new in pairs if _bare(old.limit) != _bare(new.limit)}
    assert changed == {edit.subject for edit in edits}, "an edit changed more than its own limit"


def _bare(limit: AnyLimit) -> AnyLimit:
    """A limit without its column, which an edit before it on its line may move."""
    return replace(limit, place=Place(limit.place.file, limit.place.line))


def _said(planned: Update, text: str, file: str) -> Iterator[str]:
    root, _ = yaml_text.tree(text, file)
    for edit in planned.edits:
        scalar = yaml_text.scalar_at(root, edit.keys)
        assert scalar is not None  # it has just been replaced
        end = "" if edit.keys[-1] == "max" else f" {edit.keys[-1]}"
        yield f"{file}:{scalar.place.line}: {edit.subject}{end} {scalar.text} -> {edit.quantity}"


def _changes_counted(before: Lock, after: Lock) -> str:
    """The number of values that were added, changed and removed."""
    old, new = (
        {(path, name): value for path, model in lock.models.items() for name, value in model.items()}
        for lock in (before, after)
    )
    counts = {
        "added": len(new.keys() - old.keys()),
        "changed": sum(old[key] != new[key] for key in old.keys() & new.keys()),
        "removed": len(old.keys() - new.keys()),
    }
    return "numbers " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)
