"""Headers of ``.safetensors`` files: eight bytes of length, then JSON.

The format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_modelbudget.checkpoints.stored import MOST_JSON, WRITE_AGAIN, StoredTensor, must_lie_apart, reading
from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.tensor import DType

LENGTH = 8  # bytes of the header's length
METADATA = "__metadata__"
TYPES: Mapping[str, DType] = {
    "BOOL": DType("bool", 8),
    **{f"{letter}{bits}": DType(f"{name}{bits}", bits)
       for letter, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": DType(f"float{bits}", bits) for bits in (16, 32, 64)},
    "BF16": DType("bfloat16", 16),
    "C64": DType("complex64", 64),
    "F4": DType("float4_e2m1fn", 4),
    "F6_E2M3": DType("float6_e2m3fn", 6),
    "F6_E3M2": DType("float6_e3m2fn", 6),
    "F8_E4M3": DType("float8_e4m3fn", 8),
    "F8_E5M2": DType("float8_e5m2", 8),
    "F8_E8M0": DType("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": DType("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": DType("float8_e5m2fnuz", 8),
}  # fmt: skip
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Entry(msgspec.Struct):
    """One tensor as a header spells it; offsets count from the end of the header."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


def read(path: Path) -> tuple[tuple[StoredTensor, ...], Mapping[str, Any]]:
    """The tensors of a file, and the texts that it has next to them.

    Raises SourceError for a header that does not describe the file.
    """
    with reading(path), path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(LENGTH), "little")
        if size < LENGTH or length > min(size - LENGTH, MOST_JSON):
            raise SourceError(
                f"{path.name} is no safetensors file, or a part of one: "
                f"its header has {length:,} B, the file {size:,} B; {WRITE_AGAIN}"
            )
        header = file.read(length)
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop(METADATA, b"{}"), type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path.name} has no header of safetensors ({error}): {WRITE_AGAIN}") from error
    tensors = tuple(_tensor(name, entry, path, LENGTH + length) for name, entry in entries.items())
    must_lie_apart(path, tensors, size)
    if LENGTH + length + sum(tensor.nbytes for tensor in tensors) != size:
        raise SourceError(f"{path.name} has bytes that belong to no tensor: {WRITE_AGAIN}")
    return tensors, metadata


def _tensor(name: str, entry: Entry, path: Path, start: int) -> StoredTensor:
    if entry.dtype not in TYPES:
        raise SourceError(f"{path.name}: '{name}' has the unknown type {entry.dtype[:40]!r}: update pytest-modelbudget")
    begin, end = entry.data_offsets
    tensor = StoredTensor(name, entry.shape, TYPES[entry.dtype], path, start + begin)
    if tensor.nbytes != end - begin:
        described = f"{entry.dtype} {list(entry.shape)}"
        raise SourceError(
            f"{path.name}: '{name}' ({described[:80]}) takes {tensor.nbytes:,} B, its offsets leave {end - begin:,} B: "
            f"{WRITE_AGAIN}"
        )
    return tensor
