"""A model on a device as reports have it: what became of the program, its arena, and how full each memory is."""

from collections.abc import Iterator
from typing import Any

from pytest_modelbudget.budget.budget import FITS, DeploymentCheck
from pytest_modelbudget.budget.deployment_forms import lower_texts
from pytest_modelbudget.budget.fit_verdict import FitVerdict
from pytest_modelbudget.deployment.arena import Arena, as_json
from pytest_modelbudget.metrics.fitting import Fitting
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.placement import (
    ArenaReport,
    FilledMemory,
    LeftStep,
    LivingTensor,
    PeakReport,
    PlacedBuffer,
)
from pytest_modelbudget.units import exact, readable, several

MOST_ALIVE = 5  # activations that a failure names
MOST_LEFT = 3  # kinds of steps that a note names


def deployment_notes(model: DeployedModel) -> Iterator[str]:
    """What a reader of the numbers must know: first what stayed in a floating type, then what was not lowered."""
    if model.measured.reservation:
        yield model.measured.reservation
    reasons: dict[tuple[str, str], int] = {}
    for step in model.left:
        reasons[step.op, step.why] = reasons.get((step.op, step.why), 0) + 1
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


def deployment_report(subject: dict[str, Any], check: DeploymentCheck, model: DeployedModel) -> record.DeploymentReport:
    """One deployment of a model, before its checks; subject are the fields that every subject has."""
    deployment = check.deployment
    left = tuple(LeftStep(op=step.op, scope=step.scope, why=step.why) for step in model.left)
    return record.DeploymentReport(
        **{**subject, "notes": (*deployment_notes(model), *subject["notes"])},
        name=check.name,
        device=deployment.device.name,
        lower=lower_texts(deployment.lowering),
        left=left,
        arena=_arena(model.arena) if model.arena else None,
        memories=tuple(_memories(model.fitting)) if model.fitting else (),
        peak=peak_report(model.fitting) if model.fitting else None,
        profile=model.measured.profile or "",
    )


def _arena(arena: Arena) -> ArenaReport:
    offsets = tuple(PlacedBuffer(**row) for row in as_json(arena))  # type: ignore[arg-type]
    return ArenaReport(
        planner=arena.planner, align=arena.align, nbytes=arena.nbytes, bound=arena.bound, offsets=offsets
    )


def _memories(fit: Fitting) -> Iterator[FilledMemory]:
    for use in fit.uses:
        yield FilledMemory(
            name=use.memory.name, size=use.memory.size, reserve=use.memory.reserve, weights=use.weights,
            activations=use.activations, complete=not use.unmeasured,
        )  # fmt: skip


def peak_report(fit: Fitting) -> PeakReport:
    """The operation during which most activations live, and those; none where sizes are unknown."""
    if any(use.unmeasured for use in fit.uses):
        return PeakReport(op="", scope="")
    alive = tuple(
        LivingTensor(name=each.storage.name, scope=each.scope, nbytes=each.storage.nbytes) for each in fit.moment.alive
    )
    return PeakReport(op=fit.moment.op, scope=fit.moment.scope, alive=alive)


def fit_check(node_id: str, verdict: FitVerdict) -> record.Check:
    """The check of all memories as one check among others."""
    return record.Check(
        id=node_id,
        metric=FITS,
        outcome=verdict.outcome,
        line=verdict.check.fits.line if verdict.check.fits else None,
        reason=verdict.reason,
        measured=verdict.measured,
        allowed=verdict.allowed,
    )
