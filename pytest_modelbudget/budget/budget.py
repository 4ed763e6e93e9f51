"""What a budget file asks for, as plain data; every part knows its file and line.

``resnet18`` of ``budgets/vision.yaml`` drawn once::

    Budget("budgets/vision.yaml", models=(
        ModelBudget("resnet18", Place(...),
                    ModelSource("torch", "torchvision.models:resnet18",
                                InputSpecs((TensorSpec("float32", (1, 3, 224, 224)),))),
                    limits=(Limit("params", Place(...), max=11_700_000),
                            Limit("bandwidth", Place(...), max=118_000_000, level="warn"))),))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.units import Number


class Level(str, Enum):
    """What being over a limit means; unknown fails at any level."""

    ERROR = "error"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a budget file something stands; line and column count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one metric, both ends inclusive, on a whole model or on the scopes of a glob."""

    metric: str
    place: Place
    max: Number | None = None
    min: Number | None = None
    level: Level = Level.ERROR
    allow_unmeasured: tuple[str, ...] = ()
    scope: str | None = None
    written: str = ""  # the quantity as the file spells it

    def __post_init__(self) -> None:
        if self.max is None and self.min is None:
            raise BudgetError(f"{self.place}: the limit on {self.metric} has neither max nor min")


@dataclass(frozen=True, slots=True)
class OpsLimit:
    """Which operations a model may execute: by kind, or by foreign name ("aten::lstm")."""

    place: Place
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    max: Mapping[str, int] = field(default_factory=dict)
    level: Level = Level.ERROR
    allow_unmeasured: tuple[str, ...] = ()
    scope: str | None = None

    @property
    def metric(self) -> str:
        return "ops"


AnyLimit = Union[Limit, OpsLimit]


@dataclass(frozen=True, slots=True)
class EquivalenceCheck:
    """That a transformed model's outputs are still the same, and where the file says so."""

    place: Place
    claim: Claim


@dataclass(frozen=True, slots=True)
class TransformCheck:
    """One change to a model, under a name of the user's choice, and what must hold after it.

    transform is a key of the transform table, settings what it is given, all of them present.
    """

    name: str
    place: Place
    transform: str
    settings: Mapping[str, object]
    equivalence: EquivalenceCheck | None = None
    limits: tuple[AnyLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """One model under one set of inputs, and its limits.

    A variant is a ModelBudget of its own, named like its model with ``variant`` set.
    """

    name: str
    place: Place
    source: ModelSource
    limits: tuple[AnyLimit, ...]
    variant: str | None = None
    transforms: tuple[TransformCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget file that was read without an error."""

    file: str
    models: tuple[ModelBudget, ...]
