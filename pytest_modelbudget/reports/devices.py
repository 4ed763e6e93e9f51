"""A model on a device as reports have it: what was not lowered, its arena, how full each memory is, its peak.

{"left": [{"op": "aten::view", "scope": "head", "why": "..."}], "memories": [{"name": "sram", ...}],
 "arena": {"planner": "greedy_by_size", "align": 16, "nbytes": 48, "bound": 48, "offsets": [...]}}
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_modelbudget.deployment.arena import Arena, as_json
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.metrics.on_device import Fitting
from pytest_modelbudget.reports.json_records import Record, always, like
from pytest_modelbudget.reports.text import share_lines
from pytest_modelbudget.units import exact, readable, several

MOST_ALIVE = 5  # activations that a failure names
MOST_LEFT = 3  # kinds of steps that a note names


class LeftStep(Record, frozen=True, kw_only=True):
    """An operation that was not lowered, and why."""

    op: str
    scope: str
    why: str


class PlacedBuffer(Record, frozen=True, kw_only=True):
    """An activation in the arena: its offset, and its first and last operation by position."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int


class ArenaReport(Record, frozen=True, kw_only=True):
    """All activations in one buffer; bound is the most that lives at once, which no planner gets below."""

    planner: str
    align: int
    nbytes: int
    bound: int
    offsets: tuple[PlacedBuffer, ...] = always(())


class FilledMemory(Record, frozen=True, kw_only=True):
    """A memory of a device: its bytes, the reserved ones, and what a model fills, a lower bound unless complete."""

    name: str
    size: int
    reserve: int
    weights: int
    activations: int
    complete: bool = always(True)

    @property
    def used(self) -> int:
        return self.weights + self.activations

    @property
    def room(self) -> int:
        return self.size - self.reserve


class LivingTensor(Record, frozen=True, kw_only=True):
    """An activation that lives at the peak, and the layer that made it ("" of an input)."""

    name: str
    scope: str
    nbytes: int


class PeakReport(Record, frozen=True, kw_only=True):
    """The operation during which most activations live, those, the largest first, and the parts of a training step."""

    op: str
    scope: str
    alive: tuple[LivingTensor, ...] = always(())
    parts: Mapping[str, int] = {}


# Made of what was measured.


def arena_report(arena: Arena) -> ArenaReport:
    """The arena with the place of each activation."""
    return like(ArenaReport, arena, offsets=as_json(arena))


def filled_memories(fit: Fitting) -> Iterator[FilledMemory]:
    """Each memory of a device, with what a model fills of it."""
    for use in fit.uses:
        yield like(FilledMemory, use, name=use.memory.name, size=use.memory.size, reserve=use.memory.reserve,
                   complete=not use.unmeasured)  # fmt: skip


def peak_report(fit: Fitting) -> PeakReport:
    """The operation during which most activations live, and those; none where sizes are unknown."""
    if any(use.unmeasured for use in fit.uses):
        return PeakReport(op="", scope="")
    alive = tuple(
        LivingTensor(name=each.storage.name, scope=each.scope, nbytes=each.storage.nbytes) for each in fit.moment.alive
    )
    return PeakReport(op=fit.moment.op, scope=fit.moment.scope, alive=alive, parts=fit.parts)


# In words.


def deployment_notes(model: DeployedModel) -> Iterator[str]:
    """What a reader of the numbers must know: first what stayed in a floating type, then what was not lowered."""
    if model.measured.reservation:
        yield model.measured.reservation
    reasons = Counter((step.op, step.why) for step in model.left)
    for (op, why), count in list(reasons.items())[:MOST_LEFT]:
        yield f"{several(count, op, op)} {why}"
    if len(reasons) > MOST_LEFT:
        yield f"and {several(len(reasons) - MOST_LEFT, 'other reason')} why operations were left as they are"
    if model.order and not model.order.proved:
        least, found = readable(model.order.bound, "B"), readable(model.order.nbytes, "B")
        yield f"the best order is not proved: the best one found needs {found}, and none needs less than {least}"
    if model.arena and model.arena.gap:
        gap, bound = exact(model.arena.gap, "B"), exact(model.arena.bound, "B")
        yield f"the arena by {model.arena.planner} is {gap} above the {bound} that live at once"


def peak_lines(peak: PeakReport) -> Iterator[str]:
    """The operation during which most lives, and the largest of what does."""
    if not peak.op:
        return
    if peak.parts:
        yield "  parts of a training step"
        parts = sorted(peak.parts.items(), key=lambda part: -part[1])
        yield from share_lines((part, f"{nbytes:,}") for part, nbytes in parts)
    total = sum(tensor.nbytes for tensor in peak.alive)
    yield f"  {exact(total, 'B')} alive during {peak.op} in {scope_text(peak.scope)}"
    shown = peak.alive[:MOST_ALIVE]
    yield from share_lines((f"{each.name}, made in {scope_text(each.scope)}", f"{each.nbytes:,}") for each in shown)
    if len(peak.alive) > MOST_ALIVE:
        yield f"  and {len(peak.alive) - MOST_ALIVE} smaller ones"
