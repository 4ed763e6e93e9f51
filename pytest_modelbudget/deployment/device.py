"""A device as budgets know it: memories, peak rates, how activations are placed, an array of multipliers.

What a source does not say is left out, and makes unknown whatever needs it: never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from pytest_modelbudget.deployment.arena import PLANNERS
from pytest_modelbudget.deployment.array import Array
from pytest_modelbudget.errors import DeviceError

WEIGHTS, ACTIVATIONS = "weights", "activations"
HOLDS = (WEIGHTS, ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory: what it holds (of ``HOLDS``), its size, and what others have of it, in bytes.

    bandwidth is in B/s, energy in J for each byte that is read or written.

    Where its size was said in KiB or MiB, it is binary, and shown so.
    """

    name: str
    size: int
    holds: tuple[str, ...]
    reserve: int = 0
    bandwidth: Fraction | None = None
    energy: Fraction | None = None
    source: str = ""
    binary: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.holds or not set(self.holds) <= set(HOLDS):
            raise DeviceError(f"the memory {self.name} holds {' or '.join(HOLDS)}, or both")
        if not 0 <= self.reserve <= self.size or not self.size:
            raise DeviceError(f"the memory {self.name} has {self.size} B, of which {self.reserve} B are reserved")

    @property
    def room(self) -> int:
        """Bytes that a model may fill."""
        return self.size - self.reserve


@dataclass(frozen=True, slots=True)
class ArenaRules:
    """How a runtime places activations: by a planner of ``PLANNERS``, aligned in bytes.

    io_inside says whether the graph's own inputs and outputs lie in the arena.
    """

    planner: str = "greedy_by_size"
    align: int = 16
    io_inside: bool = True

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise DeviceError(f"there is no planner '{self.planner}': {', '.join(PLANNERS)}")
        if self.align < 1:
            raise DeviceError(f"an alignment of {self.align} B: it is 1 or more")


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its name, and where its figures come from.

    macs are peak rates in MAC/s, energy is in J/MAC, both by the type of the operands; clock is the array's, in Hz.
    """

    name: str
    memories: tuple[Memory, ...] = ()
    macs: Mapping[str, Fraction] = field(default_factory=dict)
    energy: Mapping[str, Fraction] = field(default_factory=dict)
    arena: ArenaRules = field(default_factory=ArenaRules)
    array: Array | None = None
    clock: Fraction | None = None
    source: str = ""

    def holding(self, what: str) -> Memory | None:
        """The memory that holds weights, or activations; None where the profile names none."""
        memories = [memory for memory in self.memories if what in memory.holds]
        if len(memories) > 1:
            names = " and ".join(memory.name for memory in memories)
            raise DeviceError(f"{names} of {self.name} hold {what}: one memory alone may")
        return memories[0] if memories else None
