"""Budgets as plain data: what a file asks for, each thing with its file and line; and node ids of what it holds.

``resnet18`` of ``budgets/vision.yaml`` drawn once::

    Budget("budgets/vision.yaml", models=(
        Subject("resnet18", Place(...),
                ModelSource("torch", "torchvision.models:resnet18",
                            InputSpecs((TensorSpec("float32", (1, 3, 224, 224)),))),
                checks=(Limit("params", Place(...), max=11_700_000),
                        Limit("bandwidth", Place(...), max=118_000_000, level="warn"))),))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, Union

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import BudgetError, ModelBudgetError
from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.formats.source import Evaluation, ModelSource
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
    """A waiver of a limit: up to an amount, itself included, through a day, for a reason.

    end is the end of the limit, "max" or "min", that it reaches beyond; written is the amount as the file spells it.
    """

    place: Place = field(compare=False)
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
class ValuesRun:
    """The values that chosen layers give on named inputs."""

    kind: ClassVar[str] = "statistics"
    name: str
    place: Place = field(compare=False)
    selection: Selection
    inputs: NamedInputs
    channels: int = CHANNELS
    sigmas: float = SIGMAS

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def texts(self) -> Mapping[str, str]:
        """The program and inputs that its limits apply to, as a budget may spell it."""
        layers, types = (", ".join(words) for words in (self.selection.layers, self.selection.types))
        return {"layers": layers, "types": types, "inputs": self.inputs.text,
                "channels": str(self.channels), "sigmas": f"{self.sigmas:g}"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Calls of a model on a device. hardware has all figures of a profile, grow the growth that is within."""

    kind: ClassVar[str] = "runtime"
    title: ClassVar[str] = "runtime"
    place: Place = field(compare=False)
    plan: Plan
    hardware: str = ""
    grow: Number | None = None

    @property
    def texts(self) -> Mapping[str, str]:
        """The program and inputs that its limits apply to; the device is in their names."""
        counts = {key: str(getattr(self.plan, key)) for key in ("repeats", "warmup", "threads")}
        return {**counts, "hardware": self.hardware}


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one metric, both ends inclusive, on a whole model or on the scopes of a glob.

    grow is a share of the locked value (2% is 1/50) and floor an amount: the larger of the two may
    be added to that value. auto names the ends, "max" or "min", that are still to be filled in:
    until then the limit holds nothing and is unknown. waiver is an exception to it. run is what has to run for it,
    under whose name, or device, it stands as its scope, and kind is its row in the table of kinds.
    """

    metric: str
    place: Place = field(compare=False)
    max: Number | None = None
    min: Number | None = None
    level: Level = Level.ERROR
    allow_unmeasured: tuple[str, ...] = ()
    scope: str | None = None
    written: str = ""  # the quantity as the file spells it: max, else min
    grow: Fraction | None = None
    floor: int = 0
    auto: tuple[str, ...] = ()
    waiver: Acceptance | None = None
    run: ValuesRun | TimedRun | None = None
    kind: str = "number"

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

    kind: ClassVar[str] = "ops"
    metric: ClassVar[str] = "ops"
    place: Place = field(compare=False)
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
LOCKED = ("number", "ops")  # kinds of check whose numbers a lock has


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """The claim that a transformed model's outputs are still the same."""

    kind: ClassVar[str] = "claim"
    metric: ClassVar[str] = EQUIVALENCE
    name: ClassVar[str] = EQUIVALENCE
    level: ClassVar[Level] = Level.ERROR
    scope: ClassVar[str | None] = None
    place: Place = field(compare=False)
    claim: Claim


@dataclass(frozen=True, slots=True)
class FitsCheck:
    """That a model fits in every memory of a device."""

    kind: ClassVar[str] = "fits"
    metric: ClassVar[str] = FITS
    name: ClassVar[str] = FITS
    level: ClassVar[Level] = Level.ERROR
    scope: ClassVar[str | None] = None
    place: Place = field(compare=False)
    deployment: Deployment


Check = Union[Limit, OpsLimit, ClaimCheck, FitsCheck]  # kind is its row in the table of kinds


@dataclass(frozen=True, slots=True)
class Isolation:
    """The keys of a budget about the process of a model; amounts as written, None where it has no such key."""

    isolate: bool | None = None
    timeout: str | None = None
    memory: str | None = None


SAYS_NOTHING = Isolation()


@dataclass(frozen=True, slots=True)
class Transformation:
    """One change to a model: transform is a key of the transform table, settings what it is given, all present.

    after are changes that are made to the model before. A change in several steps has no transform of the table.
    shipped is the file that was built of it, by its name in the budget and its path; evaluate its labelled data.
    """

    transform: str
    settings: Mapping[str, object]
    shipped: tuple[str, Path] | None = None
    after: tuple[Transformation, ...] = ()
    steps: tuple[Transformation, ...] = ()
    evaluate: Evaluation | None = None


Made = TypeVar("Made", ModelSource, Transformation, Deployment)
WHOLE, CHANGED, DEPLOYED = "model", "transform", "deployment"  # the kinds of subject


@dataclass(frozen=True, slots=True)
class Subject(Generic[Made]):
    """A model under one set of inputs, what a transform makes of one, or either on a device; and what it is held to.

    made is where it comes from, parts what comes of it. A variant is a subject of its own, named like its model with
    ``variant`` set. declared_at tells where the file says each key of what it is made of and, as "source" or
    "transform", where it comes from; a key of the defaults, or of a variant's model, stands where they say it.
    """

    name: str
    place: Place
    made: Made
    checks: tuple[Check, ...] = ()
    parts: tuple[Subject[Transformation] | Subject[Deployment], ...] = ()
    declared_at: Mapping[str, Place] = field(default_factory=dict)
    variant: str | None = None
    isolation: Isolation = SAYS_NOTHING

    @property
    def kind(self) -> str:
        """The word for it in messages: a model, a transform or a deployment."""
        kinds = {ModelSource: WHOLE, Transformation: CHANGED, Deployment: DEPLOYED}
        return kinds[type(self.made)]

    @property
    def path(self) -> str:
        """Its name within the file, of a model: "detector", or "detector::batch8" of a variant."""
        return self.name if self.variant is None else path_of(self.name, self.variant)

    @property
    def limits(self) -> tuple[AnyLimit, ...]:
        return tuple(check for check in self.checks if isinstance(check, (Limit, OpsLimit)) and check.kind in LOCKED)

    @property
    def transforms(self) -> tuple[Subject[Transformation], ...]:
        return tuple(part for part in self.parts if isinstance(part.made, Transformation))

    @property
    def deployments(self) -> tuple[Subject[Deployment], ...]:
        return tuple(part for part in self.parts if isinstance(part.made, Deployment))

    def walk(self, path: str, keys: tuple[str, ...]) -> Iterator[Placed]:
        """It and all that comes of it; path and keys are its own."""
        yield Placed(path, keys, self)
        for part in self.parts:
            yield from part.walk(path_of(path, part.name), (*keys, f"{part.kind}s", part.name))

    def failing_at(self, failure: ModelBudgetError) -> Place:
        """Where the file says what failed: dims, inputs, the model to compare with, or where it comes from."""
        if isinstance(self.made, Transformation):
            return self.place_of(*(key for key, value in self.made.settings.items() if isinstance(value, ModelSource)))
        return self.place_of(failure.said_by) if self.kind == WHOLE else self.place

    def place_of(self, *keys: str) -> Place:
        """The place of the first of some keys that the file gives; else of where it comes from, or of all of it."""
        known = (self.declared_at[key] for key in (*keys, "source", CHANGED) if key in self.declared_at)
        return next(known, self.place)


class Placed(NamedTuple):
    """A subject and its place: its path in the file ("net::tiled::m55"), and the keys that lead to it."""

    path: str
    keys: tuple[str, ...]
    subject: Subject[Any]


class Held(NamedTuple):
    """A check and its place: the path of its subject, the keys above it, and itself."""

    path: str
    keys: tuple[str, ...]
    check: Check

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.check.name


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget file that was read without an error; loosen_at is where it says what loosening does."""

    file: str
    models: tuple[Subject[ModelSource], ...]
    loosen: Loosen = Loosen.WARN
    loosen_at: Place | None = None

    def subjects(self) -> Iterator[Placed]:
        """Every model of the file, each with what comes of it."""
        for model in self.models:
            variant = () if model.variant is None else ("variants", model.variant)
            yield from model.walk(model.path, ("models", model.name, *variant))

    def held(self) -> Iterator[Held]:
        for path, keys, subject in self.subjects():
            yield from (Held(path, keys, check) for check in subject.checks)


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
        file, *names = node_id.split(BETWEEN)
        return cls(file, tuple(names))

    def __str__(self) -> str:
        return path_of(self.file, *self.names)

    def __truediv__(self, name: str) -> Address:
        """The part below it under a name, or under a path of several: model / "macs"."""
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
