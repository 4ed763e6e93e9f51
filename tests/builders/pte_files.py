"""ExecuTorch programs, written field by field: tensors, calls, delegates and planned memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import flatbuffers

FLOAT, LONG = 6, 4
BITS = {FLOAT: 32, LONG: 64, 0: 8, 1: 8}
TENSOR, INT, INTS, TENSORS = 5, 2, 7, 10  # of the union of values


@dataclass(frozen=True)
class V:
    """A tensor: stored where is_stored, or in the bytes of another value; at an offset of pool 1 where it has one."""

    shape: tuple[int, ...]
    offset: int | None = None
    is_stored: bool = False
    dtype: int = FLOAT
    outside: str = ""
    same_as: int = 0


@dataclass(frozen=True)
class C:
    """A call of an operator, or of the delegate of that number; args are numbers of values."""

    name: str
    args: Sequence[int]
    delegate: int = -1


Value = V | int | tuple[int, ...] | list[int] | None  # a list names tensors, a tuple values that are numbers


def _table(b: Any, fields: int, **slots: tuple[str, Any]) -> int:
    """A table of so many fields; each by its number, as f3=("Int32", 7)."""
    b.StartObject(fields)
    for slot, (kind, value) in slots.items():
        if value is None:
            continue
        if kind == "Offset":
            b.PrependUOffsetTRelativeSlot(int(slot[1:]), value, 0)
        else:
            getattr(b, f"Prepend{kind}Slot")(int(slot[1:]), value, 0)
    return int(b.EndObject())


def _vector(b: Any, kind: str, width: int, items: Sequence[Any]) -> int:
    b.StartVector(width, len(items), width)
    for item in reversed(items):
        getattr(b, f"Prepend{kind}")(item)
    return int(b.EndVector())


def _tables(b: Any, items: Sequence[int]) -> int:
    return _vector(b, "UOffsetTRelative", 4, items)


def _value(b: Any, value: Value, stored: list[int]) -> int:
    if value is None:
        return _table(b, 2, f0=("Uint8", 1), f1=("Offset", _table(b, 0)))
    if isinstance(value, int):
        return _table(b, 2, f0=("Uint8", INT), f1=("Offset", _table(b, 1, f0=("Int64", value))))
    if isinstance(value, (tuple, list)):
        items = _vector(b, "Int64", 8, value) if isinstance(value, tuple) else _vector(b, "Int32", 4, value)
        kind = INTS if isinstance(value, tuple) else TENSORS
        return _table(b, 2, f0=("Uint8", kind), f1=("Offset", _table(b, 1, f0=("Offset", items))))
    sizes, number = _vector(b, "Int32", 4, value.shape), value.same_as
    if value.is_stored:
        stored.append(prod(value.shape) * BITS[value.dtype] // 8)
        number = len(stored)
    plan = _table(b, 3, f0=("Uint32", 1), f1=("Uint32", value.offset)) if value.offset is not None else None
    name = b.CreateString(value.outside) if value.outside else None
    extra = _table(b, 5, f1=("Offset", name), f2=("Int8", 1)) if name else None
    tensor = _table(
        b, 10, f0=("Int8", value.dtype), f2=("Offset", sizes), f5=("Uint32", number), f6=("Offset", plan),
        f9=("Offset", extra),
    )  # fmt: skip
    return _table(b, 2, f0=("Uint8", TENSOR), f1=("Offset", tensor))


def pte_file(
    values: Sequence[Value], calls: Sequence[C], inputs: Sequence[int], outputs: Sequence[int], *, pool: int = 0,
    delegates: Sequence[tuple[str, bytes]] = (), names: Sequence[str] = ("forward",),
) -> bytes:  # fmt: skip
    """The bytes of a program, whose methods are all the same one."""
    b, stored, operators = flatbuffers.Builder(1 << 12), list[int](), list[str]()
    held = _tables(b, [_value(b, value, stored) for value in values])
    made = []
    for call in calls:
        args = _vector(b, "Int32", 4, call.args)
        if call.delegate < 0 and call.name not in operators:
            operators.append(call.name)
        number = call.delegate if call.delegate >= 0 else operators.index(call.name)
        body = _table(b, 2, f0=("Int32", number), f1=("Offset", args))
        made.append(_table(b, 1 + 1, f0=("Uint8", 2 if call.delegate >= 0 else 1), f1=("Offset", body)))
    chains = _tables(b, [_table(b, 4, f2=("Offset", _tables(b, made)))])
    listed = []
    for operator in operators:
        name, overload = b.CreateString(operator), b.CreateString("out")
        listed.append(_table(b, 2, f0=("Offset", name), f1=("Offset", overload)))
    blobs, backends = [], []
    for at, (backend, content) in enumerate(delegates):
        data = b.CreateByteVector(content)
        blobs.append(_table(b, 1, f0=("Offset", data)))
        name, place = b.CreateString(backend), _table(b, 2, f0=("Int8", 0), f1=("Uint32", at))
        backends.append(_table(b, 3, f0=("Offset", name), f1=("Offset", place)))
    given, got = _vector(b, "Int32", 4, inputs), _vector(b, "Int32", 4, outputs)
    sizes, listed_at, backends_at = _vector(b, "Int64", 8, [0, pool]), _tables(b, listed), _tables(b, backends)
    plans = [
        _table(
            b, 10, f0=("Offset", b.CreateString(name)), f2=("Offset", held), f3=("Offset", given), f4=("Offset", got),
            f5=("Offset", chains), f6=("Offset", listed_at), f7=("Offset", backends_at), f8=("Offset", sizes),
        )
        for name in names
    ]  # fmt: skip
    buffers = [_table(b, 1)]
    for nbytes in stored:
        content = b.CreateByteVector(bytes(nbytes))
        buffers.append(_table(b, 1, f0=("Offset", content)))
    plans_at, buffers_at, blobs_at = _tables(b, plans), _tables(b, buffers), _tables(b, blobs)
    b.Finish(_table(b, 8, f1=("Offset", plans_at), f2=("Offset", buffers_at), f3=("Offset", blobs_at)), b"ET12")
    return bytes(b.Output())
