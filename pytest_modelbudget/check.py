"""Load → measure → judge, read from top to bottom; and what an extension adds to it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TypeVar

from pytest_modelbudget.budget.budget import AnyLimit, OpsLimit, Place
from pytest_modelbudget.budget.read_inputs import read_inputs
from pytest_modelbudget.budget.reading import Reading
from pytest_modelbudget.budget.yaml_nodes import Text
from pytest_modelbudget.errors import ExtensionError, InputError, ModelBudgetError, SourceError
from pytest_modelbudget.frontends.frontend_table import FrontEnd, frontend_table
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.metrics.census import census
from pytest_modelbudget.metrics.costed_graph import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.metrics.metric_table import metric_table
from pytest_modelbudget.ops.op_rule import OpRule
from pytest_modelbudget.ops.op_table import FAMILIES, OpTable
from pytest_modelbudget.reports.report import MeasuredModel
from pytest_modelbudget.verdict import Outcome, Verdict, judge, judge_ops, known_scopes

EXTENSIONS = "modelbudget.extensions"
NOTHING: Mapping[str, object] = MappingProxyType({})
NOTHING_BOUND: Mapping[str, int] = MappingProxyType({})
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Tables:
    """What a model may be measured with: the project's own entries and its extensions'."""

    ops: OpTable
    metrics: Mapping[str, Metric]
    front_ends: Mapping[str, FrontEnd]


def tables(modules: Iterable[object] = ()) -> Tables:
    """The project's tables, joined with all installed extensions and with these modules.

    An extension is a module with the tuples OPS, METRICS and TRANSFORMS, any of which may be
    missing. Raises ExtensionError where one cannot be imported, holds something else, or claims
    a name that is taken.
    """
    extensions = (*installed_extensions(), *modules)
    ops = tuple(rule for module in extensions for rule in _entries(module, "OPS", OpRule))
    metrics = tuple(
        metric for module in extensions for metric in _entries(module, "METRICS", Metric)
    )
    rules = OpTable((*(rule for family in FAMILIES for rule in family), *ops))
    return Tables(rules, metric_table(metrics), frontend_table())


def installed_extensions() -> tuple[object, ...]:
    """Modules that installed packages declare as entry points, in the order of their names."""
    modules = []
    for point in sorted(entry_points(group=EXTENSIONS), key=lambda each: (each.name, each.value)):
        with user_code(f"importing the extension '{point.name}' ({point.value})", ExtensionError):
            modules.append(point.load())
    return tuple(modules)


def _entries(module: object, name: str, kind: type[Entry]) -> tuple[Entry, ...]:
    entries = getattr(module, name, ())
    if not isinstance(entries, tuple) or not all(isinstance(each, kind) for each in entries):
        where = getattr(module, "__name__", repr(module))
        raise ExtensionError(f"extension {where}: {name} must be a tuple of {kind.__name__}")
    return entries


def measured(source: ModelSource, using: Tables, *, root: Path) -> MeasuredModel:
    """The model loaded once, and all metrics of it."""
    with collection_paused():
        return _measured(source, using, root)


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


def _measured(source: ModelSource, using: Tables, root: Path) -> MeasuredModel:
    began = perf_counter()
    try:
        with first_on_path(root), user_code("loading the model", SourceError):
            loaded = using.front_ends[source.format].load(source, using.ops)
        costed = CostedGraph(loaded.graph, using.ops)
        with user_code("working out what each operation costs", ExtensionError):
            counts = census(costed)
    except ModelBudgetError as error:
        return MeasuredModel(source.format, failure=error, seconds=perf_counter() - began)
    measurements: dict[str, Measurement] = {}
    failures: dict[str, ModelBudgetError] = {}
    for key, metric in using.metrics.items():
        try:
            with user_code(f"measuring {key}", ExtensionError):
                measurements[key] = metric.measure(costed)
        except ModelBudgetError as error:
            failures[key] = error
    return MeasuredModel(
        loaded.format,
        loaded.traced,
        loaded.notes,
        measurements,
        failures,
        counts,
        scopes=tuple(dict.fromkeys(layer.scope for layer in loaded.layers)),
        seconds=perf_counter() - began,
    )


class MeasuredModels:
    """The models of this process, each measured once, however many limits ask for it."""

    def __init__(self, using: Tables, *, root: Path) -> None:
        self.using = using
        self.root = root
        self._known: list[tuple[ModelSource, MeasuredModel]] = []

    def of(self, source: ModelSource) -> MeasuredModel:
        """The measured model of a source; inputs and arguments belong to it."""
        for known, model in self._known:
            if known == source:
                return model
        model = measured(source, self.using, root=self.root)
        self._known.append((source, model))
        return model


def checked(limit: AnyLimit, model: MeasuredModel) -> Verdict:
    """The verdict on one limit; what could not be measured is unknown."""
    failure = model.failure or model.failures.get(limit.metric)
    if failure is not None:
        return Verdict(limit, Outcome.UNKNOWN, None, f"{limit.metric} unknown: {failure}")
    measurement = model.measurements[limit.metric]
    scopes = known_scopes(model.measurements.values())
    if isinstance(limit, OpsLimit):
        return judge_ops(limit, measurement, model.census, scopes=scopes)
    return judge(limit, measurement, scopes=scopes)


class Measurements(Mapping[str, Measurement]):
    """The numbers of one model by metric key; notes say what their reader must know."""

    def __init__(self, model: MeasuredModel) -> None:
        self._measurements = dict(model.measurements)
        self.format = model.format
        self.traced = model.traced
        self.notes = model.notes

    def __getitem__(self, key: str) -> Measurement:
        return self._measurements[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        numbers = (f"{key}: {each.value} {each.unit}" for key, each in self.items())
        return f"<Measurements {', '.join(numbers)}>"


def measure(
    source: object,
    inputs: object = None,
    *,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING_BOUND,
) -> Measurements:
    """All metrics of one model, as a budget would see them.

    source: "package.module:callable", the path of a model file, a module, or a factory that
    takes args and kwargs. inputs: a spec ("float32 1x3x224x224"), a TensorSpec or a tensor, or
    several of them in a list (positional) or a mapping (by name); files may bring their own.
    dims binds symbolic dimensions of a file's own inputs.

    Raises ModelBudgetError, saying what to do, where the model cannot be loaded or measured.
    """
    using, here = tables(), Path.cwd()
    model = measured(
        model_source(source, inputs, args=args, kwargs=kwargs, dims=dims, using=using, base=here),
        using,
        root=here,
    )
    for failure in (model.failure, *model.failures.values()):
        if failure is not None:
            raise failure
    return Measurements(model)


def model_source(
    source: object,
    inputs: object = None,
    *,
    using: Tables,
    base: Path,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING_BOUND,
) -> ModelSource:
    """The source that Python code means; a path is relative to base."""
    specs = input_specs(inputs, using)
    front_end, target = _front_end(source, using)
    return ModelSource(
        front_end, target, specs, args=tuple(args), kwargs=kwargs, dims=dims, base=base
    )


def _front_end(source: object, using: Tables) -> tuple[str, object]:
    """The format of a source by its look, and its target as that format wants it."""
    if isinstance(source, Path) or (isinstance(source, str) and not _names_attribute(source)):
        path = str(source)
        suffix = Path(path).suffix
        for front_end in using.front_ends.values():
            if suffix in front_end.suffixes:
                return front_end.key, path
        known = sorted({each for front in using.front_ends.values() for each in front.suffixes})
        raise SourceError(
            f"'{path}' is neither module:callable nor a model file ({', '.join(known)})"
        )
    return "torch", source


def _names_attribute(source: str) -> bool:
    """Whether this reads "package.module:callable"; a drive letter is no module."""
    module, colon, attribute = source.partition(":")
    return bool(colon) and all(
        each.isidentifier() for each in (*module.split("."), *attribute.split("."))
    )


def input_specs(inputs: object, using: Tables) -> InputSpecs:
    """Inputs as specs: one, several in order, or several by name."""
    if inputs is None:
        return InputSpecs()
    if isinstance(inputs, InputSpecs):
        return inputs
    if isinstance(inputs, Mapping):
        return InputSpecs(named={str(name): _spec(each, using) for name, each in inputs.items()})
    if isinstance(inputs, (list, tuple)):
        return InputSpecs(tuple(_spec(each, using) for each in inputs))
    return InputSpecs((_spec(inputs, using),))


def _spec(given: object, using: Tables) -> InputSpec:
    if isinstance(given, TensorSpec):
        return given
    if isinstance(given, str):
        return _written_spec(given, using)
    if isinstance(given, (list, tuple)):
        return tuple(_spec(each, using) for each in given)
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(
            f"a {type(given).__name__} is no input: give 'float32 1x3x224x224', a TensorSpec or "
            "a tensor"
        )
    return TensorSpec(str(dtype).removeprefix("torch."), tuple(int(size) for size in shape))


def _written_spec(text: str, using: Tables) -> InputSpec:
    """A spec as budgets spell it, read by the same reader."""
    reading = Reading(Path(), Path(), using.metrics, using.front_ends, using.ops)
    specs = read_inputs(Text(text, plain=False, place=Place("inputs", 1)), reading)
    if reading.problems:
        raise InputError("; ".join(problem.message for problem in reading.problems))
    return specs.positional[0]


@contextmanager
def first_on_path(root: Path) -> Iterator[None]:
    """Let the project's own modules be imported first while a model is loaded."""
    entry = str(root)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
