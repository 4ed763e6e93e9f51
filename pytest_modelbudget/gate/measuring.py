"""Load → measure → judge, read from top to bottom; each model once."""

import gc
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

from pytest_modelbudget.budget.budget import AnyLimit, OpsLimit
from pytest_modelbudget.budget.lock_file import Baseline, LockedValue, locked_value
from pytest_modelbudget.budget.verdict import NO_BASELINE, Verdict, judge, judge_ops, known_scopes, with_blame
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import ExtensionError, ModelBudgetError, SourceError, user_code
from pytest_modelbudget.formats.model import LoadedModel, Model
from pytest_modelbudget.formats.source import AS_WRITTEN, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.gate.process_state import Leftovers, process_kept
from pytest_modelbudget.graph.graph import is_in_scope
from pytest_modelbudget.lowering.lowered import Lowered, lowered
from pytest_modelbudget.lowering.qdq import read_qdq
from pytest_modelbudget.metrics import costs, growth
from pytest_modelbudget.metrics.compute import OpCount, census
from pytest_modelbudget.metrics.fitting import fitting
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.on_device import arena, order, timed
from pytest_modelbudget.metrics.table import DeployedModel, Deployment, MeasuredModel
from pytest_modelbudget.registry import Tables

Profile = Callable[[Model, costs.CostedGraph], str]


class Elsewhere(Protocol):
    """Another process that measures a model within bounds."""

    @property
    def bounds(self) -> Hashable: ...

    def measure(
        self, source: ModelSource, *, deployments: tuple[Deployment, ...] = (), with_parts: bool = False
    ) -> MeasuredModel: ...


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection while a model is measured.

    A graph is thousands of small objects, all freed at the end by counting references; a
    collection between would walk every loaded framework for nothing (0.2 s each with torch).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, slots=True)
class CostedModel:
    """A model with its graph, what each operation costs, and every metric that could be measured.

    failures holds the other metrics, by key.
    """

    loaded: Model
    costed: costs.CostedGraph
    census: tuple[OpCount, ...]
    measurements: Mapping[str, Measurement]
    failures: Mapping[str, ModelBudgetError]

    @property
    def is_complete(self) -> bool:
        """Whether no number is a lower bound."""
        return all(number.complete for number in self.measurements.values())


@collection_paused()
def costed_model(source: ModelSource, registry: Tables, *, root: Path) -> CostedModel:
    """The model loaded once, and all metrics of it.

    Raises ModelBudgetError where it cannot be loaded, or an operation's rule raises.
    """
    with first_on_path(root), user_code("loading the model", SourceError):
        loaded = registry.formats[source.format].load(source, registry.ops)
        loaded.graph  # noqa: B018  # a model is read when its graph is asked for
    return costed(loaded, registry, qdq=source.qdq)


def costed(loaded: Model, registry: Tables, *, qdq: str, device: Device | None = None) -> CostedModel:
    """A loaded model with all metrics, on a device with those of deployments, too.

    Raises ModelBudgetError where an operation's rule raises.
    """
    loaded = loaded if qdq == AS_WRITTEN else on_integers(loaded, registry)
    graph = costs.CostedGraph(loaded.graph, registry.ops, device or costs.NO_DEVICE)
    with user_code("working out what each operation costs", ExtensionError):
        counts = graph.once(census)
    measurements: dict[str, Measurement] = {}
    failures: dict[str, ModelBudgetError] = {}
    for key, metric in registry.metrics.items():
        if metric.deployed and device is None:
            continue
        try:
            with user_code(f"measuring {key}", ExtensionError):
                measurements[key] = metric.of(graph)
        except ModelBudgetError as error:
            failures[key] = error
    return CostedModel(loaded, graph, counts, measurements, failures)


def on_integers(loaded: Model, registry: Tables) -> Model:
    """A model whose groups of dequantise, operation and quantise are operations on integers."""
    read = read_qdq(loaded.graph, registry.ops)
    if read.graph is loaded.graph:
        return loaded
    layers = (
        replace(
            layer,
            inputs=tuple(read.became.get(tensor, tensor) for tensor in layer.inputs),
            outputs=tuple(read.became.get(tensor, tensor) for tensor in layer.outputs),
        )
        for layer in loaded.layers
    )
    return LoadedModel(read.graph, loaded.format, loaded.traced, tuple(layers), (*loaded.notes, *read.notes))


@collection_paused()
def measure_model(
    source: ModelSource, registry: Tables, *, root: Path, deployments: Iterable[Deployment] = (),
    with_parts: bool = False, profile: Profile | None = None,
) -> MeasuredModel:  # fmt: skip
    """The numbers of a model, and of it on devices, or why there are none; its graph is gone.

    with_parts keeps what each number is made of, for a lock file to be written or compared. profile
    is called while the graph is there, and the text that it makes of it is kept.
    """
    began = perf_counter()
    with undisturbed(registry.formats[source.format]) as left:
        try:
            model = costed_model(source, registry, root=root)
        except ModelBudgetError as error:
            measured = MeasuredModel(source.format, failure=error, seconds=perf_counter() - began)
        else:
            measured = without_graph(model, began, registry, with_parts=with_parts)
            measured = replace(measured, profile=profile(model.loaded, model.costed)) if profile else measured
            on_devices = (deployed(model, each, registry, with_parts=with_parts) for each in deployments)
            measured = replace(measured, deployments=tuple(on_devices))
    return with_leftovers(measured, left)


def deployed(
    model: CostedModel, deployment: Deployment, registry: Tables, *, with_parts: bool = False
) -> DeployedModel:
    """A model on a device: lowered, measured, and placed in its memories; or why it could not be."""
    began = perf_counter()
    try:
        program, on_device = lowered_for(deployment, model, registry)
        graph = on_device.costed
        fit = graph.once(fitting)
    except ModelBudgetError as error:
        seconds = perf_counter() - began
        return DeployedModel(deployment, MeasuredModel(model.loaded.format, failure=error, seconds=seconds))
    measured = without_graph(on_device, began, registry, with_parts=with_parts)
    found = graph.once(arena), graph.once(order), fit, graph.once(timed)
    return DeployedModel(deployment, measured, program.done, program.left, program.floating, *found)


def lowered_for(deployment: Deployment, model: CostedModel, registry: Tables) -> tuple[Lowered, CostedModel]:
    """The program that a device runs, and its numbers; raises ModelBudgetError where it cannot be lowered."""
    loaded = model.loaded
    with user_code(f"lowering for {deployment.name}", ExtensionError):
        program = lowered(loaded.graph, registry.ops, deployment.lowering)
    on_device = LoadedModel(program.graph, loaded.format, loaded.traced, loaded.layers, loaded.notes)
    return program, costed(on_device, registry, qdq=AS_WRITTEN, device=deployment.device)


@contextmanager
def undisturbed(format: Format) -> Iterator[Leftovers]:
    """The process is as before when a model of that format ends, but for its framework, which stays loaded."""
    with suppress(ImportError):  # which is said where the model is loaded
        format.reader()
    with process_kept() as left:
        yield left


def with_leftovers(model: MeasuredModel, left: Leftovers) -> MeasuredModel:
    """The model with a note of all that nobody could take back."""
    return replace(model, notes=(*model.notes, *left.names)) if left.names else model


def without_graph(model: CostedModel, began: float, registry: Tables, *, with_parts: bool = False) -> MeasuredModel:
    """All that is kept of a model when its graph goes; began is when its measuring did."""
    return MeasuredModel(
        model.loaded.format,
        model.loaded.traced,
        model.loaded.notes,
        model.measurements,
        model.failures,
        model.census,
        scopes=tuple(dict.fromkeys(layer.scope for layer in model.loaded.layers)),
        parts=_parts(model, registry) if with_parts else {},
        seconds=perf_counter() - began,
    )


def _parts(model: CostedModel, registry: Tables) -> Mapping[str, tuple[growth.Part, ...]]:
    """The weights and layers that each number is made of, by metric."""
    shapes = growth.result_shapes(model.loaded.graph)
    with user_code("telling what each number is made of", ExtensionError):
        return {
            key: growth.parts(registry.metrics[key], measurement, model.costed, shapes)
            for key, measurement in model.measurements.items()
        }


class MeasuredModels:
    """The models of this process, each measured once, however many limits ask for it."""

    def __init__(self, registry: Tables, *, root: Path, profile: Profile | None = None) -> None:
        self.registry = registry
        self.root = root
        self.profile = profile
        # The source stays beside its model: an object's identity is its own only while it lives.
        self._known: dict[Hashable, tuple[ModelSource, MeasuredModel]] = {}

    def of(
        self, source: ModelSource, *, deployments: tuple[Deployment, ...] = (), with_parts: bool = False,
        elsewhere: Elsewhere | None = None,
    ) -> MeasuredModel:  # fmt: skip
        """The measured model of a source, also on devices; inputs and arguments belong to it."""
        # A deployment is plain throughout: its repr says all of it.
        key = (_key(source), tuple(map(repr, deployments)), with_parts, elsewhere and elsewhere.bounds)
        if key not in self._known:
            if elsewhere is not None:
                model = elsewhere.measure(source, deployments=deployments, with_parts=with_parts)
            else:
                model = measure_model(
                    source, self.registry, root=self.root, deployments=deployments, with_parts=with_parts,
                    profile=self.profile,
                )  # fmt: skip
            self._known[key] = (source, model)
        return self._known[key][1]


def _key(value: object) -> Hashable:
    """A key that plain values share which a budget spells alike; any other object is itself."""
    if value is None or isinstance(value, (str, int, float, Path)):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_key, value))
    if isinstance(value, Mapping):
        return frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, (ModelSource, InputSpecs, TensorSpec)):
        return tuple(_key(getattr(value, field.name)) for field in fields(value))
    return id(value)


def judge_limit(limit: AnyLimit, model: MeasuredModel, baseline: Baseline = NO_BASELINE) -> Verdict:
    """The verdict on one limit; what could not be measured is unknown."""
    failure = model.failure or model.failures.get(limit.metric)
    if failure is not None:
        return Verdict(limit, Outcome.UNKNOWN, None, f"{limit.metric} unknown: {failure}", baseline=baseline)
    measurement = model.measurements[limit.metric]
    scopes = known_scopes(model.measurements.values())
    if isinstance(limit, OpsLimit):
        verdict = judge_ops(limit, measurement, model.census, scopes=scopes, baseline=baseline)
    else:
        verdict = judge(limit, measurement, scopes=scopes, baseline=baseline)
    return with_blame(verdict, model.parts.get(limit.metric, ()))


def lockable(verdict: Verdict, model: MeasuredModel | None, versions: Mapping[str, str]) -> LockedValue | None:
    """The number of a check as a lock file holds it; without a model, not what it is made of.

    None where the number is not known, or a lower bound.
    """
    limit = verdict.limit
    if verdict.measurement is None:
        return None
    metric_parts = model.parts.get(limit.metric, ()) if model else ()
    own = [part for part in metric_parts if is_in_scope(part.scope, limit.scope)]
    return locked_value(verdict.measurement, own, versions)


@contextmanager
def first_on_path(root: Path) -> Iterator[None]:
    """Let the project's own modules be imported first while a model is loaded."""
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        if str(root) in sys.path:
            sys.path.remove(str(root))
