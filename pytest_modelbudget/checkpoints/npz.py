"""Headers of ``.npz`` files, as MLX writes weights: a zip of arrays, each behind a description of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from pytest_modelbudget.checkpoints.stored import WRITE_AGAIN, StoredTensor, reading
from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.tensor import DType

START, LONGEST = 12, 10_000  # bytes before a description, and the longest that numpy reads itself
KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def read(path: Path) -> tuple[tuple[StoredTensor, ...], Mapping[str, Any]]:
    """The arrays of a file; raises SourceError for one that holds anything else."""
    try:
        with reading(path), ZipFile(path) as archive:
            return tuple(_array(archive, name, path) for name in archive.namelist()), {}
    except (BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise SourceError(f"{path.name} is no archive of arrays ({error}): {WRITE_AGAIN}") from error


def _array(archive: ZipFile, name: str, path: Path) -> StoredTensor:
    with archive.open(name) as member:
        start = member.read(START)
        at = 10 if start[6:7] == b"\x01" else 12
        length = int.from_bytes(start[8:at], "little")
        if start[:6] != b"\x93NUMPY" or length > LONGEST:
            raise ValueError(f"'{name}' is no array")
        described = (start[at:] + member.read(length))[:length]
    try:
        entry = ast.literal_eval(described.decode("latin-1").strip())
        match, shape = re.fullmatch(r"[<>|=]([fiuc])(\d)", entry["descr"]), tuple(entry["shape"])
    except (SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise ValueError(f"'{name}' has no description") from error
    if (match is None and entry["descr"] != "|b1") or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"'{name}' has no plain numbers")
    bits = int(match[2]) * 8 if match else 8
    dtype = DType(f"{KINDS[match[1]]}{bits}" if match else "bool", bits)
    return StoredTensor(name.removesuffix(".npy"), shape, dtype, path)
