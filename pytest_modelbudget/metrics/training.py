"""``training_macs`` and ``training_memory``: what one step of training computes, and what it holds; and its peak.

All are of a graph of their own, forward and backward, whose weights are all that the step holds.
"""

from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import (
    ByFormula,
    ByWeight,
    Measurement,
    Metric,
    Stage,
    Term,
    summed,
    unmeasured_ops,
)
from pytest_modelbudget.metrics.storage import peak_of, stored_nbytes, unsized_activations

HELD_AS = {
    StorageKind.PARAMETER: "parameters",
    StorageKind.QUANTISER: "parameters",
    StorageKind.GRADIENT: "gradients",
    StorageKind.OPTIMIZER: "optimizer",
}
SAVED = "saved"  # every other kind: what the backward pass will read


def training_memory(costed: CostedGraph) -> Measurement:
    """Bytes of parameters, gradients, what the optimizer keeps, and tensors saved for the backward pass."""
    parts = dict.fromkeys((*HELD_AS.values(), SAVED), 0)
    amounts = costed.once(stored_nbytes)
    for weight, nbytes in amounts:
        parts[HELD_AS.get(weight.kind, SAVED)] += nbytes
    storages = ((weight.tensor.name, weight.scope, weight.tensor.storage.unsized) for weight, _ in amounts)
    unmeasured = unmeasured_ops(storage for storage in storages if storage[-1])
    return summed(((weight.scope, nbytes) for weight, nbytes in amounts), "B", unmeasured, parts=parts)


def training_peak(costed: CostedGraph) -> Measurement:
    """``training_memory``, and as temporaries what lives beyond it at the fullest moment of the step."""
    held = costed.once(training_memory)
    saved = sum(nbytes for weight, nbytes in costed.once(stored_nbytes) if weight.kind is StorageKind.ACTIVATION)
    parts = {**held.parts, "temporaries": max(0, peak_of(costed.graph).nbytes - saved)}
    unmeasured = (*held.unmeasured, *unsized_activations(costed.graph))
    return Measurement(sum(parts.values()), "B", (), unmeasured, parts)


TRAINING_PEAK = Metric("training_peak", "B", "what a step holds at its fullest moment", training_peak)
TRAINING_MACS = Metric(
    "training_macs",
    "MAC",
    "macs of one training step: forward in train mode, and backward",
    macs,
    ByFormula((Term("macs"),)),
    stage=Stage.TRAINED,
)
TRAINING_MEMORY = Metric(
    "training_memory",
    "B",
    "parameters, gradients, optimizer states, and what is saved for the backward pass",
    training_memory,
    ByWeight(stored_nbytes),
    stage=Stage.TRAINED,
    also=("train_memory", "training_peak", "gpu_memory", "optimizer_memory"),
)
