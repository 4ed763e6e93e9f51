"""The lock file: what was measured when somebody last said so, beside each budget and committed.

``budgets/vision.lock.json`` beside ``budgets/vision.yaml`` drawn once; one number a line, sorted,
so that changes to two models merge. A part is [scope, tensor or null, value, shape or null]::

    {
     "schema": "model-budget-lock/1",
     "models": {
      "alexnet": {
       "macs": {"value": 714188480, "unit": "MAC", "with": {"torch": "2.15.0"}, "parts": [...]},
       "params": {"value": 61100840, "unit": "param", "with": {"torch": "2.15.0"}, "parts": [["cl...
      }
     }
    }
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, TypeVar

from pytest_modelbudget.budget.revision import BaseError, BaseRevision, short, text_at
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.units import Number, decimal_text

SCHEMA = "model-budget-lock/1"
SUFFIX = ".lock.json"
MOST_PARTS = 1000  # of one number; the smallest others are counted and left out
CONFLICT = "<<<<<<<"
# What reading JSON of another form raises.
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
UPDATE = "pytest --model-budget --model-budget-update"

AnyPath = TypeVar("AnyPath", bound=PurePath)


class LockError(BudgetError):
    """A lock file that cannot be read."""


@dataclass(frozen=True, slots=True)
class LockedValue:
    """One measured number and its largest parts, largest first; cut is how many were left out.

    unreduced is the pair of integers that a ratio was made from. versions are those of the
    frameworks that it was measured with.
    """

    value: Number
    unit: str
    parts: tuple[Part, ...] = ()
    cut: int = 0
    unreduced: tuple[int, int] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The locked number of one check; or None, and why.

    revision is the commit that it was locked in; "" in the working tree, where an update can change it.
    """

    locked: LockedValue | None = None
    why_none: str = ""
    revision: str = ""


LockedModel = Mapping[str, LockedValue]  # the locked numbers of one model, by name of the check


@dataclass(frozen=True, slots=True)
class Lock:
    """All locked numbers of one budget file, by the model's path in it ("detector::batch8")."""

    models: Mapping[str, LockedModel] = field(default_factory=dict)

    def value(self, model: str, check: str) -> LockedValue | None:
        """The locked number of one check."""
        return self.models.get(model, {}).get(check)


def lock_path(budget: AnyPath) -> AnyPath:
    """The path of a budget file's lock: a.lock.json of a.yaml, a.yml.lock.json of a.yml."""
    return budget.with_name((budget.stem if budget.suffix == ".yaml" else budget.name) + SUFFIX)


def locked_value(measurement: Measurement, parts: Sequence[Part], versions: Mapping[str, str]) -> LockedValue | None:
    """The value that a lock holds of a measured number; None of a mere lower bound."""
    if not measurement.complete:
        return None
    return LockedValue(
        measurement.value,
        measurement.unit,
        tuple(parts[:MOST_PARTS]),
        max(0, len(parts) - MOST_PARTS),
        measurement.unreduced,
        versions,
    )


def lock_text(lock: Lock) -> str:
    """The lock file: sorted, one number a line, the same text for the same numbers."""
    models = []
    for path, model in sorted(lock.models.items()):
        numbers = _lines([f"   {_json(name)}: {_json(value_record(value))}" for name, value in sorted(model.items())])
        models.append(f"  {_json(path)}: {{\n{numbers}  }}")
    return f'{{\n "schema": {_json(SCHEMA)},\n "models": {{\n{_lines(models)} }}\n}}\n'


def _lines(entries: Sequence[str]) -> str:
    """Entries of a mapping, one below the other."""
    return ",\n".join(entries) + "\n" if entries else ""


def value_record(value: LockedValue) -> dict[str, Any]:
    """A locked number as JSON has it."""
    number = value.value if isinstance(value.value, int) else decimal_text(value.value)
    record: dict[str, Any] = {"value": number, "unit": value.unit}
    if value.unreduced:
        record["exact"] = list(value.unreduced)
    record["with"] = dict(sorted(value.versions.items()))
    if value.parts:
        record["parts"] = [[part.scope, part.name, part.value, part.shape] for part in value.parts]
    return {**record, "cut": value.cut} if value.cut else record


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_lock(text: str, file: str) -> Lock:
    """The lock that a file holds. Raises LockError with its name and the way out."""
    if CONFLICT in text:
        raise LockError(f"{file} holds the marks of an unfinished merge: take either side, then run {UPDATE}=fix")
    way_out = f"delete it, then run {UPDATE}=create"
    try:
        record = json.loads(text)
        schema = record["schema"]
        models = {
            path: {str(name): read_value(value) for name, value in model.items()}
            for path, model in record["models"].items()
        }
    except json.JSONDecodeError as error:
        raise LockError(f"{file}:{error.lineno}: no JSON: {error.msg}: {way_out}") from error
    except ODD as error:
        raise LockError(f"{file} is no lock file of this version: {way_out}") from error
    if schema != SCHEMA:
        raise LockError(f"{file} has the schema {schema}, and this version reads {SCHEMA}")
    return Lock(models)


def read_value(record: Any) -> LockedValue:
    """A locked number out of its JSON; raises one of ODD where it is none."""
    pair, value = record.get("exact"), record["value"]
    if pair is not None:
        value = Fraction(_count(pair[0]), _count(pair[1]))
    else:
        value = Fraction(value) if isinstance(value, str) else _count(value)
    return LockedValue(
        value,
        str(record["unit"]),
        tuple(_part(*part) for part in record.get("parts", ())),
        _count(record.get("cut", 0)),
        None if pair is None else (pair[0], pair[1]),
        {str(name): str(version) for name, version in record["with"].items()},
    )


def _part(scope: object, name: object, value: object, shape: Any) -> Part:
    sizes = None if shape is None else tuple(_count(size) for size in shape)
    return Part(str(scope), _count(value), None if name is None else str(name), sizes)


def _count(value: object) -> int:
    """A whole number, and nothing that merely looks like one."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


@dataclass(frozen=True, slots=True)
class FoundLock:
    """A lock that was looked for: what it holds; or None, and why. is_there tells no file."""

    lock: Lock | None
    is_there: bool = False
    problem: str = ""


def _looked_up(text_of: Callable[[], str | None], name: str) -> FoundLock:
    """The lock whose text is looked up, under its name for people."""
    try:
        text = text_of()
        return FoundLock(None) if text is None else FoundLock(read_lock(text, name), True)
    except (LockError, BaseError) as error:
        return FoundLock(None, True, str(error))
    except (OSError, UnicodeDecodeError) as error:
        return FoundLock(None, True, f"{name} cannot be read: {error}")


class Baselines:
    """The locks of a session's budgets: those of the working tree, and those of the base."""

    def __init__(self, root: Path, base: BaseRevision | None = None) -> None:
        self.root = root
        self.base = base
        self._here: dict[Path, FoundLock] = {}
        self._there: dict[Path, FoundLock] = {}

    def of(self, budget: Path, model: str, check: str) -> Baseline:
        """The baseline that one check of a budget file is compared with.

        That is the base's number. A model, or a limit, that the base does not know is compared
        with the working tree's: what is new has not grown.
        """
        base = self.base
        if base is not None and not base.commit:
            return Baseline(why_none=f"the base is not known: {base.why_not}")
        if base is not None:
            there = self.at_base(budget)
            if there.problem:
                return Baseline(why_none=there.problem)
            locked = there.lock.value(model, check) if there.lock else None
            if locked is not None:
                return Baseline(locked, revision=base.commit)
        here = self.in_working_tree(budget)
        locked = here.lock.value(model, check) if here.lock else None
        if locked is not None:
            return Baseline(locked)
        return Baseline(why_none=here.problem or self._missing(budget, model, check, here))

    def knows(self, budget: Path, model: str) -> bool:
        """Whether any lock holds a number of this model, to see growth by."""
        locks = [self.in_working_tree(budget)]
        if self.base is not None and self.base.commit:
            locks.append(self.at_base(budget))
        return any(known.lock is not None and model in known.lock.models for known in locks)

    def in_working_tree(self, budget: Path) -> FoundLock:
        """The lock file beside a budget file."""
        path = lock_path(budget)
        if budget not in self._here:
            self._here[budget] = _looked_up(
                lambda: path.read_bytes().decode("utf-8-sig") if path.exists() else None, self.shown(path)
            )
        return self._here[budget]

    def at_base(self, budget: Path) -> FoundLock:
        """The lock file that stood beside a budget file at the base, which must be known."""
        base, path = self.base, lock_path(budget)
        assert base is not None  # only asked for where there is one
        if budget not in self._there:
            self._there[budget] = _looked_up(lambda: text_at(base, path), f"{self.shown(path)} at {short(base)}")
        return self._there[budget]

    def shown(self, path: Path) -> str:
        """A path from the project's root."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def _missing(self, budget: Path, model: str, check: str, here: FoundLock) -> str:
        file = self.shown(lock_path(budget))
        lacks = f"{file} has no {check} of {model}" if here.is_there else f"there is no {file}"
        return f"{lacks}: {UPDATE}=create writes it"
