"""Load → measure → judge, read from top to bottom, each model once; and the values and times of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.base_inventory import ModelAtBase, growth_since
from pytest_modelbudget.budget.budget import Limit, TimedRun, ValuesRun
from pytest_modelbudget.budget.kinds import ON_NOTHING, Observation, judge_limit
from pytest_modelbudget.budget.lock_file import Baseline, LockedValue, locked_value
from pytest_modelbudget.budget.update import UpdateMode, as_updated
from pytest_modelbudget.budget.verdict import Verdict, has_other_minimum, with_exception
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import (
    ExtensionError,
    ModelBudgetError,
    SourceError,
    TraceError,
    TransformError,
    user_code,
)
from pytest_modelbudget.evaluation.stored import Origin, evaluated
from pytest_modelbudget.formats.benchmark import MissingDeviceError, Plan, Timing, clock, importing
from pytest_modelbudget.formats.model import LoadedModel, Model, must_run, training_step
from pytest_modelbudget.formats.source import AS_RUN, AS_WRITTEN, ModelSource
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate.process_state import collection_paused, state_kept
from pytest_modelbudget.graph.graph import Graph, is_in_scope
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.lowering.lowered import Lowered, as_read, lowered
from pytest_modelbudget.metrics import costs, growth
from pytest_modelbudget.metrics.branches import bounded, branches
from pytest_modelbudget.metrics.compute import OpCount, census, operations
from pytest_modelbudget.metrics.measured_model import DeployedModel, Deployment, MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Stage
from pytest_modelbudget.metrics.notes_on_stored import notes_on_stored
from pytest_modelbudget.metrics.on_device import arena, fitting, order, timed
from pytest_modelbudget.metrics.storage import weight_memory
from pytest_modelbudget.metrics.training import TRAINING_MEMORY
from pytest_modelbudget.registry import Tables, installed_extensions, joined_tables
from pytest_modelbudget.runners import timing
from pytest_modelbudget.values import capture

Profile = Callable[..., Any]  # of a model, its program, and the step that it is served with, where there is one
Make = Callable[[costs.CostedGraph], costs.CostedGraph]  # another program of the model as written
RECORDING = {Stage.TRAINED: "recording a training step", Stage.SERVED: "running the model with its cache"}


@dataclass(frozen=True, slots=True)
class CostedModel:
    """A model with its programs, what each operation costs, and every metric that could be measured.

    failures holds the other metrics, by key. reservation is what every failure says of the program.
    """

    loaded: Model
    programs: Mapping[Stage, costs.CostedGraph]
    census: tuple[OpCount, ...]
    measurements: Mapping[str, Measurement]
    failures: Mapping[str, ModelBudgetError]
    reservation: str = ""

    @property
    def costed(self) -> costs.CostedGraph:
        return self.programs[Stage.WRITTEN]

    @property
    def step(self) -> costs.CostedGraph:
        """Its training step; raises ModelBudgetError where none could be recorded."""
        if error := self.failures.get(TRAINING_MEMORY.key):
            raise error
        return self.programs[Stage.TRAINED]

    @property
    def is_complete(self) -> bool:
        """Whether no number is a lower bound, but for those that a file without operations has not."""
        why = self.loaded.graph.operations_unknown
        lacking = (op.why for number in self.measurements.values() for op in number.unmeasured)
        bounds = all(number.complete or number.unmeasured for number in self.measurements.values())
        return bounds and all(bool(why) and each == why for each in lacking)

    @property
    def notes(self) -> tuple[str, ...]:
        graph = self.loaded.graph
        empty = tuple(f"input {tensor.name} has a size of 0" for tensor in graph.inputs if tensor.is_empty)
        of_nothing = (ON_NOTHING,) if graph.is_on_nothing else empty
        return (*self.loaded.notes, *of_nothing, *self.costed.once(notes_on_stored))


@collection_paused()
def costed_model(source: ModelSource, registry: Tables, *, root: Path) -> CostedModel:
    """The model loaded once, and all metrics of it.

    Raises ModelBudgetError where it cannot be loaded, or an operation's rule raises.
    """
    with searched_first(source.searched(root)):
        with user_code("loading the model", SourceError):
            loaded = registry.formats[source.format].load(source, registry.ops)
            loaded.graph  # noqa: B018  # a model is read when its graph is asked for
        return costed(loaded, registry, source)


def costed(model: Model, registry: Tables, source: ModelSource, origin: Origin | None = None) -> CostedModel:
    """A loaded model as a runtime reads it, with all metrics that its source asks for; a changed one has an origin.

    Raises ModelBudgetError where an operation's rule raises.
    """
    read = as_read(model.graph, registry.ops, on_integers=source.qdq != AS_WRITTEN and source.format not in AS_RUN)
    loaded = model if read.graph is model.graph else _rewritten(model, read.graph, read.became, read.notes)
    made: dict[Stage, Make] = {}
    if source.training:
        made[Stage.TRAINED] = lambda _: costs.CostedGraph(training_step(model, source.training), registry.ops)
    if source.serving is not None:
        made[Stage.SERVED] = _serving(source, registry)
    found = _costed(loaded, registry, made=made)
    numbers, failures = evaluated(model, source.evaluate, origin)
    return replace(found, measurements={**found.measurements, **numbers}, failures={**found.failures, **failures})


def _serving(source: ModelSource, registry: Tables) -> Make:
    """What records the decode step of a model that is served; raises SourceError where its format is not."""
    serves = registry.formats[source.format].serves
    if not serves:
        raise SourceError(f"what is under {source.format}: is not served with a cache: remove 'serving'")
    serve: Callable[..., costs.CostedGraph] = import_module(serves).serve
    return lambda written: serve(source, registry.ops, weight_memory(written))


def _costed(
    loaded: Model, registry: Tables, *, device: Device | None = None, made: Mapping[Stage, Make] | None = None
) -> CostedModel:
    """A model with its metrics, on a device with those of deployments; made gives its other programs."""
    graph = costs.CostedGraph(loaded.graph, registry.ops, device or costs.NO_DEVICE)
    with user_code("working out what each operation costs", ExtensionError):
        counts = graph.once(census)
    programs = {Stage.WRITTEN: graph}
    measurements: dict[str, Measurement] = {}
    failures: dict[str, ModelBudgetError] = {}
    if device is not None:
        programs[Stage.DEPLOYED] = graph
    for stage, make in (made or {}).items():
        try:
            with user_code(RECORDING[stage], TraceError):
                programs[stage] = make(graph)
        except ModelBudgetError as error:
            failures |= {key: error for key, metric in registry.metrics.items() if metric.stage is stage}
    for key, metric in registry.metrics.items():
        if metric.stage in programs:
            try:
                with user_code(f"measuring {key}", ExtensionError):
                    measurements[key] = bounded(metric, programs[metric.stage])
            except ModelBudgetError as error:
                failures[key] = error
    return CostedModel(loaded, programs, counts, measurements, failures)


def _rewritten(
    loaded: Model, graph: Graph, became: Mapping[Tensor, Tensor], notes: tuple[str, ...] = ()
) -> LoadedModel:
    """A model as another program, with its layers there: one whose operations are all part of others gives nothing."""
    gone = {op.scope for op in loaded.graph.ops} - {op.scope for op in graph.ops}

    def there(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(became.get(tensor, tensor) for tensor in tensors)

    layers = tuple(
        replace(
            layer,
            inputs=there(layer.inputs),
            outputs=() if layer.leaf and layer.scope in gone else there(layer.outputs),
        )
        for layer in loaded.layers
    )
    return LoadedModel(graph, loaded.format, loaded.traced, layers, (*loaded.notes, *notes))


@collection_paused()
def measure_model(
    source: ModelSource, registry: Tables, *, root: Path, deployments: Iterable[Deployment] = (),
    with_parts: bool = False, profile: Profile | None = None,
) -> MeasuredModel:  # fmt: skip
    """The numbers of a model, and of it on devices, or why there are none; its graph is gone.

    with_parts keeps what each number is made of, for a lock file to be written or compared. profile
    is called while the graph is there, and on each device, and what it makes of it is kept.
    """
    began = clock()
    with undisturbed(registry.formats[source.format]):
        try:
            model = costed_model(source, registry, root=root)
        except ModelBudgetError as error:
            measured = MeasuredModel(source.format, failure=error, seconds=clock() - began)
        else:
            measured = without_graph(model, began, registry, with_parts=with_parts)
            served = model.programs.get(Stage.SERVED)
            measured = replace(measured, profile=profile(model.loaded, model.costed, served)) if profile else measured
            on_devices = (
                deployed(model, each, registry, with_parts=with_parts, profile=profile) for each in deployments
            )
            measured = replace(measured, deployments=tuple(on_devices))
    return replace(measured, defined_at=source.definition(root))


def deployed(
    model: CostedModel, deployment: Deployment, registry: Tables, *, with_parts: bool = False,
    profile: Profile | None = None,
) -> DeployedModel:  # fmt: skip
    """A model on a device: lowered, measured, and placed in its memories; or why it could not be."""
    began = clock()
    try:
        program, on_device = lowered_for(deployment, model, registry)
        graph = on_device.costed
        fit = fitting(graph, model.step if deployment.is_trained else None)
    except ModelBudgetError as error:
        seconds = clock() - began
        return DeployedModel(deployment, MeasuredModel(model.loaded.format, failure=error, seconds=seconds))
    measured = replace(
        without_graph(on_device, began, registry, with_parts=with_parts),
        profile=profile(on_device.loaded, graph) if profile else None,
    )
    found = graph.once(arena), graph.once(order), fit, graph.once(timed)
    return DeployedModel(deployment, measured, program.done, program.left, *found)


def lowered_for(deployment: Deployment, model: CostedModel, registry: Tables) -> tuple[Lowered, CostedModel]:
    """The program that a device runs, and its numbers; raises ModelBudgetError where it cannot be lowered."""
    loaded = model.loaded
    with user_code(f"lowering for {deployment.name}", ExtensionError):
        program = lowered(loaded.graph, registry.ops, deployment.lowering)
    measured = _costed(_rewritten(loaded, program.graph, program.became), registry, device=deployment.device)
    return program, replace(measured, reservation=program.reservation)


@contextmanager
def undisturbed(format: Format) -> Iterator[None]:
    """Random state and defaults are as before when a model of that format ends; its framework stays loaded."""
    if format.module not in sys.modules:
        with suppress(ImportError), importing(), collection_paused():  # an error is said where the model is loaded
            format.reader()
    with state_kept():
        yield


def without_graph(model: CostedModel, began: float, registry: Tables, *, with_parts: bool = False) -> MeasuredModel:
    """All that is kept of a model when its graph goes; began is when its measuring did."""
    on_nothing = model.loaded.graph.is_on_nothing
    return MeasuredModel(
        model.loaded.format,
        model.loaded.traced,
        model.notes,
        model.measurements,
        model.failures,
        model.census,
        branches=model.costed.once(branches),
        operations=model.costed.once(operations),
        scopes=tuple(dict.fromkeys(layer.scope for layer in model.loaded.layers)),
        parts=_parts(model, registry) if with_parts else {},
        seconds=clock() - began,
        reservation=model.reservation,
        of_nothing=tuple(key for key in model.measurements if on_nothing and not registry.metrics[key].needs_no_run),
    )


def _parts(model: CostedModel, registry: Tables) -> Mapping[str, tuple[growth.Part, ...]]:
    """The weights and layers that each number is made of, by metric."""
    shapes = growth.result_shapes(model.loaded.graph)
    with user_code("telling what each number is made of", ExtensionError):
        return {
            key: growth.parts(metric, measurement, model.programs[metric.stage], shapes)
            for key, measurement in model.measurements.items()
            for metric in (registry.metrics[key],)
            if metric.stage in model.programs
        }


MENDED = {  # by each kind of update
    UpdateMode.CREATE: (Outcome.UNKNOWN,),
    UpdateMode.TRIM: (Outcome.WITHIN, Outcome.UNUSED),
    UpdateMode.FIX: (Outcome.OVER,),
}


def judged_as_updated(
    mode: UpdateMode, verdict: Verdict, model: MeasuredModel, versions: Mapping[str, str], today: date
) -> Verdict:
    """The verdict once an update has written its part of the limit, and the number that growth is measured from.

    A number that is not known exactly is not written, so its limit keeps its verdict; so does a limit that lacks a
    number at the base. An exception that trim removes stays with the verdict: the update looks for it there.
    """
    limit, locked, known = verdict.limit, lockable(verdict, None, versions), verdict.baseline
    if verdict.outcome not in MENDED[mode] or locked is None or not isinstance(limit, Limit):
        return verdict
    is_relocked = {UpdateMode.CREATE: not known.locked, UpdateMode.FIX: bool(known.locked)}
    if is_relocked.get(mode) and not known.revision:
        known = Baseline(locked)
    judged = judge_limit(as_updated(mode, limit, locked, verdict.baseline), model, known)
    return replace(judged, today=today) if mode is UpdateMode.TRIM else with_exception(judged, today)


def lockable(verdict: Verdict, model: MeasuredModel | None, versions: Mapping[str, str]) -> LockedValue | None:
    """The number of a check as a lock file holds it; without a model, not what it is made of.

    None where the number is not known, or a lower bound, or not the minimum that is to be written.
    """
    limit = verdict.limit
    if verdict.measurement is None or (isinstance(limit, Limit) and has_other_minimum(limit, verdict.measurement)):
        return None
    metric_parts = model.parts.get(limit.metric, ()) if model else ()
    own = [part for part in metric_parts if is_in_scope(part.scope, limit.scope)]
    return locked_value(verdict.measurement, own, versions)


def observed(
    source: ModelSource, run: ValuesRun | TimedRun, registry: Tables, *, root: Path, base: ModelAtBase | None = None
) -> Observation[Any]:
    """What only a run can tell: the statistics of layers, the timing of calls, or their growth since the base."""
    if isinstance(run, ValuesRun):
        what: Any = {key: getattr(run, key) for key in ("selection", "inputs", "sigmas")}
        what["channel_axis"] = run.channels
        return _observation(source, registry, root, lambda model: capture.statistics_of(model, **what))
    if run.grow is None:
        return time_model(source, run.plan, registry, root=root)
    return growth_since(base, source, run, registry, root, time_alone)


def time_alone(source: ModelSource, root: Path, plan: Plan) -> Observation[Timing]:
    """The same in a process that has nothing of the session, with the extensions that are installed."""
    return time_model(source, plan, joined_tables(installed_extensions()), root=root)


def time_model(source: ModelSource, plan: Plan, registry: Tables, *, root: Path) -> Observation[Timing]:
    """What the calls of a model take, on one draw of its inputs, seed 0."""

    def see(model: Model) -> Timing:
        runnable = must_run(model, "so that no run of it is measured: leave out 'runtime'")
        calls, _ = capture.NamedInputs(seeds=(0,)).calls(runnable)
        seen = timing.timed(runnable, next(iter(calls())), plan)
        return timing.with_roof(seen, _roof(model, source, plan.hardware, registry))

    return _observation(source, registry, root, see)


def _roof(model: Model, source: ModelSource, device: Device | None, registry: Tables) -> Measurement | str:
    """The latency_bound of a model on the profile of this machine, or why it is unknown."""
    if device is None:
        return "no profile is named"
    try:
        alone = costed(model, registry, replace(source, training="", serving=None, evaluate=None))
        _, found = lowered_for(Deployment(device.name, device), alone, registry)
    except ModelBudgetError as error:
        return str(error)
    return found.measurements.get("latency_bound") or str(found.failures["latency_bound"])


def _observation(source: ModelSource, registry: Tables, root: Path, see: Callable[[Model], Any]) -> Observation[Any]:
    with undisturbed(registry.formats[source.format]):
        try:
            with searched_first(source.searched(root)):
                with user_code("loading the model", SourceError):
                    model = registry.formats[source.format].load(source, registry.ops)
                with user_code("running the model", TransformError):
                    return Observation(see(model))
        except ModelBudgetError as error:
            return Observation(failure=str(error), lacks_device=isinstance(error, MissingDeviceError))
