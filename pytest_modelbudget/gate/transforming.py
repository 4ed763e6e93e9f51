"""Transform → measure → verify: a changed model beside the one that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from pytest_modelbudget.budget.budget import TransformCheck
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import ModelBudgetError, TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.gate.measuring import (
    collection_paused,
    costed,
    first_on_path,
    without_graph,
)
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.transform import Job


@dataclass(frozen=True, slots=True)
class TransformedModel:
    """The numbers of a transformed model, what changed, and a way to hold its outputs to a claim.

    verify is None where the transform could not be applied; measured then holds the failure.
    """

    measured: MeasuredModel
    changes: tuple[Change, ...] = ()
    verify: Callable[[Claim], Equivalence] | None = None


@collection_paused()
def transformed_model(
    source: ModelSource,
    check: TransformCheck,
    using: Tables,
    *,
    root: Path,
    with_parts: bool = False,
) -> TransformedModel:
    """A model after a transform, measured; or why it could not be.

    with_parts keeps what each number is made of, for a lock file to be written or compared.
    """
    began = perf_counter()
    transform = using.transforms[check.transform]
    try:
        with first_on_path(root), user_code(f"applying {check.transform}", TransformError):
            applied = transform.applied(Job(source, check.settings, using.ops))
        model = costed(applied.loaded, using)
    except ModelBudgetError as error:
        failed = MeasuredModel(source.format, failure=error, seconds=perf_counter() - began)
        return TransformedModel(failed)
    measured = without_graph(model, began, using, with_parts=with_parts)
    return TransformedModel(measured, applied.changes, applied.verify)


def verified(model: TransformedModel, claim: Claim, *, root: Path) -> Equivalence:
    """Whether a transformed model's outputs are still the same; what cannot be run is unknown."""
    if model.verify is None:
        return Equivalence(Outcome.UNKNOWN, claim.kind, str(model.measured.failure))
    try:
        with first_on_path(root), user_code("comparing the outputs", TransformError):
            return model.verify(claim)
    except ModelBudgetError as error:
        return Equivalence(Outcome.UNKNOWN, claim.kind, str(error), seeds=claim.seeds)
