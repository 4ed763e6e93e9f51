"""A checkpoint as its files describe it: stored tensors with their types, and settings; no values.

Of a layer in bfloat16, drawn once::

    Checkpoint((StoredTensor("fc.weight", (8, 4), DType("bfloat16", 16), Path("model.safetensors"), 136),))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.tensor import DType, nbytes_of

Json = TypeVar("Json")
MOST_JSON = 100_000_000  # bytes: the largest header that the safetensors library reads, too
WRITE_AGAIN = "is the download complete? write or download it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: its own shape, and the type that it is stored in.

    offset is the position of its first byte in the file. storage names memory that several tensors share, in which
    offset then counts elements; "" where a tensor has its own. logical is the number of values where the file says it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    file: Path
    offset: int = 0
    storage: str = ""
    logical: int | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.elements, self.dtype)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a checkpoint; config is that of config.json, metadata what a file says of itself."""

    tensors: tuple[StoredTensor, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in what the system refuses: raises SourceError."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror or error}") from error


def json_file(path: Path) -> Mapping[str, Any]:
    """The object in a small JSON file; raises SourceError for anything else."""
    return json_of(path, dict[str, Any])


def json_of(path: Path, kind: type[Json]) -> Json:
    """The contents of a small JSON file, as an object or a list; raises SourceError for anything else."""
    with reading(path):
        if path.stat().st_size > MOST_JSON:
            raise SourceError(f"{path.name} has more than {MOST_JSON:,} B: it is no description of a model")
        content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(
            f"{path.name} is no JSON {'list' if get_origin(kind) is list else 'object'} ({error}): {WRITE_AGAIN}"
        ) from error


def joined(files: Iterable[Iterable[StoredTensor]]) -> tuple[StoredTensor, ...]:
    """The tensors of several files; raises SourceError where two have one of the same name."""
    tensors = tuple(tensor for file in files for tensor in file)
    twice = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
    if twice:
        names = " and ".join(tensor.file.name for tensor in tensors if tensor.name == twice[0])
        raise SourceError(f"tensor '{twice[0]}' is in {names}: name one file, or write an index")
    return tuple(sorted(tensors, key=_in_order))


def _in_order(tensor: StoredTensor) -> list[tuple[int, str]]:
    """A name so that layer 2 comes before layer 10."""
    parts = tensor.name.split(".")
    return [(len(part), part) if part.isdecimal() else (0, part) for part in parts]


def must_lie_apart(path: Path, tensors: Iterable[StoredTensor], end: int) -> None:
    """Raise SourceError where tensors of a file overlap, or lie behind its last byte."""
    reached, last = 0, ""
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.nbytes)):
        if tensor.offset < reached:
            raise SourceError(f"{path.name}: '{tensor.name}' overlaps '{last}': {WRITE_AGAIN}")
        reached, last = tensor.offset + tensor.nbytes, tensor.name
        if reached > end:
            raise SourceError(f"{path.name}: '{last}' ends at byte {reached:,} of {end:,}: {WRITE_AGAIN}")
