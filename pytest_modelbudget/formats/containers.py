"""Containers of inputs: lists, named tuples, dicts, records, objects that hold tensors; their parts, and their like."""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from pytest_modelbudget.errors import InputError, user_code
from pytest_modelbudget.units import with_article


@dataclass(frozen=True, slots=True)
class Record(Mapping[Any, Any]):
    """What stands for an object: by name what stands for each of its parts, and what makes it of those.

    kind is the class of a dataclass, another object without its tensors, or a call of a budget's, with positional
    arguments under their numbers.
    """

    kind: Any
    parts: Mapping[Any, Any]

    def __getitem__(self, name: Any) -> Any:
        return self.parts[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def made(self, parts: Iterable[Any]) -> Any:
        """An object of the class with these values; raises InputError where the class refuses them."""
        name = self.kind.__name__ if isinstance(self.kind, type) else self.kind.name
        with user_code(f"an input of {name}", InputError):
            return self.kind(**dict(zip(self.parts, parts, strict=True)))


class _TakenApart(pickle.Pickler):
    """Writes an object without its tensors: each is a part, by the word that is written before it.

    Code is not written, but kept, so that classes of functions and notebooks have no need of a name.
    """

    def __init__(self, file: io.BytesIO, tensor: type) -> None:
        super().__init__(file)
        self._tensor, self._word = tensor, ""
        self.parts: dict[str, Any] = {}
        self.code: list[object] = []

    def persistent_id(self, value: object) -> Any:
        if type(value) is str:
            self._word = value
        elif isinstance(value, self._tensor):
            same = sum(name.partition("#")[0] == self._word for name in self.parts)
            name = f"{self._word}#{same + 1}" if same else self._word
            self.parts[name] = value
            return name
        elif isinstance(value, (type, FunctionType, ModuleType)):
            self.code.append(value)
            return len(self.code) - 1
        return None


class _PutTogether(pickle.Unpickler):
    """Reads an object that was taken apart, with these parts."""

    def __init__(self, content: bytes, known: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._known = known

    def persistent_load(self, name: Any) -> Any:
        return self._known(name)


@dataclass(frozen=True, slots=True)
class Shell:
    """An object of any class without its tensors: what pickles, as what a DataLoader hands over does."""

    name: str
    content: bytes
    code: tuple[object, ...]
    parts: Mapping[str, Any]

    @classmethod
    def of(cls, value: object) -> Shell | None:
        """Take an object apart; None of plain containers, of what has no tensors, and of what does not pickle.

        Raises InputError where code of its class raises something else meanwhile.
        """
        torch = sys.modules.get("torch")
        if torch is None or value is None or type(value) in PLAIN or is_record(value):
            return None
        if isinstance(value, (*ATOMS, torch.Tensor, torch.nn.Module)):
            return None
        writer = _TakenApart(file := io.BytesIO(), torch.Tensor)
        try:
            with user_code(f"pickling {with_article(type(value).__name__)}", InputError):
                writer.dump(value)
        except InputError as error:
            if isinstance(error.__cause__, DOES_NOT_PICKLE):
                return None
            raise
        return cls(type(value).__name__, file.getvalue(), tuple(writer.code), writer.parts) if writer.parts else None

    def __call__(self, **parts: Any) -> Any:
        return _PutTogether(self.content, lambda name: parts[name] if isinstance(name, str) else self.code[name]).load()


# As Python's own classes, extensions and torch refuse it.
DOES_NOT_PICKLE = (pickle.PicklingError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)
ATOMS = (list, tuple, bool, int, float, complex, str, bytes, type, FunctionType, ModuleType)
PLAIN = frozenset({dict, OrderedDict, MappingProxyType, Record})


def is_arguments(value: object) -> bool:
    """Whether this is a mapping of names to arguments, as tokenizers give it, and not one argument of its own class."""
    return isinstance(value, (dict, UserDict, MappingProxyType))


def is_record(value: object) -> bool:
    """Whether this is an object of a dataclass."""
    return is_dataclass(value) and not isinstance(value, (type, Record))


def is_named_tuple(value: object) -> bool:
    """Whether this is a tuple whose parts have names."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def named_parts(value: object) -> Mapping[Any, Any] | None:
    """The parts of a container by name or place; those that make a record; tensors of an object. None of all else."""
    if is_dataclass(value) and is_record(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if shell := Shell.of(value):
        return shell.parts
    return value if isinstance(value, Mapping) else None


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
    if shell := Shell.of(container):
        return shell(**dict(named))
    return OrderedDict(named) if isinstance(container, OrderedDict) else dict(named)


def specs_within(container: Any, spec: Callable[[Any], Any]) -> Any:
    """A container whose parts are specs: a tuple, also of a list, a mapping, a record or a shell; else None."""
    parts = named_parts(container)
    if parts is None:
        return None
    specs = [spec(part) for part in parts.values()]
    if is_record(container):
        return Record(type(container), dict(zip(parts, specs, strict=True)))
    if shell := Shell.of(container):
        return Record(shell, dict(zip(parts, specs, strict=True)))
    if isinstance(container, Mapping):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        return kind(zip(map(str, parts), specs, strict=True))
    return with_parts(container, specs) if is_named_tuple(container) else tuple(specs)
