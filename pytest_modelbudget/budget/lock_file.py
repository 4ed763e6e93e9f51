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
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePath
from typing import Any, TypeVar

from pytest_modelbudget.budget.yaml_text import CONFLICT, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.units import Number, decimal_text, unit_named

SCHEMA = "model-budget-lock/1"
HEAD = 1000  # bytes of a lock file in which its schema stands
SUFFIX = ".lock.json"
MOST_PARTS = 1000  # of one number; the smallest others are counted and left out
LARGEST = 100_000_000  # bytes of a lock file; one number with all its parts takes some 60 kB
MOST = 10**36  # no count of a model is near it
DECIMAL = re.compile(r"[0-9]{1,40}(\.[0-9]{1,400})?")
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

    @property
    def numbers(self) -> dict[tuple[str, str], LockedValue]:
        """Every locked number by the model's path and the name of its check."""
        return {(path, name): value for path, model in self.models.items() for name, value in model.items()}

    def value(self, model: str, check: str) -> LockedValue | None:
        """The locked number of one check."""
        return self.models.get(model, {}).get(check)


def lock_path(budget: AnyPath) -> AnyPath:
    """The path of a budget file's lock: a.lock.json of a.yaml, a.yml.lock.json of a.yml."""
    return budget.with_name((budget.stem if budget.suffix == ".yaml" else budget.name) + SUFFIX)


def budgets_of(lock: AnyPath) -> tuple[AnyPath, ...]:
    """The budget files that a lock file may be beside: a.yaml of a.lock.json, a.yml of a.yml.lock.json."""
    stem = lock.name.removesuffix(SUFFIX)
    return (lock.with_name(f"{stem}.yaml"), *([lock.with_name(stem)] if stem.endswith(".yml") else []))


def locked_value(measurement: Measurement, parts: Sequence[Part], versions: Mapping[str, str]) -> LockedValue | None:
    """The value that a lock holds of a measured number.

    None of a mere lower bound, and of what an extension measured that is no count: below 0, or a part of a whole.
    """
    is_odd = isinstance(measurement.value, Fraction) and unit_named(measurement.unit).whole
    if not measurement.complete or is_odd or not 0 <= measurement.value <= MOST:
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
        shapes = [None if part.shape is None else list(part.shape) for part in value.parts]
        record["parts"] = [
            [part.scope, part.name, part.value, shape] for part, shape in zip(value.parts, shapes, strict=True)
        ]
    return {**record, "cut": value.cut} if value.cut else record


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_lock(text: str, file: str) -> Lock:
    """The lock that a file holds. Raises LockError with its name, the key that is wrong, and the way out."""
    if CONFLICT.search(text):
        raise LockError(f"{file} holds the marks of an unfinished merge: take either side, then run {UPDATE}=fix")
    way_out = f"restore it from git, or delete it and run {UPDATE}=create"
    try:
        record = json.loads(text, object_pairs_hook=_distinct)
        json.dumps(record, ensure_ascii=False).encode()  # half of a character is in no word
        schema = record["schema"]
        if schema == SCHEMA:
            return Lock(_models(record))
    except json.JSONDecodeError as error:
        raise LockError(f"{file}:{error.lineno}: no JSON: {error.msg}: {way_out}") from error
    except _OddKeyError as error:
        raise LockError(f"{file} is no lock file of this version: {error}: {way_out}") from error
    except ODD as error:
        raise LockError(f"{file} is no lock file of this version: delete it, then run {UPDATE}=create") from error
    read = f"{file} has the schema {_short(schema)}, and this version reads {SCHEMA}"
    raise LockError(f"{read}: update pytest-modelbudget, or {way_out}")


class _OddKeyError(ValueError):
    """A key of a lock file that says what no lock says; its text names the key."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping whose keys stand there once each: of two numbers nobody knows which is meant."""
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _OddKeyError(f"the key {_short(twice)} stands there twice")
    return record


def _models(record: Mapping[str, Any]) -> dict[str, LockedModel]:
    """Every number of a lock; what is wrong with one is said with the path to it."""
    _must_know_only(record, {"schema", "models"})
    models: dict[str, LockedModel] = {}
    for path, model in record["models"].items():
        numbers: dict[str, LockedValue] = {}
        for name, number in model.items():
            try:
                numbers[name] = read_value(number)
            except _OddKeyError as error:
                raise _OddKeyError(f"{_short(path)}, {_short(name)}: {error}") from error
            except ODD as error:
                raise _OddKeyError(f"{_short(path)}, {_short(name)}: this is no locked number") from error
        models[path] = numbers
    return models


def read_value(record: Mapping[str, Any]) -> LockedValue:
    """A locked number out of its JSON; raises one of ODD where it is none.

    A count is a whole number from 0; only a unit of which parts exist may have fractions, as a decimal or as the exact
    pair that it was made from.
    """
    _must_know_only(record, {"value", "unit", "exact", "with", "parts", "cut"})
    for key in ("value", "unit", "with"):
        if key not in record:
            raise _OddKeyError(f"the key {key} is missing")
    unit, pair, value = record["unit"], record.get("exact"), record["value"]
    if not isinstance(unit, str):
        raise _OddKeyError(f"the unit {_short(unit)} is no word")
    if pair is not None or isinstance(value, str):
        value = _ratio(value, pair, unit)
    return LockedValue(
        value if isinstance(value, Fraction) else _count(value, "value"),
        unit,
        tuple(_part(*_listed(part, "part")) for part in _listed(record.get("parts", []), "parts")),
        _count(record.get("cut", 0), "cut"),
        None if pair is None else (pair[0], pair[1]),
        {name: _word(version) for name, version in record["with"].items()},
    )


def _must_know_only(record: Mapping[str, Any], known: set[str]) -> None:
    for key in record:
        if key not in known:
            raise _OddKeyError(f"the key {_short(key)} is not known")


def _ratio(value: object, pair: Any, unit: str) -> Fraction:
    """A number that is not whole: a decimal, and the pair that it was rounded from where there is one."""
    if unit_named(unit).whole:
        raise _OddKeyError(f"the value {_short(value)} is no whole number, and only whole ones of {unit} exist")
    if not isinstance(value, str) or not DECIMAL.fullmatch(value):
        raise _OddKeyError(f"the value {_short(value)} is no decimal number from 0")
    if pair is None:
        return Fraction(value)
    first, second = (_count(number, "exact") for number in _listed(pair, "exact"))
    if not second or decimal_text(Fraction(first, second)) != value:
        raise _OddKeyError(f"the value {value} is not what its exact pair gives")
    return Fraction(first, second)


def _part(scope: object, name: object, value: object, shape: Any) -> Part:
    sizes = None if shape is None else tuple(_count(size, "shape") for size in _listed(shape, "shape"))
    return Part(_word(scope), _count(value, "parts"), None if name is None else _word(name), sizes)


def _listed(value: object, key: str) -> list[Any]:
    """A list, and no word or mapping, which would be read as its letters or its keys."""
    if not isinstance(value, list):
        raise _OddKeyError(f"the {key} {_short(value)} is no list")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise _OddKeyError(f"{_short(value)} is no word")
    return value


def _count(value: object, key: str) -> int:
    """A whole number from 0, and nothing that merely looks like one."""
    if type(value) is not int:
        raise _OddKeyError(f"the {key} {_short(value)} is no whole number")
    if not 0 <= value <= MOST:
        raise _OddKeyError(f"the {key} {_short(value)} is {'below 0' if value < 0 else 'larger than any model'}")
    return value


def _short(value: object) -> str:
    """A value of a file for a message, on one line and not too long."""
    return shown(value if isinstance(value, str) else json.dumps(value), longest=40)


@dataclass(frozen=True, slots=True)
class FoundLock:
    """A lock that was looked for, by its name for people: what it holds; or None, and why. is_there tells no file."""

    name: str
    lock: Lock | None
    is_there: bool = False
    problem: str = ""
