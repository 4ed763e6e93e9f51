"""TFLite files as graphs: each operator of the first subgraph, and every tensor that the file stores.

Weights stand in the order in which the rules of ``ops/`` read those of other formats: a view of the file's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pytest_modelbudget.deployment.arena import buffers_of, planned
from pytest_modelbudget.errors import GraphError, SourceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, read_flatbuffer
from pytest_modelbudget.graph.graph import Graph, Op, Operand, Reader, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, contiguous_strides, dense, unsized
from pytest_modelbudget.ops.role import UNDECLARED, Role
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.tflite_models.file import IDENTIFIER, Contents, Entry, Operator, Subgraph, contents
from pytest_modelbudget.units import some_of

ACTIVATION, PARAMETER, CONSTANT = StorageKind.ACTIVATION, StorageKind.PARAMETER, StorageKind.CONSTANT
FLOAT32, BYTE = DType("float32", 32), DType("uint8", 8)
CONTAINER = "(container)"
# Operators that run other subgraphs, and those that have as many results as values say.
CALLERS = frozenset({f"tflite::{name}" for name in ("IF", "WHILE", "CALL", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE")})
BY_DATA = frozenset({"tflite::WHERE", "tflite::UNIQUE"})
VARIABLE = "tflite::VAR_HANDLE"
Place = int  # of a tensor of the subgraph; -1 where an operand is absent
Places = tuple["Place | tuple[Place, ...]", ...]


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The first subgraph of a file, on the shapes that it declares."""
    reading = _Reading(read_flatbuffer(source, "TFLite file", IDENTIFIER, contents), rules)
    return LoadedModel(reading.graph(), "tflite", notes=tuple(reading.notes()))


# Operands in the order of the rules.


def _recurrent(states: Sequence[int], weights: Sequence[int], others: Sequence[int]) -> Callable[[Places], Places]:
    """x, states, weights; and others, which no rule knows: they leave the operator unmeasured."""

    def placed(inputs: Places) -> Places:
        def chosen(places: Sequence[int]) -> tuple[Place, ...]:
            return tuple(place for at in places if isinstance(place := dict(enumerate(inputs)).get(at, -1), int))

        unknown = tuple(place for place in chosen(others) if place >= 0)
        given = tuple(place for place in chosen(weights) if place >= 0)
        return (inputs[0], chosen(states), given, *((unknown,) if unknown else ()))

    return placed


LSTM = _recurrent((18, 19), (*range(1, 9), *range(12, 18)), (9, 10, 11, *range(20, 24)))
PLACED: Mapping[str, Callable[[Places], Places]] = {
    "tflite::UNIDIRECTIONAL_SEQUENCE_LSTM": LSTM,
    "tflite::LSTM": LSTM,
    **dict.fromkeys(
        ("tflite::UNIDIRECTIONAL_SEQUENCE_RNN", "tflite::RNN", "tflite::SVDF"), _recurrent((4,), (1, 2, 3), ())
    ),
}


# Operands in the layouts of the rules: views of the file's own.


def _turned(tensor: Operand, axes: Sequence[int]) -> Operand:
    """A tensor with its axes in another order."""
    if not isinstance(tensor, Tensor) or len(tensor.shape) != len(axes):
        return tensor
    shape, strides = (tuple(part[axis] for axis in axes) for part in (tensor.shape, tensor.strides))
    return replace(tensor, shape=shape, strides=strides)


def _rows(tensor: Operand, size: int) -> Operand:
    """A tensor as rows of so many elements."""
    if not isinstance(tensor, Tensor) or tensor.unsized or not size or tensor.elements % size:
        return tensor
    shape = (tensor.elements // size, size)
    return tensor if tensor.shape[-1:] == (size,) else replace(tensor, shape=shape, strides=contiguous_strides(shape))


def _filters(op: Op) -> Op:
    """The groups of a convolution: x (..., channels), weight (out, ..., channels / groups)."""
    x, weight = op.operands[:2]
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or not x.shape or not weight.shape:
        return op
    return replace(op, attributes={**op.attributes, "groups": x.shape[-1] // (weight.shape[-1] or 1)})


def _depthwise(op: Op) -> Op:
    """A filter (1, h, w, channels) as (channels, h, w, 1)."""
    x, weight, *bias = op.operands
    return _filters(replace(op, operands=(x, _turned(weight, (3, 1, 2, 0)), *bias)))


def _in_space(op: Op) -> Op:
    """A filter (d, h, w, in, out) as (out, d, h, w, in)."""
    x, weight, *bias = op.operands
    return _filters(replace(op, operands=(x, _turned(weight, (4, 0, 1, 2, 3)), *bias)))


def _from_outputs(op: Op) -> Op:
    """Sizes, a filter (out, h, w, in) as (in, out, h, w), x."""
    sizes, weight, *others = op.operands
    return replace(op, operands=(sizes, _turned(weight, (3, 0, 1, 2)), *others))


def _flattened(op: Op) -> Op:
    """x as rows, where a weight (n, k) reads it across several axes."""
    x, weight, *bias = op.operands
    size = weight.shape[-1] if isinstance(weight, Tensor) and weight.shape else 0
    return replace(op, operands=(_rows(x, size), weight, *bias))


def _of_one_layer(op: Op) -> Op:
    """States (batch, h) as (1, batch, h)."""
    x, states, *others = op.operands
    viewed = (_one_more(state) for state in states) if isinstance(states, tuple) else ()
    return replace(op, operands=(x, tuple(viewed), *others))


def _one_more(state: Tensor | None) -> Tensor | None:
    return state and replace(state, shape=(1, *state.shape), strides=(state.elements, *state.strides))


def _mode(mode: str) -> Callable[[Op], Op]:
    return lambda op: replace(op, attributes={**op.attributes, "mode": mode})


SEEN: Mapping[str, Callable[[Op], Op]] = {
    "tflite::CONV_2D": _filters,
    "tflite::DEPTHWISE_CONV_2D": _depthwise,
    "tflite::CONV_3D": _in_space,
    "tflite::TRANSPOSE_CONV": _from_outputs,
    "tflite::FULLY_CONNECTED": _flattened,
    "tflite::RESIZE_BILINEAR": _mode("linear"),
    "tflite::RESIZE_NEAREST_NEIGHBOR": _mode("nearest"),
    **dict.fromkeys(PLACED, _of_one_layer),
}


@dataclass(frozen=True, slots=True)
class Use:
    """One reading of a tensor: the operator, by position, its role there, and what hands the value on."""

    at: int
    role: Role


class _Program:
    """One subgraph: where each tensor is read, in which role, and what each stored one is for."""

    def __init__(self, subgraph: Subgraph, rules: OpTable) -> None:
        self.subgraph, self.rules = subgraph, rules
        self.operands = [PLACED.get(op.name, tuple)(op.inputs) for op in subgraph.operators]
        self.scopes = tuple(_scopes(subgraph))
        self.sized_by_data = _sized_by_data(subgraph)
        self.scales = frozenset(entry.scaled_by for entry in subgraph.tensors)
        self.computed = frozenset((*subgraph.inputs, *(out for op in subgraph.operators for out in op.outputs)))
        self.uses: dict[Place, list[Use]] = defaultdict(list)
        for at, (op, operands) in enumerate(zip(subgraph.operators, self.operands, strict=True)):
            rule = rules.get(op.name)
            roles = rule.roles_of(op.name, len(operands)) if rule else (UNDECLARED,) * len(operands)
            for role, operand in zip(roles, operands, strict=True):
                for place in operand if isinstance(operand, tuple) else (operand,):
                    if place >= 0:
                        self.uses[place].append(Use(at, role))

    def knows(self, operator: Operator) -> bool:
        """Whether a rule says what an operator is: its result without axes is then a scalar."""
        return operator.name in self.rules

    def final_uses(self, place: Place) -> list[Use]:
        """The uses of a value, and of what hands it on as it is."""
        waiting, finals = [place], list[Use]()
        for value in waiting:  # which grows
            for use in self.uses.get(value, ()):
                outputs = self.subgraph.operators[use.at].outputs
                if use.role.carried:
                    waiting += [out for out in outputs[: None if use.role.into_all else 1] if out not in waiting]
                else:
                    finals.append(use)
        if not set(waiting).isdisjoint(self.subgraph.outputs):
            finals.append(Use(-1, Role("result", learnt=True)))
        return finals

    def stores(self, place: Place) -> bool:
        """Whether the file has a tensor's values, be they none, or a run leaves them for the next one."""
        entry = self.subgraph.tensors[place]
        is_empty = place in self.uses and place not in self.computed and not prod(entry.shape)
        return bool(entry.stored) or entry.is_variable or is_empty

    def kind(self, place: Place) -> StorageKind:
        """What a stored tensor is for. Integers with scales stand for floats."""
        if place in self.scales:
            return StorageKind.QUANTISER
        entry, roles = self.subgraph.tensors[place], [use.role for use in self.final_uses(place)]
        is_value = entry.scales > 0 or entry.scaled_by >= 0 or entry.dtype.name.startswith(("float", "bfloat"))
        if any(role.weight or (role.learnt and is_value) for role in roles) and entry.shape:
            return PARAMETER
        if roles and all(role.shape for role in roles):
            return StorageKind.SHAPE
        return CONSTANT

    def unknown_reader(self, place: Place) -> Reader | None:
        """An operator without a rule that reads a stored tensor, which may be a weight there."""
        entry = self.subgraph.tensors[place]
        if entry.scales or entry.scaled_by >= 0 or not entry.dtype.is_integer or entry.dtype.bits <= 8:
            for use in self.final_uses(place):
                if not use.role.declared:
                    return Reader(self.subgraph.operators[use.at].name, use.role.word)
        return None

    def name(self, place: Place) -> str:
        """A stored tensor by the first operator that reads it: "conv1.weight"; its own name where none does."""
        own = self.subgraph.tensors[place].name or f"tensor_{place}"
        first = next(iter(self.uses.get(place, ())), None)
        return f"{self.scopes[first.at]}.{first.role.word or own}" if first else own


def _scopes(subgraph: Subgraph) -> Iterator[str]:
    """A path for each operator: the first name of its result, or else its own name; no two alike."""
    seen: dict[str, int] = defaultdict(int)
    for at, op in enumerate(subgraph.operators):
        first = subgraph.tensors[op.outputs[0]].name if op.outputs and op.outputs[0] >= 0 else ""
        path = ".".join(filter(None, first.partition(";")[0].split("/")))
        path = path or f"{op.name.rpartition('::')[2].lower()}_{at}"
        seen[path] += 1
        yield f"{path}_{seen[path]}" if seen[path] > 1 else path


def _sized_by_data(subgraph: Subgraph) -> frozenset[Place]:
    """The results whose sizes values decide: the file leaves them open, and not because an input is open."""
    open_places = {place for place, entry in enumerate(subgraph.tensors) if entry.is_open}
    follows, found = open_places.intersection(subgraph.inputs), set[Place]()
    for op in subgraph.operators:
        if op.name in BY_DATA or follows.isdisjoint(op.inputs) or not found.isdisjoint(op.inputs):
            found |= open_places.intersection(op.outputs)
        else:
            follows.update(op.outputs)
    return frozenset(found)


class _Reading:
    """Makes the graph of a file; each buffer is one memory, however many tensors have it."""

    def __init__(self, contents: Contents, rules: OpTable) -> None:
        self._contents, self._file = contents, contents.file
        self._programs = [_Program(subgraph, rules) for subgraph in contents.subgraphs]
        self._memories: dict[object, Storage] = {}
        self._weights: dict[str, Weight] = {}
        self._scales: dict[Storage, Tensor] = {}

    def graph(self) -> Graph:
        """The graph of the first subgraph, with the weights of all."""
        main = self._programs[0]
        tensors, inputs = dict(self._stored(main)), main.subgraph.inputs
        tensors.update((place, _activation(main.subgraph.tensors[place], place)) for place in inputs if place >= 0)
        scaled = ((place, entry.scaled_by) for place, entry in enumerate(main.subgraph.tensors) if place in tensors)
        self._scales.update((tensors[place].storage, tensors[by]) for place, by in scaled if by in tensors)
        ops = []
        for at, operator in enumerate(main.subgraph.operators):
            ops.append(self._op(main, at, operator, tensors))
        for program in self._programs[1:]:
            dict(self._stored(program))
        weights = (*self._weights.values(), self._container())
        outputs = tuple(self._read(tensors, place, "the result") for place in main.subgraph.outputs)
        given = tuple(tensors[place] for place in inputs if place >= 0)
        inside = tuple(op.outputs[-1] for op in ops if op.name in CALLERS)
        graph = Graph(tuple(ops), given, (*outputs, *inside), weights, offsets=self._offsets(tensors))
        self._must_be_apart(graph)
        return graph

    def _offsets(self, tensors: Mapping[Place, Tensor]) -> Mapping[Storage, int]:
        """Those of the plan that the file has of its first subgraph; -1 is of a tensor that it leaves open."""
        plan = self._contents.plan.get(0, ())
        if plan and (len(plan) != len(self._contents.subgraphs[0].tensors) or min(plan) < -1):
            raise SourceError(f"{self._file} has an offline plan of {len(plan):,} other tensors: write it again")
        return {tensor.storage: plan[at] for at, tensor in tensors.items() if plan and plan[at] >= 0}

    def _must_be_apart(self, graph: Graph) -> None:
        """Raise SourceError where the plan puts a tensor on another one that is alive."""
        try:
            planned([buffer for buffer in buffers_of(graph) if buffer.offset is not None])
        except GraphError as error:
            raise SourceError(f"{self._file}: {error}: write its offline plan again") from error

    def notes(self) -> Iterator[str]:
        """What a reader of the numbers must know."""
        first, *others = self._contents.subgraphs
        if named := some_of(entry.name for entry in map(first.tensors.__getitem__, first.inputs) if entry.is_open):
            yield f"the file leaves sizes of {named} open: counted as it declares them"
        if VARIABLE in {op.name for op in first.operators}:
            yield "weights in variables are not counted: freeze them, as TFLiteConverter.from_keras_model does"
        if others:
            yield f"{len(others):,} more subgraphs are stored and not run: the first one is counted"

    def _op(self, program: _Program, at: int, operator: Operator, tensors: dict[Place, Tensor]) -> Op:
        scope = program.scopes[at]

        def read(operand: Place | tuple[Place, ...]) -> Operand:
            if isinstance(operand, tuple):
                return tuple(None if place < 0 else self._read(tensors, place, scope) for place in operand)
            return None if operand < 0 else self._read(tensors, operand, scope)

        operands = tuple(map(read, program.operands[at]))
        for place in operator.outputs:
            if place in tensors or place < 0:
                raise SourceError(
                    f"{self._file}: '{scope}' writes tensor {place}, which is not its own: convert it again"
                )
            entry = program.subgraph.tensors[place]
            is_unranked = not entry.has_rank and not program.knows(operator)
            tensors[place] = _activation(entry, place, by_data=is_unranked or place in program.sized_by_data)
        outputs = tuple(tensors[place] for place in operator.outputs)
        if operator.name in CALLERS:
            outputs = (*outputs, _workspace(operator.name, scope))
        if operator.name == VARIABLE:  # its values are a program's to bring, and may be weights
            values = dense(scope, (0,), BYTE, Storage(scope, 0, CONSTANT))
            self._weights[scope] = Weight(values, False, False, unknown_reader=Reader(VARIABLE, ""))
        op = Op(operator.name, operands, outputs, operator.attributes, scope)
        scales = (self._scales.get(tensor.storage) for tensor in dict.fromkeys(op.tensors()))
        return SEEN.get(op.name, _as_it_is)(replace(op, scales=tuple(filter(None, scales))))

    def _read(self, tensors: Mapping[Place, Tensor], place: Place, reader: str) -> Tensor:
        if place not in tensors:
            raise SourceError(f"{self._file}: {reader} reads tensor {place} before it is written: convert it again")
        return tensors[place]

    def _stored(self, program: _Program) -> Iterator[tuple[Place, Tensor]]:
        """The tensors that the file stores, or keeps from run to run, as weights of the graph."""
        for place, entry in enumerate(program.subgraph.tensors):
            if not program.stores(place):
                continue
            kind = StorageKind.BUFFER if entry.is_variable else program.kind(place)
            name = program.name(place)
            name = name if name not in self._weights else f"{name}_{len(self._weights)}"
            nbytes = entry.stored or -(-prod(entry.shape) * entry.dtype.bits // 8)
            key = (id(program), place) if entry.is_variable else entry.buffer
            memory = self._memories.setdefault(key, Storage(name, nbytes, kind))
            tensor = dense(name, entry.shape, entry.dtype, memory)
            reader = program.unknown_reader(place) if kind is CONSTANT else None
            self._weights[name] = Weight(tensor, False, not entry.is_variable, unknown_reader=reader)
            if kind is PARAMETER and entry.scales and not _is_bias(entry):
                self._bring_scales(tensor, entry.scales)
            yield place, tensor

    def _bring_scales(self, weight: Tensor, count: int) -> None:
        """The scales of a weight, which its operator reads too; those of a bias follow from them."""
        if weight.storage not in self._scales:
            name = f"{weight.name}_scale"
            scale = dense(name, (count,), FLOAT32, Storage(name, 4 * count, StorageKind.QUANTISER))
            self._scales[weight.storage], self._weights[name] = scale, Weight(scale)

    def _container(self) -> Weight:
        """The rest of the file: names, shapes, operators, padding."""
        counted = {
            id(weight.tensor.storage): weight.tensor.storage for weight in self._weights.values() if weight.persistent
        }
        rest = self._contents.nbytes - sum(storage.nbytes for storage in counted.values())
        return Weight(dense(CONTAINER, (max(rest, 0),), BYTE, Storage(CONTAINER, max(rest, 0), StorageKind.BUFFER)))


def _is_bias(entry: Entry) -> bool:
    return entry.dtype.name in {"int32", "int64"}


def _as_it_is(op: Op) -> Op:
    return op


def _workspace(operator: str, scope: str) -> Tensor:
    """The memory that the subgraphs of an operator need; an output, since other operators need not read it."""
    name, why = f"{scope}.inside", f"the memory of the subgraphs of {operator} is not known"
    return unsized(name, BYTE, Storage(name, 0, ACTIVATION, why), why)


def _activation(entry: Entry, place: Place, *, by_data: bool = False) -> Tensor:
    """What the program computes, or is given."""
    name = entry.name or f"tensor_{place}"
    if by_data or (not entry.has_size and entry.dtype.name == "string"):
        why = f"the data decide the size of '{name}'"
        return unsized(name, entry.dtype, Storage(name, 0, ACTIVATION, why), why)
    nbytes = -(-prod(entry.shape) * entry.dtype.bits // 8)
    return dense(name, entry.shape, entry.dtype, Storage(name, nbytes, ACTIVATION))
