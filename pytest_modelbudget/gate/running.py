"""Load → run → see: the values of a model's layers, and the time and memory of its calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pytest_modelbudget.budget.budget import ValuesRun
from pytest_modelbudget.budget.kinds import Observation
from pytest_modelbudget.errors import ModelBudgetError, SourceError, TransformError, user_code
from pytest_modelbudget.formats.benchmark import MissingDeviceError, Plan, Timing
from pytest_modelbudget.formats.model import Model, must_run
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate.measuring import undisturbed
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.values import capture

T = TypeVar("T")


def observe_layers(
    source: ModelSource, run: ValuesRun, registry: Tables, *, root: Path
) -> Observation[capture.Captured]:
    """The statistics of the layers that limits are about."""

    def see(model: Model) -> capture.Captured:
        return capture.statistics_of(model, run.selection, run.inputs, sigmas=run.sigmas, channel_axis=run.channels)

    return _observation(source, registry, root, see)


def time_model(source: ModelSource, plan: Plan, registry: Tables, *, root: Path) -> Observation[Timing]:
    """What the calls of a model take, on one draw of its inputs, seed 0."""

    def see(model: Model) -> Timing:
        runnable = must_run(model, "so that no run of it is measured: leave out 'runtime'")
        calls, _ = capture.NamedInputs(seeds=(0,)).calls(runnable)
        return runnable.timed(next(iter(calls())), plan)

    return _observation(source, registry, root, see)


def _observation(source: ModelSource, registry: Tables, root: Path, see: Callable[[Model], T]) -> Observation[T]:
    with undisturbed(registry.formats[source.format]):
        try:
            with searched_first(source.searched(root)):
                with user_code("loading the model", SourceError):
                    model = registry.formats[source.format].load(source, registry.ops)
                with user_code("running the model", TransformError):
                    return Observation(see(model))
        except ModelBudgetError as error:
            return Observation(failure=str(error), lacks_device=isinstance(error, MissingDeviceError))
