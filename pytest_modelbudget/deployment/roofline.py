"""The least time that an operation can take on a device, and what takes it: its products, or the bytes it moves.

Exact arithmetic on a profile's figures, for operations that run one after another: a lower bound, never a prediction.
Source: Williams, Waterman, Patterson, "Roofline", 2009, with a line for each memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.deployment.device import ACTIVATIONS, WEIGHTS, Device
from pytest_modelbudget.errors import UnmeasurableError

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class TimeBound:
    """Seconds, or joules, that each side of a device needs for one operation: ``compute``, and memories by name."""

    sides: Mapping[str, Fraction]

    @property
    def seconds(self) -> Fraction:
        """All sides work at once: the slowest one decides."""
        return max(self.sides.values(), default=Fraction(0))

    @property
    def binds(self) -> str:
        """The slowest side; compute where a memory takes just as long, "" where nothing is to be done."""
        return max(self.sides, key=lambda side: self.sides[side]) if self.seconds else ""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a device takes for a MAC by its type, and for a byte by its memory; the last two name these figures."""

    device: Device
    macs: Mapping[str, Fraction]
    nbytes: Mapping[str, Fraction | None]
    of_mac: str
    of_byte: str

    def of(self, *, macs: int, dtype: str, weights: int, activations: int) -> TimeBound:
        """What one operation takes on each side: for MACs of operands of a type, and for bytes that it moves."""
        sides: dict[str, Fraction] = {}
        if macs:
            sides[COMPUTE] = macs * self._known(self.macs.get(dtype), f"{self.of_mac} of {dtype} MACs")
        for what, nbytes in ((WEIGHTS, weights), (ACTIVATIONS, activations)):
            memory = self.device.holding(what) if nbytes else None
            if memory is not None:
                price = self._known(self.nbytes[memory.name], f"{self.of_byte} of its memory {memory.name}")
                sides[memory.name] = sides.get(memory.name, Fraction(0)) + nbytes * price
            elif nbytes:
                raise UnmeasurableError(f"no memory of {self.device.name} holds {what}")
        return TimeBound(sides)

    def _known(self, price: Fraction | None, words: str) -> Fraction:
        if price is None:
            raise UnmeasurableError(f"{self.device.name} gives no {words}")
        return price


def times(device: Device) -> Prices:
    """The seconds that a device takes for a MAC, and for a byte, at its peak rates."""
    rates = {name: 1 / rate for name, rate in device.macs.items() if rate}
    bandwidths = {memory.name: 1 / memory.bandwidth if memory.bandwidth else None for memory in device.memories}
    return Prices(device, rates, bandwidths, "rate", "bandwidth")


def energies(device: Device) -> Prices:
    """The joules that a device takes for a MAC, and for a byte."""
    return Prices(device, device.energy, {memory.name: memory.energy for memory in device.memories}, *["energy"] * 2)
