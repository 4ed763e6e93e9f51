"""Whether a program fits a device: what each memory has to hold, and the moment at which most lives."""

from dataclasses import dataclass

from pytest_modelbudget.deployment.device import ACTIVATIONS, HOLDS, WEIGHTS, Memory
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.forks import bounded
from pytest_modelbudget.metrics.measurement import UnmeasuredOp
from pytest_modelbudget.metrics.on_device import ACTIVATION_ARENA
from pytest_modelbudget.metrics.storage import Alive, peak_of, stored_nbytes


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of weights and of activations in one memory; a lower bound where something is unmeasured."""

    memory: Memory
    weights: int = 0
    activations: int = 0
    unmeasured: tuple[UnmeasuredOp, ...] = ()

    @property
    def used(self) -> int:
        return self.weights + self.activations

    @property
    def headroom(self) -> int:
        """Bytes that are left of what a model may fill; negative where it does not fit."""
        return self.memory.room - self.used


@dataclass(frozen=True, slots=True)
class Moment:
    """The operation during which most activations live, and those, the largest first."""

    op: str
    scope: str
    alive: tuple[Alive, ...]


@dataclass(frozen=True, slots=True)
class Fitting:
    """How full each memory of a device is. lacking are those of ``HOLDS`` for which it names no memory."""

    uses: tuple[MemoryUse, ...]
    lacking: tuple[str, ...]
    moment: Moment


def fitting(costed: CostedGraph) -> Fitting:
    """The memories of the device, filled: all stored tensors of the program, and its arena.

    Stored tensors are all that the program holds, also buffers that a checkpoint leaves out: a device has no code that
    makes them anew. Inputs and outputs that lie outside the arena are the application's own, and in no memory here.
    """
    holding = {what: costed.device.holding(what) for what in HOLDS}
    stored = sum(nbytes for _, nbytes in costed.once(stored_nbytes))
    placed = bounded(ACTIVATION_ARENA, costed)
    uses = tuple(
        MemoryUse(
            memory,
            stored if memory == holding[WEIGHTS] else 0,
            int(placed.value) if memory == holding[ACTIVATIONS] else 0,
            placed.unmeasured if memory == holding[ACTIVATIONS] else (),
        )
        for memory in costed.device.memories
    )
    peak = peak_of(costed.graph)
    largest = tuple(sorted(peak.alive, key=lambda each: -each.storage.nbytes))
    moment = Moment(peak.op.name if peak.op else "", peak.op.scope if peak.op else "", largest)
    return Fitting(uses, tuple(what for what, memory in holding.items() if memory is None), moment)
