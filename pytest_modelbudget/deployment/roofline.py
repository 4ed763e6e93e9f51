"""The least time that an operation can take on a device, and what takes it: its products, or the bytes it moves.

Exact arithmetic on a profile's figures, for operations that run one after another: a lower bound, never a prediction.
Source: Williams, Waterman, Patterson, "Roofline", 2009, with a line for each memory.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.deployment.device import ACTIVATIONS, WEIGHTS, Device
from pytest_modelbudget.errors import UnmeasurableError

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class TimeBound:
    """Seconds that each side of a device needs for one operation: ``compute``, and memories by name."""

    sides: Mapping[str, Fraction]

    @property
    def seconds(self) -> Fraction:
        """All sides work at once: the slowest one decides."""
        return max(self.sides.values(), default=Fraction(0))

    @property
    def binds(self) -> str:
        """The slowest side; compute where a memory takes just as long, "" where nothing is to be done."""
        return max(self.sides, key=lambda side: self.sides[side]) if self.seconds else ""


def time_bound(device: Device, *, macs: int, dtype: str, weights: int, activations: int) -> TimeBound:
    """The bound of one operation: MACs of operands of a type, bytes of weights and of activations that it moves.

    Raises UnmeasurableError, which names it, for a rate or bandwidth that the operation needs and the profile lacks.
    """
    sides: dict[str, Fraction] = {}
    if macs:
        sides[COMPUTE] = macs / _rate(device, dtype)
    moved: Counter[str] = Counter()
    for what, nbytes in ((WEIGHTS, weights), (ACTIVATIONS, activations)):
        if nbytes:
            moved[_memory(device, what)] += nbytes
    bandwidths = {memory.name: memory.bandwidth for memory in device.memories}
    for name, nbytes in moved.items():
        bandwidth = bandwidths[name]
        if not bandwidth:
            raise UnmeasurableError(f"{device.name} gives no bandwidth of its memory {name}")
        sides[name] = nbytes / bandwidth
    return TimeBound(sides)


def _rate(device: Device, dtype: str) -> Fraction:
    rate = device.macs.get(dtype)
    if not rate:
        raise UnmeasurableError(f"{device.name} gives no rate of {dtype} MACs")
    return rate


def _memory(device: Device, what: str) -> str:
    memory = device.holding(what)
    if memory is None:
        raise UnmeasurableError(f"no memory of {device.name} holds {what}")
    return memory.name
