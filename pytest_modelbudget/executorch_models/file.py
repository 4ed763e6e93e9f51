"""What a ``.pte`` file says: values, calls, constants, delegates and planned memory, as plain data.

The schema: https://github.com/pytorch/executorch/blob/main/schema/program.fbs. Fields are read by their number there;
the package that brings the schema needs torch and more, and reading needs neither.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.source import AGAIN, LARGEST_SIZE
from pytest_modelbudget.graph.tensor import DType, nbytes_of

IDENTIFIER, EXTENDED = b"ET12", b"eh00"
TYPES = {
    0: DType("uint8", 8), 1: DType("int8", 8), 2: DType("int16", 16), 3: DType("int32", 32), 4: DType("int64", 64),
    5: DType("float16", 16), 6: DType("float32", 32), 7: DType("float64", 64), 11: DType("bool", 8),
    12: DType("qint8", 8), 13: DType("quint8", 8), 14: DType("qint32", 32), 15: DType("bfloat16", 16),
    22: DType("bits16", 16), 23: DType("float8_e5m2", 8), 24: DType("float8_e4m3fn", 8),
    25: DType("float8_e5m2fnuz", 8), 26: DType("float8_e4m3fnuz", 8), 27: DType("uint16", 16),
    28: DType("uint32", 32), 29: DType("uint64", 64),
}  # fmt: skip
NOTHING, INT, BOOL, DOUBLE, TENSOR, INTS, TENSORS, OPTIONALS = 1, 2, 3, 4, 5, 7, 10, 11  # of the union of values
KERNEL, DELEGATE = 1, 2  # of the union of calls; others move values and steer


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: where it lies in planned memory (pool, offset), and the number of its constant, 0 of none.

    outside says that its bytes are in another file.
    """

    shape: tuple[int, ...]
    dtype: DType
    constant: int = 0
    place: tuple[int, int] | None = None
    name: str = ""
    outside: bool = False

    @property
    def nbytes(self) -> int:
        return nbytes_of(prod(self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator, or of a delegate, whose number is then given; args are numbers of values."""

    name: str
    args: tuple[int, ...]
    delegate: int = -1


@dataclass(frozen=True, slots=True)
class Method:
    """One entry point: values by number (a tensor, a list of numbers, a plain value, or None), and its calls.

    pools are the bytes of each planned memory; delegates have the name, the bytes and the place of each blob.
    """

    name: str
    values: tuple[object, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Call, ...]
    pools: tuple[int, ...]
    delegates: tuple[Blob, ...]


class Blob(NamedTuple):
    """What a backend reads: its name, bytes, and segment, or place within the program; delegates may have one."""

    backend: str
    nbytes: int
    place: tuple[bool, int]


@dataclass(frozen=True, slots=True)
class Contents:
    """All of a file: its name, methods, bytes, and those of constants, initial states, and data of delegates."""

    file: str
    methods: tuple[Method, ...]
    nbytes: int
    constants: tuple[int, ...]
    states: int
    named: tuple[int, ...]


def contents(content: mmap.mmap, name: str) -> Contents:
    """The contents of a file. Raises SourceError, or what struct and tuples raise, for one that is damaged."""
    return _Reader(content, name).contents()


class _Table:
    """A table of a flatbuffer: fields by number. Each read stays within the file."""

    def __init__(self, content: mmap.mmap, at: int, left: list[int]) -> None:
        self._content, self._at, self._left = content, at, left  # left: items that may still be counted
        self._fields = at - self._number("<i", at)

    def _number(self, form: str, at: int) -> Any:
        if at < 0:
            raise ValueError("an offset before the file")
        return struct.unpack_from(form, self._content, at)[0]

    def _place(self, field: int) -> int:
        """Where a field lies; 0 of one that is not there."""
        slot = 4 + 2 * field
        if slot >= self._number("<H", self._fields):
            return 0
        offset: int = self._number("<H", self._fields + slot)
        return offset and self._at + offset

    def _target(self, field: int) -> int:
        at = self._place(field)
        return at and at + int(self._number("<I", at))

    def number(self, field: int, form: str = "<I", default: int = 0) -> Any:
        at = self._place(field)
        return self._number(form, at) if at else default

    def table(self, field: int) -> _Table | None:
        at = self._target(field)
        return _Table(self._content, at, self._left) if at else None

    def length(self, field: int) -> int:
        """Items of a vector, or bytes of a text."""
        at = self._target(field)
        return int(self._number("<I", at)) if at else 0

    def text(self, field: int) -> str:
        at, length = self._target(field), self.length(field)
        return bytes(self._content[at + 4 : at + 4 + length]).decode("utf-8", "replace") if at else ""

    def numbers(self, field: int, form: str = "i") -> tuple[Any, ...]:
        at, count = self._target(field), self._count(field)
        return struct.unpack_from(f"<{count}{form}", self._content, at + 4) if at else ()

    def tables(self, field: int) -> Iterator[_Table]:
        start = self._target(field) + 4
        for at in range(start, start + 4 * self._count(field), 4):
            yield _Table(self._content, at + self._number("<I", at), self._left)

    def _count(self, field: int) -> int:
        count = self.length(field)
        self._left[0] -= count
        if self._left[0] < 0:
            raise ValueError("it lists more than it can hold")
        return count


class _Reader:
    """Reads one program."""

    def __init__(self, content: mmap.mmap, name: str) -> None:
        self._content, self._name = content, name
        self._segments: list[int] = []
        self._inline: list[int] = []

    def contents(self) -> Contents:
        size = len(self._content)
        root: int = struct.unpack_from("<I", self._content)[0]
        program = _Table(self._content, root, [2 * size])
        base: int = struct.unpack_from("<Q", self._content, 24)[0] if self._content[8:12] == EXTENDED else 0
        for segment in program.tables(4):
            offset, length = segment.number(0, "<Q"), segment.number(1, "<Q")
            if (end := base + offset + length) > size:
                raise SourceError(f"{self._name}: a segment ends at byte {end:,} of {size:,}: {AGAIN}")
            self._segments.append(length)
        self._inline = [data.length(0) for data in program.tables(3)]
        constants = tuple(self._constants(program))
        named = tuple(self._segments[at] for at in sorted({each.number(1) for each in program.tables(7)}))
        states = sum(self._segments[each.number(0)] for each in program.tables(6))
        methods = tuple([self._method(plan, constants) for plan in program.tables(1)])
        if not methods:
            raise SourceError(f"{self._name} has no method: {AGAIN}")
        return Contents(self._name, methods, size, constants, states, named)

    def _constants(self, program: _Table) -> Iterator[int]:
        """The bytes of each constant: within the flatbuffer, or between two offsets of a segment."""
        for buffer in program.tables(2):
            yield buffer.length(0)
        segment = program.table(5)
        offsets = segment.numbers(1, "Q") if segment else ()
        if segment and offsets:
            ends = (*offsets[1:], self._segments[segment.number(0)])
            yield from (end - begin for begin, end in zip(offsets, ends, strict=True))

    def _method(self, plan: _Table, constants: tuple[int, ...]) -> Method:
        values = tuple([self._value(value) for value in plan.tables(2)])
        stored = [each for each in values if isinstance(each, Value) and each.constant and each.place is None]
        for value in stored:
            held = value.nbytes if value.outside else constants[value.constant]
            if held < value.nbytes:
                raise SourceError(f"{self._name}: a constant takes {value.nbytes:,} B and has {held:,}: {AGAIN}")
        operators = [each.text(0) for each in plan.tables(6)]
        delegates = tuple([self._delegate(each) for each in plan.tables(7)])
        calls = tuple([call for chain in plan.tables(5) for call in self._calls(chain, operators, delegates)])
        places = (*plan.numbers(3), *plan.numbers(4), *(at for call in calls for at in call.args))
        if odd := [at for at in places if not 0 <= at < len(values)]:
            raise SourceError(f"{self._name} names value {odd[0]:,} of {len(values):,}: {AGAIN}")
        pools = plan.numbers(8, "q")
        return Method(plan.text(0), values, plan.numbers(3), plan.numbers(4), calls, pools, delegates)

    def _delegate(self, delegate: _Table) -> Blob:
        data = delegate.table(1)
        if data is None:
            return Blob(delegate.text(0), 0, (False, -1))
        place = bool(data.number(0, "<b")), data.number(1)
        return Blob(delegate.text(0), (self._segments if place[0] else self._inline)[place[1]], place)

    def _calls(self, chain: _Table, operators: list[str], delegates: tuple[Blob, ...]) -> Iterator[Call]:
        for instruction in chain.tables(2):
            kind, call = instruction.number(0, "<B"), instruction.table(1)
            if call is None or kind not in (KERNEL, DELEGATE):
                yield Call(f"executorch::{ {3: 'move', 4: 'jump_false'}.get(kind, 'free') }", ())
                continue
            at = call.number(0, "<i")
            if not 0 <= at < len(operators if kind == KERNEL else delegates):
                raise SourceError(f"{self._name} calls operator {at:,}, which it has not: {AGAIN}")
            if kind == KERNEL:
                yield Call(operators[at], call.numbers(1))
            else:
                yield Call(f"delegate::{delegates[at].backend}", call.numbers(1), at)

    def _value(self, value: _Table) -> object:
        kind, held = value.number(0, "<B"), value.table(1)
        if held is None:
            return None
        if kind == TENSOR:
            return self._tensor(held)
        if kind in (INTS, TENSORS, OPTIONALS):
            return held.numbers(0, "q" if kind == INTS else "i")
        forms = {INT: "<q", BOOL: "<?", DOUBLE: "<d"}
        return held.number(0, forms[kind]) if kind in forms else None

    def _tensor(self, tensor: _Table) -> Value:
        shape, kind, plan, extra = tensor.numbers(2), tensor.number(0, "<b"), tensor.table(6), tensor.table(9)
        if len(shape) > 16 or any(size < 0 for size in shape):
            raise SourceError(f"{self._name}: a tensor has the shape {list(shape)[:16]}: {AGAIN}")
        if kind not in TYPES:
            raise SourceError(f"{self._name}: a tensor has the unknown type {kind}: update pytest-modelbudget")
        place = (plan.number(0), plan.number(1) + (plan.number(2) << 32)) if plan else None
        name, outside = (extra.text(1), extra.number(2, "<b") == 1) if extra else ("", False)
        made = Value(shape, TYPES[kind], tensor.number(5), place, name, outside)
        if made.nbytes > LARGEST_SIZE:
            raise SourceError(f"{self._name}: a tensor has {made.nbytes:,} B: {AGAIN}")
        return made
