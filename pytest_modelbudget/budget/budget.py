"""Budgets as plain data: what a file asks for, each thing with its file and line; and node ids of what it holds.

``resnet18`` of ``budgets/vision.yaml`` drawn once::

    Budget("budgets/vision.yaml", models=(
        ModelBudget("resnet18", Place(...),
                    ModelSource("torch", "torchvision.models:resnet18",
                                InputSpecs((TensorSpec("float32", (1, 3, 224, 224)),))),
                    limits=(Limit("params", Place(...), max=11_700_000),
                            Limit("bandwidth", Place(...), max=118_000_000, level="warn"))),))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from fractions import Fraction
from typing import ClassVar, Union

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import BudgetError, ModelBudgetError
from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.units import Number
from pytest_modelbudget.values.capture import CHANNELS, SIGMAS, NamedInputs, Selection


class Level(str, Enum):
    """Says what being over a limit means; unknown fails at any level."""

    ERROR = "error"
    WARN = "warn"


class Loosen(str, Enum):
    """Says what a change that makes a limit easier to keep means; it is said aloud in any case."""

    WARN = "warn"
    FORBID = "forbid"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a budget file; line and column count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An exception that somebody granted beside a limit: up to an amount, itself included, through a day, for a reason.

    end is the end of the limit, "max" or "min", that it reaches beyond; written is the amount as the file spells it.
    """

    place: Place
    to: Number
    reason: str
    until: date
    by: str = ""
    written: str = ""
    end: str = "max"

    @property
    def words(self) -> str:
        """What is accepted, and why: "accepted to 12.4 M until 2027-01-31 by Ann: the head is being replaced"."""
        who = f" by {self.by}" if self.by else ""
        return f"accepted to {self.written} until {self.until}{who}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one metric, both ends inclusive, on a whole model or on the scopes of a glob.

    grow is a share of the locked value (2% is 1/50) and floor an amount: the larger of the two may
    be added to that value. auto names the ends, "max" or "min", that are still to be filled in:
    until then the limit holds nothing and is unknown. accept is an exception to it.
    """

    metric: str
    place: Place
    max: Number | None = None
    min: Number | None = None
    level: Level = Level.ERROR
    allow_unmeasured: tuple[str, ...] = ()
    scope: str | None = None
    written: str = ""  # the quantity as the file spells it: max, else min
    grow: Fraction | None = None
    floor: int = 0
    auto: tuple[str, ...] = ()
    accept: Acceptance | None = None

    def __post_init__(self) -> None:
        if self.max is None and self.min is None and self.grow is None and not self.auto:
            raise BudgetError(f"{self.place}: the limit on {self.metric} has neither max nor min")

    @property
    def name(self) -> str:
        """The name of its check: "macs", or "macs@layer4.*" of a part of the model."""
        return self.metric if self.scope is None else f"{self.metric}@{self.scope}"

    def allowed(self, baseline: int) -> int | None:
        """The largest value that is within, seen from a locked one; None where it may grow."""
        if self.grow is None:
            return None
        return baseline + max((self.grow * baseline).__floor__(), self.floor)


@dataclass(frozen=True, slots=True)
class OpsLimit:
    """Which operations a model may execute: by kind, or by foreign name ("aten::lstm")."""

    metric: ClassVar[str] = "ops"
    place: Place
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    max: Mapping[str, int] = field(default_factory=dict)
    level: Level = Level.ERROR
    allow_unmeasured: tuple[str, ...] = ()
    scope: str | None = None

    @property
    def name(self) -> str:
        """The name of its check: "ops", or "ops@layer4.*" of a part of the model."""
        return self.metric if self.scope is None else f"{self.metric}@{self.scope}"


AnyLimit = Union[Limit, OpsLimit]
# What checks without an amount are called, and their metrics in a report: of a claim, and of a device's memories.
EQUIVALENCE, FITS = "equivalence", "fits"


@dataclass(frozen=True, slots=True)
class EquivalenceCheck:
    """The claim that a transformed model's outputs are still the same, and where it is made."""

    place: Place
    claim: Claim


@dataclass(frozen=True, slots=True)
class DeploymentCheck:
    """A model on a device, and what must hold there; fits is where it must fit in every memory, None where it need not.

    declared_at tells where the file says each key.
    """

    place: Place
    deployment: Deployment
    fits: Place | None = None
    limits: tuple[AnyLimit, ...] = ()
    declared_at: Mapping[str, Place] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that the file gives it."""
        return self.deployment.name

    @property
    def failing_at(self) -> Place:
        """Where the file says what fails if the model cannot be lowered."""
        return self.place


@dataclass(frozen=True, slots=True)
class TransformCheck:
    """One change to a model, under a name of the user's choice, and what must hold after it.

    transform is a key of the transform table, settings what it is given, all of them present. declared_at tells where
    the file says each setting that it gives and, as "transform", which one it is.
    """

    name: str
    place: Place
    transform: str
    settings: Mapping[str, object]
    equivalence: EquivalenceCheck | None = None
    limits: tuple[AnyLimit, ...] = ()
    declared_at: Mapping[str, Place] = field(default_factory=dict)
    deployments: tuple[DeploymentCheck, ...] = ()

    @property
    def failing_at(self) -> Place:
        """Where the file says what cannot be done: the model to compare with, or which transform it is."""
        models = [key for key, value in self.settings.items() if isinstance(value, ModelSource)]
        return place_of_first(self, *models, "transform")


@dataclass(frozen=True, slots=True)
class StatisticsCheck:
    """What is held of the values that chosen layers give on named inputs; each limit has its scope's name.

    channels is the axis of channels, sigmas the number of deviations around the mean that a range spans.
    """

    name: str
    place: Place
    selection: Selection
    inputs: NamedInputs
    limits: tuple[Limit, ...]
    channels: int = CHANNELS
    sigmas: float = SIGMAS

    @property
    def keys(self) -> tuple[str, ...]:
        """Those above its limits, in the model."""
        return "statistics", self.name

    @property
    def held_on(self) -> Mapping[str, str]:
        """What its limits are held on, as a budget may spell it."""
        layers, types = (", ".join(words) for words in (self.selection.layers, self.selection.types))
        return {"layers": layers, "types": types, "inputs": self.inputs.text,
                "channels": str(self.channels), "sigmas": f"{self.sigmas:g}"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredCheck:
    """What is held of a model where it runs: how long, and with how much memory; each limit has the device's name."""

    place: Place
    limits: tuple[Limit, ...]
    plan: Plan

    @property
    def keys(self) -> tuple[str, ...]:
        """Those above its limits, in the model."""
        return ("measured",)

    @property
    def held_on(self) -> Mapping[str, str]:
        """What its limits are held on; the device is in their names."""
        plan = self.plan
        return {"repeats": str(plan.repeats), "warmup": str(plan.warmup), "threads": str(plan.threads)}


@dataclass(frozen=True, slots=True)
class Isolation:
    """The keys of a budget about the process of a model; amounts as written, None where it has no such key.

    ``isolate: false`` measures the model in the session's process.
    """

    isolate: bool | None = None
    timeout: str | None = None
    memory: str | None = None


SAYS_NOTHING = Isolation()


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """One model under one set of inputs, and its limits.

    A variant is a ModelBudget of its own, named like its model with ``variant`` set. declared_at
    tells where the file says each key of the source and, as "source", where the model comes from;
    a key of the defaults, or of a variant's model, stands where they say it.
    """

    name: str
    place: Place
    source: ModelSource
    limits: tuple[AnyLimit, ...]
    variant: str | None = None
    transforms: tuple[TransformCheck, ...] = ()
    declared_at: Mapping[str, Place] = field(default_factory=dict)
    isolation: Isolation = SAYS_NOTHING
    statistics: tuple[StatisticsCheck, ...] = ()
    measured: MeasuredCheck | None = None
    deployments: tuple[DeploymentCheck, ...] = ()

    @property
    def run_checks(self) -> tuple[StatisticsCheck | MeasuredCheck, ...]:
        """What is held of it where it runs: the values that it gives, then the time and memory that it takes."""
        return (*self.statistics, *([self.measured] if self.measured else []))

    @property
    def path(self) -> str:
        """Its name within the file: "detector", or "detector::batch8" of a variant."""
        return self.name if self.variant is None else path_of(self.name, self.variant)

    def deployed(self) -> Iterator[tuple[str, DeploymentCheck]]:
        """Every deployment of it by its path, then those of its transforms: "net::m55", "net::tiled::m55"."""
        yield from ((path_of(self.path, check.name), check) for check in self.deployments)
        for transform in self.transforms:
            yield from ((path_of(self.path, transform.name, check.name), check) for check in transform.deployments)

    def failing_at(self, failure: ModelBudgetError) -> Place:
        """Where the file says what cannot be measured: dims, inputs, or where the model comes from."""
        return place_of_first(self, failure.said_by, "source")


def place_of_first(declared: ModelBudget | TransformCheck, *keys: str) -> Place:
    """The place of the first of some keys that a file gives; else that of all of it."""
    return next((declared.declared_at[key] for key in keys if key in declared.declared_at), declared.place)


@dataclass(frozen=True, slots=True)
class HeldLimit:
    """One limit where it stands: the model's path ("detector::batch8"), and the keys above it."""

    path: str
    keys: tuple[str, ...]
    limit: AnyLimit

    @property
    def check(self) -> tuple[str, str]:
        """Its key among the file's limits: the path, and the check's name."""
        return self.path, self.limit.name


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget file that was read without an error; loosen_at is where it says what loosening does."""

    file: str
    models: tuple[ModelBudget, ...]
    loosen: Loosen = Loosen.WARN
    loosen_at: Place | None = None

    def places(self) -> Iterator[tuple[str, Place]]:
        """The path and the place of everything that limits stand below."""
        for model in self.models:
            yield model.path, model.place
        yield from ((path, check.place) for path, check in self.transformed())
        yield from ((path, check.place) for path, check in self.deployed())

    def transformed(self) -> Iterator[tuple[str, TransformCheck]]:
        """Every transform of the file by its path, "alexnet::tiled"."""
        for model in self.models:
            yield from ((path_of(model.path, check.name), check) for check in model.transforms)

    def deployed(self) -> Iterator[tuple[str, DeploymentCheck]]:
        """Every deployment of the file by its path."""
        for model in self.models:
            yield from model.deployed()

    def claims(self) -> Iterator[tuple[str, Claim]]:
        """Every claim about the outputs of a transform, by the transform's path."""
        for path, check in self.transformed():
            if check.equivalence is not None:
                yield path, check.equivalence.claim

    def fitting(self) -> Iterator[tuple[str, Place]]:
        """Every deployment that must fit in its device's memories, by path, and where the file says so."""
        yield from ((path, check.fits) for path, check in self.deployed() if check.fits is not None)

    def held(self) -> Iterator[HeldLimit]:
        """Every limit of the file, in its order."""
        for model in self.models:
            keys = ("models", model.name, *(("variants", model.variant) if model.variant is not None else ()))
            yield from (HeldLimit(model.path, keys, limit) for limit in model.limits)
            for run in model.run_checks:
                yield from (HeldLimit(model.path, (*keys, *run.keys), limit) for limit in run.limits)
            for transform in model.transforms:
                path, below = path_of(model.path, transform.name), (*keys, "transforms", transform.name)
                yield from (HeldLimit(path, below, limit) for limit in transform.limits)
                yield from _held_on_devices(path, below, transform.deployments)
            yield from _held_on_devices(model.path, keys, model.deployments)


def _held_on_devices(path: str, keys: tuple[str, ...], checks: tuple[DeploymentCheck, ...]) -> Iterator[HeldLimit]:
    """The limits of deployments; path and keys are those of the model, or of the transform, that is deployed."""
    for check in checks:
        below = (*keys, "deployments", check.name)
        yield from (HeldLimit(path_of(path, check.name), below, limit) for limit in check.limits)


# Node ids: where a model, a transform or a check stands, parsed and written in this one place.

BETWEEN = "::"


@dataclass(frozen=True, slots=True)
class Address:
    """A node id: a budget file as seen from rootdir, and the names that lead to something in it.

    "budgets/vision.yaml::resnet18::tiled::macs@layer4.*" is Address("budgets/vision.yaml", ("resnet18", "tiled",
    "macs@layer4.*")). It does not say whether a name is a variant's, a transform's or a check's: who asks knows.
    """

    file: str
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, node_id: str) -> Address:
        """The address that a node id spells."""
        file, *names = node_id.split(BETWEEN)
        return cls(file, tuple(names))

    def __str__(self) -> str:
        return path_of(self.file, *self.names)

    def __truediv__(self, name: str) -> Address:
        """What stands below it under a name, or under a path of several: model / "macs"."""
        return Address(self.file, (*self.names, *names_of(name)))

    @property
    def above(self) -> Address:
        """What it is a part of: a check's model or transform, a transform's model."""
        return Address(self.file, self.names[:-1])

    @property
    def path(self) -> str:
        """Its names within the file: "resnet18::tiled"."""
        return path_of(*self.names)

    @property
    def name(self) -> str:
        """Its own name, which is the last one: "macs@layer4.*"."""
        return self.names[-1] if self.names else ""

    @property
    def metric(self) -> str:
        """The metric that a check of that name is on: "macs"."""
        return self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """Its names as people read them: "resnet18 / tiled / macs@layer4.*"."""
        return " / ".join(self.names)


def path_of(*names: str) -> str:
    """Names one below the other as one path: "resnet18::tiled"."""
    return BETWEEN.join(names)


def names_of(path: str) -> tuple[str, ...]:
    """The names that a path is made of."""
    return tuple(path.split(BETWEEN)) if path else ()
