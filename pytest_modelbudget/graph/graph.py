"""A program: the operations a model executes, in order, and the weights it stores.

relu(x @ w.T) drawn once::

    Graph(
        ops=(Op("aten::linear", (x, w, None), (y,), {}, scope="fc"),
             Op("aten::relu", (y,), (z,), {}, scope="act")),
        inputs=(x,), outputs=(z,), weights=(Weight(w, trainable=True),))
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple, Union

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.tensor import ACTIVATION, SHAPE, Storage, StorageKind, Tensor, kept

NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})
Operand = Union[Tensor, None, tuple[Tensor | None, ...]]


@dataclass(frozen=True, eq=False, init=False)
class Op:
    """One executed operation under the foreign name it was seen with, such as ``aten::addmm``.

    operands are in the order of the operator's own signature; a list operand is a tuple.
    attributes are plain values. scope is the module path ("layer1.0.conv1", "" for the model
    itself). times is how often it runs, and run the number of the run of a body that it stands in,
    0 outside of all: nothing joins what stands in two of them. mutates says that it writes into memory
    of an operand: an output on an operand's storage is then an in-place result, else a view. scales
    are read beside the operands, in no role: scales and zero points of an operation on integers.
    """

    name: str
    operands: tuple[Operand, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    scope: str = ""
    times: int = 1
    mutates: bool = False
    scales: tuple[Tensor, ...] = ()
    run: int = 0

    def __init__(
        self, name: str, operands: tuple[Operand, ...], outputs: tuple[Tensor, ...],
        attributes: Mapping[str, object] = NO_ATTRIBUTES, scope: str = "", times: int = 1, mutates: bool = False,
        scales: tuple[Tensor, ...] = (), run: int = 0,
    ) -> None:  # fmt: skip
        fields = self.__dict__  # as those of a Tensor
        fields["name"], fields["operands"], fields["outputs"] = name, operands, outputs
        fields["attributes"], fields["scope"], fields["times"] = attributes, scope, times
        fields["mutates"], fields["scales"], fields["run"] = mutates, scales, run

    def tensors(self) -> tuple[Tensor, ...]:
        """Operand tensors, lists flattened, without absent ones; then scales."""
        return self._tensors

    @kept
    def _tensors(self) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        for operand in self.operands:
            if isinstance(operand, Tensor):
                tensors.append(operand)
            elif operand is not None:
                tensors.extend(element for element in operand if element is not None)
        return (*tensors, *self.scales)

    @kept
    def fresh_outputs(self) -> tuple[Tensor, ...]:
        """Outputs on memory that no operand lives on: what the op allocates."""
        known = [tensor.storage for tensor in self._tensors]
        return tuple([output for output in self.outputs if output.storage not in known])

    @kept
    def is_view(self) -> bool:
        """Whether every output is an operand's memory under a new name: nothing moves."""
        return bool(self.outputs) and not self.mutates and not self.fresh_outputs

    @kept
    def is_shape_computation(self) -> bool:
        """Whether it only works out shapes, which is done before the run and costs nothing."""
        for output in self.outputs:  # no generator: asked of every op of every model
            if output.storage.kind is not SHAPE:
                return False
        return bool(self.outputs)

    @kept
    def unsized(self) -> str:
        """Why a shape among operands and outputs is not known; "" where all are."""
        for tensor in (*self._tensors, *self.outputs):
            if tensor.unsized:
                return tensor.unsized
        return ""


class Reader(NamedTuple):
    """An operator that reads a stored tensor in a role of which nothing is declared.

    role is "" where no rule knows the operator at all. unpacks: it takes several weights out of each integer, and how
    many is not known.
    """

    op: str
    role: str
    unpacks: bool = False


@dataclass(frozen=True, init=False)
class Weight:
    """One named tensor that a model stores: "layer1.0.conv1.weight".

    Tied or viewed weights are several of these on one storage. packed is the number of logical
    elements where bytes hold several of them in a layout of their own, such as int4 blocks. trainable is None where a
    file does not say it.
    unknown_reader, of a constant or of integers, is an operator for which it may be more parameters. held_as is its own
    kind where its memory has another: of a buffer that lies in a parameter's.
    """

    tensor: Tensor
    trainable: bool | None = False
    persistent: bool = True
    packed: int | None = None
    unknown_reader: Reader | None = None
    held_as: StorageKind | None = None

    def __init__(
        self, tensor: Tensor, trainable: bool | None = False, persistent: bool = True, packed: int | None = None,
        unknown_reader: Reader | None = None, held_as: StorageKind | None = None,
    ) -> None:  # fmt: skip
        fields = self.__dict__  # as those of a Tensor
        fields["tensor"], fields["trainable"], fields["persistent"] = tensor, trainable, persistent
        fields["packed"], fields["unknown_reader"], fields["held_as"] = packed, unknown_reader, held_as

    @kept
    def kind(self) -> StorageKind:
        return self.held_as or self.tensor.storage.kind

    @property
    def may_be_packed(self) -> bool:
        """Whether a buffer of integers has rows and columns, and is of no type of indices."""
        sizes, bits = self.tensor.shape, self.tensor.dtype.bits
        is_table = self.tensor.dtype.is_integer and bits < 64 and sum(size > 1 for size in sizes) > 1
        return is_table and self.kind is StorageKind.BUFFER

    @kept
    def scope(self) -> str:
        """Path of the module that owns it."""
        return self.tensor.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Graph:
    """A valid program: every operand exists before it is used; checked once, here.

    weights holds every stored tensor, also those that no op reads. operations_unknown says why a graph has no ops where
    its model has: "a safetensors file holds weights and no operations". forks are where data decide what runs, and
    ops holds one way of each. states are what runs of a body leave for the next one: written, whoever reads
    them. offsets are of activations that a plan in the file places. written and read have the position of the first op
    that writes memory, 0 of inputs, and of the last one that reads it: of inputs the first one at least, of outputs the
    last. Raises GraphError for what is no valid program.
    """

    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Weight, ...] = field(default=())
    operations_unknown: str = ""
    forks: tuple["Fork", ...] = ()
    states: tuple[Tensor, ...] = ()
    offsets: Mapping[Storage, int] = field(default_factory=dict)
    written: Mapping[Storage, int] = field(init=False, repr=False, compare=False)
    read: Mapping[Storage, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ops and self.operations_unknown:
            raise GraphError(f"{len(self.ops)} operations of a graph that knows none: {self.operations_unknown}")
        written: dict[Storage, int] = {tensor.storage: 0 for tensor in self.inputs}
        read: dict[Storage, int] = dict.fromkeys(written, 0)
        for position, op in enumerate(self.ops):
            if op.times < 0:
                raise GraphError(f"{name_in(op.name, op.scope)} runs {op.times} times")
            keeps_alive = not op.is_shape_computation  # to ask for a shape reads no memory
            for tensor in op.tensors():
                storage = tensor.storage
                if storage not in written and storage.kind is ACTIVATION:
                    raise _unwritten(name_in(op.name, op.scope), tensor)
                if keeps_alive:
                    read[storage] = position
            for output in op.outputs:
                written.setdefault(output.storage, position)
        for output in self.outputs:
            if output.storage not in written and output.storage.is_activation:
                raise _unwritten("the graph's outputs", output)
            read[output.storage] = max(len(self.ops) - 1, 0)
        object.__setattr__(self, "written", written)
        object.__setattr__(self, "read", read)

    @property
    def is_on_nothing(self) -> bool:
        """Whether no input has an element, where there are inputs: of what it then costs nobody learns anything."""
        return bool(self.inputs) and all(tensor.is_empty for tensor in self.inputs)


@dataclass(frozen=True, eq=False, slots=True)
class Fork:
    """A place where data decide what runs, and what each way from there would run.

    counted names the way whose ops the graph around it has; "" where it has none, as nobody knows how often it runs::

        Fork("onnx::If", "If 'y'", {"then_branch": Graph(...), "else_branch": Graph(...)}, counted="else_branch")

    Forks with one source are decided by the same value, so that all of them go the same way. varies says that each run
    of the loop around it decides anew. condition is the value that chooses, where that is recorded, and after the
    number of operations before it in the list that it stands in. literals are digests of constants that nothing stores
    and that were met up to its end, by the names of their storages.
    """

    operator: str
    place: str
    ways: Mapping[str, Graph]
    counted: str = ""
    source: object = None
    varies: bool = False
    condition: Tensor | None = None
    after: int = 0
    literals: Mapping[str, str] = field(default_factory=dict)


def way(ops: Iterable[Op], outputs: Iterable[Tensor] = (), forks: Iterable[Fork] = ()) -> Graph:
    """The program of one way of a fork: its inputs are what it reads from outside."""
    ops, outputs = tuple(ops), tuple(outputs)
    inputs: dict[Tensor, None] = {}
    written: set[Storage] = set()
    for op in ops:
        inputs.update({tensor: None for tensor in op.tensors() if tensor.storage not in written})
        written.update(output.storage for output in op.outputs)
    inputs.update({tensor: None for tensor in outputs if tensor.storage not in written})
    return Graph(ops, tuple(tensor for tensor in inputs if tensor.storage.is_activation), outputs, forks=tuple(forks))


def _unwritten(where: str, tensor: Tensor) -> GraphError:
    return GraphError(f"{where} reads {tensor.name} before anything wrote it")


# When each activation lives: a pure function of the execution order.


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last op, by position and inclusive, during which a storage holds its memory."""

    first: int
    last: int

    @property
    def steps(self) -> int:
        """How many operations run meanwhile."""
        return self.last - self.first + 1


def lifetimes(graph: Graph) -> Mapping[Storage, Lifetime]:
    """Lifetime of every activation storage that costs memory, in order of appearance.

    Inputs live from the first op to their last use, graph outputs to the last op. An input that
    nobody reads lives during the first op; an op's result that nobody reads and the caller does
    not get costs nothing and is left out. To ask for a shape keeps nothing alive.
    """
    read = graph.read
    return {
        storage: Lifetime(first, read[storage])
        for storage, first in graph.written.items()
        if storage.kind is ACTIVATION and storage in read
    }


def live_nbytes(alive: Mapping[Storage, Lifetime], positions: int) -> list[int]:
    """Bytes that live during each op: after its outputs exist, before its operands are freed."""
    change = [0] * (positions + 1)
    for storage, life in alive.items():
        change[life.first] += storage.nbytes
        change[life.last + 1] -= storage.nbytes
    return list(accumulate(change[:positions]))


def dead_storages(graph: Graph) -> frozenset[Storage]:
    """Storages that an op writes, no op reads, the caller does not get and no run of a body leaves."""
    return frozenset(graph.written.keys() - graph.read.keys() - {state.storage for state in graph.states})


# Module paths, and the globs by which limits and transforms name parts of a model.


def paths(scope: str) -> list[str]:
    """A module path and its ancestors: a.b.c, a.b, a."""
    names = scope.split(".")
    return [".".join(names[:length]) for length in range(len(names), 0, -1)]


def is_in_scope(scope: str, glob: str | None) -> bool:
    """Whether a glob names this scope or one around it; no glob names the whole model."""
    return glob is None or any(fnmatchcase(path, glob) for path in paths(scope))


def may_be_in_scope(scope: str, glob: str | None) -> bool:
    """Whether a glob names a scope, or may name the layer that an operation of an unknown one belongs to."""
    around, _, name = f".{scope}".rpartition(".")
    if name != UNKNOWN_LAYER or is_in_scope(scope, glob):
        return is_in_scope(scope, glob)
    below, start = f"{around[1:]}." if around else "", re.split(r"[*?[]", glob or "")[0]
    return start.startswith(below) or below.startswith(start)


UNKNOWN_LAYER = "?"  # the last name of the scope of an operation that no known layer of the module around it owns
MODEL = "(model)"  # the scope of what no module owns


def scope_text(scope: str | None) -> str:
    """A module's path; of the model itself, "" or None, which is no path, "(model)"."""
    return scope or MODEL


def name_in(name: str, scope: str) -> str:
    """An operation and its place: "aten::linear in 'head'"; of the model itself the name alone."""
    return f"{name} in '{scope}'" if scope else name
