"""Budgets as pytest sees them: file, model, variant, and one item per limit.

budgets/vision.yaml::detector::params, budgets/vision.yaml::detector::batch8::params
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pytest_modelbudget.budget.budget import Budget, ModelBudget, Place
from pytest_modelbudget.budget.problem import BudgetFileError
from pytest_modelbudget.check.budgets import read
from pytest_modelbudget.errors import BudgetError, ModelBudgetError
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.pytest_limits import BudgetItem, LimitItem, keeps_parts, models_of
from pytest_modelbudget.pytest_transforms import TransformNode
from pytest_modelbudget.reports.assembly import broken_statement, check_statement
from pytest_modelbudget.reports.failure_text import one_line
from pytest_modelbudget.reports.report import MeasuredModel, Record, model_record

BROKEN = "budget"  # name of the item that a file without readable limits has

_DECLARED = pytest.StashKey[dict[str, int]]()  # a file that cannot be read counts as one


def declared_limits(config: pytest.Config) -> int:
    """How many limits the files hold that this session has seen; a broken file counts as one."""
    return sum(config.stash.get(_DECLARED, {}).values())


class BudgetFile(pytest.File):
    """One budget; a file that cannot be read is one failing item."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The models of the file, in its order."""
        try:
            # An exception in collect() would end the whole session: there must be none.
            with user_code("reading the file", BudgetError):
                using = models_of(self.config).using
                budget = read(self.path, using, root=self.config.rootpath)
        except ModelBudgetError as error:
            self._declare(1)
            yield BrokenBudget.from_parent(self, name=BROKEN, error=error, file=self.nodeid)
            return
        self._declare(sum(promises(model) for model in budget.models))
        yield from self._models(budget)

    def _declare(self, count: int) -> None:
        self.config.stash.setdefault(_DECLARED, {})[self.nodeid] = count

    def _models(self, budget: Budget) -> Iterator[ModelNode]:
        by_name: dict[str, list[ModelBudget]] = {}
        for model in budget.models:
            by_name.setdefault(model.name, []).append(model)
        for name, models in by_name.items():
            yield ModelNode.from_parent(self, name=name, models=models)


class BrokenBudget(BudgetItem):
    """A budget file that does not say what it must say: all its problems, each in its place."""

    def __init__(self, *, error: ModelBudgetError, file: str, **kwargs: Any) -> None:
        problems = error.problems if isinstance(error, BudgetFileError) else ()
        place = problems[0].place if problems else Place(file, 1)
        super().__init__(place=place, **kwargs)
        self.title = place.file
        texts = [str(problem) for problem in problems] or [f"{place}:1: {one_line(str(error))}"]
        self.problems = tuple(texts)

    def runtest(self) -> None:
        """Fail, with every problem on a line of its own."""
        self.statement = broken_statement(self.nodeid, self.problems)
        count = len(self.problems)
        first = self.problems[0].removeprefix(f"{self.place}:{self.place.column}: ")
        more = f" (and {count - 1} more)" if count > 1 else ""
        self._fail((f"broken budget: {first}{more}", *self.problems))


class ModelNode(pytest.Collector):
    """One model under one set of inputs; its variants stand below it."""

    def __init__(self, *, models: Sequence[ModelBudget], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.models = models
        self._measured: MeasuredModel | None = None
        self._told = False

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The model's limits, then its variants."""
        for model in self.models:
            if model.variant is None or isinstance(self, VariantNode):
                for limit in model.limits:
                    yield LimitItem.from_parent(self, name=limit.name, limit=limit)
                for check in model.transforms:
                    yield TransformNode.from_parent(self, name=check.name, check=check)
            else:
                yield VariantNode.from_parent(self, name=model.variant, models=[model])

    @property
    def budget(self) -> ModelBudget:
        """What the file asks of this model."""
        return self.models[0]

    @property
    def budget_path(self) -> str:
        """Its name within the file: "detector", or "detector::batch8" of a variant."""
        return self.budget.path

    @property
    def source(self) -> ModelSource:
        """Where the model comes from."""
        return self.budget.source

    def measured(self) -> MeasuredModel:
        """The model's numbers, measured at the first call in this process."""
        if self._measured is None:
            with_parts = keeps_parts(self.config, self.path, self.budget_path)
            model = models_of(self.config).of(self.source, with_parts=with_parts)
            if model.failure is None:
                self.ihook.pytest_model_budget_measured(
                    config=self.config, model_id=self.nodeid, measurements=model.measurements
                )
            self._measured = model
        return self._measured

    def told_once(self) -> Record | None:
        """The model's record for the report: at the first call, and never again."""
        if self._told:
            return None
        self._told = True
        place = self.budget.place
        return model_record(self.nodeid, place.file, place.line, self.measured())

    def statement(self, check: Record, number: Record | None = None) -> str:
        """What an item of this model tells the report."""
        return check_statement(check, self.told_once(), self.measured().seconds, number)


class VariantNode(ModelNode):
    """The same model under other inputs."""


def promises(model: ModelBudget) -> int:
    """How many items a model's budget makes: limits, those of transforms, and equivalences."""
    return len(model.limits) + sum(
        len(check.limits) + (check.equivalence is not None) for check in model.transforms
    )
