"""An update carried out: budgets and locks written after a session; no pytest, no printing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_modelbudget.budget.baselines import Baselines
from pytest_modelbudget.budget.budget import AnyLimit, Budget, Place
from pytest_modelbudget.budget.lock_file import Lock, LockedValue, lock_path, lock_text
from pytest_modelbudget.budget.read_yaml import budget_text
from pytest_modelbudget.budget.update import CheckKey, Update, UpdateMode, update
from pytest_modelbudget.budget.write_yaml import Edit, edited, replace_file, scalar_at
from pytest_modelbudget.budget.yaml_nodes import tree
from pytest_modelbudget.check.budgets import read
from pytest_modelbudget.check.tables import Tables
from pytest_modelbudget.errors import BudgetError


def written(
    mode: UpdateMode,
    path: Path,
    measured: Mapping[CheckKey, LockedValue],
    baselines: Baselines,
    using: Tables,
) -> Iterator[str]:
    """Writes one budget file and its lock; a line for each thing that changed.

    Raises BudgetError where it cannot be edited, and OSError where it cannot be written.
    """
    here = baselines.in_working_tree(path)
    if here.problem:
        raise BudgetError(here.problem)
    root, file = baselines.root, baselines.shown(path)
    text = budget_text(path, file)
    budget = read(path, using, root=root, text=text)
    lock = here.lock or Lock()
    planned = update(
        mode, budget, measured, lock, metrics=using.metrics,
        baseline=lambda model, check: baselines.of(path, model, check),
    )  # fmt: skip
    new_text = edited(text, file, planned.edits)
    _must_differ_only_in(planned.edits, budget, read(path, using, root=root, text=new_text))
    if new_text != text:
        replace_file(path, new_text)
        yield from _said(planned, text, file)
    if lock_text(planned.lock) != lock_text(lock):
        replace_file(lock_path(path), lock_text(planned.lock))
        yield f"{baselines.shown(lock_path(path))}: {_changes(lock, planned.lock)}"


def _must_differ_only_in(edits: tuple[Edit, ...], before: Budget, after: Budget) -> None:
    """Refuse to write what would change any other limit; that would be our mistake."""
    pairs = list(zip(before.held(), after.held(), strict=True))
    changed = {"::".join(old.check) for old, new in pairs if _bare(old.limit) != _bare(new.limit)}
    assert changed == {edit.subject for edit in edits}, "an edit changed more than its own limit"


def _bare(limit: AnyLimit) -> AnyLimit:
    """A limit without its column, which an edit before it on its line may move."""
    return replace(limit, place=Place(limit.place.file, limit.place.line))


def _said(planned: Update, text: str, file: str) -> Iterator[str]:
    root, _ = tree(text, file)
    for edit in planned.edits:
        scalar = scalar_at(root, edit.keys)
        assert scalar is not None  # it has just been replaced
        end = "" if edit.keys[-1] == "max" else f" {edit.keys[-1]}"
        change = f"{scalar.text} -> {edit.quantity}"
        yield f"{file}:{scalar.place.line}: {edit.subject}{end} {change}"


def _changes(before: Lock, after: Lock) -> str:
    """How many numbers were added, changed and removed."""
    old, new = _values(before), _values(after)
    counts = {
        "added": len(new.keys() - old.keys()),
        "changed": sum(old[key] != new[key] for key in old.keys() & new.keys()),
        "removed": len(old.keys() - new.keys()),
    }
    return "numbers " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _values(lock: Lock) -> dict[CheckKey, LockedValue]:
    return {
        (path, name): value for path, model in lock.models.items() for name, value in model.items()
    }
