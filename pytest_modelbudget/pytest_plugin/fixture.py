"""Budgets written in tests: the fixture ``model_budget``.

model_budget(model, "float32 1x64").within(params="12 M")
"""

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import InputError, ModelBudgetError, user_code
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import from_python, measuring
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.pytest_plugin.session_models import models_of
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.reports import build, messages, record
from pytest_modelbudget.reports.text import folded

ENDINGS = "modelbudget-endings"  # name of the plugin that the fixture registers
MARGIN = len("E       Failed: ") + 1  # what pytest writes before a failure, and a column that stays free
OPTIONS = ("args", "kwargs", "dims", "qdq", "training", "serving")  # of the fixture

_ENDED_EARLY = pytest.StashKey[bool]()


@contextmanager
def failing_at(place: Place, item: pytest.Item) -> Iterator[None]:
    """A test fails, in one sentence, for what is wrong with what it asked for."""
    __tracebackhide__ = True
    try:
        yield
    except ModelBudgetError as error:
        words = _as_wide([f"{place}: {error}"], item)
        raise pytest.fail.Exception(words, pytrace=False) from None  # which pytest would print as well


def _as_wide(lines: Sequence[str], item: pytest.Item, margin: int = 1) -> str:
    """Lines as wide as the terminal, but for what pytest writes before them, and a column that stays free."""
    width = item.config.get_terminal_writer().fullwidth - margin
    return "\n".join(part for line in lines for part in folded(line, width))


class BudgetedModel:
    """A model that a test holds against limits: ``model_budget(model, inputs)``."""

    def __init__(self, model: MeasuredModel, registry: Tables, place: Place, item: pytest.Item) -> None:
        self.model = model
        self.registry = registry
        self.place = place
        self.is_held = False
        self._item = item

    def within(self, **limits: str | float | Mapping[str, object]) -> None:
        """Fail the test if any metric is above its limit, or warn at level warn: ``within(params="12 M")``.

        A limit is what a budget file may write below ``limits:``, with numbers and mappings as
        Python has them: a maximum, or a mapping with max, min, level, allow_unmeasured.
        """
        __tracebackhide__ = True
        self.is_held = True
        with failing_at(self.place, self._item):
            read = from_python.written_limits(limits, self.registry)
        lines: list[str] = []
        for verdict in (judge_limit(limit, self.model) for limit in read):
            if verdict.fails:
                check = build.check_report(self.place.file, verdict, self.registry.metrics)
                check = replace(check, line=self.place.line)
                model = build.model_report(self.place.file, self.place, self.model)
                lines += messages.failure_lines(record.Case(check, model, model), self.place)
            elif verdict.outcome is not Outcome.WITHIN:
                _warn(self._item, self.place, verdict.reason)
        if lines:
            pytest.fail(_as_wide(lines, self._item, MARGIN))


def _warn(item: pytest.Item, place: Place, text: str) -> None:
    """A line among the warnings of the session, which no filter of Python's makes an error."""
    warning = warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, place.file, place.line)
    said = {"warning_message": warning, "when": "runtest", "nodeid": item.nodeid, "location": None}
    item.ihook.pytest_warning_recorded.call_historic(kwargs=said)


class Endings:
    """Notes which tests ended early: what those did not get to is no fault of theirs."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A test that failed, was skipped or failed as expected ended with an exception."""
        if call.when == "call":
            item.stash[_ENDED_EARLY] = call.excinfo is not None
        return (yield)


def budgeted_models(request: pytest.FixtureRequest) -> Iterator[Callable[..., BudgetedModel]]:
    """The fixture ``model_budget``: a call that measures one model; it must be held."""
    item, config = request.node, request.config
    if not config.pluginmanager.has_plugin(ENDINGS):
        config.pluginmanager.register(Endings(), ENDINGS)
    file, line, _ = item.location
    place = Place(str(file), (line or 0) + 1)
    budgeted: list[BudgetedModel] = []

    def measured_model(source: object, inputs: object = None, **options: Any) -> BudgetedModel:
        """Measure a model as ``measure()`` does, with args, kwargs, dims, qdq and training as options."""
        __tracebackhide__ = True
        with failing_at(place, item):
            models = models_of(config)
            asked = _asked(source, inputs, options, models.registry, config.rootpath)
        # Not models.of(asked): a test may have changed the module since it was last measured.
        model = measuring.measure_model(asked, models.registry, root=config.rootpath)
        budgeted.append(BudgetedModel(model, models.registry, place, item))
        return budgeted[-1]

    yield measured_model
    idle = sum(not model.is_held for model in budgeted)
    if idle and not item.stash.get(_ENDED_EARLY, False):
        count = "a model" if idle == 1 else f"{idle} models"
        hint = f"model_budget() measured {count} and checked nothing: call .within(...) on its result"
        pytest.fail(_as_wide([f"{place}: {hint}"], item), pytrace=False)


def _asked(source: object, inputs: object, options: Mapping[str, Any], registry: Tables, root: Path) -> ModelSource:
    """The source that a call of the fixture names; raises InputError for a wrong option."""
    for option in options:
        if option not in OPTIONS:
            guess = suggestion(option, OPTIONS)
            raise InputError(f"model_budget() takes no option '{option}': {guess}")
    with user_code("reading what model_budget() was given", InputError):
        return from_python.model_source(
            source, inputs, registry=registry, base=root, caller="model_budget()", **options
        )
