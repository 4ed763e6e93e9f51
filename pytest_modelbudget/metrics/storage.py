"""``params``, ``trainable_params``, ``weight_memory``, ``model_size``: what a model stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from pytest_modelbudget.graph.graph import Weight
from pytest_modelbudget.graph.region import distinct_elements
from pytest_modelbudget.graph.tensor import Storage, StorageKind, distinct_nbytes
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import ByWeight, Measurement, Metric, UnmeasuredOp, shares_of

STORED_WITH_WEIGHTS = frozenset({StorageKind.PARAMETER, StorageKind.QUANTISER})
MOST_NAMED = 3  # stored tensors that one line names
WeightAmounts = Iterator[tuple[Weight, int]]  # what each stored tensor adds to a number


def params(costed: CostedGraph) -> Measurement:
    """Elements of distinct parameters, tied or viewed ones once, unused and frozen ones too."""
    return _stored("param", parameter_elements(costed), unknown_readers(costed))


def trainable_params(costed: CostedGraph) -> Measurement:
    """Elements of distinct parameters that training would change."""
    return _stored("param", trainable_elements(costed), unknown_readers(costed))


def weight_memory(costed: CostedGraph) -> Measurement:
    """Bytes of distinct parameters as stored, scales and zero points included."""
    return _stored("B", weight_nbytes(costed), unknown_readers(costed))


def model_size(costed: CostedGraph) -> Measurement:
    """Bytes of all that a saved model holds: parameters and persistent buffers."""
    return _stored("B", saved_nbytes(costed))


def parameter_elements(costed: CostedGraph) -> WeightAmounts:
    """The elements of each parameter, as ``params`` adds them up."""
    return _by_weight(costed, lambda weight: weight.kind is StorageKind.PARAMETER, elements_of)


def trainable_elements(costed: CostedGraph) -> WeightAmounts:
    """The elements of each parameter that training would change."""
    return _by_weight(costed, lambda weight: weight.trainable, elements_of)


def weight_nbytes(costed: CostedGraph) -> WeightAmounts:
    """The bytes of each parameter, as ``weight_memory`` adds them up."""
    return _by_weight(costed, lambda weight: weight.kind in STORED_WITH_WEIGHTS, nbytes_of)


def saved_nbytes(costed: CostedGraph) -> WeightAmounts:
    """The bytes of each stored tensor, as ``model_size`` adds them up."""
    return _by_weight(costed, lambda weight: weight.persistent, nbytes_of)


def elements_of(weights: Sequence[Weight]) -> int:
    """Distinct logical elements of weights on one storage, packed ones as what they stand for."""
    if len(weights) == 1 and weights[0].packed is None:
        return weights[0].tensor.region.elements
    plain = (weight.tensor.region for weight in weights if weight.packed is None)
    return distinct_elements(plain) + max((weight.packed or 0 for weight in weights), default=0)


def nbytes_of(weights: Sequence[Weight]) -> int:
    """Distinct bytes of weights on one storage."""
    if len(weights) == 1:
        return weights[0].tensor.touched_nbytes
    return distinct_nbytes(weight.tensor for weight in weights)


def unknown_readers(costed: CostedGraph) -> tuple[UnmeasuredOp, ...]:
    """Operations that may read a parameter where no rule declares one, by operator and scope.

    model_size needs none: it holds every stored tensor, whatever that is.
    """
    read: dict[tuple[str, str], list[Weight]] = defaultdict(list)
    for weight in costed.graph.weights:
        if weight.unknown_reader is not None:
            read[weight.unknown_reader.op, weight.scope].append(weight)
    return tuple(UnmeasuredOp(op, 1, scope, _undeclared(weights)) for (op, scope), weights in read.items())


def _undeclared(weights: Sequence[Weight]) -> str:
    """What is not known of tensors that one operator reads, and how to say it."""
    names = _listed([weight.tensor.name for weight in weights])
    readers = [weight.unknown_reader for weight in weights]
    roles = list(dict.fromkeys(reader.role for reader in readers if reader and reader.role))
    if not roles:
        return f"no rule says what it reads {names} as: give it one, with roles"
    way = f'Role("{roles[0]}", weight=True) is a parameter, Role("{roles[0]}") is none'
    return f"its rule leaves open what {_listed(roles)} means, as which it reads {names}: {way}"


def _listed(words: Sequence[str]) -> str:
    rest = len(words) - MOST_NAMED
    named = ", ".join(f"'{word}'" for word in words[:MOST_NAMED])
    return f"{named} and {rest} more" if rest > 0 else named


def _stored(unit: str, amounts: WeightAmounts, unmeasured: tuple[UnmeasuredOp, ...] = ()) -> Measurement:
    contributions = [(weight.scope, amount) for weight, amount in amounts]
    value = sum(share for _, share in contributions)
    return Measurement(value, unit, shares=shares_of(contributions), unmeasured=unmeasured)


def _by_weight(
    costed: CostedGraph, counts: Callable[[Weight], bool], amount: Callable[[Sequence[Weight]], int]
) -> WeightAmounts:
    """The amount each weight adds to its storage, beyond what weights before it already cover."""
    seen: dict[Storage, list[Weight]] = defaultdict(list)
    for weight in costed.graph.weights:
        if not counts(weight):
            continue
        same_memory = seen[weight.tensor.storage]
        before = amount(same_memory) if same_memory else 0
        same_memory.append(weight)
        yield weight, amount(same_memory) - before


PARAMS = Metric(
    "params",
    "param",
    "elements of distinct parameters; tied or shared ones once",
    params,
    how=ByWeight(parameter_elements),
    drafted=True,
)
TRAINABLE_PARAMS = Metric(
    "trainable_params",
    "param",
    "those of them that training would change",
    trainable_params,
    how=ByWeight(trainable_elements),
)
WEIGHT_MEMORY = Metric(
    "weight_memory", "B", "bytes of those parameters as stored", weight_memory, how=ByWeight(weight_nbytes)
)
MODEL_SIZE = Metric(
    "model_size", "B", "weight_memory plus persistent buffers", model_size, how=ByWeight(saved_nbytes), drafted=True
)
