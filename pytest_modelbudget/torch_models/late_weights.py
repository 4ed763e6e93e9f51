"""Tensors that only a recorded pass shows: parameters that it makes, and constants that it reads as weights."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.graph.graph import Fork, Graph, Op, Reader, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.values import TorchValues

# How the recorder names memory that nothing stored before the pass.
PROVISIONAL = frozenset({StorageKind.ACTIVATION, StorageKind.CONSTANT})


@dataclass(frozen=True, slots=True)
class MadeParameter:
    """A parameter that a forward pass has made, and the paths under which its modules have stored it."""

    tensor: Tensor
    names: dict[str, None] = field(default_factory=dict)


def with_stored_parameters(graph: Graph, made: Mapping[Storage, MadeParameter]) -> Graph:
    """The graph in which a parameter that its pass makes under the path of a stored one is that one.

    So accelerate brings in what it has offloaded, in place of what is on meta; of tied ones all are one.
    """
    stored = {weight.tensor.name: weight.tensor for weight in graph.weights if weight.kind is StorageKind.PARAMETER}
    own, same = _own(graph, made), dict[Storage, Storage]()
    for memory, parameter in made.items():
        held = [stored[name] for name in parameter.names if name in stored]
        forms = {(each.shape, each.dtype, each.storage.nbytes) for each in (*held, parameter.tensor)}
        is_whole = parameter.tensor.nbytes == memory.nbytes  # and no part of others'
        if memory in own and held and len(forms) == 1 and is_whole:
            same.update(dict.fromkeys([memory, *[each.storage for each in held]], held[0].storage))
    constants = {memory for memory in same if memory.kind is StorageKind.CONSTANT}
    graph = replace(graph, weights=tuple(w for w in graph.weights if w.tensor.storage not in constants))
    return with_storages(graph, {old: new for old, new in same.items() if old is not new})


def with_saved(constants: Iterable[Weight], saved: Mapping[str, torch.Tensor], values: TorchValues) -> Iterator[Weight]:
    """Constants of a program, those persistent that a state dict holds, and its other entries.

    A copy in it, which is new memory each time, stands for the constant of its shape and type. What learns is a
    parameter, as a bias of HQQ is.
    """
    met = {key: values.known(tensor) for key, tensor in saved.items()}
    storages = {value.storage for value in met.values() if value is not None}
    unmet = {key: saved[key] for key, value in met.items() if value is None}
    kinds = (StorageKind.CONSTANT, StorageKind.PARAMETER)
    beside = [values.value(tensor, kinds[tensor.requires_grad], key) for key, tensor in unmet.items()]
    for weight in constants:
        if weight.tensor.storage in storages:
            yield replace(weight, persistent=True)
            continue
        form = weight.tensor.shape, weight.tensor.dtype
        copy = next((each for each in beside if (each.shape, each.dtype) == form), None)
        if copy is not None:
            beside.remove(copy)
        yield replace(weight, persistent=weight.persistent or copy is not None)
    yield from map(Weight, beside)


def learnt(saved: Mapping[str, torch.Tensor], values: TorchValues) -> dict[Storage, Storage]:
    """The memory of constants that a state dict holds and that learn, as that of parameters."""
    met = filter(None, (values.known(tensor) for tensor in saved.values() if tensor.requires_grad))
    memories = {value.storage for value in met if value.storage.kind is StorageKind.CONSTANT}
    return {memory: replace(memory, kind=StorageKind.PARAMETER) for memory in memories}


def without_made_parameters(graph: Graph, made: Mapping[Storage, MadeParameter], kept: Iterable[Tensor]) -> Graph:
    """The graph without the operations that fill parameters which its pass makes and throws away.

    BigBird makes attention layers and puts the weights of others into them. A parameter that is computed from inputs
    or weights is an activation, whatever its class. kept are the weights of the model behind the pass. Raises
    TraceError for another parameter that is read or kept: later passes would have it as a weight.
    """
    own = _own(graph, made)
    fills = [
        bool(op.outputs) and own.issuperset(each.storage for each in (*op.tensors(), *op.outputs)) for op in graph.ops
    ]
    ops = tuple(op for op, only_fills in zip(graph.ops, fills, strict=True) if not only_fills)
    used = {tensor.storage for op in ops for tensor in op.tensors()}
    used.update(tensor.storage for tensor in (*graph.outputs, *kept))
    for op in graph.ops:
        storage = next((each.storage for each in (*op.tensors(), *op.outputs) if each.storage in own & used), None)
        if storage is not None:
            shape = "x".join(map(str, made[storage].tensor.shape))
            place = f" in '{op.scope}'" if op.scope else ""
            raise TraceError(f"the forward pass makes a parameter ({shape}){place}: build its layer in __init__")
    return replace(graph, ops=ops)


def _own(graph: Graph, made: Collection[Storage]) -> set[Storage]:
    """Memory of parameters that the program makes, of nothing that it is given or stores."""
    memories = {
        storage for op in graph.ops for each in (*op.tensors(), *op.outputs) if (storage := each.storage) in made
    }
    return {storage for storage in memories - _derived(graph) if storage.kind in PROVISIONAL}


def _derived(graph: Graph) -> set[Storage]:
    """Memory whose values come from inputs or weights."""
    derived = {tensor.storage for tensor in graph.inputs}
    weights = (weight.tensor.storage for weight in graph.weights)
    derived.update(storage for storage in weights if storage.kind not in PROVISIONAL)
    for op in graph.ops:
        if any(tensor.storage in derived for tensor in op.tensors()):
            derived.update(output.storage for output in op.outputs)
    return derived


def further_parts(
    constants: Collection[Tensor], ops: Iterable[Op], outputs: Iterable[Tensor], forks: Iterable[Fork]
) -> Iterator[Tensor]:
    """Parts of the memory of constants that are read and that no operation has made, but for the constants.

    Two weights of a frozen recurrent layer are two views of one memory, which no operation has made.
    """
    known = set(map(_place, constants))
    times = Counter({constant.storage: 0 for constant in constants})
    for tensor, is_made in _named_by(ops, outputs, forks) if constants else ():
        if tensor.storage in times and _place(tensor) not in known:
            known.add(_place(tensor))
            if not is_made:
                times[tensor.storage] += 1
                yield replace(tensor, name=f"{tensor.storage.name}_{times[tensor.storage]}")


def _named_by(ops: Iterable[Op], outputs: Iterable[Tensor], forks: Iterable[Fork]) -> Iterator[tuple[Tensor, bool]]:
    """Every tensor that a program and its branches read or make, in order; True where it is made."""
    for op in ops:
        yield from ((tensor, False) for tensor in op.tensors())
        yield from ((tensor, True) for tensor in op.outputs)
    for way in (way for fork in forks for way in fork.ways.values()):
        yield from _named_by(way.ops, way.outputs, way.forks)
    yield from ((tensor, False) for tensor in outputs)


def _place(tensor: Tensor) -> tuple[Storage, int, tuple[int, ...], tuple[int, ...]]:
    return tensor.storage, tensor.offset, tensor.shape, tensor.strides


PARAMETER, BUFFER, QUANTISER = StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.QUANTISER


def with_frozen_weights(graph: Graph, rules: OpTable, parts: Iterable[str]) -> Graph:
    """The graph of a model with frozen scripts at these paths, whose constants from rank 1 on are what reads them as.

    Freezing turns every weight into a constant, as ONNX files have them: what an operation's rule
    calls a weight is a parameter, also behind what hands it on as it is. A constant that an
    operation without a rule reads may be one, so that the model's weights are a lower bound.
    """
    stored = _stored_in(graph, parts)
    origin = {storage: storage for storage in stored}
    kinds: dict[Storage, StorageKind] = {}
    readers: dict[Storage, Reader] = {}
    for op in graph.ops:
        for role, tensor in read_in_roles(op, rules.get(op.name)):
            constant = origin.get(tensor.storage)
            if constant is None:
                continue
            if role.carried or (role.picked and not _is_floating(tensor)):
                origin.update({out.storage: constant for out in op.outputs})
            kind = _read_as(role, tensor)
            if kind is PARAMETER or (kind is not None and constant not in kinds):
                kinds[constant] = kind
            elif not role.declared and _is_floating(tensor):
                readers.setdefault(constant, Reader(op.name, role.word))
    unknown = {storage: reader for storage, reader in readers.items() if storage not in kinds}
    weights = (
        replace(
            weight,
            persistent=weight.persistent or weight.tensor.storage in stored,
            unknown_reader=unknown.get(weight.tensor.storage, weight.unknown_reader),
        )
        for weight in graph.weights
    )
    named = {old: replace(old, name=old.name.replace("constant", kind.value), kind=kind) for old, kind in kinds.items()}
    return with_storages(replace(graph, weights=tuple(weights)), named, renames=True)


def _stored_in(graph: Graph, parts: Iterable[str]) -> tuple[Storage, ...]:
    """Constants from rank 1 on that operations of these modules read: a file of theirs stores them."""
    within = (op for op in graph.ops if any(f"{op.scope}.".startswith(f"{part}.") or not part for part in parts))
    read = {tensor.storage for op in within for tensor in op.tensors()}
    constants = (weight.tensor for weight in graph.weights if weight.kind is StorageKind.CONSTANT)
    return tuple(tensor.storage for tensor in constants if tensor.shape and tensor.storage in read)


def _read_as(role: Role, tensor: Tensor) -> StorageKind | None:
    """The kind of a stored tensor that is read in this role; None where that tells nothing."""
    if role.weight or (role.learnt and _is_floating(tensor)):
        return PARAMETER
    if role.statistic or (role.dequantised and not _is_floating(tensor)):  # of which where its floats go decides
        return BUFFER
    return QUANTISER if role.quantises else None


def _is_floating(tensor: Tensor) -> bool:
    return "float" in tensor.dtype.name or "complex" in tensor.dtype.name
