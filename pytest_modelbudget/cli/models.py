"""``modelbudget show``, ``explain`` and ``init``: the commands that measure a model.

Each prints, and tells whether every number that it needed could be worked out. The words that name
a model on the command line are read as the same words in a budget are.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Any

from pytest_modelbudget.budget import FOLDER, SUFFIXES, grammar, input_forms, source_forms, verdict, yaml_text
from pytest_modelbudget.budget.budget import BETWEEN
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.cli.reference import metric_named
from pytest_modelbudget.cli.screen import naming, print_text, terminal_width
from pytest_modelbudget.errors import DeviceError, InputError, UnitError
from pytest_modelbudget.formats.source import (
    AS_WRITTEN,
    GROUPED,
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    InputSpec,
    InputSpecs,
    ModelSource,
)
from pytest_modelbudget.gate import from_python, measuring
from pytest_modelbudget.gate.asked_device import asked_deployment
from pytest_modelbudget.graph.graph import MODEL, is_in_scope
from pytest_modelbudget.graph.tensor import unbound_symbols
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import Deployment
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import draft_budget, explain, show
from pytest_modelbudget.reports.layer_table import layer_table, layer_text
from pytest_modelbudget.units import quantity

CALLING = ("--args", "--kwargs")  # whose values may be calls
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def add_show(command: argparse.ArgumentParser) -> None:
    """The options of ``show``: one model's layers, or operations, and its totals."""
    add_source(command)
    add = command.add_argument
    add("--depth", metavar="N", type=_depth, help="unfold this many levels (default: all)")
    add("--format", choices=("table", "json"), default="table", help="what to print")
    add("--ops", action="store_true", help="operations instead of layers: census and attributes")
    add_deployment(command)
    command.set_defaults(command=show_model)


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no depth: write 0, 1, 2 ...")
    return int(text)


def show_model(options: argparse.Namespace) -> bool:
    """Print a model's layers (or operations) and totals."""
    registry = tables()
    model = measure_source(source_of(options, registry), registry, deployment_of(options, registry))
    if options.format == "json":
        print(_show_json(model, options))
    else:
        print_text(_show_table(model, options))
    return model.is_complete


def _show_table(model: measuring.CostedModel, options: argparse.Namespace) -> str:
    """Layers or operations, then totals, then how the numbers came about."""
    width = terminal_width()
    if options.ops:
        shown = [show.census_text(model.costed), show.ops_text(model.costed)]
    else:
        shown = [layer_text(layer_table(model.loaded, model.costed, options.depth), width)]
    traced = f"traced: {model.loaded.traced}" if model.loaded.traced else ""
    notes = [note for note in model.notes if not unbound_symbols(note)]  # the totals end in how to bind them
    lacking = [f"{key} unknown: {failure}" for key, failure in model.failures.items()]
    remarks = "\n".join(filter(None, [model.reservation, traced, *lacking, *notes]))
    return "\n\n".join(filter(None, [*shown, show.totals_text(model.measurements, width), remarks]))


def _show_json(model: measuring.CostedModel, options: argparse.Namespace) -> str:
    table = layer_table(model.loaded, model.costed, options.depth)
    record = show.layer_record(model.loaded, table, model.measurements)
    if options.ops:
        record.update(show.op_record(model.costed))
    return json.dumps(record, indent=1, allow_nan=False)


def add_explain(command: argparse.ArgumentParser) -> None:
    """The options of ``explain``: where a number of one layer comes from."""
    command.add_argument("metric", metavar="METRIC", help="such as macs, params or bandwidth")
    add_source(command)
    scope_help = f"a module's path, such as layer4.0.conv1, or '{MODEL}' for all of it"
    command.add_argument("scope", metavar="SCOPE", help=scope_help)
    add_deployment(command)
    command.set_defaults(command=explain_metric)


def explain_metric(options: argparse.Namespace) -> bool:
    """Print the formulas of one metric for the operations or weights of one module."""
    registry = tables()
    if options.metric not in registry.metrics and options.source in registry.metrics:
        raise InputError(f"METRIC stands before SOURCE: explain {options.source} {options.metric} {options.scope}")
    metric = metric_named(options.metric, registry.metrics)
    source = source_of(options, registry)
    if metric.stage is Stage.TRAINED and not source.training:
        source = replace(source, training=USUAL_OPTIMIZER)
    model = measure_source(source, registry, deployment_of(options, registry))
    if metric.key not in model.measurements:
        raise model.failures.get(metric.key) or InputError(f"{metric.key} is of a model on a device: add --device NAME")
    scope = None if options.scope in ("", MODEL) else options.scope
    known = verdict.known_scopes(model.measurements.values()) - {""}
    if scope and not any(is_in_scope(name, scope) for name in known):
        raise InputError(f"no module of the model is called '{scope}': {yaml_text.suggestion(scope, sorted(known))}")
    measurement = model.measurements[metric.key]
    print_text(explain.explanation(metric, measurement, model.programs[metric.stage], scope))
    return not any(op.may_be_in(scope) for op in measurement.unmeasured)


def add_init(command: argparse.ArgumentParser) -> None:
    """The options of ``init``: a first budget, with what the model measures as its limits."""
    add_source(command)
    command.add_argument("--headroom", metavar="SHARE", default="0%", help="room above what is measured, such as 5%%")
    command.add_argument("--name", metavar="NAME", help="what the budget calls the model")
    command.add_argument("--output", metavar="FILE", help="write the budget there, where nothing is yet")
    add_deployment(command)
    command.set_defaults(command=write_draft)


def write_draft(options: argparse.Namespace) -> bool:
    """Print or write a commented budget; what is unmeasured stays a comment, and the error stream says why."""
    registry = tables()
    source = source_of(options, registry)
    path, headroom = _new_budget(options.output), _headroom(options.headroom)
    deployment = deployment_of(options, registry)
    if options.lower and not options.device:
        raise InputError("--lower is what the compiler of a device does: add --device NAME")
    source, model = _measured(source, registry)
    on_device = measuring.deployed(model, deployment, registry) if deployment else None
    if on_device is not None and on_device.measured.failure is not None:
        raise on_device.measured.failure
    text = draft_budget.draft_text(
        options.name or _name(str(source.target)),
        source,
        _target(source, path, registry),
        registry.metrics,
        model.measurements,
        headroom=headroom,
        versions=registry.versions(source.format),
        deployed=on_device,
        hardware=_seen_from(path, source, options.device.rpartition(BETWEEN)[0]) if options.device else "",
        inputs_about="" if options.input else "the model's own example: put in what it is run on",
    )
    read_budget(path, registry, root=Path.cwd(), text=text)  # refuses what the gate would not take
    if options.output:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path} written: pytest --model-budget {quote(str(path))} holds it")
    else:
        print(text, end="")
    for line in show.unmeasured_lines(model.measurements):
        print_text(line, stream=sys.stderr)
    return model.is_complete


def _new_budget(output: str | None) -> Path:
    """Where a draft is written, or would lie; InputError where it cannot."""
    path = Path(output or f"{FOLDER}/budget.yaml")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is no name of a budget: end it in .yaml, such as {FOLDER}/{path.stem}.yaml")
    if output and path.exists():
        raise InputError(f"{path} exists: name another file, or delete it")
    return path


def _headroom(said: str) -> Fraction:
    try:
        return Fraction(quantity(said, "%"))
    except UnitError as error:
        raise InputError(f"--headroom: {error}") from error


def _measured(source: ModelSource, registry: Tables) -> tuple[ModelSource, measuring.CostedModel]:
    """A model measured, where none are given on the inputs that it carries, and the source with these."""
    try:
        return source, measure_source(source, registry)
    except NoInputsError as error:
        if not error.offered:
            raise
        source = replace(source, inputs=error.offered)
        return source, measure_source(source, registry)


def _name(target: str) -> str:
    """What to call a model: the callable's name, or the file's."""
    if re.search(r":[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", target):
        return target.rpartition(":")[2].rpartition(".")[2]
    return Path(target).stem


def _target(source: ModelSource, path: Path, registry: Tables) -> str:
    """The model's target, a file's path as seen from the budget."""
    target = str(source.target)
    return _seen_from(path, source, target) if registry.formats[source.format].suffixes else target


def _seen_from(path: Path, source: ModelSource, file: str) -> str:
    """A file's path as seen from the budget; "" of none."""
    return Path(os.path.relpath(source.base / file, source.base / path.parent)).as_posix() if file else ""


# Naming a model.


def add_source(command: argparse.ArgumentParser) -> None:
    """The options that name a model and what it is run on."""
    add = command.add_argument
    add("source", metavar="SOURCE", help="module:callable, or a TorchScript, .pt2 or .onnx file")

    def several(option: str, metavar: str, text: str) -> None:
        add(option, metavar=metavar, action="append", default=[], help=text)

    several("--input", "[NAME=]SPEC", "one input, such as 'float32 1x3x224x224' or flag=false; repeat it for several")
    several("--args", "VALUE", "an argument of the callable: a plain value, or all of them as a JSON list")
    several("--kwargs", "KEY=VALUE", "a named argument of the callable, or all of them as a JSON object")
    add("--dtype", metavar="DTYPE", help="convert the model, for example to bfloat16")
    several("--dims", "NAME=SIZE", "the size of a symbolic dimension of an exported program")
    add("--training", choices=tuple(OPTIMIZERS), default="", help="measure a training step, too, with this optimizer")
    command.set_defaults(loads_model=True)
    add("-v", "--verbose", action="store_true", help="show the whole exception where the model's code raises one")
    add("--qdq", choices=(GROUPED, AS_WRITTEN), default=GROUPED, help="how dequantise, operation, quantise are read")


class NoInputsError(InputError):
    """A model was given no inputs, and cannot be run without; offered are examples that it carries itself."""

    def __init__(self, source: ModelSource, offered: InputSpecs) -> None:
        own = f" '{offered}', the model's own example" if offered else " 'float32 1x3x224x224'"
        super().__init__(f"{source.target} needs inputs: --input{own}")
        self.offered = offered


def measure_source(
    source: ModelSource, registry: Tables, deployment: Deployment | None = None
) -> measuring.CostedModel:
    """The model behind a source, fully measured, on a device as far as that says enough.

    What its code prints goes to standard error.
    """
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        model = measuring.costed_model(source, registry, root=source.base)
    if model.loaded.graph.operations_unknown and not source.inputs:
        raise NoInputsError(source, measuring.offered_by(model.loaded))
    if deployment is not None:
        _, model = measuring.lowered_for(deployment, model, registry)
    for failure in model.failures.values():
        if not isinstance(failure, DeviceError):
            raise failure
    return model


def add_deployment(command: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The options that name a device, and what its compiler does to a program."""
    add = command.add_argument
    text = "a shipped device (modelbudget devices lists them), or hardware.yaml::name"
    add("--device", metavar="NAME", required=required, help=text)
    text = "what its compiler does, such as dtype=int8; repeat it, or give a JSON object"
    add("--lower", metavar="KEY=VALUE", action="append", default=[], help=text)


def deployment_of(options: argparse.Namespace, registry: Tables) -> Deployment | None:
    """The device and the lowering of the command's words; None where they name neither."""
    base = Path.cwd()
    lower = Words(grammar.Reading(base, base, registry)).mapped("--lower", options.lower) if options.lower else None
    return asked_deployment(lower, options.device, registry, base=base)


def source_of(options: argparse.Namespace, registry: Tables) -> ModelSource:
    """The model source that the command's words name; raises ModelBudgetError for other words."""
    base = Path.cwd()
    words = Words(grammar.Reading(base, base, registry))
    key = from_python.source_format(options.source, registry, base)
    return ModelSource(
        key,
        options.source,
        words.inputs(options.input),
        args=words.listed(options.args),
        kwargs=words.mapped("--kwargs", options.kwargs),
        dtype=words.dtype(options.dtype),
        dims=words.dims(options.dims),
        qdq="" if options.qdq == GROUPED else options.qdq,
        training=options.training,
        base=base,
    )


@dataclass(frozen=True, slots=True)
class Words:
    """The command line's values, read as the same words in a budget file are.

    Raises InputError for a value that cannot be read so.
    """

    reading: grammar.Reading

    def inputs(self, specs: Sequence[str]) -> InputSpecs:
        """Positional inputs in their order, and those spelled NAME=SPEC by name; a JSON list or object is several."""
        positional: list[InputSpec] = []
        named: dict[str, InputSpec] = {}
        for word in specs:
            name, spec = _split(word)
            node = self._node("--input", spec)
            is_all = name is None and not isinstance(node, yaml_text.Text)
            form: grammar.Form[Any] = input_forms.INPUTS if is_all else input_forms.ARGUMENT
            read = form.of(node, self.reading)
            self._refuse("--input", word)
            assert read is not None, "what is no input was refused"
            if isinstance(read, InputSpecs):
                positional.extend(read.positional)
                named.update(read.named)
            elif name is None:
                positional.append(read)
            else:
                named[name] = read
        return InputSpecs(tuple(positional), named)

    def listed(self, words: Sequence[str]) -> tuple[object, ...]:
        """Plain values; one JSON list stands for its items."""
        values = [self._value("--args", word) for word in words]
        if len(values) == 1 and isinstance(values[0], list):
            return tuple(values[0])
        return tuple(values)

    def mapped(self, option: str, words: Sequence[str]) -> dict[str, object]:
        """Plain values by name, from pairs or JSON objects."""
        values: dict[str, object] = {}
        for word in words:
            name, text = _split_size(word) if option == "--dims" else _split(word)
            value = self._value(option, text)
            if name is not None:
                values[name] = value
            elif isinstance(value, dict):
                values.update(value)
            else:
                raise InputError(f"{option} '{word}' is neither KEY=VALUE nor a JSON object")
        return values

    def dtype(self, name: str | None) -> str | None:
        """The name of a floating-point type."""
        if name is None:
            return None
        dtype = input_forms.FLOATING_TYPE.of(self._node("--dtype", name), self.reading)
        self._refuse("--dtype", name)
        return dtype

    def dims(self, words: Sequence[str]) -> Mapping[str, int]:
        """Sizes by symbol."""
        if not words:
            return {}
        pairs = json.dumps(self.mapped("--dims", words))
        dims = source_forms.DIMS.of(self._node("--dims", pairs), self.reading) or {}
        self._refuse("--dims", " ".join(words))
        return dims

    def _value(self, option: str, word: str) -> object:
        form = source_forms.VALUE if option in CALLING else input_forms.ANY
        value = form.of(self._node(option, word), self.reading)
        self._refuse(option, word)
        return value

    def _node(self, option: str, word: str) -> yaml_text.Node:
        """The words of one option as a YAML tree, of which JSON is a part."""
        try:
            node, problems = yaml_text.tree(word, option)
        except yaml_text.BudgetFileError as error:
            raise InputError(f"{option} '{word}': {_messages(error.problems)}") from error
        self.reading.problems.extend(problems)
        return node

    def _refuse(self, option: str, word: str) -> None:
        if self.reading.problems:
            raise InputError(f"{option} '{word}': {_messages(self.reading.problems)}")


def _split(word: str) -> tuple[str | None, str]:
    """(name, value) of NAME=VALUE; (None, word) of anything else."""
    match = _NAMED.fullmatch(word)
    return (match[1], match[2]) if match else (None, word)


def _split_size(word: str) -> tuple[str | None, str]:
    """(symbol, size) of SYMBOL=SIZE: a symbol need not be a name, as x.0 and 2*n+1 are none."""
    symbol, equals, size = word.rpartition("=")
    return (symbol, size) if equals and not symbol.startswith("{") else (None, word)


def _messages(problems: Sequence[yaml_text.Problem]) -> str:
    return "; ".join(problem.message for problem in problems)
