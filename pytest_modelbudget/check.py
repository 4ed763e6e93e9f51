"""Load → measure → judge, read from top to bottom; and what an extension adds to it."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeVar

from pytest_modelbudget.budget.budget import AnyLimit, OpsLimit, Place
from pytest_modelbudget.budget.read_inputs import read_inputs
from pytest_modelbudget.budget.read_limits import read_limits
from pytest_modelbudget.budget.reading import Reading
from pytest_modelbudget.budget.yaml_nodes import Text, tree
from pytest_modelbudget.errors import (
    BudgetError,
    ExtensionError,
    InputError,
    ModelBudgetError,
    SourceError,
)
from pytest_modelbudget.frontends.frontend_table import FrontEnd, frontend_table
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.model_source import (
    InputSpec,
    InputSpecs,
    ModelSource,
    TensorSpec,
    names_attribute,
)
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.metrics.census import OpCount, census
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

    loaded: LoadedModel
    costed: CostedGraph
    census: tuple[OpCount, ...]
    measurements: Mapping[str, Measurement]
    failures: Mapping[str, ModelBudgetError]


@collection_paused()
def costed_model(source: ModelSource, using: Tables, *, root: Path) -> CostedModel:
    """The model loaded once, and all metrics of it.

    Raises ModelBudgetError where it cannot be loaded, or an operation's rule raises.
    """
    with first_on_path(root), user_code("loading the model", SourceError):
        loaded = using.front_ends[source.format].load(source, using.ops)
    costed = CostedGraph(loaded.graph, using.ops)
    with user_code("working out what each operation costs", ExtensionError):
        counts = census(costed)
    measurements: dict[str, Measurement] = {}
    failures: dict[str, ModelBudgetError] = {}
    for key, metric in using.metrics.items():
        try:
            with user_code(f"measuring {key}", ExtensionError):
                measurements[key] = metric.measure(costed)
        except ModelBudgetError as error:
            failures[key] = error
    return CostedModel(loaded, costed, counts, measurements, failures)


@collection_paused()
def measured(source: ModelSource, using: Tables, *, root: Path) -> MeasuredModel:
    """The numbers of a model, or why there are none; its graph is gone."""
    began = perf_counter()
    try:
        model = costed_model(source, using, root=root)
    except ModelBudgetError as error:
        return MeasuredModel(source.format, failure=error, seconds=perf_counter() - began)
    return MeasuredModel(
        model.loaded.format,
        model.loaded.traced,
        model.loaded.notes,
        model.measurements,
        model.failures,
        model.census,
        scopes=tuple(dict.fromkeys(layer.scope for layer in model.loaded.layers)),
        seconds=perf_counter() - began,
    )


class MeasuredModels:
    """The models of this process, each measured once, however many limits ask for it."""

    def __init__(self, using: Tables, *, root: Path) -> None:
        self.using = using
        self.root = root
        # The source stays beside its model: an object's identity is its own only while it lives.
        self._known: dict[Hashable, tuple[ModelSource, MeasuredModel]] = {}

    def of(self, source: ModelSource) -> MeasuredModel:
        """The measured model of a source; inputs and arguments belong to it."""
        key = _key(source)
        if key not in self._known:
            self._known[key] = (source, measured(source, self.using, root=self.root))
        return self._known[key][1]


def _key(value: object) -> Hashable:
    """What plain values share that a budget spells alike; any other object is only itself."""
    if value is None or isinstance(value, (str, int, float, Path)):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_key, value))
    if isinstance(value, Mapping):
        return frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, (ModelSource, InputSpecs, TensorSpec)):
        return tuple(_key(getattr(value, field.name)) for field in fields(value))
    return id(value)


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

    The model never sees a tensor that is given: only its type and shape are used, and of integers
    the range, min to max, within which other values may be drawn.

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
    key = source_format(source, using)
    target = str(source) if isinstance(source, Path) else source
    return ModelSource(key, target, specs, args=tuple(args), kwargs=kwargs, dims=dims, base=base)


def source_format(source: object, using: Tables) -> str:
    """The key of the front end that reads a source, told by its look."""
    if not isinstance(source, (str, Path)) or names_attribute(str(source)):
        return "torch"
    suffix = Path(source).suffix
    for front_end in using.front_ends.values():
        if suffix in front_end.suffixes:
            return front_end.key
    known = ", ".join(each for front in using.front_ends.values() for each in front.suffixes)
    raise SourceError(f"'{source}' is neither module:callable nor a model file ({known})")


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
    sizes = tuple(int(size) for size in shape)
    return TensorSpec(str(dtype).removeprefix("torch."), sizes, *_value_range(given, str(dtype)))


def _value_range(tensor: Any, dtype: str) -> tuple[int | None, int | None]:
    """The range [low, high) of an integer tensor's values; of others, and without values, none."""
    if not dtype.removeprefix("torch.").startswith(("int", "uint")):
        return None, None
    try:
        return int(tensor.min()), int(tensor.max()) + 1
    except (RuntimeError, ValueError):  # empty, or on a device that holds no values
        return None, None


def _written_spec(text: str, using: Tables) -> InputSpec:
    """A spec as budgets spell it, read by the same reader."""
    reading = Reading(Path(), Path(), using.metrics, using.front_ends, using.ops)
    specs = read_inputs(Text(text, plain=False, place=Place("inputs", 1)), reading)
    if reading.problems:
        raise InputError("; ".join(problem.message for problem in reading.problems))
    return specs.positional[0]


def written_limits(limits: Mapping[str, object], using: Tables) -> tuple[AnyLimit, ...]:
    """Limits as budgets spell them, from Python's values; read by the same reader.

    Raises BudgetError, with every problem, where they cannot be read.
    """
    if not limits:
        raise BudgetError("no limits: a gate must hold something, such as params='11.7 M'")
    # JSON is YAML; what it cannot spell is refused by the reader like any other odd word.
    node, problems = tree(json.dumps(limits, default=str, ensure_ascii=False), "limits")
    reading = Reading(Path(), Path(), using.metrics, using.front_ends, using.ops, problems)
    read = read_limits(node, reading)
    if reading.problems:
        raise BudgetError("\n".join(problem.message for problem in reading.problems))
    return read


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
