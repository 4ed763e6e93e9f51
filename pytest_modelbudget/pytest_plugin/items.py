"""Budgets as pytest sees them: file, model, variant, and one item per limit.

budgets/vision.yaml::detector::params, budgets/vision.yaml::detector::batch8::params
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget import lock_file, ruling, yaml_text
from pytest_modelbudget.budget.fit_verdict import judge_fit
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.source_forms import declared_texts
from pytest_modelbudget.budget.update import UpdateMode
from pytest_modelbudget.budget.verdict import Verdict, with_exception
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import BudgetError, ModelBudgetError, user_code
from pytest_modelbudget.formats.benchmark import clock
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import measuring, transforming
from pytest_modelbudget.gate.garbage import collection_paused
from pytest_modelbudget.gate.pool import InSession, ModelProcess
from pytest_modelbudget.gate.worker import ApplyTransform, Measure, Observe, Request, TimeRuns, Verify
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.pytest_plugin.options import BASE, MEASURED, SWITCH, TODAY, TRACES, UPDATE, absolute
from pytest_modelbudget.pytest_plugin.session_models import WATCH, baselines_of, keeps_parts, models_of, roots_of
from pytest_modelbudget.reports import build, claims, messages, record
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.text import folded, one_line, printed_line

MARKER = PROPERTY = "model_budget"
BROKEN = "budget"  # name of the item that a file without readable limits has

_SHOWN = pytest.StashKey[list[ModelBudgetError]]()  # those whose exceptions were shown
_DECLARED = pytest.StashKey[dict[str, int]]()  # by the path of a file; one that cannot be read counts as one
_BROKEN = pytest.StashKey[dict[str, "BrokenBudget"]]()  # by the path of the file


class BrokenLimitError(Exception):
    """Raised by an item to fail; lines are what the reader sees, the first one is the summary.

    place is where the file says what is wrong, if that is not where the item stands.
    """

    def __init__(self, lines: Sequence[str], place: budgets.Place | None = None) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)
        self.place = place


class OverLimitError(BrokenLimitError, AssertionError):
    """Raised by a limit that was judged and is broken: dashboards tell a failed assertion from an error by its type."""


def shown_failure(excinfo: pytest.ExceptionInfo[BaseException], lines: Sequence[str], place: budgets.Place) -> Any:
    """A failure as lines, with a budget's own line as its place."""
    shown = excinfo.getrepr(style="value")
    entry = shown.reprtraceback.reprentries[0]
    entry.lines = [printed_line(line) for line in lines]  # also what xdist can send
    if shown.reprcrash is not None:
        shown.reprcrash.path = printed_line(place.file)
        shown.reprcrash.lineno = place.line
        said, at = lines[0], f"   {place}"
        shown.reprcrash.message = printed_line(said.removesuffix(f"{at}:{place.column}").removesuffix(at))
    return shown


def fold(report: pytest.TestReport, width: int) -> None:
    """Let a budget's failure be as wide as the terminal that shows it; what a user's code raised stays as it is."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    if MARKER not in report.keywords or not entries:
        return
    lines = list(entries[0].lines)
    raised = lines.index("") if "" in lines else len(lines)
    entries[0].lines = [part for line in lines[:raised] for part in folded(line, width)] + lines[raised:]


class BudgetItem(pytest.Item):
    """Anything that the plugin adds to a session; place is where it stands in its file.

    title heads a failure: "net / tiled / macs". statement is set once it ran, for the report; failure is why there
    is no number. An idle one is skipped, because nobody asked for what it measures, and counts for nothing.
    """

    is_idle = False
    failure: ModelBudgetError | None = None

    def __init__(self, *, place: budgets.Place, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place
        self.title = budgets.Address.parse(self.nodeid).title
        self.statement: build.Statement | None = None
        self.add_marker(MARKER)

    def reportinfo(self) -> tuple[Any, int, str]:
        """File, line counted from 0, and the heading above a failure."""
        return self.path, self.place.line - 1, f"model budget: {self.title}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure as lines, with the budget's own line as its place."""
        error = excinfo.value
        if isinstance(error, BrokenLimitError):
            return shown_failure(excinfo, (*error.lines, *self._raised()), error.place or self.place)
        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo)
        text = f"{self.title} unknown: {type(error).__name__}: {one_line(str(error))}"
        way_out = "raised by a hook, a plugin or pytest-modelbudget itself: see --full-trace"
        return shown_failure(excinfo, (f"{text}   {self.place}", way_out), self.place)

    def broken(self, outcome: Outcome, lines: Sequence[str], place: budgets.Place) -> BrokenLimitError:
        """The failure of this item; its second line names the user's code that built the model."""
        model = self.getparent(ModelNode)
        definition = model.measured().defined_at if model is not None else ""
        if model is not None and definition:
            lines = (lines[0], f"  model: {model.source.target}   {definition}", *lines[1:])
        return (BrokenLimitError if outcome is Outcome.UNKNOWN else OverLimitError)(lines, place)

    def _raised(self) -> Sequence[str]:
        """The whole exception of a user's code, where somebody wants more than its first line; once a session."""
        shown = self.config.stash.setdefault(_SHOWN, [])
        if self.failure is None or not self.failure.raised or self.failure in shown:
            return ()
        shown.append(self.failure)
        if self.config.get_verbosity() > 0 or self.config.getoption("tbstyle") == "long":
            return ("", *self.failure.raised.splitlines())
        return ("the whole exception: pytest -v",)

    def _initrequest(self) -> None:
        """Reset no fixtures: pytest-retry calls this method of functions on every item before it runs one again."""

    def _note(self, check: record.Check) -> None:
        """Let pytest's own JUnit file have the check."""
        others = [(name, value) for name, value in self.user_properties if name != PROPERTY]
        self.user_properties[:] = [*others, (PROPERTY, json.dumps(to_json(check)))]


class LimitItem(BudgetItem):
    """One limit of one model."""

    def __init__(
        self, *, limit: budgets.AnyLimit, parent: ModelNode | TransformNode | DeploymentNode, **kwargs: Any
    ) -> None:
        super().__init__(place=limit.place, parent=parent, **kwargs)
        self.limit = limit
        self.model = parent

    def runtest(self) -> None:
        """Measure the model if nobody has, judge the limit, and fail if it is broken."""
        measured = self.model.measured()
        self.failure = measured.failure or measured.failures.get(self.limit.metric)
        baseline = baselines_of(self.config).of(self.path, self.model.budget_path, self.name)
        today = date.fromisoformat(self.config.getoption(TODAY))
        verdict = measuring.judge_limit(self.limit, measured, baseline)
        if self.config.getoption(UPDATE) == UpdateMode.CREATE.value:
            versions = models_of(self.config).registry.versions(measured.format)
            verdict = measuring.judged_as_created(verdict, measured, versions)
        verdict = with_exception(verdict, today)
        self.ihook.pytest_model_budget_judged(item=self, verdict=verdict)
        check = build.check_report(self.nodeid, verdict, models_of(self.config).registry.metrics)
        if check.can_be_updated:
            check = replace(check, update=self._accepting(verdict))
        self.statement = replace(self.model.statement(check), number=self._number(verdict))
        self._note(check)
        if check.fails:
            place = self.model.failing_at or self.place
            raise self.broken(check.outcome, messages.failure_lines(check, verdict.measurement, place), place)

    def _number(self, verdict: Verdict) -> dict[str, Any] | None:
        """The measured number as a lock file has it, and the path of its budget file.

        Its parts are with it only where a lock is to be written.
        """
        model = self.model.measured()
        versions = models_of(self.config).registry.versions(model.format)
        number = measuring.lockable(verdict, model if self.config.getoption(UPDATE) else None, versions)
        return None if number is None else {"budget": str(self.path), **lock_file.value_record(number)}

    def _accepting(self, verdict: Verdict) -> str:
        """The command that makes the limit what was measured, or drops its exception, from the current directory.

        It names the base that growth is seen from, which on GitHub nobody had to ask for.
        """
        start, base = self.config.invocation_params.dir, baselines_of(self.config).base
        path = Path(os.path.relpath(self.path, start)).as_posix()
        node_id = budgets.path_of(path, *budgets.Address.parse(self.nodeid).names)
        is_compared = verdict.allowed is not None and verdict.baseline.revision
        against = f" {BASE}={quote(base.asked)}" if base and is_compared else ""
        mode = "trim" if verdict.outcome is Outcome.UNUSED else "fix"
        return f"pytest {SWITCH} {UPDATE}={mode}{against} {quote(node_id)}"


class RunItem(BudgetItem):
    """One limit on what a model gives, or takes, where it runs; an idle one is skipped, and says how it is not."""

    def __init__(
        self, *, limit: budgets.Limit, check: ruling.RunCheck, parent: ModelNode, idle: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(place=limit.place, parent=parent, **kwargs)
        self.limit, self.check, self.model, self.is_idle = limit, check, parent, idle
        if idle:
            self.add_marker(pytest.mark.skip(reason=f"not measured: give {MEASURED}"))

    def runtest(self) -> None:
        """Run the model if nobody has, and fail if the limit is broken; skip, unanswered, for want of a device."""
        observation = self.model.observation(self.check)
        if observation.lacks_device:
            pytest.skip(observation.failure)  # for want of a device: counted as unanswered, so the session is red
        check = build.ruling_report(self.nodeid, ruling.rule(self.limit, self.check, observation))
        self.statement = self.model.statement(check)
        self._note(check)
        if check.fails:
            raise self.broken(check.outcome, messages.failure_lines(check, None, self.place), self.place)


class DerivedNode(pytest.Collector):
    """What comes of a model, by a change or on a device: limits on it, told with the model that it comes of."""

    parent: ModelNode | TransformNode
    check: budgets.TransformCheck | budgets.DeploymentCheck

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._reporter = ""  # node id of the item that reports it, each time that it runs

    @property
    def budget_path(self) -> str:
        """Its name within the file: "net::tiled"."""
        return budgets.path_of(self.parent.budget_path, self.check.name)

    @abstractmethod
    def measured(self) -> MeasuredModel:
        """Its numbers."""

    @property
    def failing_at(self) -> budgets.Place | None:
        """Where the file says what could not be measured: the model, or what comes of it; None where nothing failed."""
        if self.measured().failure is None:
            return None
        return self.parent.failing_at or self.check.failing_at

    @collection_paused()
    def statement(self, check: record.Check) -> build.Statement:
        """The words of one of its items for the report; with the first one's its own, behind those of the model."""
        statement = self.parent.statement(check)
        self._reporter = self._reporter or check.id
        return self._reported(statement) if self._reporter == check.id else statement

    @abstractmethod
    def _reported(self, statement: build.Statement) -> build.Statement:
        """The statement with what is said of this itself."""


class TransformNode(DerivedNode):
    """One change to a model: limits on what it costs then, and the claim about its outputs."""

    parent: ModelNode

    def __init__(self, *, check: budgets.TransformCheck, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check: budgets.TransformCheck = check
        self._transformed: transforming.TransformedModel | None = None

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Limits in the order of the file, then the equivalence, then devices."""
        for limit in self.check.limits:
            yield LimitItem.from_parent(self, name=limit.name, limit=limit)
        if self.check.equivalence is not None:
            yield EquivalenceItem.from_parent(self, name=budgets.EQUIVALENCE, equivalence=self.check.equivalence)
        for deployment in self.check.deployments:
            yield DeploymentNode.from_parent(self, name=deployment.name, check=deployment)

    @property
    def request(self) -> ApplyTransform:
        """The request for the changed model."""
        with_parts = keeps_parts(self.config, self.path, self.budget_path, self.check.deployments)
        return ApplyTransform(self.parent.source, self.check, with_parts)

    def transformed(self) -> transforming.TransformedModel:
        """The changed model, made and measured at the first call in this process."""
        if self._transformed is None:
            with self.config.stash[WATCH].naming(self.nodeid):
                self._transformed = self.parent.runner.answer(self.request)
        return self._transformed

    def release(self) -> None:
        """Let both models go, and all numbers: whoever asks again has them made again."""
        self._transformed = None

    def verified(self, claim: Claim) -> Equivalence:
        """Whether the changed model's outputs are still the same."""
        transformed = self.transformed()
        if transformed.measured.failure is not None:
            return transforming.verified(transformed, claim, ())
        with self.config.stash[WATCH].naming(budgets.path_of(self.nodeid, budgets.EQUIVALENCE)):
            return self.parent.runner.answer(Verify(self.request, claim))

    def measured(self) -> MeasuredModel:
        """The changed model's numbers."""
        return self.transformed().measured

    def _reported(self, statement: build.Statement) -> build.Statement:
        changed = self.transformed()
        report = build.transform_report(self.nodeid, self.check, changed.measured, changed.changes, self.failing_at)
        took = {report.id: f"{changed.measured.seconds:.3f}"}
        return replace(statement, transform=report, took={**statement.took, **took})


class EquivalenceItem(BudgetItem):
    """The claim that a transformed model computes the same."""

    def __init__(self, *, equivalence: budgets.EquivalenceCheck, parent: TransformNode, **kwargs: Any) -> None:
        super().__init__(place=equivalence.place, parent=parent, **kwargs)
        self.check = equivalence
        self.transform = parent

    def runtest(self) -> None:
        """Run both models, compare what they gave, and fail if it is not the same."""
        self.transform.transformed()
        began = clock()
        result = self.transform.verified(self.check.claim)
        took = {self.nodeid: f"{clock() - began:.3f}"}
        self.failure = self.transform.measured().failure
        repeat = f"pytest --model-budget {quote(self.nodeid)}"
        if result.first_divergence is not None:
            result = dataclasses.replace(result, first_divergence=result.first_divergence.repeated_by(repeat))
        self.ihook.pytest_model_budget_verified(item=self, equivalence=result)
        check = build.claim_report(self.nodeid, self.check, result)
        said = self.transform.statement(check)
        report = claims.equivalence_report(result)
        self.statement = replace(said, equivalence=report, took={**said.took, **took})
        self._note(check)
        if result.outcome is not Outcome.WITHIN:
            place = self.transform.failing_at or self.place
            raise self.broken(result.outcome, messages.equivalence_lines(result, place, repeat), place)


class DeploymentNode(DerivedNode):
    """One model, or what a transform made of it, on a device: limits on it there, and whether it fits."""

    def __init__(self, *, check: budgets.DeploymentCheck, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check: budgets.DeploymentCheck = check

    def collect(self) -> Iterator[pytest.Item]:
        """Whether it fits, then limits in the order of the file."""
        if self.check.fits is not None:
            yield FitItem.from_parent(self, name=budgets.FITS, place=self.check.fits)
        for limit in self.check.limits:
            yield LimitItem.from_parent(self, name=limit.name, limit=limit)

    def deployed(self) -> DeployedModel:
        """The model on the device, measured with the model itself."""
        return self.parent.measured().on(self.check.deployment)

    def measured(self) -> MeasuredModel:
        """Its numbers there."""
        return self.deployed().measured

    def _reported(self, statement: build.Statement) -> build.Statement:
        report = build.deployment_report(self.nodeid, self.check, self.deployed(), self.failing_at)
        return replace(statement, deployment=report)


class FitItem(BudgetItem):
    """Whether a model fits in every memory of a device."""

    def __init__(self, *, parent: DeploymentNode, **kwargs: Any) -> None:
        super().__init__(parent=parent, **kwargs)
        self.deployment = parent

    def runtest(self) -> None:
        """Measure the model if nobody has, hold the device's memories against it, and fail if one is too small."""
        verdict = judge_fit(self.deployment.check, self.deployment.deployed())
        check = build.fit_check(self.nodeid, verdict)
        self.statement = self.deployment.statement(check)
        self._note(check)
        if verdict.fails:
            place = self.deployment.failing_at or self.place
            raise self.broken(verdict.outcome, messages.fit_failure_lines(verdict, place), place)


def declared_limits(config: pytest.Config) -> int:
    """The number of limits in the files that this session has seen; a broken file counts as one."""
    return sum(config.stash.get(_DECLARED, {}).values())


def read_files(config: pytest.Config) -> Collection[str]:
    """The paths of the files that this session has read: no other plugin took them away before."""
    return config.stash.get(_DECLARED, {}).keys()


def broken_left_out(config: pytest.Config, held: Collection[str], selection: Sequence[str]) -> Iterator[str]:
    """A sentence for each file that cannot be read, and whose item is not among those that are held."""
    for item in config.stash.get(_BROKEN, {}).values():
        if item.nodeid not in held:
            by = ", ".join(selection) or "selection"
            yield f"{item.place.file} is broken, and left out by {by}: {item.problems[0]}"


class BudgetFile(pytest.File):
    """One budget; a file that cannot be read is one failing item."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The models of the file, in its order."""
        try:
            # An exception in collect() would end the whole session: there must be none.
            with user_code("reading the file", BudgetError):
                registry = models_of(self.config).registry
                budget = read_budget(self.path, registry, root=self.config.rootpath)
        except ModelBudgetError as error:
            self._declare(1)
            broken = BrokenBudget.from_parent(self, name=BROKEN, error=error, file=self.nodeid)
            self.config.stash.setdefault(_BROKEN, {})[str(self.path)] = broken
            yield broken
            return
        measured = self.config.getoption(MEASURED)
        self._declare(sum(promises(model, measured=measured) for model in budget.models))
        by_name: dict[str, list[budgets.ModelBudget]] = {}
        for model in budget.models:
            by_name.setdefault(model.name, []).append(model)
        for name, models in by_name.items():
            yield ModelNode.from_parent(self, name=name, models=models)

    def _declare(self, count: int) -> None:
        self.config.stash.setdefault(_DECLARED, {})[str(self.path)] = count


class BrokenBudget(BudgetItem):
    """A budget file that does not say what it must say: all its problems, each in its place."""

    def __init__(self, *, error: ModelBudgetError, file: str, **kwargs: Any) -> None:
        problems = error.problems if isinstance(error, yaml_text.BudgetFileError) else ()
        place = problems[0].place if problems else budgets.Place(file, 1)
        super().__init__(place=place, **kwargs)
        self.title = place.file
        self.problems = tuple(map(str, problems)) or (f"{place}:1: {one_line(str(error))}",)

    def runtest(self) -> None:
        """Fail, with every problem on a line of its own; the only one stands in the headline, and nowhere else."""
        self.statement = build.Statement(broken=record.BrokenFile(id=self.nodeid, problems=self.problems))
        count = len(self.problems)
        first = self.problems[0].removeprefix(f"{self.place}:{self.place.column}: ")
        if count == 1:
            raise BrokenLimitError([f"broken budget: {first}   {self.place}:{self.place.column}"])
        raise BrokenLimitError((f"broken budget: {first} (and {count - 1} more)", *self.problems))


class ModelNode(pytest.Collector):
    """One model under one set of inputs; its variants stand below it."""

    def __init__(self, *, models: Sequence[budgets.ModelBudget], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.models = models
        self._measured: MeasuredModel | None = None
        self._observations: dict[ruling.RunCheck, ruling.Observation[Any]] = {}
        self._reporter = ""  # node id of the item that reports it, each time that it runs

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The model's limits, then its variants."""
        for model in self.models:
            if model.variant is None or isinstance(self, VariantNode):
                for limit in model.limits:
                    yield LimitItem.from_parent(self, name=limit.name, limit=limit)
                yield from self._run_items(model)
                for check in model.transforms:
                    yield TransformNode.from_parent(self, name=check.name, check=check)
                for deployment in model.deployments:
                    yield DeploymentNode.from_parent(self, name=deployment.name, check=deployment)
            else:
                yield VariantNode.from_parent(self, name=model.variant, models=[model])

    @property
    def budget(self) -> budgets.ModelBudget:
        """The part of the file that asks something of this model."""
        return self.models[0]

    @property
    def budget_path(self) -> str:
        """Its name within the file: "detector", or "detector::batch8" of a variant."""
        return self.budget.path

    @property
    def source(self) -> ModelSource:
        """The source of the model, with the folders that its modules are imported from."""
        return dataclasses.replace(self.budget.source, import_roots=roots_of(self.config, self.path.parent))

    @property
    def runner(self) -> ModelProcess | InSession:
        """The process that answers requests about this model."""
        return models_of(self.config).runner(self.source, self.budget.isolation)

    @property
    def request(self) -> Measure:
        """The request for the model's numbers."""
        checks = self.budget.deployments
        with_parts = keeps_parts(self.config, self.path, self.budget_path, checks)
        return Measure(self.source, tuple(check.deployment for check in checks), with_parts)

    def measured(self) -> MeasuredModel:
        """The model's numbers, measured at the first call in this process."""
        if self._measured is None:
            runner, request = self.runner, self.request
            is_repeated = runner.has_answered(request)
            with self.config.stash[WATCH].naming(self.nodeid):
                model = runner.answer(request)
            if model.failure is None:
                self.ihook.pytest_model_budget_measured(
                    config=self.config, model_id=self.nodeid, measurements=model.measurements
                )
            self._measured = dataclasses.replace(model, seconds=0.0) if is_repeated else model
        return self._measured

    def expect(self) -> None:
        """Say that its numbers will be asked for, until it is released."""
        models_of(self.config).expect(self.source, self.budget.isolation)

    def release(self) -> None:
        """Let all numbers go: whoever asks again has them measured again."""
        self._measured = None
        self._observations.clear()
        models_of(self.config).release(self.source, self.budget.isolation)

    @property
    def failing_at(self) -> budgets.Place | None:
        """Where the file says what could not be measured; None where nothing failed."""
        failure = self.measured().failure
        return None if failure is None else self.budget.failing_at(failure)

    def _run_items(self, model: budgets.ModelBudget) -> Iterator[RunItem]:
        """The limits on what it gives where it runs, then on what it takes; those are idle unless asked for."""
        for check in model.run_checks:
            idle = isinstance(check, budgets.MeasuredCheck) and not self.config.getoption(MEASURED)
            for limit in check.limits:
                yield RunItem.from_parent(self, name=limit.name, limit=limit, check=check, idle=idle)

    def observing(self, check: ruling.RunCheck) -> Observe | TimeRuns:
        """The request for what a check is about."""
        if isinstance(check, budgets.StatisticsCheck):
            return Observe(self.source, check)
        return TimeRuns(self.source, self._traced(check).plan)

    def observation(self, check: ruling.RunCheck) -> ruling.Observation[Any]:
        """What a check is about, seen at the first call in this process."""
        if check not in self._observations:
            with self.config.stash[WATCH].naming(self.nodeid):
                self._observations[check] = self.runner.answer(self.observing(check))
        return self._observations[check]

    def _traced(self, check: budgets.MeasuredCheck) -> budgets.MeasuredCheck:
        """The check with a trace, where those are asked for."""
        folder = self.config.getoption(TRACES)
        if folder is None:
            return check
        path = absolute(self.config.invocation_params.dir, folder)
        path.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.@-]+", "-", f"{self.nodeid}@{check.plan.device.value}")
        return dataclasses.replace(check, plan=dataclasses.replace(check.plan, trace=path / f"{name}.json"))

    def teardown(self) -> None:
        """End its process once the last of its items ran."""
        self.runner.rest()

    @collection_paused()
    def statement(self, check: record.Check) -> build.Statement:
        """The words of an item of this model for the report; with the first one's the model itself."""
        self._reporter = self._reporter or check.id
        if self._reporter != check.id:
            return build.Statement(check=check)
        model = self.measured()
        declared = declared_texts(self.source)
        report = build.model_report(self.nodeid, self.budget.place, model, self.failing_at, declared)
        return build.Statement(check=check, model=report, took={report.id: f"{model.seconds:.3f}"})


class VariantNode(ModelNode):
    """The same model under other inputs."""


def promises(model: budgets.ModelBudget, *, measured: bool) -> int:
    """How many items of a model's budget want an answer: its limits, and what is held of it elsewhere."""
    changed = sum(len(check.limits) + (check.equivalence is not None) for check in model.transforms)
    deployed = sum(len(check.limits) + (check.fits is not None) for _, check in model.deployed())
    run = (check for check in model.run_checks if measured or not isinstance(check, budgets.MeasuredCheck))
    return len(model.limits) + changed + deployed + sum(len(check.limits) for check in run)


def requests_of(item: BudgetItem) -> Iterator[Request[Any]]:
    """The requests that an item will make; not those for timed runs, which wait until no other model is measured."""
    model, transform = item.getparent(ModelNode), item.getparent(TransformNode)
    if model is None:
        return
    yield model.request
    if transform is not None:
        yield transform.request
    if isinstance(item, EquivalenceItem):
        yield Verify(item.transform.request, item.check.claim)
    if isinstance(item, RunItem) and isinstance(item.check, budgets.StatisticsCheck):
        yield model.observing(item.check)
