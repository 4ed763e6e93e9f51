"""A model with the numbers that were measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Every number of one model, or why there is none.

    failure is set where the model could not be loaded, and all else is then empty. failures holds
    the metrics that could not be worked out, by key. scopes are the paths of all its modules.
    parts, by metric, are kept only where a lock file is to be written or compared. profile is what
    a page shows beyond metrics, as JSON text, if somebody asked. seconds is wall time, for eyes
    only.
    """

    format: str
    traced: str = ""
    notes: tuple[str, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, ModelBudgetError] = field(default_factory=dict)
    census: tuple[OpCount, ...] = ()
    scopes: tuple[str, ...] = ()
    profile: str | None = None
    failure: ModelBudgetError | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    seconds: float = 0.0
