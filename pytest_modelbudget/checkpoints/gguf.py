"""Headers of ``.gguf`` files: settings, then names, shapes, block types and offsets of tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

from pytest_modelbudget.checkpoints.stored import WRITE_AGAIN, StoredTensor, must_lie_apart, reading
from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.tensor import DType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Type numbers of ggml: the name, the values in a block, and its bytes.
BLOCKS: Mapping[int, tuple[str, int, int]] = {
    0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("float64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("bfloat16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9  # types of settings that are no number
MOST_DIMENSIONS, MOST_TENSORS, MOST_SETTINGS, MOST_TEXTS = 8, 1 << 20, 1 << 16, 1 << 22
LONGEST_TEXT = 1 << 20  # bytes of a setting that is kept; longer ones, and lists, are stepped over
LONGEST_NAME = 1 << 12
ALIGNMENT = "general.alignment"


def read(path: Path) -> tuple[tuple[StoredTensor, ...], Mapping[str, Any]]:
    """The tensors of a file, and its settings that are a number or a text.

    Raises SourceError for a header that does not describe the file.
    """
    size = path.stat().st_size
    with reading(path), path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise SourceError(f"{path.name} is no GGUF file, or a part of one: {WRITE_AGAIN}")
        header = _Header(file, path.name, size)
        try:
            return _read(header, path)
        except UnicodeDecodeError as error:
            raise header.broken("has a name that is no text") from error


def _read(header: _Header, path: Path) -> tuple[tuple[StoredTensor, ...], Mapping[str, Any]]:
    if (version := header.number("I")) not in VERSIONS:
        raise SourceError(f"{path.name} is GGUF of version {version:,}, and {VERSIONS} are known: convert it again")
    tensors, count = header.count("tensors", MOST_TENSORS), header.count("settings", MOST_SETTINGS)
    settings = dict(header.setting() for _ in range(count))
    found = {tensor.name: tensor for tensor in (header.tensor(path) for _ in range(tensors))}
    if len(found) < tensors:
        raise header.broken("has two tensors of one name")
    alignment = settings.get(ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise header.broken(f"has the alignment {alignment!r}, which is no power of two")
    start = -(-header.file.tell() // alignment) * alignment
    placed = tuple(replace(tensor, offset=start + tensor.offset) for tensor in found.values())
    must_lie_apart(path, placed, header.size)
    kept = {name: value for name, value in settings.items() if value is not None}
    if (parts := kept.get("split.count", 1)) != 1 and "-of-" not in path.name:
        raise SourceError(f"{path.name} is one of {parts} parts: give it the name that it was written with")
    return placed, kept


@dataclass(frozen=True, slots=True)
class _Header:
    """A file behind its first bytes, of so many in all; each read stays within it."""

    file: BufferedReader
    name: str
    size: int

    def broken(self, what: str) -> SourceError:
        return SourceError(f"{self.name} {what}: {WRITE_AGAIN}")

    def bytes(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) < count:
            raise self.broken("ends within its header")
        return content

    def skip(self, count: int) -> None:
        if count > self.size - self.file.tell():
            raise self.broken("ends within its header")
        self.file.seek(count, 1)

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def count(self, what: str, most: int) -> int:
        count: int = self.number("Q")
        if count > most:
            raise self.broken(f"says that it has {count:,} {what}")
        return count

    def text(self, most: int) -> str | None:
        """A text; None of one that is longer."""
        length: int = self.number("Q")
        if length > most:
            self.skip(length)
            return None
        return self.bytes(length).decode()

    def setting(self) -> tuple[str, Any]:
        """A name and its value; None in place of a list."""
        name = self.text(LONGEST_NAME)
        return name or "", self.value(self.number("I"))

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text(LONGEST_TEXT)
        if kind != LIST:
            raise self.broken(f"has a setting of the unknown type {kind:,}")
        kind = self.number("I")
        if kind in SCALARS:
            self.skip(self.number("Q") * struct.calcsize(f"<{SCALARS[kind]}"))
        elif kind == TEXT:
            for _ in range(self.count("texts", MOST_TEXTS)):
                self.skip(self.number("Q"))
        else:
            raise self.broken(f"has a list of the unknown type {kind:,}")
        return None

    def tensor(self, path: Path) -> StoredTensor:
        """One tensor, its offset from the end of the header."""
        name, rank = self.text(LONGEST_NAME), self.number("I")
        if not name or rank > MOST_DIMENSIONS:
            raise self.broken("describes no tensors where they should be")
        shape = tuple(self.number("Q") for _ in range(rank))[::-1]  # ggml counts the innermost dimension first
        kind, offset = self.number("I"), self.number("Q")
        if kind not in BLOCKS:
            raise SourceError(f"{self.name}: '{name}' has the unknown block type {kind:,}: update pytest-modelbudget")
        dtype, values, nbytes = BLOCKS[kind]
        if (shape or (1,))[-1] % values:
            raise self.broken(f"has '{name}' of {shape}, whose rows are no whole blocks of {values}")
        bits = Fraction(nbytes * 8, values)
        exact = DType(dtype, int(bits) if bits.denominator == 1 else bits)
        return StoredTensor(name, shape, exact, path, offset, logical=prod(shape))
