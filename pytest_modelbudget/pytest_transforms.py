"""One node per transform: limits on the changed model, and the claim that it computes the same.

budgets/vision.yaml::alexnet::tiled::macs, budgets/vision.yaml::alexnet::tiled::equivalence
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote
from typing import Any, Protocol

import pytest

from pytest_modelbudget.budget.budget import EQUIVALENCE, EquivalenceCheck, TransformCheck
from pytest_modelbudget.check.transforming import TransformedModel, transformed_model, verified
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.pytest_limits import (
    Budgeted,
    BudgetItem,
    LimitItem,
    keeps_parts,
    models_of,
)
from pytest_modelbudget.reports.assembly import check_statement
from pytest_modelbudget.reports.equivalence_text import equivalence_lines
from pytest_modelbudget.reports.report import MeasuredModel, Record
from pytest_modelbudget.reports.transform_record import (
    equivalence_check_record,
    equivalence_record,
    transform_record,
)


class BudgetedModel(Budgeted, Protocol):
    """The node of the model that a transform changes."""

    @property
    def source(self) -> ModelSource:
        """Where the model comes from."""

    def told_once(self) -> Record | None:
        """The model's record for the report: at the first call, and never again."""


class TransformNode(pytest.Collector):
    """One change to a model: limits on what it costs then, and the claim about its outputs."""

    parent: BudgetedModel  # type: ignore[assignment]  # pytest knows a node's parent as any node

    def __init__(self, *, check: TransformCheck, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check
        self._transformed: TransformedModel | None = None
        self._told = False

    def collect(self) -> Iterator[pytest.Item]:
        """Limits in the order of the file, then the equivalence."""
        for limit in self.check.limits:
            yield LimitItem.from_parent(self, name=limit.name, limit=limit)
        if self.check.equivalence is not None:
            yield EquivalenceItem.from_parent(
                self, name=EQUIVALENCE, equivalence=self.check.equivalence
            )

    @property
    def budget_path(self) -> str:
        """Its name within the file: "net::tiled"."""
        return f"{self.parent.budget_path}::{self.check.name}"

    def transformed(self) -> TransformedModel:
        """The changed model, made and measured at the first call in this process."""
        if self._transformed is None:
            models = models_of(self.config)
            self._transformed = transformed_model(
                self.parent.source,
                self.check,
                models.using,
                root=models.root,
                with_parts=keeps_parts(self.config, self.path, self.budget_path),
            )
        return self._transformed

    def measured(self) -> MeasuredModel:
        """The changed model's numbers."""
        return self.transformed().measured

    def statement(
        self, check: Record, number: Record | None = None, *, equivalence: Record | None = None
    ) -> str:
        """What an item of this transform tells the report: the model before it, too."""
        before = self.parent.told_once()
        told, self._told = self._told, True
        changed = self.transformed()
        record = None
        if not told:
            record = transform_record(self.nodeid, self.check, changed.measured, changed.changes)
        seconds = self.parent.measured().seconds
        return check_statement(
            check, before, seconds, number, transform=record, equivalence=equivalence
        )


class EquivalenceItem(BudgetItem):
    """The claim that a transformed model computes the same."""

    def __init__(
        self, *, equivalence: EquivalenceCheck, parent: TransformNode, **kwargs: Any
    ) -> None:
        super().__init__(place=equivalence.place, parent=parent, **kwargs)
        self.check = equivalence
        self.transform = parent

    def runtest(self) -> None:
        """Run both models, compare what they gave, and fail if it is not the same."""
        root = models_of(self.config).root
        found = verified(self.transform.transformed(), self.check.claim, root=root)
        repeat = f"pytest --model-budget {quote(self.nodeid)}"
        if found.first_divergence is not None:
            divergence = found.first_divergence.repeated_by(repeat)
            found = replace(found, first_divergence=divergence)
        self.ihook.pytest_model_budget_verified(item=self, equivalence=found)
        check = equivalence_check_record(self.nodeid, self.check, found)
        self.statement = self.transform.statement(check, equivalence=equivalence_record(found))
        self._note(check)
        if found.outcome is not Outcome.WITHIN:
            self._fail(equivalence_lines(found, self.check.place, repeat))
