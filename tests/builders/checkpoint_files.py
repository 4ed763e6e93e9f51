"""Checkpoints of zeros, written by hand: the header of a safetensors file, and a file as long as it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "U32": 32, "I8": 8, "U8": 8, "BOOL": 8,
        "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4}  # fmt: skip
Described = Mapping[str, tuple[str, tuple[int, ...]]]  # types and shapes, by name


def header(tensors: Described, metadata: Mapping[str, str] | None = None) -> tuple[dict[str, Any], int]:
    """The header of tensors that lie one after another, and the bytes behind it."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return entries, end


def write(path: Path, tensors: Described, metadata: Mapping[str, str] | None = None) -> Path:
    """A file of these tensors; the bytes behind its header take no disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_header(path, *header(tensors, metadata))


def write_header(path: Path, entries: Any, behind: int) -> Path:
    """A file with this header, and so many bytes behind it."""
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + behind)
    return path
