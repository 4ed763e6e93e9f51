"""``params``, ``trainable_params``, ``weight_memory``, ``model_size``, ``peak_activation``: what a model holds."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_modelbudget.graph.graph import Graph, Op, Weight, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import Storage, StorageKind, distinct_nbytes, distinct_values, touched_elements
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import (
    PROGRAM,
    ByWeight,
    Measurement,
    Metric,
    UnmeasuredOp,
    summed,
    unmeasured_ops,
)
from pytest_modelbudget.units import some_of

PARAMETER = StorageKind.PARAMETER
STORED_WITH_WEIGHTS = frozenset({PARAMETER, StorageKind.QUANTISER})
Amounts = Sequence[tuple[Weight, int]]  # what each stored tensor adds to a number


def params(costed: CostedGraph) -> Measurement:
    """Elements of distinct parameters, tied or viewed ones once, unused and frozen ones too."""
    return _stored("param", costed.once(parameter_elements), costed.once(unknown_readers))


def trainable_params(costed: CostedGraph) -> Measurement:
    """Elements of distinct parameters that training would change: no integers."""
    amounts = costed.once(trainable_elements)
    why, is_untold = costed.graph.operations_unknown, any(weight.trainable is None for weight in costed.graph.weights)
    untold = [UnmeasuredOp(PROGRAM, 1, "", why)] if why and is_untold else []
    return _stored("param", amounts, (*_unknown(costed, _may_be_trained), *untold))


def weight_memory(costed: CostedGraph) -> Measurement:
    """Bytes of distinct parameters as stored, scales and zero points included."""
    return _stored("B", costed.once(weight_nbytes), costed.once(unknown_readers))


def model_size(costed: CostedGraph) -> Measurement:
    """Bytes of all that a saved model holds: weight_memory, persistent buffers, what else is in its state dict."""
    return _stored("B", costed.once(saved_nbytes))


def elements_of(weights: Sequence[Weight]) -> int:
    """Distinct logical elements of weights on one storage, packed ones as what they stand for."""
    if len(weights) == 1 and weights[0].packed is None:
        tensor = weights[0].tensor
        return touched_elements(tensor.shape, tensor.strides) * tensor.dtype.values
    plain = (weight.tensor for weight in weights if weight.packed is None)
    return distinct_values(plain) + max((weight.packed or 0 for weight in weights), default=0)


def nbytes_of(weights: Sequence[Weight]) -> int:
    """Distinct bytes of weights on one storage."""
    if len(weights) == 1:
        return weights[0].tensor.touched_nbytes
    return distinct_nbytes(weight.tensor for weight in weights)


def unknown_readers(costed: CostedGraph) -> tuple[UnmeasuredOp, ...]:
    """Operations that may read a parameter where no rule declares one, or several in each integer.

    model_size needs none: it holds every stored tensor, whatever that is.
    """
    return (*_unknown(costed), *_integers_unread(costed.graph))


def _unknown(costed: CostedGraph, concerns: Callable[[Weight], bool] = bool) -> tuple[UnmeasuredOp, ...]:
    """Operations whose use of these weights is unknown, by operator and scope."""
    read: dict[tuple[str, str], list[Weight]] = defaultdict(list)
    for weight in costed.graph.weights:
        if weight.unknown_reader is not None and concerns(weight):
            read[weight.unknown_reader.op, weight.scope].append(weight)
    return tuple(UnmeasuredOp(op, 1, scope, _undeclared(weights)) for (op, scope), weights in read.items())


def _may_be_trained(weight: Weight) -> bool:
    """Whether there may be more to train in it than is counted: in no packed integers, nor in frozen parameters."""
    is_packed = weight.unknown_reader is not None and weight.unknown_reader.unpacks
    return not is_packed and (weight.trainable or weight.kind is not PARAMETER)


def _integers_unread(graph: Graph) -> Iterator[UnmeasuredOp]:
    """Integers of a model that was not run, parameters and matrices of no indices: each may hold several weights."""
    integers = [w for w in graph.weights if w.tensor.dtype.is_integer and w.packed is None and w.tensor.elements > 1]
    names = [f"'{each.tensor.name}'" for each in integers if each.kind is PARAMETER or each.may_be_packed]
    if graph.operations_unknown and names:
        why = f"{some_of(names)} may hold several weights in each integer: {graph.operations_unknown}"
        yield UnmeasuredOp(PROGRAM, 1, "", why)


def _undeclared(weights: Sequence[Weight]) -> str:
    """What is not known of tensors that one operator reads, and how to say it."""
    names = some_of(f"'{weight.tensor.name}'" for weight in weights)
    if any(weight.unknown_reader and weight.unknown_reader.unpacks for weight in weights):
        names = some_of(f"'{weight.tensor.name}' ({weight.tensor.dtype.name})" for weight in weights)
        return (
            f"takes weights out of {names}, and how many is not known: limit model_size instead, "
            "or measure the model before it is quantised"
        )
    readers = (weight.unknown_reader for weight in weights)
    roles = list(dict.fromkeys(reader.role for reader in readers if reader and reader.role))
    if not roles:
        return f"no rule says what it reads {names} as: give it one, with roles"
    way = f'Role("{roles[0]}", weight=True) is a parameter, Role("{roles[0]}") is none'
    unclear = some_of(f"'{role}'" for role in roles)
    return f"its rule leaves open what {unclear} means, as which it reads {names}: {way}"


def _stored(unit: str, amounts: Amounts, unmeasured: tuple[UnmeasuredOp, ...] = ()) -> Measurement:
    return summed([(weight.scope, amount) for weight, amount in amounts], unit, unmeasured)


def shared_storages(costed: CostedGraph) -> frozenset[Storage]:
    """Memory of several weights: tied ones, and views."""
    times = Counter([weight.tensor.storage for weight in costed.graph.weights])
    return frozenset([storage for storage, count in times.items() if count > 1])


def _by_weight(
    counts: Callable[[Weight], bool], amount: Callable[[Sequence[Weight]], int]
) -> Callable[[CostedGraph], Amounts]:
    """The amount each weight adds to its storage, beyond what weights before it already cover."""

    def amounts(costed: CostedGraph) -> Amounts:
        shared = costed.once(shared_storages)
        seen: dict[Storage, list[Weight]] = defaultdict(list)
        found = []
        for weight in filter(counts, costed.graph.weights):
            storage = weight.tensor.storage
            if storage not in shared:
                found.append((weight, amount((weight,))))
                continue
            before = amount(seen[storage]) if seen[storage] else 0
            seen[storage].append(weight)
            found.append((weight, amount(seen[storage]) - before))
        return found

    return amounts


parameter_elements = _by_weight(lambda weight: weight.kind is PARAMETER, elements_of)
trainable_elements = _by_weight(lambda weight: bool(weight.trainable), elements_of)
weight_nbytes = _by_weight(lambda weight: weight.kind in STORED_WITH_WEIGHTS, nbytes_of)
saved_nbytes = _by_weight(lambda weight: weight.persistent or weight.kind in STORED_WITH_WEIGHTS, nbytes_of)
stored_nbytes = _by_weight(lambda weight: True, nbytes_of)

PARAMS = Metric(
    "params",
    "param",
    "elements of distinct parameters; tied or shared ones once",
    params,
    ByWeight(parameter_elements),
    drafted=True,
    also=("parameters", "num_params", "n_params", "num_parameters", "param_count", "weights"),
)
TRAINABLE_PARAMS = Metric(
    "trainable_params",
    "param",
    "parameters with requires_grad=True",
    trainable_params,
    ByWeight(trainable_elements),
    also=("trainable_parameters", "learnable_params", "learnable_parameters"),
)
WEIGHT_MEMORY = Metric(
    "weight_memory",
    "B",
    "bytes of the parameters as stored",
    weight_memory,
    ByWeight(weight_nbytes),
    also=("memory", "param_memory", "param_size", "weight_size", "weights_size", "flash", "rom"),
)
MODEL_SIZE = Metric(
    "model_size",
    "B",
    "weight_memory plus persistent buffers",
    model_size,
    ByWeight(saved_nbytes),
    drafted=True,
    also=("size", "file_size", "disk_size", "checkpoint_size", "state_dict_size"),
)


# What it holds while it runs.


def peak_activation(costed: CostedGraph) -> Measurement:
    """Largest sum of live bytes, after an op's outputs exist and before its operands are freed.

    Weights and kernel scratch memory are not in it. Shares are the storages that live at the
    (first) peak, under the scope of the op that made them; inputs under "".
    """
    owners = [(alive.scope, alive.storage.nbytes) for alive in peak_of(costed.graph).alive]
    return summed(owners, "B", unsized_activations(costed.graph))


@dataclass(frozen=True, slots=True)
class Alive:
    """An activation that lives at a moment, and the scope of the op that made it; an input's is ""."""

    storage: Storage
    scope: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment at which most bytes of activations live: during op, None in a program of none."""

    op: Op | None
    alive: tuple[Alive, ...]

    @property
    def nbytes(self) -> int:
        return sum(each.storage.nbytes for each in self.alive)


def peak_of(graph: Graph) -> Peak:
    """The peak of a program, in the order of its operations."""
    alive = lifetimes(graph)
    live = live_nbytes(alive, positions=max(len(graph.ops), 1))
    at = live.index(max(live))
    makers = {storage: "" for storage, life in alive.items() if life.first <= at <= life.last}
    for op in reversed(graph.ops):
        for output in op.fresh_outputs:
            if output.storage in makers:
                makers[output.storage] = op.scope
    return Peak(graph.ops[at] if graph.ops else None, tuple(map(Alive, makers, makers.values())))


def unsized_activations(graph: Graph) -> tuple[UnmeasuredOp, ...]:
    """Live activations whose size is not known, by the op that makes them."""
    if not any(storage.unsized for storage in graph.written):
        return ()
    inputs = [tensor for tensor in graph.inputs if tensor.storage.unsized]
    made = [(op, output.storage) for op in graph.ops for output in op.fresh_outputs if output.storage.unsized]
    alive = lifetimes(graph) if made else {}
    return unmeasured_ops(
        [
            *((f"input {tensor.name}", "", tensor.storage.unsized) for tensor in inputs),
            *((op.name, op.scope, storage.unsized) for op, storage in made if storage in alive),
        ]
    )


PEAK_ACTIVATION = Metric(
    "peak_activation",
    "B",
    "most bytes of activations alive at once, in execution order",
    peak_activation,
    not_scoped="the peak is one moment of the whole model",
    drafted=True,
    also=("memory", "peak_memory", "max_memory", "ram", "sram", "vram", "activations", "activation_memory"),
)
