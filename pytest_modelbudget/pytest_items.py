"""Budgets as pytest sees them: file, model, variant, and one item per limit.

budgets/vision.yaml::detector::params, budgets/vision.yaml::detector::batch8::params
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import pytest

from pytest_modelbudget.budget.baselines import Baselines
from pytest_modelbudget.budget.budget import AnyLimit, Budget, ModelBudget, Place
from pytest_modelbudget.budget.lock_file import value_record
from pytest_modelbudget.budget.problem import BudgetFileError, suggestion
from pytest_modelbudget.budget.read_yaml import is_budget, misspelt_marker, read_budget
from pytest_modelbudget.check.measuring import MeasuredModels, checked, lockable, measured
from pytest_modelbudget.check.python_values import model_source, written_limits
from pytest_modelbudget.check.tables import Tables, tables
from pytest_modelbudget.errors import BudgetError, ExtensionError, InputError, ModelBudgetError
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.pytest_options import BASE, SWITCH, UPDATE, report_files
from pytest_modelbudget.reports.assembly import broken_statement, check_statement
from pytest_modelbudget.reports.failure_text import failure_lines, one_line
from pytest_modelbudget.reports.report import MeasuredModel, Record, check_record, model_record
from pytest_modelbudget.verdict import Verdict

MARKER = "model_budget"
PROPERTY = "model_budget"
BROKEN = "budget"  # name of the item that a file without readable limits has

ENDINGS = "modelbudget-endings"  # name of the plugin that the fixture registers
OPTIONS = ("args", "kwargs", "dims")  # of the fixture

BASELINES = pytest.StashKey[Baselines]()
_ENDED_EARLY = pytest.StashKey[bool]()
_MODELS = pytest.StashKey[MeasuredModels]()
_DECLARED = pytest.StashKey[dict[str, int]]()  # a file that cannot be read counts as one


def models_of(config: pytest.Config) -> MeasuredModels:
    """The models of this session, measured with all installed and given extensions.

    Raises ExtensionError, at every call, where an extension is broken.
    """
    if _MODELS not in config.stash:
        with user_code("the hook pytest_model_budget_extensions", ExtensionError):
            given = config.hook.pytest_model_budget_extensions(config=config)
            using = tables(_flat(given))
        profiled = any(report.needs_profile for report, _ in report_files(config))
        config.stash[_MODELS] = MeasuredModels(using, root=config.rootpath, profiled=profiled)
    return config.stash[_MODELS]


def baselines_of(config: pytest.Config) -> Baselines:
    """The lock files that checks are compared with."""
    return config.stash.setdefault(BASELINES, Baselines(config.rootpath))


def declared_limits(config: pytest.Config) -> int:
    """How many limits the files hold that this session has seen; a broken file counts as one."""
    return sum(config.stash.get(_DECLARED, {}).values())


def _flat(given: Iterable[object]) -> Iterator[object]:
    for each in given:
        if isinstance(each, (list, tuple)):
            yield from each
        elif each is not None:
            yield each


class BrokenLimitError(Exception):
    """Raised by an item to fail; lines are what the reader sees, the first one is the summary."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class BudgetItem(pytest.Item):
    """Anything that the plugin adds to a session; place is where it stands in its file.

    statement is what it tells the report, set once it ran.
    """

    def __init__(self, *, place: Place, title: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place
        self.title = title
        self.statement: str | None = None
        self.add_marker(MARKER)

    def reportinfo(self) -> tuple[Any, int, str]:
        """File, line counted from 0, and the heading above a failure."""
        return self.path, self.place.line - 1, f"model budget: {self.title}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure as lines, with the budget's own line as its place."""
        error = excinfo.value
        if isinstance(error, BrokenLimitError):
            return self._shown(excinfo, error.lines)
        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo)
        text = f"{self.title} unknown: {type(error).__name__}: {one_line(str(error))}"
        way_out = "raised by a hook, a plugin or pytest-modelbudget itself: see --full-trace"
        return self._shown(excinfo, (f"{text}   {self.place}", way_out))

    def _shown(self, excinfo: pytest.ExceptionInfo[BaseException], lines: Sequence[str]) -> Any:
        shown = excinfo.getrepr(style="value")
        entry = shown.reprtraceback.reprentries[0]
        entry.lines = list(lines)
        if shown.reprcrash is not None:
            shown.reprcrash.path = self.place.file
            shown.reprcrash.lineno = self.place.line
            shown.reprcrash.message = lines[0].removesuffix(f"   {self.place}")
        return shown

    def _fail(self, lines: Sequence[str]) -> NoReturn:
        raise BrokenLimitError(lines) from None


class BudgetFile(pytest.File):
    """One budget; a file that cannot be read is one failing item."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The models of the file, in its order."""
        try:
            # An exception in collect() would end the whole session: there must be none.
            with user_code("reading the file", BudgetError):
                budget = self._budget()
        except ModelBudgetError as error:
            self._declare(1)
            yield BrokenBudget.from_parent(self, name=BROKEN, error=error, file=self.nodeid)
            return
        self._declare(sum(len(model.limits) for model in budget.models))
        yield from self._models(budget)

    def _declare(self, count: int) -> None:
        self.config.stash.setdefault(_DECLARED, {})[self.nodeid] = count

    def _budget(self) -> Budget:
        using = models_of(self.config).using
        return read_budget(
            self.path,
            root=self.config.rootpath,
            metrics=using.metrics,
            front_ends=using.front_ends,
            ops=using.ops,
        )

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
        super().__init__(place=place, title=place.file, **kwargs)
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
            else:
                yield VariantNode.from_parent(self, name=model.variant, models=[model])

    @property
    def budget(self) -> ModelBudget:
        """What the file asks of this model."""
        return self.models[0]

    def measured(self) -> MeasuredModel:
        """The model's numbers, measured at the first call in this process."""
        if self._measured is None:
            is_compared = baselines_of(self.config).knows(self.path, path_in_file(self))
            is_locked = is_compared or bool(self.config.getoption(UPDATE))
            model = models_of(self.config).of(self.budget.source, with_parts=is_locked)
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


class VariantNode(ModelNode):
    """The same model under other inputs."""


class LimitItem(BudgetItem):
    """One limit of one model."""

    def __init__(self, *, limit: AnyLimit, parent: ModelNode, name: str, **kwargs: Any) -> None:
        path = parent.nodeid.split("::")[1:]
        title = " / ".join((*path, name))
        super().__init__(place=limit.place, title=title, parent=parent, name=name, **kwargs)
        self.limit = limit
        self.model = parent

    def runtest(self) -> None:
        """Measure the model if nobody has, judge the limit, and fail if it is broken."""
        measured = self.model.measured()
        baseline = baselines_of(self.config).of(self.path, path_in_file(self.model), self.name)
        verdict = checked(self.limit, measured, baseline)
        self.ihook.pytest_model_budget_judged(item=self, verdict=verdict)
        check = check_record(self.nodeid, verdict)
        self.statement = check_statement(
            check, self.model.told_once(), measured.seconds, self._number(verdict)
        )
        self.user_properties[:] = [each for each in self.user_properties if each[0] != PROPERTY]
        self.user_properties.append((PROPERTY, json.dumps(check)))
        if verdict.fails:
            self._fail(failure_lines(verdict, accept=self._accepting()))

    def _number(self, verdict: Verdict) -> Record | None:
        """What was measured, as a lock file has it, and of which budget file.

        Its parts are with it only where a lock is to be written.
        """
        model = self.model.measured()
        is_written = bool(self.config.getoption(UPDATE))
        versions = models_of(self.config).using.versions(model.format)
        number = lockable(verdict, model if is_written else None, versions)
        return None if number is None else {"budget": str(self.path), **value_record(number)}

    def _accepting(self) -> str:
        """The command that makes the limit what was measured, from the current directory."""
        start, base = self.config.invocation_params.dir, self.config.getoption(BASE)
        path = Path(os.path.relpath(self.path, start)).as_posix()
        names = "::".join((path, *self.nodeid.split("::")[1:]))
        against = f" {BASE}={quote(base)}" if base else ""
        return f"pytest {SWITCH} {UPDATE}=fix{against} {quote(names)}"


class BudgetedModel:
    """A model that a test holds against limits: ``model_budget(model, inputs)``."""

    def __init__(self, model: MeasuredModel, using: Tables, place: Place) -> None:
        self.model = model
        self.using = using
        self.place = place
        self.is_held = False

    def within(self, **limits: str | int | Mapping[str, object]) -> None:
        """Fail the test if any metric is above its limit: ``within(params="12 M")``.

        A limit is what a budget file may write below ``limits:``, with numbers and mappings as
        Python has them: a maximum, or a mapping with max, min, level, allow_unmeasured.
        """
        __tracebackhide__ = True
        self.is_held = True
        try:
            read = written_limits(limits, self.using)
        except ModelBudgetError as error:
            pytest.fail(f"{self.place}: {error}", pytrace=False)
        verdicts = [checked(replace(limit, place=self.place), self.model) for limit in read]
        lines = [line for each in verdicts if each.fails for line in failure_lines(each)]
        if lines:
            pytest.fail("\n".join(lines))


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


def budgeted_models(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., BudgetedModel]]:
    """What the fixture ``model_budget`` is: a call that measures one model; it must be held."""
    item, config = request.node, request.config
    if not config.pluginmanager.has_plugin(ENDINGS):
        config.pluginmanager.register(Endings(), ENDINGS)
    file, line, _ = item.location
    place = Place(str(file), (line or 0) + 1)
    budgeted: list[BudgetedModel] = []

    def measured_model(source: object, inputs: object = None, **options: Any) -> BudgetedModel:
        """Measure a model as ``measure()`` does, with args, kwargs and dims as options."""
        __tracebackhide__ = True
        try:
            models = models_of(config)
            asked = _asked(source, inputs, options, models.using, config.rootpath)
        except ModelBudgetError as error:
            pytest.fail(f"{place}: {error}", pytrace=False)
        # Not models.of(asked): a test may have changed the module since it was last measured.
        model = measured(asked, models.using, root=config.rootpath)
        budgeted.append(BudgetedModel(model, models.using, place))
        return budgeted[-1]

    yield measured_model
    idle = sum(not each.is_held for each in budgeted)
    if idle and not item.stash.get(_ENDED_EARLY, False):
        count = "a model" if idle == 1 else f"{idle} models"
        pytest.fail(
            f"{place}: model_budget() measured {count} and held nothing: call .within(...) on "
            "what it returns",
            pytrace=False,
        )


def _asked(
    source: object, inputs: object, options: Mapping[str, Any], using: Tables, root: Path
) -> ModelSource:
    """The source that a call of the fixture names; raises InputError for a wrong option."""
    for option in options:
        if option not in OPTIONS:
            guess = suggestion(option, OPTIONS)
            raise InputError(f"model_budget() takes no option '{option}': {guess}")
    with user_code("reading what model_budget() was given", InputError):
        return model_source(source, inputs, using=using, base=root, **options)


def path_in_file(node: pytest.Collector) -> str:
    """What a model is called within its budget file: "detector", "detector::batch8"."""
    return node.nodeid.partition("::")[2]


def is_marked(path: Path) -> bool:
    """Whether a YAML file says that it is a budget; one that cannot be read may be one."""
    try:
        return is_budget(path.read_bytes())
    except OSError:
        return True


def unmarked(path: Path) -> str | None:
    """What to say of a file that must be meant for a budget and does not carry the marker."""
    key = misspelt_marker(path.read_bytes())
    return None if key is None else f"{path.name} is not held: its key '{key}' is not model_budget"
