"""Containers of inputs: lists, named tuples, dicts and records; what is in them, and another one of the same kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from pytest_modelbudget.errors import InputError, user_code


@dataclass(frozen=True, slots=True)
class Record(Mapping[str, Any]):
    """What stands for an object of a dataclass: the class, and by the name of each field what stands for its value."""

    kind: type
    parts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def made(self, parts: Iterable[Any]) -> Any:
        """An object of the class with these values; raises InputError where the class refuses them."""
        with user_code(f"an input of {self.kind.__name__}", InputError):
            return self.kind(**dict(zip(self.parts, parts, strict=True)))


def is_record(value: object) -> bool:
    """Whether this is an object of a dataclass."""
    return is_dataclass(value) and not isinstance(value, (type, Record))


def is_named_tuple(value: object) -> bool:
    """Whether this is a tuple whose parts have names."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def named_parts(value: object) -> Mapping[Any, Any] | None:
    """The parts of a container by name or place, of a record those that make it; None of anything else."""
    if is_dataclass(value) and is_record(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else None


def with_parts(container: Any, parts: Iterable[Any]) -> Any:
    """A container of the same kind, with these parts in place of its own."""
    if is_named_tuple(container):
        return container._make(parts)
    if isinstance(container, (list, tuple)):
        return [*parts] if isinstance(container, list) else tuple(parts)
    named = zip(named_parts(container) or (), parts, strict=True)
    if isinstance(container, Record):
        return Record(container.kind, dict(named))
    if is_record(container):
        return replace(container, **dict(named))
    return OrderedDict(named) if isinstance(container, OrderedDict) else dict(named)


def specs_within(container: Any, spec: Callable[[Any], Any]) -> Any:
    """A container whose parts are specs: a tuple, also of a list, a mapping, or a record; None of anything else."""
    parts = named_parts(container)
    if parts is None:
        return None
    specs = [spec(part) for part in parts.values()]
    if is_record(container):
        return Record(type(container), dict(zip(parts, specs, strict=True)))
    if isinstance(container, Mapping):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        return kind(zip(map(str, parts), specs, strict=True))
    return with_parts(container, specs) if is_named_tuple(container) else tuple(specs)
