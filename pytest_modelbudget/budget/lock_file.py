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
import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from pytest_modelbudget.budget.yaml_text import CONFLICT, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.units import Number, decimal_text, unit_named

SCHEMA = "model-budget-lock/1"
HEAD = 1000  # bytes of a lock file in which its schema stands
SUFFIX = ".lock.json"
MOST_PARTS = 1000  # of one number; the smallest others are counted and left out
MOST = 10**36  # no count of a model is near it
DECIMAL = r"^[0-9]{1,40}(\.[0-9]{1,400})?$"
UPDATE = "pytest --model-budget --model-budget-update"

Count = Annotated[int, msgspec.Meta(ge=0)]
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


LockedModel = Mapping[str, LockedValue]  # the locked numbers of one model, by name of the check


@dataclass(frozen=True, slots=True)
class Baseline:
    """The locked number of one check; or None, and why.

    revision is the commit that it was locked in; "" in the working tree, where an update can change it. model has all
    locked numbers of the check's model.
    """

    locked: LockedValue | None = None
    why_none: str = ""
    revision: str = ""
    model: LockedModel = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lock:
    """All locked numbers of one budget file, by the model's path in it ("detector::batch8")."""

    models: Mapping[str, LockedModel] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[tuple[str, str], LockedValue]:
        return {(path, name): value for path, model in self.models.items() for name, value in model.items()}

    def value(self, model: str, check: str) -> LockedValue | None:
        return self.models.get(model, {}).get(check)


def lock_path(budget: AnyPath) -> AnyPath:
    """The path of a budget file's lock: a.lock.json of a.yaml, a.yml.lock.json of a.yml."""
    return budget.with_name((budget.stem if budget.suffix == ".yaml" else budget.name) + SUFFIX)


def budgets_of(lock: AnyPath) -> tuple[AnyPath, ...]:
    """The budget files that a lock file may belong to: a.yaml of a.lock.json, a.yml of a.yml.lock.json."""
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
        numbers = [f"   {_json(name)}: {_json(value_record(value))}" for name, value in sorted(model.items())]
        models.append("\n".join([f"  {_json(path)}: {{", *filter(None, [",\n".join(numbers)]), "  }"]))
    lines = ["{", f' "schema": {_json(SCHEMA)},', ' "models": {', *filter(None, [",\n".join(models)]), " }", "}"]
    return "\n".join(lines) + "\n"


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


class _Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One measured number: a count, or a ratio as a decimal and the exact pair that it was made from.

    with has the versions of the frameworks that it was measured with. parts are the layers or stored tensors that the
    number is made of, the largest first: scope, tensor or null, value, shape or null. cut counts those left out.
    """

    value: Count | Annotated[str, msgspec.Meta(pattern=DECIMAL)]
    unit: str
    exact: tuple[Count, Count] | None = None
    versions: dict[str, str] = msgspec.field(name="with")
    parts: tuple[tuple[str, str | None, Count, tuple[Count, ...] | None], ...] = ()
    cut: Count = 0


class _LockFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measured numbers of one budget file, by model, and by name of the limit."""

    schema: Literal["model-budget-lock/1"]
    models: dict[str, dict[str, _Number]]


def lock_schema_text() -> str:
    """The JSON Schema of a lock file, as the text of a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Model budget lock"}
    return json.dumps({**head, **msgspec.json.schema(_LockFile)}, indent=2) + "\n"


def read_lock(text: str, file: str) -> Lock:
    """The lock that a file holds. Raises LockError with its name, the key that is wrong, and the fix."""
    if CONFLICT.search(text):
        raise LockError(f"{file} holds the marks of an unfinished merge: take either side, then run {UPDATE}=fix")
    fix = f"restore it from git, or delete it and run {UPDATE}=create"
    try:
        record = json.loads(text, object_pairs_hook=_distinct)
        json.dumps(record, ensure_ascii=False).encode()  # half of a character is in no word
        schema = record.get("schema") if isinstance(record, dict) else None
        if schema == SCHEMA or not isinstance(schema, str):
            return Lock(_models(record))
    except json.JSONDecodeError as error:
        raise LockError(f"{file}:{error.lineno}: no JSON: {error.msg}: {fix}") from error
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise LockError(f"{file} is no lock file of this version: {error}: {fix}") from error
    read = f"{file} has the schema {_short(schema)}, and this version reads {SCHEMA}"
    raise LockError(f"{read}: update pytest-modelbudget, or {fix}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping without duplicate keys: with two numbers it is unknown which is meant."""
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {_short(twice)} is there twice")
    return record


def _models(record: Any) -> dict[str, LockedModel]:
    """Every number of a lock; an error in one names its model and its check."""
    models: dict[str, LockedModel] = {}
    for path, model in msgspec.convert(record, _Unread).models.items():
        numbers: dict[str, LockedValue] = {}
        for name, number in model.items():
            try:
                numbers[name] = read_value(number)
            except (ValueError, msgspec.ValidationError) as error:
                raise ValueError(f"{_short(path)}, {_short(name)}: {error}") from error
        models[path] = numbers
    return models


class _Unread(msgspec.Struct, forbid_unknown_fields=True):
    """A lock file whose numbers are still to be read, one by one."""

    schema: str
    models: dict[str, dict[str, Any]]


def read_value(record: Any) -> LockedValue:
    """A locked number out of its JSON; raises ValueError or msgspec.ValidationError where it is none."""
    number = msgspec.convert(record, _Number)
    is_ratio = isinstance(number.value, str) or number.exact is not None
    value = _ratio(number.value, number.exact, number.unit) if is_ratio else int(number.value)
    parts = tuple(Part(scope, amount, name, shape) for scope, name, amount, shape in number.parts)
    return LockedValue(value, number.unit, parts, number.cut, number.exact, number.versions)


def _ratio(value: int | str, pair: tuple[int, int] | None, unit: str) -> Fraction:
    """A number that is not whole: a decimal, and the pair that it was rounded from where there is one."""
    if unit_named(unit).whole:
        raise ValueError(f"the value {_short(value)} is no whole number, and only whole ones of {unit} exist")
    if pair is None:
        return Fraction(value)
    if not pair[1] or decimal_text(Fraction(*pair)) != value:
        raise ValueError(f"the value {_short(value)} is not what its exact pair gives")
    return Fraction(*pair)


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


def replace_file(path: Path, text: str) -> None:
    """Replace the text of a file, completely or not at all. Raises OSError where it cannot be written."""
    path = Path(os.path.realpath(path))  # a link stays a link
    now = path.read_bytes() if path.exists() else None
    mark = BOM_UTF8 if now and now.startswith(BOM_UTF8) else b""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(mark + text.encode("utf-8"))
        if now is not None:
            temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
