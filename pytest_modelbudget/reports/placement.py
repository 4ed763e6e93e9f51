"""The entries that only a model on a device has: what was not lowered, its arena, how full each memory is, its peak.

{"left": [{"op": "aten::view", "scope": "head", "why": "..."}], "memories": [{"name": "sram", ...}],
 "arena": {"planner": "greedy_by_size", "align": 16, "nbytes": 48, "bound": 48, "offsets": [...]}}
"""

from dataclasses import dataclass

from pytest_modelbudget.reports.typed_json import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftStep(Entry):
    """An operation that was not lowered, and why."""

    op: str
    scope: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBuffer(Entry):
    """An activation in the arena: its offset, and its first and last operation by position."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaReport(Entry):
    """All activations in one buffer; bound is the most that lives at once, which no planner gets below."""

    planner: str
    align: int
    nbytes: int
    bound: int
    offsets: tuple[PlacedBuffer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledMemory(Entry):
    """A memory of a device: its bytes, the reserved ones, and what a model fills, a lower bound unless complete."""

    name: str
    size: int
    reserve: int
    weights: int
    activations: int
    complete: bool = True

    @property
    def used(self) -> int:
        """Bytes that the model fills."""
        return self.weights + self.activations

    @property
    def room(self) -> int:
        """Bytes that it may fill."""
        return self.size - self.reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingTensor(Entry):
    """An activation that lives at the peak, and the layer that made it ("" of an input)."""

    name: str
    scope: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakReport(Entry):
    """The operation during which most bytes of activations live, and those activations, the largest first."""

    op: str
    scope: str
    alive: tuple[LivingTensor, ...] = ()
