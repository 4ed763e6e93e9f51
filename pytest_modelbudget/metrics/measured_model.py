"""A model as every metric measured it: as it is written, and on each device that a ``Deployment`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_modelbudget.deployment.arena import Arena
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.deployment.order import BestOrder
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.lowering.program import Step
from pytest_modelbudget.metrics.branches import Branch
from pytest_modelbudget.metrics.compute import OpCount, Operation
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.on_device import Fitting, Timed


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Every number of one model, or why there is none.

    failure is set where the model could not be loaded, and all else is then empty. failures holds the metrics that
    could not be worked out, by key. branches are those that data decide on, of which the census counts one each. scopes
    are the paths of all its modules. parts, by metric, are kept only where a lock file is to be written or compared.
    profile is what somebody asked for of the graph beyond metrics: for a page, JSON text. seconds is wall time, for
    eyes only. deployments are the same model on devices, as far as these were asked. reservation is what every failure
    says of the program that was measured. of_nothing are metrics that a run decides, of a run on nothing: no input has
    an element. defined_at is the file and line of the callable that built it.
    """

    format: str
    traced: str = ""
    notes: tuple[str, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, ModelBudgetError] = field(default_factory=dict)
    census: tuple[OpCount, ...] = ()
    branches: tuple[Branch, ...] = ()
    operations: tuple[Operation, ...] = ()
    scopes: tuple[str, ...] = ()
    profile: Any = None
    failure: ModelBudgetError | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    deployments: tuple[DeployedModel, ...] = ()
    reservation: str = ""
    of_nothing: tuple[str, ...] = ()
    defined_at: str = ""

    def on(self, deployment: Deployment) -> DeployedModel:
        """The model on a device; with the model's own failure where that could not be measured."""
        if self.failure is not None:
            return DeployedModel(deployment, MeasuredModel(self.format, failure=self.failure))
        return next(each for each in self.deployments if each.deployment == deployment)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A device, and what its compiler makes of a program; named by its budget. is_trained: a training step must fit."""

    name: str
    device: Device
    lowering: Lowering = field(default_factory=Lowering)
    is_trained: bool = False


@dataclass(frozen=True, slots=True)
class DeployedModel:
    """A model on a device: every number of the lowered program, and what they rest on.

    done and left are what lowering changed, and could not. arena, order and fitting are None where measured has a
    failure; so is timed, whose operations are the points of a roofline.
    """

    deployment: Deployment
    measured: MeasuredModel
    done: tuple[Step, ...] = ()
    left: tuple[Step, ...] = ()
    arena: Arena | None = None
    order: BestOrder | None = None
    fitting: Fitting | None = None
    timed: Timed | None = None
