"""Load → run → see: the values of a model's layers, and the time and memory of its calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pytest_modelbudget.budget.budget import StatisticsCheck
from pytest_modelbudget.budget.ruling import RunCheck, Seen
from pytest_modelbudget.equivalence import inputs as draws
from pytest_modelbudget.errors import ModelBudgetError, SourceError, TransformError, user_code
from pytest_modelbudget.formats.model import Model, must_run
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.stopwatch import MissingDeviceError, Plan, Stopped
from pytest_modelbudget.gate.measuring import first_on_path, undisturbed
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.values import capture

T = TypeVar("T")


class Elsewhere(Protocol):
    """Another process that runs a model within bounds."""

    def observe(self, source: ModelSource, check: StatisticsCheck) -> Seen[capture.Captured]: ...

    def time(self, source: ModelSource, plan: Plan) -> Seen[Stopped]: ...


def seen(
    source: ModelSource, check: RunCheck, registry: Tables, *, root: Path, elsewhere: Elsewhere | None = None
) -> Seen[Any]:
    """What a check is about, in this process or in another one."""
    if isinstance(check, StatisticsCheck):
        return elsewhere.observe(source, check) if elsewhere else observed(source, check, registry, root=root)
    return elsewhere.time(source, check.plan) if elsewhere else timed(source, check.plan, registry, root=root)


def observed(source: ModelSource, check: StatisticsCheck, registry: Tables, *, root: Path) -> Seen[capture.Captured]:
    """The statistics of the layers that a check is about."""

    def see(model: Model) -> capture.Captured:
        return capture.statistics_of(
            model, check.selection, check.inputs, sigmas=check.sigmas, channel_axis=check.channels
        )

    return _seen(source, registry, root, see)


def timed(source: ModelSource, plan: Plan, registry: Tables, *, root: Path) -> Seen[Stopped]:
    """What the calls of a model take, on one draw of its inputs, seed 0."""

    def see(model: Model) -> Stopped:
        runnable = must_run(model, "so that no run of it is measured: leave out 'measured'")
        specs = runnable.inputs.specs
        family = draws.families_of(list(specs.values()), draws.FAMILIES[:1])[0]
        return runnable.timed(draws.drawn(specs, draws.Row(family, 0), draws.SCALES[0]), plan)

    return _seen(source, registry, root, see)


def _seen(source: ModelSource, registry: Tables, root: Path, see: Callable[[Model], T]) -> Seen[T]:
    with undisturbed(registry.formats[source.format]):
        try:
            with first_on_path(root):
                with user_code("loading the model", SourceError):
                    model = registry.formats[source.format].load(source, registry.ops)
                with user_code("running the model", TransformError):
                    return Seen(see(model))
        except ModelBudgetError as error:
            return Seen(failure=str(error), is_missing=isinstance(error, MissingDeviceError))
