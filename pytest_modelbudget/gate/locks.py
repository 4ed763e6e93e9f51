"""Lock files and the change since the base, for the report and on disk; no pytest, no printing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import revision, yaml_text
from pytest_modelbudget.budget.budget import Address, AnyLimit, Budget, Loosen, Place, path_of
from pytest_modelbudget.budget.changes import CheckKey, Loosening, lock_loosenings, loosenings, redefinitions, renamings
from pytest_modelbudget.budget.lock_file import (
    SCHEMA,
    SUFFIX,
    UPDATE,
    Baselines,
    Lock,
    LockedValue,
    budgets_of,
    lock_path,
    lock_text,
    read_value,
)
from pytest_modelbudget.budget.read_budget import budget_text, read_budget
from pytest_modelbudget.budget.update import Update, UpdateMode, update
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.reports import assembly, record
from pytest_modelbudget.reports.cases import cases
from pytest_modelbudget.units import readable_pair

Numbers = Mapping[str, Mapping[str, Any]]  # measured ones by node id, as lock files have them

MOST_NAMED = 3  # stale numbers that one line names
HEAD = 1000  # bytes of a lock file in which its schema stands
MEASURED_BY = ("baseline raised", "baseline lowered")  # what is told from today's numbers


def measured_numbers(numbers: Numbers, budget: Path) -> dict[CheckKey, LockedValue]:
    """The completely measured numbers of one budget file, out of the statements of its checks, sorted."""
    addressed = sorted((node_id, number) for node_id, number in numbers.items() if number["budget"] == str(budget))
    return {
        (address.above.path, address.name): read_value({key: number[key] for key in number if key != "budget"})
        for address, number in ((Address.parse(node_id), number) for node_id, number in addressed)
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
    growing = [case for case in cases(report) if case.check.grow is not None]
    grows = {case.model.file for case in growing}
    grown_from = {case.model.file for case in growing if case.check.baseline is not None}
    for path in files:
        file = baselines.shown(path)
        today = measured_numbers(numbers, path)
        state, text = _state(path, today, baselines)
        if state == "missing" and not all_needed and file not in grows:
            continue
        lock = baselines.shown(lock_path(path))
        # It was there when growth was told from it, and no longer says so now.
        is_gone = base is None and state in ("missing", "broken") and file in grown_from
        locks.append(record.LockReport(file=lock, state=state, text=text, fails=is_gone))
        if base is not None and base.commit:
            locks.extend(_at_base(path, sorted({model for model, _ in today}), base, baselines))
    return locks


def stray_locks(folders: Iterable[Path], baselines: Baselines) -> Iterator[record.LockReport]:
    """Lock files in these folders whose budget is gone, which nothing reads."""
    for folder in sorted(set(folders)):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path.is_file() and not any(budget.exists() for budget in budgets_of(path)) and _is_lock(path):
                file = baselines.shown(path)
                text = f"{file} is left of {budgets_of(path)[0].name}, which is gone: delete it"
                yield record.LockReport(file=file, state="stray", text=text)


def _is_lock(path: Path) -> bool:
    """Whether a file begins as our lock files do; others end in .lock.json, too."""
    try:
        with path.open("rb") as file:
            return SCHEMA.encode() in file.read(HEAD)
    except OSError:
        return False  # not ours to read, and nothing is compared with it


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


def _at_base(
    path: Path, models: Iterable[str], base: revision.BaseRevision, baselines: Baselines
) -> Iterator[record.LockReport]:
    there, file = baselines.at_base(path), baselines.shown(lock_path(path))
    if there.problem:
        yield record.LockReport(file=file, state="broken", text=there.problem)
        return
    moved: dict[str, list[str]] = {}
    with suppress(BudgetError):  # which leaves growth unknown
        for model in models:
            homes = [baselines.shown(lock_path(home)) for home in baselines.homes(path, model) if home != path]
            if homes:
                moved.setdefault(" and ".join(homes), []).append(model)
    for locks, names in moved.items():
        text = f"{_named(names)} of {baselines.shown(path)} compared with {locks} at {revision.short(base)}"
        yield record.LockReport(file=file, state="moved", text=f"{text}: moved from there")
    if not there.is_there and not moved:
        text = f"{revision.short(base)} has no {file}: compared with the working tree's"
        yield record.LockReport(file=file, state="missing", text=text)


# Loosened limits, and redefined models.


def budget_changes(
    report: record.Report, numbers: Numbers, files: Iterable[Path], gone: Iterable[Path], baselines: Baselines,
    registry: Tables,
) -> tuple[tuple[record.LoosenedLimit, ...], tuple[record.RedefinedModel, ...]]:  # fmt: skip
    """All that the change since the base loosens, and redefines, each by file and line.

    gone are budget files of the base that are none in the working tree, whether or not a file of that name is there.
    """
    base, root, judged = baselines.base, baselines.root, {case.id for case in cases(report)}
    assert base is not None  # only asked for where there is one
    changes: list[record.LoosenedLimit | record.RedefinedModel] = []
    for path, is_gone in (*((path, False) for path in files), *((path, True) for path in gone)):
        try:
            now = read_budget(path, registry, root=root) if path.exists() and not is_gone else None
        except yaml_text.BudgetFileError:
            continue  # a broken budget fails by itself
        found = list(_changes(path, now, base, registry, root))
        changes.extend(found)
        if now is not None and base.commit:
            is_forbidden = now.loosen is Loosen.FORBID or any(change.forbidden for change in found)
            measured = measured_numbers(numbers, path)
            for loosening in _of_lock(path, now, measured, baselines, registry):
                change = assembly.loosened_limit(loosening, forbidden=is_forbidden)
                # Selection leaves out what it would have measured: said aloud, and judged by a session without it.
                is_left_out = change.what in MEASURED_BY and change.id not in judged
                changes.append(replace(change, forbidden=False) if is_left_out else change)
    changes.sort(key=lambda change: (change.file, change.line))
    loosened = tuple(change for change in changes if isinstance(change, record.LoosenedLimit))
    return loosened, tuple(change for change in changes if isinstance(change, record.RedefinedModel))


def _of_lock(
    path: Path, now: Budget, measured: Mapping[CheckKey, LockedValue], baselines: Baselines, registry: Tables
) -> Iterator[Loosening]:
    """Locked numbers that let a budget's models grow further than those of the base."""
    with suppress(BudgetError):  # a base that cannot be read is told of where growth is judged
        yield from lock_loosenings(
            now, baselines.in_working_tree(path).lock, baselines.shown(lock_path(path)),
            at_base=lambda model, check: baselines.locked_at_base(path, model, check),
            measured=measured, metrics=registry.metrics,
        )  # fmt: skip


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
    names, said = renamings(before, now, registry.metrics)
    for renaming in said:
        yield assembly.redefined_model(renaming, forbidden=False)
    before = replace(
        before, models=tuple(replace(each, name=names.get(each.name, each.name)) for each in before.models)
    )
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
