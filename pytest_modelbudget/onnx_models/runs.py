"""Runs of a body of an ONNX Loop or Scan, written out one behind the other, those that are alike once for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, distinct_elements, nbytes_of
from pytest_modelbudget.onnx_models.program import Body, Node
from pytest_modelbudget.onnx_models.shape_inference import Frame, find_types
from pytest_modelbudget.onnx_models.value_types import ValueType

if TYPE_CHECKING:
    from pytest_modelbudget.onnx_models.graph_reader import GraphReader

TRUE = np.array(True)
MOST_REPEATED = 2**16  # nodes of a model that are written out again for runs that are not alike
MOST_REFUSED = 4  # times as many that refused loops may have taken, before they have taken enough time
States = Mapping[str, tuple[Tensor, ValueType]]


@dataclass(frozen=True, slots=True)
class Scanned:
    """A tensor of which every run of a body reads a slice: along which axis, and whether from its end."""

    inside: str
    whole: Tensor
    axis: int
    backwards: bool = False

    def slice(self, run: int, count: int) -> Tensor:
        """What the run of this number reads of it: a slice, for all of them."""
        part = _part(self.inside, self.whole, self.axis, count - 1 - run if self.backwards else run)
        return replace(part, sweeps=self.whole.sweeps or self.whole)


@dataclass(frozen=True, slots=True)
class Stacked:
    """One result of a body that every run writes a slice of: where it goes, along which axis, and from which end."""

    result: str
    inside: str
    axis: int = 0
    backwards: bool = False

    def shape(self, sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
        """What so many slices of these sizes make."""
        axis = self.axis % (len(sizes) + 1)
        return (*sizes[:axis], count, *sizes[axis:])

    def slice(self, whole: Tensor, run: int, count: int) -> Tensor:
        """Where the run of this number writes."""
        return _part(self.inside, whole, self.axis, count - 1 - run if self.backwards else run)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A body that runs count times.

    inputs are what it reads first, the whole of what it scans; carried pairs each result of the node with the value
    that the last run leaves, and with the input that the next run reads it from. holds is an input that is true in
    every run: the condition of a loop whose count is known.
    """

    node: Node
    body: Body
    count: int
    inputs: Mapping[str, tuple[Tensor, ValueType]]
    carried: Sequence[tuple[str, str, str]]
    stacked: Sequence[Stacked]
    scanned: Sequence[Scanned] = ()
    holds: str = ""


def _part(name: str, whole: Tensor, axis: int, at: int) -> Tensor:
    """One slice of a tensor, on its memory."""
    axis %= len(whole.shape)
    shape = whole.shape[:axis] + whole.shape[axis + 1 :]
    strides = whole.strides[:axis] + whole.strides[axis + 1 :]
    return Tensor(name, shape, whole.dtype, whole.storage, whole.offset + at * whole.strides[axis], strides)


class Runs:
    """The runs of a body, written out one behind the other.

    Two runs are alike where they are given memories that lie to each other in the same way: what is alive and what
    moves is then the same. Runs that come round and round are written once, to run as often, between those before them
    and as many behind them as a value takes from being left to its last reader: all that is alive in one is seen there.
    """

    def __init__(self, reader: GraphReader, repeated: Repeated, frame: Frame) -> None:
        self.states: States = {read: repeated.inputs[read] for _, _, read in repeated.carried}
        self.stacks: dict[Stacked, Tensor] = {}
        self.codes: Mapping[str, int] = {}  # element types of what is stacked
        self._reader, self._repeated, self._frame = reader, repeated, frame
        self._at = 0
        outside = [*map(frame.tensor, repeated.body.reads_outside), *(given for given, _ in repeated.inputs.values())]
        self._outside = {tensor.storage: tensor for tensor in outside if tensor}
        self._breaks = _breaks(repeated, [tensor for tensor in outside if tensor])

    def write(self) -> str:
        """Write all runs; why that cannot be, "" where it can."""
        count, behind, why = self._repeated.count, 0, ""
        met: dict[object, int] = {}
        while self._at < count and not why:
            pattern = self._pattern()
            first = met.setdefault(pattern, self._at)
            length = self._at - first
            behind = behind or (max(first, length) if length else 0)
            rounds = (self._until(count - behind) - self._at) // length if length else 0
            if rounds < 2:
                why = self._write_runs(1, 1)
                continue
            why = self._write_runs(length, rounds)
            self._at += (rounds - 1) * length
            met.clear()
        return why

    def _until(self, end: int) -> int:
        """The run before which those that come next may be alike."""
        for first, last in self._breaks:
            if self._at <= last:
                return min(end, max(first, self._at))
        return end

    def _pattern(self) -> object:
        """How the memories that the next run is given lie to each other; the first finds no stacked result begun."""
        slices = [part.slice(self._at, self._repeated.count) for part in self._repeated.scanned]
        given = [*(tensor for tensor, _ in self.states.values()), *slices]
        made: dict[Storage, int] = {}
        places = [
            (
                tensor.storage if tensor.storage in self._outside else made.setdefault(tensor.storage, len(made)),
                tensor.shape,
                tensor.strides,
                tensor.dtype,
            )
            for tensor in given
        ]
        return self._at > 0, tuple(places), tuple(_shared(given))

    def _write_runs(self, length: int, times: int) -> str:
        """Write so many runs one behind the other, each to run so often."""
        for _ in range(length):
            if self._at:
                self._reader.repeated += len(self._repeated.body.nodes)
            is_written = self._reader.repeated <= MOST_REPEATED and self._write_run(times)
            if self._reader.repeated > MOST_REPEATED:  # also where a body inside says so
                return "its runs differ, and are too many to be written out"
            if not is_written:
                return "its state or its slices change their shape"
            self._at += 1
        return ""

    def _write_run(self, times: int) -> bool:
        """Write the next run, to run so often; False where it leaves states of another shape than it takes."""
        repeated, reader = self._repeated, self._reader
        run = reader.next_run() if repeated.count > 1 else 0
        inside = _given(repeated, self._frame.inside(repeated.body, times=times, run=run), self.states, self._at)
        if not self._at and not self._place_stacks():
            return False
        read = self._frame.body.reads
        landing = {
            part: part.slice(stack, self._at, repeated.count)
            for part, stack in self.stacks.items()
            if read.get(part.result)
        }
        inside.placed.update((part.inside, place) for part, place in landing.items())
        reader.read(inside)
        _refuse_other_states(repeated, self.states, inside)
        scope = repeated.node.scope
        left = {read: reader.operand(left, scope, inside) for _, left, read in repeated.carried}
        for part, place in landing.items():
            self._land(part, place, inside)
        if any(tensor.shape != self.states[read][0].shape for read, tensor in left.items()):
            return False
        reader.states += left.values()
        self.states = {read: (left[read], inside.type(name)) for _, name, read in repeated.carried}
        self.codes = {part.inside: inside.type(part.inside).code for part in repeated.stacked}
        return True

    def _place_stacks(self) -> bool:
        """Make the stacked results, by what the first run gives; False where a slice has no known shape.

        What is worked out for it is not kept: a body inside, which is not read yet, may decide more. Where only that
        says what a slice is, the run is read for it first.
        """
        stacked = self._repeated.stacked
        if not stacked:
            return True
        ahead = given_first(self._repeated, self._frame)
        find_types(ahead, self._reader.folding)
        if any(ahead.type(part.inside).sizes is None for part in stacked):
            ahead = self._read_ahead()
        stacks = {part: _stack(ahead, part, self._repeated.count) for part in stacked}
        self.stacks = {part: stack for part, stack in stacks.items() if stack is not None}
        return len(self.stacks) == len(stacks)

    def _read_ahead(self) -> Frame:
        """The first run, of which nothing stays written; its nodes count as those of one that is written out again."""
        reader = self._reader
        reader.repeated += len(self._repeated.body.nodes)
        written: tuple[list[Any], ...] = (reader.ops, reader.notes, reader.forks, reader.states)
        lengths = [len(each) for each in written]
        ahead = given_first(self._repeated, self._frame)
        reader.read(ahead)
        for each, length in zip(written, lengths, strict=True):
            del each[length:]
        return ahead

    def _land(self, part: Stacked, place: Tensor, inside: Frame) -> None:
        """Copy a slice to its place, where no operation of the body writes it there."""
        scope = self._repeated.node.scope
        slice_ = self._reader.operand(part.inside, scope, inside)
        if slice_.storage is not place.storage:
            op = Op("onnx::Identity", (slice_,), (place,), {}, scope, times=inside.times, run=inside.run)
            self._reader.ops.append(op)


def give_back(reader: GraphReader, before: int) -> None:
    """Let the loops behind a refused one be written out as if it were not there."""
    reader.refused += reader.repeated - before
    if reader.refused <= MOST_REFUSED * MOST_REPEATED:
        reader.repeated = before


def _breaks(repeated: Repeated, outside: Sequence[Tensor]) -> Sequence[tuple[int, int]]:
    """First and last of runs that are written out one by one: there slices of one memory begin or cease to be the same.

    That is where two slices meet that go in different ways, or a slice and a part of the same memory that the body is
    given from outside; states that were slices do so a few runs later.
    """
    scanned, count, later = repeated.scanned, repeated.count, len(repeated.carried) + 1
    memories = {part.whole.storage: part.whole for part in scanned}
    parts = [
        tensor
        for tensor in outside
        if tensor.storage in memories and tensor.elements < memories[tensor.storage].elements
    ]
    ways = {(part.whole.storage, part.axis, part.backwards, part.whole.offset, part.whole.strides) for part in scanned}
    if not parts and len(ways) == len(memories):
        return ()
    shared = [tuple(_shared([*parts, *(part.slice(run, count) for part in scanned)])) for run in range(count)]
    starts = {run for run in range(1, count) if shared[run] != shared[run - 1]} | {count // 2}
    return [(run, run + later) for run in sorted(starts)]


def _shared(tensors: Sequence[Tensor]) -> Iterator[int]:
    """How many elements each two tensors on one memory touch together."""
    for one, other in combinations(tensors, 2):
        if one.storage is other.storage:
            yield distinct_elements([one.region, other.region])


def given_first(repeated: Repeated, frame: Frame) -> Frame:
    """The frame of a first run, before anything is read."""
    return _given(repeated, frame.inside(repeated.body), {}, 0)


def _given(repeated: Repeated, inside: Frame, states: States, run: int) -> Frame:
    """A frame in which the inputs of the body are what the run of this number is given."""
    for name, (tensor, known) in {**repeated.inputs, **states}.items():
        inside.place(name, tensor, known)
    for part in repeated.scanned:
        slice_ = part.slice(run, repeated.count)
        inside.place(part.inside, slice_, ValueType(repeated.inputs[part.inside][1].code, slice_.shape))
    if repeated.holds:
        inside.values[repeated.holds] = TRUE
    return inside


def _refuse_other_states(repeated: Repeated, states: States, inside: Frame) -> None:
    """Raise SourceError where a run leaves a state of another type than it takes, which no runtime loads."""
    for _, left, read in repeated.carried:
        taken, given = states[read][1], inside.type(left)
        if taken.code and given.code and taken.code != given.code and not (taken.container or given.container):
            raise SourceError(
                f"{repeated.node.operator} '{repeated.node.result}' takes the state '{read}' as {taken.dtype.name}, "
                f"and leaves it as {given.dtype.name}: export the model anew"
            )


def _stack(inside: Frame, stacked: Stacked, count: int) -> Tensor | None:
    """The whole result whose slices a body writes; None where a slice has no known shape."""
    known = inside.type(stacked.inside)
    if known.sizes is None:
        return None
    shape = stacked.shape(known.sizes, count)
    storage = Storage(stacked.result, nbytes_of(prod(shape), known.dtype), StorageKind.ACTIVATION)
    return dense(stacked.result, shape, known.dtype, storage)
