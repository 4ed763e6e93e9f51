"""QDQ read as what it means: dequantise → operation → quantise is one operation on integers.

relu(conv(x)) of a file that ONNX Runtime's quantiser wrote, before and after::

    q (uint8) → dequantise → x (float32) ┐
    k (int8)  → dequantise → w (float32) ┴ convolution → y (float32) → relu → z (float32) → quantise → r (uint8)

    q (uint8), k (int8) → convolution → r (uint8)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_modelbudget.graph.graph import Graph, Op, Weight, scope_text
from pytest_modelbudget.graph.rewrite import as_written, op_over, operand_over, with_storages, with_ways
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of, unsized
from pytest_modelbudget.lowering.groups import DEQUANTIZE, FORM_OF, QUANTIZE, Grid, Groups, grid_of
from pytest_modelbudget.ops.role import BIAS
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import some_of

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A graph as it is read, the tensor that now stands for each one that is gone, and what to know of it."""

    graph: Graph
    became: Mapping[Tensor, Tensor]
    notes: tuple[str, ...] = ()


def read_qdq(graph: Graph, rules: OpTable) -> Read:
    """Read every group of dequantise, operation and quantise as one operation on integers.

    MACs stay as they are. A graph without dequantise is given back unchanged.
    """
    graph = with_ways(graph, lambda way: read_qdq(way, rules).graph)
    if not any(name in rules and rules[name].kind == DEQUANTIZE for name in {op.name for op in graph.ops}):
        return Read(graph, {})
    steps = _steps_in_place(graph, rules)
    groups = Groups(_out_of_place(graph, steps), rules)
    if steps - groups.members:  # some stay floating, and with them in place
        groups = Groups(_out_of_place(graph, steps & groups.members), rules)
    rewriting = _Rewriting(groups)
    return Read(rewriting.graph(), rewriting.became, tuple(rewriting.notes()))


def _steps_in_place(graph: Graph, rules: OpTable) -> set[int]:
    """Positions of activations that write over a result which nothing else has seen: relu_ behind a convolution."""
    touching: dict[Storage, list[int]] = defaultdict(list)
    names: dict[Storage, set[Tensor]] = defaultdict(set)
    for at, op in enumerate(graph.ops):
        for tensor in dict.fromkeys((*op.tensors(), *op.outputs)):
            names[tensor.storage].add(tensor)
            if not touching[tensor.storage] or touching[tensor.storage][-1] != at:
                touching[tensor.storage].append(at)
    steps = set()
    for at, op in enumerate(graph.ops):
        form = FORM_OF[rules[op.name].kind] if op.name in rules and rules[op.name].kind in FORM_OF else None
        if form and form.steps and op.mutates and op.outputs == op.tensors()[:1]:
            (result,) = op.outputs
            if touching[result.storage][1:2] == [at] and names[result.storage] == {result}:
                steps.add(at)
    return steps


def _out_of_place(graph: Graph, steps: Collection[int]) -> Graph:
    """The graph in which these activations write tensors of their own."""
    if not steps:
        return graph
    now: dict[Tensor, Tensor] = {}

    def renamed(tensor: Tensor) -> Tensor:
        return now.get(tensor, tensor)

    ops = []
    for at, op in enumerate(graph.ops):
        op = op_over(op, renamed) if now else op
        if at in steps:
            (result,) = op.outputs
            now[result] = replace(result, storage=replace(result.storage))
            op = replace(op, outputs=(now[result],), mutates=False)
        ops.append(op)
    return replace(graph, ops=tuple(ops), outputs=tuple(map(renamed, graph.outputs)))


class _Rewriting:
    """Writes the operations of a graph again, in their order, without those that no reader is left of."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.became: dict[Tensor, Tensor] = {}
        self._ops: list[tuple[int, Op]] = []
        self._integers: dict[Tensor, tuple[Tensor, Tensors]] = {}  # of a floating tensor, and their scales
        self._quantised: dict[tuple[Tensor, Grid], Tensor] = {}  # what a tensor is on a grid
        self._absorbed: set[int] = set()  # activations that are part of the operation before them
        self._moved: dict[Storage, tuple[Tensor, Tensor]] = {}  # memory that is gone: what lay there, and lies where
        self._homes: dict[str, str] = {}  # scopes of what is gone, and those of the operations that it went into
        for at, op in enumerate(groups.graph.ops):
            if at not in self._absorbed:
                self._write(at, op)
        self._leave_out()

    def graph(self) -> Graph:
        """The graph as it is read."""
        before, ops = self.groups.graph, tuple([op for _, op in self._ops])
        weights = tuple(self._weights(ops))
        outputs, states = tuple(map(self._now, before.outputs)), tuple(map(self._now, before.states))
        graph = replace(before, ops=ops, outputs=outputs, weights=weights, states=states)
        return with_storages(graph, self._unread_scales(ops))

    def _write(self, at: int, op: Op) -> None:
        """Write one operation, as a member of a group or as it is."""
        if self.groups.is_dequantize(at):
            self._dequantize(at, op)
        elif self.groups.is_quantize(at):
            self._quantize(at, op)
        elif at in self.groups.members:
            self._compute(at, op)
        else:
            self._as_written(at, op)

    def _dequantize(self, at: int, op: Op) -> None:
        """Let integers stand for what it gives; where nobody reads that in the end, it is left out."""
        integers, *scales = op.tensors()
        stored = self.groups.stored_behind(integers)
        beside = [] if stored is not integers else [read for scale in scales for read in self._all_read(scale)]
        self._integers[op.outputs[0]] = self._now(stored), tuple(beside)
        self._emit(at, op, {}, op.outputs, ())

    def _all_read(self, scale: Tensor) -> tuple[Tensor, ...]:
        """A scale, or the integers and the scale that it is stored as."""
        if scale in self._integers and self.groups.is_known(scale):
            integers, scales = self._integers[scale]
            return (integers, *scales)
        return (scale,)

    def _quantize(self, at: int, op: Op) -> None:
        """From floats or from one grid to another; nothing where the integers are on that grid already."""
        x, result = op.tensors()[0], op.outputs[0]
        grid = grid_of(op, result)
        before, is_put = self._quantised.setdefault((x, grid), result), self.groups.is_put(result)
        if before is not result and not self.groups.is_mutated(x):
            if is_put:
                self._emit(at, op, {x: self._now(before)}, (result,), ())
            else:
                self._replaced(result, self._now(before))
            return
        if x not in self._integers or self.groups.is_left_before(x, op):
            self._as_written(at, op)
            return
        integers, scales = self._integers[x]
        if self.groups.grids.get(x) != grid or integers.dtype != result.dtype or (is_put and integers is not result):
            self._emit(at, op, {x: integers}, (result,), scales)
        elif self._now(result) is not integers:
            self._replaced(result, integers)

    def _compute(self, at: int, op: Op) -> None:
        """One operation on integers, with the scales that it reads, too."""
        stands_for, scales = self._read_integers(at)
        if self.groups.kind(at) == "cast" and self._hands_on(op):
            return
        grids, outputs = {self.groups.grids.get(tensor) for tensor in stands_for}, []
        for output in op.outputs:
            grid = self.groups.grids.get(output)
            if grid is None:
                outputs.append(output)
                continue
            keeps = grids == {grid} and self.groups.carries(at)
            scales = () if keeps else (*scales, *grid.scales)
            outputs.append(self._result(op, output, grid, stands_for, keeps=keeps))
        self._emit(at, op, stands_for, tuple(outputs), scales)

    def _hands_on(self, op: Op) -> bool:
        """Return whether a cast from one floating type to another leaves the integers as they are."""
        x, result = op.tensors()[0], op.outputs[0]
        if x not in self._integers or self.groups.grids.get(x) != self.groups.grids.get(result):
            return False
        self._integers[result], self.became[result] = self._integers[x], self._integers[x][0]
        return True

    def _read_integers(self, at: int, *, stored_only: bool = False) -> tuple[dict[Tensor, Tensor], Tensors]:
        """The integers in place of each floating operand, and the scales that are read with them.

        The scale of a bias of integers is the product of those of input and weight, and is not read again.
        """
        stands_for: dict[Tensor, Tensor] = {}
        scales: list[Tensor] = []
        for role, tensor in self.groups.operands(at):
            if tensor in self._integers and (not stored_only or self.groups.is_known(tensor)):
                integers, beside = self._integers[tensor]
                stands_for[tensor] = integers
                scales.extend(() if role.word == BIAS.word and not stored_only else beside)
        return stands_for, tuple(scales)

    def _result(
        self, op: Op, output: Tensor, grid: Grid, stands_for: Mapping[Tensor, Tensor], *, keeps: bool
    ) -> Tensor:
        """The tensor in which a result's integers are written; of a view, the operand's integers themselves."""
        results, written = [output], None
        if keeps and op.is_view:
            base = next(tensor for tensor in op.tensors() if tensor.storage is output.storage)
            written = _on(stands_for[base], base, output, grid.dtype) if base in stands_for else None
        if written is None:
            results += [] if keeps else self._steps_behind(output)
            written = self._landing(results[-1], grid)
        for result in results:
            self._integers[result], self.became[result] = (written, grid.scales), written
        return written

    def _steps_behind(self, output: Tensor) -> list[Tensor]:
        """Results of the activations that are part of the operation: each alone reads what stands before it."""
        results = []
        while len(readers := self.groups.readers.get(output, [])) == 1:
            at, op = readers[0], self.groups.graph.ops[readers[0]]
            is_step = at in self.groups.members and self.groups.form(at).steps
            if not is_step or self.groups.grids.get(op.outputs[0]) != self.groups.grids.get(output):
                break
            self._absorbed.add(at)
            output = op.outputs[0]
            results.append(output)
        return results

    def _landing(self, output: Tensor, grid: Grid) -> Tensor:
        """The result of the quantise behind a tensor; a new tensor where none is right behind it."""
        for at in self.groups.readers.get(output, []):
            if self.groups.is_quantize(at):
                return self._now(self.groups.graph.ops[at].outputs[0])
        if output.unsized:
            return unsized(
                output.name, grid.dtype, _memory(output.name, 0, output.unsized), output.unsized, output.declared
            )
        return dense(
            output.name, output.shape, grid.dtype, _memory(output.name, nbytes_of(output.elements, grid.dtype))
        )

    def _as_written(self, at: int, op: Op) -> None:
        """An operation that stays; a stored operand it dequantises while it reads it."""
        stands_for: dict[Tensor, Tensor] = {}
        scales: Tensors = ()
        if op.is_shape_computation:
            stands_for = {tensor: self._integers[tensor][0] for tensor in op.tensors() if tensor in self._integers}
        elif self.groups.reads_stored(at):
            stands_for, scales = self._read_integers(at, stored_only=True)
        self._emit(at, op, stands_for, tuple(map(self._rebased, op.outputs)), scales)

    def _emit(
        self, at: int, op: Op, stands_for: Mapping[Tensor, Tensor], outputs: tuple[Tensor, ...], scales: Tensors
    ) -> None:
        """Write an operation with what stands for its operands by now."""

        def read_as(tensor: Tensor) -> Tensor:
            return stands_for.get(tensor, self._now(tensor))

        operands = tuple(operand_over(operand, read_as) for operand in op.operands)
        beside = tuple(dict.fromkeys((*op.scales, *scales)))
        self._ops.append((at, as_written(op, replace(op, operands=operands, outputs=outputs, scales=beside))))
        for tensor in stands_for:
            maker = self.groups.maker.get(tensor)
            if maker is not None:
                self._homes.setdefault(self.groups.graph.ops[maker].scope, op.scope)

    # Values, and what stands for them.

    def _now(self, tensor: Tensor) -> Tensor:
        return self.became.get(tensor, tensor)

    def _replaced(self, before: Tensor, now: Tensor) -> None:
        """Let one tensor of integers stand for another, and for what shares that one's memory."""
        self.became[before] = now
        self._moved.setdefault(before.storage, (before, now))

    def _rebased(self, output: Tensor) -> Tensor:
        """A result, on the memory where its base lies by now."""
        if output.storage not in self._moved:
            return output
        before, now = self._moved[output.storage]
        rebased = _on(now, before, output, output.dtype)
        if rebased is None:  # their layouts differ: it moves
            memory = _memory(output.name, nbytes_of(output.elements, output.dtype), output.unsized)
            rebased = replace(output, storage=memory, offset=0)
        self.became[output] = rebased
        return rebased

    # What is left.

    def _leave_out(self) -> None:
        """Leave out each quantise and dequantise that had readers, and has none any more."""
        read = {self._now(each) for each in (*self.groups.graph.outputs, *self.groups.graph.states)}
        kept = []
        for at, op in reversed(self._ops):
            had_readers = any(map(self.groups.readers.get, op.outputs))
            if self.groups.kind(at) in {QUANTIZE, DEQUANTIZE} and had_readers and read.isdisjoint(op.outputs):
                self.became.update((out, self._integers[out][0]) for out in op.outputs if out in self._integers)
                continue
            read.update(op.tensors())
            kept.append((at, op))
        self._ops = kept[::-1]

    def _weights(self, ops: Sequence[Op]) -> Iterator[Weight]:
        """The stored tensors, under the operation that reads each one now."""
        scopes = {op.scope for op in ops}
        for weight in self.groups.graph.weights:
            tensor, home = weight.tensor, self._homes.get(weight.scope)
            if home and weight.scope not in scopes:
                tensor = replace(tensor, name=f"{home}{tensor.name[len(weight.scope) :]}")
            yield weight if tensor is weight.tensor else replace(weight, tensor=tensor)

    def _unread_scales(self, ops: Sequence[Op]) -> dict[Storage, Storage]:
        """Scales that no operation reads any more, those of biases, as constants: they belong to no weight."""
        read, was_read = _read_by(ops), _read_by(self.groups.graph.ops)
        stored = dict.fromkeys(weight.tensor.storage for weight in self.groups.graph.weights)
        scales = (each for each in stored if each.kind is StorageKind.QUANTISER)
        return {each: replace(each, kind=StorageKind.CONSTANT) for each in scales if each in was_read - read}

    def notes(self) -> Iterator[str]:
        """How many groups were read, and what stays as written, and why."""
        groups = self.groups
        on_integers = len({_node(at, op) for at, op in self._ops if at in groups.members})
        if on_integers:
            yield f"QDQ: {_operations(on_integers)} read on integers; 'qdq: as_written' measures the floating ones"
        others = [(at, op) for at, op in self._ops if at not in groups.members and groups.reads_stored(at)]
        stored = len({_node(at, op) for at, op in others if op.scales})
        if stored:
            yield f"QDQ: {_operations(stored)} read with stored integers, dequantised on the way"
        floating: dict[str, list[str]] = defaultdict(list)
        for at, op in self._ops:
            if groups.why.get(at) and not op.is_view and any(tensor in self._integers for tensor in op.tensors()):
                floating[groups.why[at]].append(f"{op.name} in {scope_text(op.scope)}")
        for why, places in floating.items():
            yield f"QDQ: as written, because {why}: {some_of(dict.fromkeys(places))}"


def _read_by(ops: Sequence[Op]) -> set[Storage]:
    return {tensor.storage for op in ops for tensor in op.tensors()}


def _node(at: int, op: Op) -> object:
    """The identity of an operation; in all runs of a body it is one."""
    return (op.name, op.scope, *[output.name for output in op.outputs]) if op.run else at


def _operations(count: int) -> str:
    return "1 operation is" if count == 1 else f"{count} operations are"


def _memory(name: str, nbytes: int, unsized: str = "") -> Storage:
    return Storage(name, nbytes, StorageKind.ACTIVATION, unsized)


def _on(base: Tensor, before: Tensor, output: Tensor, dtype: DType) -> Tensor | None:
    """A view of another tensor, as one of this tensor; None where the two are laid out differently."""
    if output.unsized:
        return unsized(output.name, dtype, base.storage, output.unsized, output.declared)
    if (base.shape, base.strides) != (before.shape, before.strides):
        return None
    offset = base.offset + output.offset - before.offset
    return Tensor(output.name, output.shape, dtype, base.storage, offset, output.strides, sweeps=base.sweeps)
