"""ExecuTorch programs as graphs: each call in its order, constants, and the blobs of delegates.

What is inside of a delegate is not known: its bytes count, and its calls are unmeasured by the name of its backend.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_modelbudget.deployment.arena import buffers_of, planned
from pytest_modelbudget.errors import GraphError, SourceError
from pytest_modelbudget.executorch_models.file import IDENTIFIER, Call, Contents, Value, contents
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, read_flatbuffer
from pytest_modelbudget.graph.graph import Graph, Op, Operand, Reader, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, unsized
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable

ACTIVATION, PARAMETER, CONSTANT, BUFFER = (
    StorageKind.ACTIVATION, StorageKind.PARAMETER, StorageKind.CONSTANT, StorageKind.BUFFER,
)  # fmt: skip
BYTE = DType("uint8", 8)
FORWARD, CONTAINER = "forward", "(container)"
# Operators under the names of torch's own that do the same.
SAME = {
    "dim_order_ops::_clone_dim_order": "aten::clone",
    "dim_order_ops::_to_dim_order_copy": "aten::_to_copy",
    "dim_order_ops::_empty_dim_order": "aten::empty",
}
# Settings that costs depend on, by the place of the first in the operator's signature.
SETTINGS: Mapping[str, tuple[int, str]] = {
    "aten::convolution": (3, "stride padding dilation transposed output_padding groups"),
    **dict.fromkeys(
        ("aten::max_pool2d_with_indices", "aten::max_pool2d", "aten::avg_pool2d", "aten::avg_pool1d"),
        (1, "kernel_size"),
    ),
    "aten::topk": (2, "dim"),
    "aten::sort": (1, "dim"),
}


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The method ``forward`` of a program, or its first one."""
    reading = _Reading(read_flatbuffer(source, "ExecuTorch program", IDENTIFIER, contents), rules)
    return LoadedModel(reading.graph(), "pte", notes=tuple(reading.notes()))


class _Reading:
    """Makes the graph of a method. Tensors that share planned bytes one after another have memories of their own."""

    def __init__(self, contents: Contents, rules: OpTable) -> None:
        self._contents, self._rules, self._file = contents, rules, contents.file
        methods = {method.name: method for method in reversed(contents.methods)}
        self._method = methods.get(FORWARD, contents.methods[0])
        self._tensors: dict[int, Tensor] = {}
        self._lying: dict[tuple[int, int], Storage] = {}  # what was written last, by its planned place
        self._unread: set[Storage] = set()
        self._constants: dict[tuple[int, DType], Storage] = {}  # zeros may be a bias and zero points
        self._outside: set[Storage] = set()
        self._weights: dict[Storage, Weight] = {}
        self._seen: Counter[str] = Counter()

    def graph(self) -> Graph:
        """The graph, with the blobs of delegates, and the rest of the file, among its weights."""
        method = self._method
        stored: dict[tuple[bool, int], Tensor] = {}
        for at, blob in enumerate(method.delegates):
            if blob.place not in stored:
                stored[blob.place] = self._blob(f"{blob.backend}_{at}.blob", blob.nbytes, blob.backend)
        blobs = [stored[blob.place] for blob in method.delegates]
        backends = " and ".join(dict.fromkeys(blob.backend for blob in method.delegates))
        for at, size in enumerate(self._contents.named):
            self._blob(f"named_data.{at}", size, backends or "none")
        inputs = [self._written(at, f"input_{number}") for number, at in self._of_tensors(method.inputs)]
        ops = [self._delegated(call, blobs) if call.delegate >= 0 else self._op(call) for call in method.calls]
        outputs = [self._read(at, "output") for _, at in self._of_tensors(method.outputs)]
        outputs += [op.outputs[-1] for op, call in zip(ops, method.calls, strict=True) if call.delegate >= 0]
        held = sum(
            each.nbytes for each, weight in self._weights.items() if weight.persistent and each not in self._outside
        )
        self._blob(CONTAINER, max(self._contents.nbytes - held, 0), "")
        graph = Graph(tuple(ops), tuple(inputs), tuple(outputs), tuple(self._weights.values()), offsets=self._offsets())
        try:
            planned([buffer for buffer in buffers_of(graph) if buffer.offset is not None])
        except GraphError as error:
            raise SourceError(f"{self._file}: {error}: export it again") from error
        return self._with_kinds(graph)

    def notes(self) -> Iterator[str]:
        """What makes up the file, and the memory that it plans."""
        held: Counter[str] = Counter()
        for blob in {blob.place: blob for method in self._contents.methods for blob in method.delegates}.values():
            held[f"delegate {blob.backend}"] += blob.nbytes
        held["constants"] = sum(self._contents.constants)
        held["initial states"] = self._contents.states
        held["named data"] = sum(self._contents.named)
        held["program and padding"] = max(self._contents.nbytes - held.total(), 0)
        yield "the file has " + ", ".join(f"{name} {nbytes:,} B" for name, nbytes in held.items() if nbytes)
        pools = [f"{nbytes:,} B in pool {at}" for at, nbytes in enumerate(self._method.pools) if nbytes]
        yield f"memory that the program plans: {', '.join(pools) or 'none'}"
        if len(self._contents.methods) > 1:
            yield f"{len(self._contents.methods)} methods are stored: '{self._method.name}' is counted"

    def _of_tensors(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Those of some values that are tensors, each with its number among them."""
        return enumerate(at for at in places if isinstance(self._method.values[at], Value))

    def _blob(self, name: str, nbytes: int, backend: str) -> Tensor:
        """Bytes of the file, in which a backend may have any number of weights; "" where none reads them."""
        reader = Reader(f"delegate::{backend}", "", unpacks=True) if backend else None
        storage = Storage(name, nbytes, CONSTANT if reader else BUFFER)
        tensor = dense(name, (nbytes,), BYTE, storage)
        self._weights[storage] = Weight(tensor, unknown_reader=reader)
        return tensor

    # Calls.

    def _delegated(self, call: Call, blobs: Sequence[Tensor]) -> Op:
        """A call of a delegate: what is known among its arguments it reads, the rest it writes, and its own memory."""
        tensors = [at for at in dict.fromkeys(call.args) if isinstance(self._method.values[at], Value)]
        results = [at for at in tensors if not self._is_known(at)]
        blob, why = blobs[call.delegate], f"what is inside of {call.name} is not known"
        scope = f"{self._method.delegates[call.delegate].backend}_{call.delegate}"
        inside = unsized(f"{scope}.inside", BYTE, Storage(f"{scope}.inside", 0, ACTIVATION, why), why)
        operands = [self._read(at, f"{scope}.{at}") for at in tensors if at not in results]
        outputs = tuple(self._written(at, f"{scope}.{at}") for at in results)
        return Op(call.name, (*operands, blob), (*outputs, inside), scope=scope)

    def _op(self, call: Call) -> Op:
        name, values = SAME.get(call.name, call.name), self._method.values
        own = name.rpartition("::")[2]
        scope = f"{own}_{self._seen[own]}"
        self._seen[own] += 1
        last = values[call.args[-1]] if call.args else None
        results = [call.args[-1]] if isinstance(last, Value) else []
        if isinstance(last, tuple) and last and all(_is_tensor(values, at) for at in last):
            results = [*last]
        in_place = own.endswith("_") and not own.endswith("__")
        targets = {*results, *(at for at in call.args[:-1] if isinstance(last, tuple) and values[at] == last)}
        given = [at for at in call.args[:-1] if in_place or at not in targets]
        operands = self._operands(given, scope)
        made = tuple(self._read(at, scope) if in_place else self._written(at, f"{scope}_{at}") for at in results)
        return Op(name, operands, made, self._settings(name, given), scope, mutates=in_place)

    def _operands(self, places: Sequence[int], scope: str) -> tuple[Operand, ...]:
        """The tensors among arguments, lists of tensors, and None of what is absent before one of them."""
        operands: list[Operand] = []
        for at in places:
            value = self._method.values[at]
            if isinstance(value, Value):
                operands.append(self._read(at, f"{scope}.{at}"))
            elif value is None:
                operands.append(None)
            elif isinstance(value, tuple) and value and all(_is_tensor(self._method.values, each) for each in value):
                operands.append(tuple(self._read(each, f"{scope}.{each}") for each in value))
        while operands and operands[-1] is None:
            operands.pop()
        return tuple(operands)

    def _settings(self, name: str, places: Sequence[int]) -> Mapping[str, object]:
        first, words = SETTINGS.get(name, (0, ""))
        return dict(zip(words.split(), map(self._plain, places[first:]), strict=False))

    def _plain(self, at: int) -> object:
        """A value that is no tensor; a list of numbers names the values that they are."""
        value = self._method.values[at]
        if isinstance(value, tuple):
            return tuple(self._method.values[each] if 0 <= each < len(self._method.values) else each for each in value)
        return value

    # Tensors.

    def _value(self, at: int) -> Value:
        value = self._method.values[at]
        if not isinstance(value, Value):
            raise SourceError(f"{self._file}: value {at} is no tensor where one is read: export it again")
        return value

    def _is_known(self, at: int) -> bool:
        """Whether a value was written, is stored, or is a view of what was written there and not read yet."""
        value = self._value(at)
        if at in self._tensors or value.constant or value.outside:
            return True
        return value.place is not None and self._lying.get(value.place) in self._unread

    def _written(self, at: int, name: str) -> Tensor:
        value = self._value(at)
        storage = Storage(name, value.nbytes, ACTIVATION)
        if value.place is not None:
            self._lying[value.place] = storage
        self._unread.add(storage)
        self._tensors[at] = dense(name, value.shape, value.dtype, storage)
        return self._tensors[at]

    def _read(self, at: int, name: str) -> Tensor:
        """A tensor: written before, stored, a view of what lies at its place, or a state that a run leaves."""
        if at not in self._tensors:
            value = self._value(at)
            lying = self._lying.get(value.place) if value.place else None
            if lying is not None and lying.nbytes >= value.nbytes:
                self._tensors[at] = dense(lying.name, value.shape, value.dtype, lying)
            else:
                self._tensors[at] = self._stored(value, name)
        self._unread.discard(self._tensors[at].storage)
        return self._tensors[at]

    def _stored(self, value: Value, name: str) -> Tensor:
        is_state = value.place is not None or not (value.constant or value.outside)
        storage = Storage(value.name or name, value.nbytes, BUFFER if is_state else CONSTANT)
        if value.constant and not is_state:
            storage = self._constants.setdefault((value.constant, value.dtype), storage)
        if value.outside:
            self._outside.add(storage)
        tensor = dense(storage.name, value.shape, value.dtype, storage)
        self._weights.setdefault(storage, Weight(tensor, False, not is_state))
        return tensor

    def _offsets(self) -> Mapping[Storage, int]:
        """Where the plan puts each activation, its pools one behind the other."""
        begins = [sum(self._method.pools[:at]) for at in range(len(self._method.pools) + 1)]
        planned = ((tensor.storage, self._value(at).place) for at, tensor in self._tensors.items())
        return {
            storage: begins[min(place[0], len(begins) - 1)] + place[1]
            for storage, place in planned
            if place is not None and storage.is_activation
        }

    # What stored tensors are for.

    def _with_kinds(self, graph: Graph) -> Graph:
        """The graph in which constants that operators read as weights are parameters."""
        roles: dict[Storage, list[Role]] = defaultdict(list)
        comes_from: dict[Storage, Storage] = {}
        for op in graph.ops:
            for role, tensor in read_in_roles(op, self._rules.get(op.name)):
                origin = comes_from.get(tensor.storage, tensor.storage)
                if role.carried and op.outputs:
                    comes_from[op.outputs[0].storage] = origin
                else:
                    roles[origin].append(role)
        kinds, weights = {}, []
        for weight in graph.weights:
            storage, dtype = weight.tensor.storage, weight.tensor.dtype
            read_as = roles.get(storage, [])
            if storage.kind is CONSTANT and weight.unknown_reader is None and weight.tensor.shape:
                is_value = dtype.name.startswith(("float", "bfloat"))
                if any(role.weight or (role.learnt and is_value) for role in read_as):
                    kinds[storage] = replace(storage, kind=PARAMETER)
                elif (is_value or dtype.bits <= 8) and any(not role.declared for role in read_as):
                    weight = replace(weight, unknown_reader=Reader(_reader_of(graph, storage), ""))
            weights.append(weight)
        return with_storages(replace(graph, weights=tuple(weights)), kinds)


def _is_tensor(values: Sequence[object], at: int) -> bool:
    return 0 <= at < len(values) and isinstance(values[at], (Value, type(None)))


def _reader_of(graph: Graph, storage: Storage) -> str:
    """The first operator that reads some memory."""
    return next(op.name for op in graph.ops if any(tensor.storage is storage for tensor in op.tensors()))
