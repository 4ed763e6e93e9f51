"""Budgets as pytest sees them: file, model, variant, and one item per limit.

budgets/vision.yaml::detector::params, budgets/vision.yaml::detector::batch8::params
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget import lock_file, yaml_text
from pytest_modelbudget.budget.base_inventory import ModelAtBase
from pytest_modelbudget.budget.kinds import KINDS, Observation
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.revision import short
from pytest_modelbudget.budget.source_forms import declared_texts
from pytest_modelbudget.budget.update import UpdateMode
from pytest_modelbudget.budget.verdict import NO_BASELINE, Verdict, with_exception, with_frameworks
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import BudgetError, ModelBudgetError, user_code
from pytest_modelbudget.formats.benchmark import Plan, clock
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import measuring, transforming
from pytest_modelbudget.gate.pool import InSession, ModelProcess
from pytest_modelbudget.gate.process_state import collection_paused
from pytest_modelbudget.gate.worker import Answer, ApplyTransform, Measure, Observe, Request, Verify
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.pytest_plugin.options import BASE, DATE, PROFILE_DIR, RUNTIME, SWITCH, UPDATE, absolute
from pytest_modelbudget.pytest_plugin.session_models import (
    WATCH,
    adds_locks,
    baselines_of,
    keeps_parts,
    models_of,
    roots_of,
)
from pytest_modelbudget.reports import build, claims, messages, record
from pytest_modelbudget.reports.html.profile import with_base
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.text import folded, one_line, printed_line

MARKER = PROPERTY = "model_budget"
Run = budgets.ValuesRun | budgets.TimedRun
COLOURED = ("params", "macs", "peak_activation", "bandwidth")  # numbers that a page compares with the base by layer
BROKEN = "budget"  # name of the item that a file without readable limits has

_SHOWN = pytest.StashKey[list[ModelBudgetError]]()  # those whose exceptions were shown
_READ = pytest.StashKey[dict[str, int]]()  # the number of limits of each file; one of a broken file


class BrokenLimitError(Exception):
    """Raised by an item to fail; lines are what the reader sees, message is the summary, else the first line."""

    def __init__(self, lines: Sequence[str], place: budgets.Place | None = None, message: str = "") -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)
        self.place = place
        self.message = message or self.lines[0]


class OverLimitError(BrokenLimitError, AssertionError):
    """Raised by a limit that was judged and is broken: dashboards tell a failed assertion from an error by its type."""


def shown_failure(
    excinfo: pytest.ExceptionInfo[BaseException], lines: Sequence[str], place: budgets.Place, message: str = ""
) -> Any:
    """A failure as lines, with a budget's own line as its place; its summary is the message, else the first line."""
    shown = excinfo.getrepr(style="value")
    entry = shown.reprtraceback.reprentries[0]
    entry.lines = [printed_line(line) for line in lines]  # also what xdist can send
    if shown.reprcrash is not None:
        shown.reprcrash.path = printed_line(place.file)
        shown.reprcrash.lineno = place.line
        said, at = message or lines[0], f"   {place}"
        shown.reprcrash.message = printed_line(said.removesuffix(f"{at}:{place.column}").removesuffix(at))
    return shown


def fold(report: pytest.TestReport, width: int, *, is_shown: bool) -> str:
    """Let a budget's failure be as wide as the terminal that shows it; what a user's code raised stays as it is.

    Where it is shown, its summary repeats no figures of a model's block. Returns its first words.
    """
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    if MARKER not in report.keywords or not (entries and entries[0].lines):
        return ""
    lines, crash = list(entries[0].lines), getattr(report.longrepr, "reprcrash", None)
    first = str(lines[0]).partition("   ")[0]
    if is_shown and crash is not None and not lines[0].startswith(crash.message):
        crash.message = first
    raised = lines.index("") if "" in lines else len(lines)
    entries[0].lines = [part for line in lines[:raised] for part in folded(line, width)] + lines[raised:]
    return first


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
            lines = (*error.lines, *self._raised())
            return shown_failure(excinfo, lines, error.place or self.place, error.message)
        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo)
        text = f"{self.title} unknown: {type(error).__name__}: {one_line(str(error))}"
        way_out = "raised by a hook, a plugin or pytest-modelbudget itself: see --full-trace"
        return shown_failure(excinfo, (f"{text}   {self.place}", way_out), self.place)

    def broken(self, outcome: Outcome, lines: Sequence[str], place: budgets.Place, message: str) -> BrokenLimitError:
        """The failure of this item; its second line names the user's code that built the model."""
        model, is_block = self.getparent(ModelNode), not lines[0].startswith(message)
        if model is not None and (definition := model.measured().defined_at) and len(lines) > 1 and not is_block:
            lines = (lines[0], f"  model: {model.source.target}   {definition}", *lines[1:])
        return (BrokenLimitError if outcome is Outcome.UNKNOWN else OverLimitError)(lines, place, message)

    def _raised(self) -> Sequence[str]:
        """The whole exception of a user's code, where more than its first line is asked for; once a session."""
        shown = self.config.stash.setdefault(_SHOWN, [])
        if self.failure is None or not self.failure.raised or self.failure in shown:
            return ()
        shown.append(self.failure)
        if self.config.getoption("verbose") > 0 or self.config.getoption("tbstyle") == "long":
            return ("", *self.failure.raised.splitlines())
        return ("the whole exception: pytest -v",)

    def _initrequest(self) -> None:
        """Reset no fixtures: pytest-retry calls this method of functions on every item before it runs one again."""

    def _note(self, check: record.Check) -> None:
        """Let pytest's own JUnit file have the check."""
        others = [(name, value) for name, value in self.user_properties if name != PROPERTY]
        self.user_properties[:] = [*others, (PROPERTY, json.dumps(to_json(replace(check, operators=()))))]


class CheckItem(BudgetItem):
    """One check of one subject; an idle one is skipped, and says how it is not."""

    def __init__(self, *, check: budgets.Check, parent: SubjectNode, idle: bool = False, **kwargs: Any) -> None:
        super().__init__(place=check.place, parent=parent, **kwargs)
        self.check, self.node, self.is_idle = check, parent, idle
        if idle:
            self.add_marker(pytest.mark.skip(reason=f"not measured: give {RUNTIME}"))

    def runtest(self) -> None:
        """Measure the subject once, judge the check, and fail if it is broken; skip for want of a device."""
        kind, node = KINDS[self.check.kind], self.node
        if kind.sees in ("numbers", "outputs"):
            measured = node.measured()
            self.failure = measured.failure or measured.failures.get(self.check.metric)
        began = clock()
        seen = node.seen(self.check)
        took = {self.nodeid: f"{clock() - began:.3f}"} if kind.sees == "outputs" else {}
        if isinstance(seen, Observation) and seen.lacks_device:
            pytest.skip(seen.failure)  # for want of a device: counted as unanswered, so the session is red
        verdict = self._judged(seen)
        check = self.reported(verdict)
        said = node.statement(check)
        if self.check.kind in budgets.LOCKED:
            said = replace(said, number=self._number(verdict))
        elif kind.sees == "outputs":
            said = replace(said, equivalence=claims.equivalence_report(verdict.seen), took={**said.took, **took})
        self.statement = said
        self._note(check)
        if check.fails:
            unmeasured = None if kind.sees == "run" else node.unmeasured
            place = (unmeasured and node.failing_at) or self.place
            if unmeasured or messages.is_over(check):
                lines = unmeasured.unknown(self, place) if unmeasured else node.program.cause(check.id)
                message = one_line(check.reason)
            else:
                lines, message = messages.failure_lines(node.case(check, said.equivalence), place), ""
            raise self.broken(verdict.outcome, lines, place, message)

    def reported(self, verdict: Verdict) -> record.Check:
        """Its check as reports have it, with the command that accepts what was measured."""
        check = build.check_report(self.nodeid, verdict, models_of(self.config).registry.metrics)
        is_updated = self.check.kind in budgets.LOCKED and check.can_be_updated
        return replace(check, update=self._accepting(verdict)) if is_updated else check

    def _judged(self, seen: Any) -> Verdict:
        """The verdict on what was seen; plugins are told of those on numbers, and of comparisons of outputs."""
        kind = KINDS[self.check.kind]
        if isinstance(seen, Equivalence):
            if seen.first_divergence is not None:
                again = seen.first_divergence.repeated_by(f"pytest --model-budget {quote(self.nodeid)}")
                seen = dataclasses.replace(seen, first_divergence=again)
            self.ihook.pytest_model_budget_verified(item=self, equivalence=seen)
        if self.check.kind not in budgets.LOCKED:
            return kind.judge(self.check, seen, NO_BASELINE)
        verdict = self.verdict(seen)
        self.ihook.pytest_model_budget_judged(item=self, verdict=verdict)
        return verdict

    def verdict(self, seen: Any) -> Verdict:
        """The verdict on a number, without a word to plugins."""
        baseline = baselines_of(self.config).of(self.path, self.node.budget_path, self.name)
        verdict = KINDS[self.check.kind].judge(self.check, seen, baseline)
        today = date.fromisoformat(self.config.getoption(DATE))
        versions = models_of(self.config).registry.versions(seen.format)
        verdict = with_frameworks(with_exception(verdict, today), seen.parts, versions)
        is_auto = bool(getattr(self.check, "auto", ()))
        is_broken = bool(baselines_of(self.config).in_working_tree(self.path).problem)
        is_added = adds_locks(self.config) and not (is_auto or is_broken)
        mode = self.config.getoption(UPDATE) or ("create" if is_added else None)
        return measuring.judged_as_updated(UpdateMode(mode), verdict, seen, versions, today) if mode else verdict

    def _number(self, verdict: Verdict) -> dict[str, Any] | None:
        """The measured number as a lock file has it, and the path of its budget file."""
        model = self.node.measured()
        versions = models_of(self.config).registry.versions(model.format)
        is_written = self.config.getoption(UPDATE) or adds_locks(self.config)
        number = measuring.lockable(verdict, model if is_written else None, versions)
        return None if number is None else {"budget": str(self.path), **lock_file.value_record(number)}

    def _accepting(self, verdict: Verdict) -> str:
        """The command that makes the limit what was measured, or drops its exception, from the current directory."""
        start, base = self.config.invocation_params.dir, baselines_of(self.config).base
        path = Path(os.path.relpath(self.path, start)).as_posix()
        node_id = budgets.path_of(path, *budgets.Address.parse(self.nodeid).names)
        is_compared = verdict.allowed is not None and verdict.baseline.revision
        against = f" {BASE}={quote(base.asked)}" if base and is_compared else ""
        mode = "trim" if verdict.outcome is Outcome.UNUSED else "fix"
        return f"pytest {SWITCH} {UPDATE}={mode}{against} {quote(node_id)}"


class SubjectNode(pytest.Collector):
    """A model, what a transform makes of it, or either on a device: checks on it, and what comes of it."""

    def __init__(self, *, subject: budgets.Subject[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.subject = subject
        self._reporter = ""  # node id of the item that reports it, each time that it runs
        self._numbers: list[tuple[SubjectNode, record.Check]] | None = None  # its limits, judged for its first failure

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Its checks, of which timed runs are idle unless asked for, then what comes of it."""
        for check in self.subject.checks:
            idle = check.kind == "runtime" and not self.config.getoption(RUNTIME)
            yield CheckItem.from_parent(self, name=check.name, check=check, idle=idle)
        for part in self.subject.parts:
            node = TransformNode if part.kind == budgets.CHANGED else DeploymentNode
            yield node.from_parent(self, name=part.name, subject=part)

    @property
    def above(self) -> SubjectNode | None:
        """What it comes of; None of a model."""
        return self.parent if isinstance(self.parent, SubjectNode) else None

    @property
    def budget_path(self) -> str:
        """Its name within the file: "detector", "detector::batch8" of a variant, "net::tiled"."""
        return budgets.path_of(self.above.budget_path, self.subject.name) if self.above else self.subject.path

    @property
    def program(self) -> SubjectNode:
        """The model or transform that is measured: of a deployment, what is on the device."""
        return self

    def cause(self, node_id: str) -> tuple[str, ...]:
        """The text of a limit that is over: one of its model has what fails of it as one block, others point there."""
        if self._numbers is None:
            items = (item for item in self.session.items if isinstance(item, CheckItem))
            items = (item for item in items if item.node.program is self and item.check.kind in budgets.LOCKED)
            self._numbers = [(item.node, item.reported(item.verdict(item.node.seen(item.check)))) for item in items]
        first = next(check for _, check in self._numbers if messages.is_over(check))
        if first.id != node_id:
            return (f"{messages.SEE}{budgets.Address.parse(self.nodeid).title}",)
        reports = {node.nodeid: node.case(first, None) for node, _ in self._numbers}
        cases = [reports[node.nodeid]._replace(check=check) for node, check in self._numbers]
        base = baselines_of(self.config).base
        return messages.cause_lines(cases, short(base) if base else "")

    @property
    def unmeasured(self) -> SubjectNode | None:
        """What could not be measured: it, or what it comes of; None where nothing failed."""
        failed = self.above.unmeasured if self.above else None
        return failed or (self if self.measured().failure is not None else None)

    def unknown(self, item: CheckItem, place: budgets.Place) -> tuple[str, ...]:
        """The text of a limit that is unknown with all of its subject: the first says why, others point there."""
        items, model = (each for each in self.session.items if isinstance(each, CheckItem)), self.getparent(ModelNode)
        items = (each for each in items if each.getparent(ModelNode) is model and KINDS[each.check.kind].sees != "run")
        ids = [each.nodeid for each in items if each.node.unmeasured is self]
        title = budgets.Address.parse(self.nodeid).title
        if item.nodeid != ids[0]:
            return (f"{messages.SEE}{title}",)
        return messages.unknown_lines(title, len(ids), str(self.measured().failure), place)

    @abstractmethod
    def measured(self) -> MeasuredModel:
        """Its numbers, measured at the first call in this process."""

    def seen(self, check: Any) -> Any:
        """What the kind of a check judges."""
        return self.measured()

    @property
    def failing_at(self) -> budgets.Place | None:
        """Where the file says what could not be measured: the model, or what comes of it; None where nothing failed."""
        failure = self.measured().failure
        if failure is None:
            return None
        return (self.above and self.above.failing_at) or self.subject.failing_at(failure)

    @collection_paused()
    def statement(self, check: record.Check) -> build.Statement:
        """The words of one of its items for the report; with the first one's its own, behind those of the model."""
        statement = self.above.statement(check) if self.above else build.Statement(check=check)
        self._reporter = self._reporter or check.id
        if self._reporter != check.id:
            return statement
        took = {self.nodeid: f"{self.measured().seconds:.3f}"} if self.subject.kind != budgets.DEPLOYED else {}
        return replace(statement, **{self.subject.kind: self.report}, took={**statement.took, **took})

    @property
    @abstractmethod
    def report(self) -> build.AnySubject:
        """Its entry in the report, before its checks."""

    def case(self, check: record.Check, equivalence: claims.EquivalenceReport | None) -> record.Case:
        """One of its checks with all that a failure names."""
        model, owner = self.getparent(ModelNode), self.report
        assert model is not None, "every subject is below a model"
        if isinstance(owner, record.TransformReport):
            owner = replace(owner, equivalence=equivalence)
        return record.Case(check, owner, model.report)


class TransformNode(SubjectNode):
    """One change to a model."""

    parent: ModelNode

    @property
    def request(self) -> ApplyTransform:
        """The request for the changed model."""
        with_parts = keeps_parts(self.config, self.path, self.budget_path, self.subject)
        return ApplyTransform(self.parent.source, self.subject, with_parts, self.config.getoption(UPDATE) == "create")

    def transformed(self) -> transforming.TransformedModel:
        """The changed model, made and measured at the first call in this process."""
        return self.parent.answer(self.request, self.nodeid)

    def measured(self) -> MeasuredModel:
        return self.transformed().measured

    def seen(self, check: Any) -> Any:
        """Its numbers, or the comparison of its outputs with those of the original."""
        if not isinstance(check, budgets.ClaimCheck):
            return self.measured()
        transformed = self.transformed()
        if transformed.measured.failure is not None:
            return transforming.verified(transformed, check.claim, ())
        return self.parent.answer(Verify(self.request, check.claim), budgets.path_of(self.nodeid, check.name))

    @property
    def report(self) -> record.TransformReport:
        """Its entry in the report, before its checks."""
        changed = self.transformed()
        return build.transform_report(self.nodeid, self.subject, changed.measured, changed.changes, self.failing_at)


class DeploymentNode(SubjectNode):
    """One model, or what a transform made of it, on a device."""

    parent: ModelNode | TransformNode

    @property
    def program(self) -> SubjectNode:
        return self.parent

    def deployed(self) -> DeployedModel:
        """The model on the device, measured with the model itself."""
        return self.parent.measured().on(self.subject.made)

    def measured(self) -> MeasuredModel:
        return self.deployed().measured

    def seen(self, check: Any) -> Any:
        return self.deployed() if isinstance(check, budgets.FitsCheck) else self.measured()

    @property
    def report(self) -> record.DeploymentReport:
        return build.deployment_report(self.nodeid, self.subject, self.deployed(), self.failing_at)


def read_files(config: pytest.Config) -> dict[str, int]:
    """The files that this session has read, by path: no other plugin took them away before."""
    return config.stash.setdefault(_READ, {})


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
            read_files(self.config)[str(self.path)] = 1
            yield BrokenBudget.from_parent(self, name=BROKEN, error=error, file=self.nodeid)
            return
        idle = () if self.config.getoption(RUNTIME) else ("runtime",)
        subjects = (subject for model in budget.models for _, _, subject in model.walk("", ()))
        limits = sum(check.kind not in idle for subject in subjects for check in subject.checks)
        read_files(self.config)[str(self.path)] = limits
        by_name: dict[str, list[budgets.Subject[ModelSource]]] = {}
        for model in budget.models:
            by_name.setdefault(model.name, []).append(model)
        for name, models in by_name.items():
            variants = [model for model in models if model.variant is not None]
            yield ModelNode.from_parent(self, name=name, subject=models[0], variants=variants)


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
        raise BrokenLimitError((f"broken budget: {count} problems", *self.problems))


class ModelNode(SubjectNode):
    """One model under one set of inputs; its variants stand below it."""

    def __init__(self, *, variants: Sequence[budgets.Subject[ModelSource]] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.variants = variants
        self._answers: dict[str, Any] = {}  # by the text of the request

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """The model's checks and what comes of it, then its variants."""
        if self.subject not in self.variants:
            yield from super().collect()
        for variant in self.variants:
            yield ModelNode.from_parent(self, name=variant.variant, subject=variant)

    @property
    def above(self) -> None:
        """Nothing, not even of a variant."""
        return

    @property
    def source(self) -> ModelSource:
        """The source of the model, with the folders that its modules are imported from."""
        source: ModelSource = self.subject.made
        return dataclasses.replace(source, import_roots=roots_of(self.config, self.path.parent))

    @property
    def runner(self) -> ModelProcess | InSession:
        return models_of(self.config).runner(self.source, self.subject.isolation)

    @property
    def request(self) -> Measure:
        """The request for the model's numbers."""
        with_parts = keeps_parts(self.config, self.path, self.budget_path, self.subject)
        return Measure(self.source, tuple(part.made for part in self.subject.deployments), with_parts)

    def measured(self) -> MeasuredModel:
        """The model's numbers, measured at the first call in this process."""
        request = self.request
        key = repr(request)
        if key not in self._answers:
            is_repeated = self.runner.has_answered(request)
            model = self.answer(request, self.nodeid)
            if model.failure is None:
                self.ihook.pytest_model_budget_measured(
                    config=self.config, model_id=self.nodeid, measurements=model.measurements
                )
            self._answers[key] = dataclasses.replace(model, seconds=0.0) if is_repeated else model
        measured: MeasuredModel = self._answers[key]
        return measured

    def answer(self, request: Request[Answer], named: str) -> Answer:
        """What the model's process answers, asked at the first call; named is what the terminal says is measured."""
        key = repr(request)
        if key not in self._answers:
            with self.config.stash[WATCH].naming(named):
                self._answers[key] = self.runner.answer(request)
        answer: Answer = self._answers[key]
        return answer

    def expect(self) -> None:
        """Say that its numbers will be asked for, until it is released."""
        models_of(self.config).expect(self.source, self.subject.isolation)

    def release(self) -> None:
        """Let all numbers go: whoever asks again has them measured again."""
        self._answers.clear()
        models_of(self.config).release(self.source, self.subject.isolation)

    def observing(self, run: Run) -> Request[Any]:
        """The request for what limits are about that only a run can tell."""
        if isinstance(run, budgets.ValuesRun):
            return Observe(self.source, run)
        base = baselines_of(self.config).base if run.grow is not None else None
        known = ModelAtBase(dataclasses.replace(base, contents={}), self.path, self.budget_path) if base else None
        return Observe(self.source, dataclasses.replace(run, plan=self._traced(run.plan)), known)

    def seen(self, check: Any) -> Any:
        """Its numbers, or what was seen of a run at the first call in this process."""
        run: Run | None = getattr(check, "run", None)
        return self.measured() if run is None else self.answer(self.observing(run), self.nodeid)

    def _traced(self, plan: Plan) -> Plan:
        """The plan with a trace, where those are asked for."""
        folder = self.config.getoption(PROFILE_DIR)
        if folder is None:
            return plan
        path = absolute(self.config.invocation_params.dir, folder)
        path.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.@-]+", "-", f"{self.nodeid}@{plan.device.value}")
        return dataclasses.replace(plan, trace=path / f"{name}.json")

    def teardown(self) -> None:
        """End its process once the last of its items ran."""
        self.runner.rest()

    @property
    def report(self) -> record.ModelReport:
        """Its entry in the report, before its checks."""
        declared = declared_texts(self.source)
        report = build.model_report(self.nodeid, self.subject.place, self.measured(), self.failing_at, declared)
        if not report.profile:
            return report
        locked = {key: baselines_of(self.config).of(self.path, self.budget_path, key).locked for key in COLOURED}
        return replace(report, profile=with_base(report.profile, locked))


def requests_of(item: BudgetItem) -> Iterator[Request[Any]]:
    """The requests that an item will make; not those for timed runs, which wait until no other model is measured."""
    model, transform, check = item.getparent(ModelNode), item.getparent(TransformNode), getattr(item, "check", None)
    if model is None:
        return
    yield model.request
    if transform is not None:
        yield transform.request
        if isinstance(check, budgets.ClaimCheck):
            yield Verify(transform.request, check.claim)
    if isinstance(check, budgets.Limit) and isinstance(check.run, budgets.ValuesRun):
        yield model.observing(check.run)


def plan(session: pytest.Session) -> None:
    """Let the pool carry out what the items of a session will ask for, each model in a process of its own."""
    limits = [item for item in session.items if isinstance(item, BudgetItem) and item.getparent(ModelNode)]
    if not limits:
        return
    models_of(session.config).prepare()
    planned: dict[ModelProcess, dict[str, Request[object]]] = {}
    for item in limits if not hasattr(session.config, "workerinput") else ():
        model = item.getparent(ModelNode)
        assert model is not None, "limits are below a model"
        runner = model.runner
        if isinstance(runner, ModelProcess) and not item.is_idle:
            requests = planned.setdefault(runner, {})
            requests.update((repr(request), request) for request in requests_of(item))
    if planned:
        models_of(session.config).pool.plan((runner, [*requests.values()]) for runner, requests in planned.items())


class OpenItems:
    """The items of a session that have not run yet, by the models that keep graphs and numbers for them."""

    def __init__(self, session_items: Collection[pytest.Item]) -> None:
        self._open: defaultdict[ModelNode, set[pytest.Item]] = defaultdict(set)
        for item in session_items:
            if model := item.getparent(ModelNode):
                if model not in self._open:
                    model.expect()
                self._open[model].add(item)

    def close(self, item: pytest.Item) -> None:
        """Note that an item ran, as often as it had to."""
        model = item.getparent(ModelNode)
        if model is None:
            return
        left = self._open.get(model, set())
        left.discard(item)
        if not left and self._open.pop(model, None) is not None:
            model.release()
