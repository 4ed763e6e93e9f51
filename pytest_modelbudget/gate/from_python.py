"""Sources, inputs and limits as Python code gives them, read as a budget file is; and the numbers that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_modelbudget.budget import input_forms, limit_forms, source_forms, transform_forms
from pytest_modelbudget.budget.budget import AnyLimit, ClaimCheck, Limit, Transformation
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.equivalence.claim import SEEDS, Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.user_inputs import GivenInputs
from pytest_modelbudget.errors import BudgetError, DeviceError, InputError, SourceError
from pytest_modelbudget.formats.containers import is_arguments, is_named_tuple, specs_within
from pytest_modelbudget.formats.source import (
    AS_WRITTEN,
    GROUPED,
    OPTIMIZERS,
    Call,
    InputSpec,
    InputSpecs,
    ModelSource,
    Plain,
    TensorSpec,
    attribute_meant,
    file_meant,
    is_whole,
    kind_of_file,
    names_attribute,
    other_format,
)
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate import measuring, transforming
from pytest_modelbudget.gate.asked_device import asked_deployment, read_python
from pytest_modelbudget.gate.process_state import state_kept
from pytest_modelbudget.metrics.costs import NO_DEVICE
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.metrics.measurement import PROGRAM, Measurement, Metric, Stage
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import notebook, show
from pytest_modelbudget.reports.devices import deployment_notes
from pytest_modelbudget.reports.layer_table import LayerTable, layer_table
from pytest_modelbudget.units import with_article

ASKED_BY = {Stage.TRAINED: "training='adam'", Stage.SERVED: "serving={'context': 8192}", Stage.DEPLOYED: "device=NAME"}


@dataclass(frozen=True, eq=False, repr=False)
class Measurements(Mapping[str, Measurement]):
    """The numbers of one model: ``numbers["macs"]`` is ``numbers.macs``. notes say what their reader must know.

    deployed is all that is known of the model on a device, where that was asked: its arena, its memories, what was
    lowered. A number that nothing is known of, for want of inputs or of a figure of the device, is not there; asking
    for it says why.
    """

    format: str
    traced: str
    notes: tuple[str, ...]
    deployed: DeployedModel | None
    _measurements: Mapping[str, Measurement]
    _left_out: Mapping[str, str]
    _also: Mapping[str, tuple[str, ...]]
    _layers: notebook.NotebookTable

    @classmethod
    def of(
        cls,
        model: MeasuredModel,
        layers: LayerTable,
        metrics: Mapping[str, Metric],
        deployed: DeployedModel | None = None,
    ) -> Measurements:
        """What is known of a measured model, and why the rest is not."""
        notes = (*deployment_notes(deployed), *_lacking_figures(deployed), *model.notes) if deployed else model.notes
        numbers = {key: number for key, number in model.measurements.items() if not _unknown(number)}
        left_out = {
            key: f"it is measured where it is asked for, with {ASKED_BY[metric.stage]}"
            for key, metric in metrics.items()
            if metric.stage in ASKED_BY
        }
        left_out |= {key: why for key, number in model.measurements.items() if (why := _unknown(number))}
        left_out |= {key: str(failure) for key, failure in model.failures.items()}
        also = {key: metric.also for key, metric in metrics.items()}
        table = notebook.NotebookTable(layers.rows)
        return cls(model.format, model.traced, notes, deployed, numbers, left_out, also, table)

    def __getitem__(self, key: str) -> Measurement:
        if key in self._measurements:
            return self._measurements[key]
        raise KeyError(self._lacking(key))

    def __getattr__(self, name: str) -> Measurement:
        if name.startswith("_"):  # among them the fields themselves, while a copy is made
            raise AttributeError(name)
        if name in self._measurements:
            return self._measurements[name]
        raise AttributeError(self._lacking(name))

    def _lacking(self, key: object) -> str:
        if key in self._left_out:
            return f"no {key}: {self._left_out[str(key)]}"
        known = {**self._measurements, **self._left_out}
        return f"there is no metric {key!r}: {suggestion(str(key), known, self._also)}"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._measurements})

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        numbers = (f"{key}: {number.sign}{number.value} {number.unit}" for key, number in self.items())
        return f"<Measurements {', '.join(numbers)}>"

    def table(self) -> notebook.NotebookTable:
        """What each layer holds, computes and puts out, as ``modelbudget show`` prints it; figures are in ``.rows``."""
        return self._layers

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: what ``modelbudget show --format json`` prints."""
        return show.layer_record(self, self._layers, self._measurements)

    def _repr_html_(self) -> str:
        return notebook.measurements_html(self._measurements, self._layers, self.notes)


def _unknown(number: Measurement) -> str:
    """Why nothing is known of a number; "" of one that is known, be it as a bound."""
    return next((op.why for op in number.unmeasured if op.op == PROGRAM), "")


def _lacking_figures(deployed: DeployedModel) -> Iterator[str]:
    """A line for each thing that a device does not say, with the metrics that need it."""
    if deployed.deployment.device is not NO_DEVICE:
        keys: dict[str, list[str]] = {}
        for key, failure in deployed.measured.failures.items():
            keys.setdefault(str(failure), []).append(key)
        yield from (f"no {', '.join(needing)}: {why}" for why, needing in keys.items())


NOTHING: Mapping[str, Any] = MappingProxyType({})
COMPARE = "compare"
WHOLE = ("int", "uint")  # how the names of integer types begin
MOST_VALUES = 64  # of integers that are taken as they are: sizes, lengths and places, and no sequence of words


def model_source(
    source: object,
    inputs: object = None,
    *,
    registry: Tables,
    base: Path,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING,
    qdq: str = GROUPED,
    training: str = "",
    serving: Mapping[str, object] | None = None,
    caller: str = "measure()",
) -> ModelSource:
    """The source that Python code means; a path is relative to base, and caller is what was given it.

    Raises SourceError for what no format reads, and InputError for what is no input, and no way to read QDQ.
    """
    if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Iterable):
        raise InputError(f"{caller} was given args={args!r}: write a list of arguments, such as args=[64]")
    if not isinstance(kwargs, Mapping):
        raise InputError(f"{caller} was given kwargs={kwargs!r}: write a mapping, such as kwargs={{'width': 64}}")
    if qdq not in (GROUPED, AS_WRITTEN):
        raise InputError(f"{qdq!r} is no way to read QDQ: write {GROUPED} or {AS_WRITTEN}")
    specs = input_specs(inputs, registry)
    if training and training not in [*OPTIMIZERS]:
        raise InputError(f"training={training!r} names no optimizer whose states are known: {', '.join(OPTIMIZERS)}")
    bound: dict[str, int] = read_python(source_forms.DIMS, dims, "dims", registry, InputError) if dims else {}
    key = source_format(source, registry, base)
    target = str(source) if isinstance(source, Path) else source
    return ModelSource(
        key,
        target,
        specs,
        args=tuple(_argument(value, registry) for value in args),
        kwargs={name: _argument(value, registry) for name, value in kwargs.items()},
        dims=bound,
        qdq="" if qdq == GROUPED else qdq,
        training=training,
        serving=read_python(source_forms.SERVING, serving, "serving", registry, InputError) if serving else None,
        base=base,
    )


def source_format(source: object, registry: Tables, base: Path) -> str:
    """The key of the format of a source, recognised by its form; raises SourceError, also for a missing file."""
    if not isinstance(source, (str, Path)) or names_attribute(str(source)):
        return "torch"
    for format in registry.formats.values():
        if str(source).endswith(format.suffixes):
            if format.of_files and not (base / source).exists():
                way_out = file_meant(base / source) or "write it first, or give its path from there"
                raise SourceError(f"{source} does not exist in {base}: {way_out}")
            if format.stores_alone or kind_of_file(base / source) != "torch.save":
                return format.key
        if any(next((base / source).glob(content), None) for content in format.contents):
            return format.key
    known = ", ".join(format.suffixes[0] for format in registry.formats.values() if format.suffixes)
    is_module = (base / f"{source}.py").is_file()
    files = [file.name for file in (base / source).parent.glob("*.*") if file.suffix in known.split(", ")]
    close = get_close_matches(Path(source).name, files, 1, 0.7)
    meant = str(Path(source).with_name(close[0])) if close else ""
    meant = meant or attribute_meant(f"{source}.py" if is_module else str(source))
    name, way_out = ("", "") if meant else other_format(base / source)
    if name:
        raise SourceError(f"'{source}' is {with_article(f'{name} file')}: {way_out}")
    guess = f": did you mean {meant}?" if meant else ""
    raise SourceError(f"'{source}' is neither module:callable nor a model file ({known}){guess}")


def input_specs(inputs: object, registry: Tables) -> InputSpecs:
    """Inputs as specs: one, several in order, or several by name; raises InputError."""
    if inputs is None:
        return InputSpecs()
    if isinstance(inputs, InputSpecs):
        return inputs
    if is_arguments(inputs) and isinstance(inputs, Mapping) and not input_forms.is_alone(inputs):
        return InputSpecs(named={str(name): _spec(spec, registry) for name, spec in inputs.items()})
    if isinstance(inputs, tuple):
        inputs = tuple(inputs)  # a named one is several inputs, too, or the sizes of one
    if isinstance(inputs, (list, tuple)) and not _is_shape(inputs):
        inputs = [*map(int, inputs)] if all(map(is_whole, inputs)) else inputs
        specs = InputSpecs(tuple(_spec(spec, registry) for spec in inputs))
        if sizes := input_forms.numbers_alone(specs):
            raise InputError(sizes)
        return specs
    if isinstance(inputs, (bool, int, float)):
        raise _no_input(inputs)  # beside a tensor it is one
    return InputSpecs((_spec(inputs, registry),))


def _no_input(spec: object) -> InputError:
    return InputError(
        f"{with_article(type(spec).__name__)} is no input: give 'float32 1x3x224x224', a TensorSpec or a tensor"
    )


def _is_shape(value: object) -> bool:
    """Whether this is a tuple of sizes, as torch spells shapes."""
    return isinstance(value, tuple) and not is_named_tuple(value) and bool(value) and all(map(is_whole, value))


def _spec(spec: Any, registry: Tables) -> InputSpec:
    if isinstance(spec, (TensorSpec, Plain)):
        return spec
    if _is_shape(spec):
        spec = {"dtype": "float32", "shape": spec}
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    is_tensor = shape is not None and dtype is not None and not isinstance(spec, Mapping)  # as a TensorDict is
    is_one = is_tensor or (is_arguments(spec) and input_forms.is_one_input(spec))
    specs: InputSpec | None = None if is_one else specs_within(spec, lambda part: _spec(part, registry))
    if specs is not None:
        return specs
    if spec is None or isinstance(spec, (str, bool, int, float)) or is_arguments(spec):
        read: InputSpec = read_python(input_forms.ARGUMENT, spec, "input", registry, InputError)
        return read
    if shape is None or not is_tensor:
        raise _no_input(spec)
    name = str(dtype).removeprefix("torch.")
    sizes = tuple(int(size) for size in shape)
    if prod(sizes) <= MOST_VALUES and name.startswith(WHOLE):
        with suppress(RuntimeError, AttributeError):  # it is on a device that holds no values
            return TensorSpec(name, sizes, values=tuple(map(int, spec.reshape(-1).tolist())))
    return TensorSpec(name, sizes, *_value_range(spec, name))


def _argument(value: Any, registry: Tables) -> Any:
    """An argument, with each mapping in it that has the key call as the call that it is in a budget."""
    if type(value) in (list, tuple):
        return type(value)(_argument(item, registry) for item in value)
    if type(value) is not dict:
        return value
    if input_forms.CALL not in value:
        return {name: _argument(item, registry) for name, item in value.items()}
    outline = {key: _emptied(part) for key, part in value.items()}
    call: Call = read_python(source_forms.CALLED, outline, "argument", registry, InputError)
    args, kwargs = value.get("args", ()), value.get("kwargs", {})
    named = {name: _argument(item, registry) for name, item in kwargs.items()}
    return replace(call, args=tuple(_argument(item, registry) for item in args), kwargs=named)


def _emptied(part: object) -> object:
    """A part of a call without the arguments that it holds, which may be anything: what stays is read."""
    if isinstance(part, Mapping):
        return dict.fromkeys(part)
    return [] if isinstance(part, (list, tuple)) else part


def _whole(value: object) -> object:
    """The same limits with 1e6 as the whole number that it is, as in a budget."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _value_range(tensor: Any, dtype: str) -> tuple[int | None, int | None]:
    """The range [low, high) of an integer tensor's values; of others, and without values, none."""
    if not dtype.startswith(WHOLE):
        return None, None
    try:
        return int(tensor.min()), int(tensor.max()) + 1
    except (RuntimeError, ValueError):  # empty, or on a device that holds no values
        return None, None


def written_limits(limits: Mapping[str, object], registry: Tables) -> tuple[AnyLimit, ...]:
    """Limits as budgets spell them, from Python's values; read by the same reader.

    Raises BudgetError, with every problem, where they cannot be read.
    """
    if not limits:
        raise BudgetError("no limits: a gate must hold something, such as params='11.7 M'")
    form = limit_forms.limits_form(registry.metrics)
    read: tuple[AnyLimit, ...] = read_python(form, _whole(limits), "limits", registry, BudgetError) or ()
    for limit in read:
        if isinstance(limit, Limit) and (limit.grow is not None or limit.auto):
            word = limit_forms.AUTO if limit.grow is None else "grow"
            raise BudgetError(f"{limit.metric}: '{word}' needs a lock file: write it in a budget")
        if isinstance(limit, Limit) and limit.waiver is not None:
            raise BudgetError(f"{limit.metric}: 'waiver' is granted where a change of it is seen: write it in a budget")
    return read


def measure(
    source: object,
    inputs: object = None,
    *,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING,
    qdq: str = GROUPED,
    lower: Mapping[str, object] | None = None,
    device: object = None,
    training: str = "",
    serving: Mapping[str, object] | None = None,
) -> Measurements:
    """All metrics of one model, as a budget would see them.

    source: "package.module:callable", the path of a model file, a module, or a factory that takes args and kwargs.
    inputs: a spec ("float32 1x3x224x224", or a mapping as budgets write it), a TensorSpec, a tuple of sizes, a tensor,
    or what is no tensor; several of them in a list (positional) or a mapping (by name). Files may bring their own;
    without any only what a model stores is told. In args and kwargs a mapping with the key call is a call, as in a
    budget. dims binds symbolic dimensions of a file's own inputs.
    qdq "as_written" measures dequantise, operation and quantise apart, which else are one operation on integers.
    training names an optimizer, "sgd", "momentum", "adam" or "adamw": a training step is then measured, too.
    serving ({"context": 8192, "batch": 4}) measures a language model with its cache, too.

    lower ({"dtype": "int8"}) and device measure the model as it runs on a device, which is the name of a shipped one,
    "hardware.yaml::name", or a mapping of figures; without one, what needs a figure of it is left out.

    The model never sees a tensor that is given: only its type and shape are used, and of integers the range, min to
    max, within which other values may be drawn. At most 64 integers are taken as they are: they may say sizes.

    What comes back also is ``numbers.macs``, ``numbers.table()`` of layers, and ``numbers.to_dict()``.
    Raises ModelBudgetError, saying what to do, where the model cannot be loaded or measured.
    """
    registry, here = tables(), Path.cwd()
    asked = model_source(
        source, inputs, args=args, kwargs=kwargs, dims=dims, qdq=qdq, training=training, serving=serving,
        registry=registry, base=here,
    )  # fmt: skip
    deployment = asked_deployment(lower, device, registry, base=here)
    on = filter(None, [deployment])
    model = measuring.measure_model(
        asked, registry, root=here, deployments=on, profile=lambda loaded, costed, *_: layer_table(loaded, costed)
    )
    deployed = model.on(deployment) if deployment else None
    measured = deployed.measured if deployed else model
    for failure in (measured.failure, *measured.failures.values()):
        if failure is not None and not isinstance(failure, DeviceError):
            raise failure
    return Measurements.of(measured, measured.profile or model.profile, registry.metrics, deployed)


def check_equivalence(
    original: object,
    transformed: object,
    inputs: object = None,
    *,
    kind: str = "exact_algebra",
    seeds: Sequence[int] = SEEDS,
    bounds: Mapping[str, float] = NOTHING,
    given: object = None,
    families: Sequence[str] = (),
    family_bounds: Mapping[str, Mapping[str, float]] = NOTHING,
    rows: int | None = None,
) -> Equivalence:
    """Whether two models give the same outputs, as a budget's ``compare:`` would say.

    original and transformed: modules, factories without arguments, "package.module:callable" or
    paths of model files. inputs: what ``measure()`` takes; files may bring their own. Neither model
    is changed: what is run is a copy. bounds are those of "lossy" and "custom": {"sqnr": 30}.

    given: inputs beside the drawn ones: the path of a .npz file, "package.module:callable", or mappings of input names
    to arrays. families: which inputs are run, of normal, uniform, large, zeros and given. family_bounds: bounds of
    single families: {"large": {"sqnr": 5}}. rows: how many rows each drawn family has.

    ``.outcome`` is "within", "over" or "unknown"; ``.reason`` says why, ``.outputs`` how far each output is apart,
    ``.first_divergence`` in which layer the two part. Raises ModelBudgetError where either model cannot be loaded, and
    InputError for a kind, seeds or bounds that hold nothing.
    """
    registry, here = tables(), Path.cwd()
    if not isinstance(bounds, Mapping):
        raise InputError(f"bounds are {bounds!r}: write a mapping such as {{'sqnr': 30}}")
    optional = {"families": families or None, "family_bounds": family_bounds or None, "rows": rows}
    asked = {key: value for key, value in optional.items() if value is not None}
    claim = _claim({**bounds, "kind": kind, "seeds": seeds, **asked}, given, registry, here)
    first = model_source(original, inputs, registry=registry, base=here)
    second = model_source(transformed, inputs, registry=registry, base=here)
    with state_kept(), searched_first(((here,),)):
        applied = transforming.apply_transform(first, Transformation(COMPARE, {COMPARE: second}), registry)
        if why := applied.changed.model.graph.operations_unknown:  # which reads the second model
            raise InputError(why)
        # The original or its inputs cannot be read; the other model was read above.
        result = transforming.compared(applied, claim, raised=(SourceError, InputError))
    if result.first_divergence is None:
        return result
    repeat = f"check_equivalence(original, transformed, inputs, seeds={tuple(claim.seeds)})"
    return replace(result, first_divergence=result.first_divergence.repeated_by(repeat))


def _claim(asked: Mapping[str, Any], given: object, registry: Tables, base: Path) -> Claim:
    """The claim that a mapping means, as a budget's equivalence; given are its inputs, which may be arrays."""
    if given is not None:
        asked = {**asked, "inputs": "arrays:given"}  # a word for them
    check: ClaimCheck = read_python(transform_forms.EQUIVALENCE, _whole(asked), "equivalence", registry, InputError)
    return check.claim if given is None else replace(check.claim, given=GivenInputs(given, base))
