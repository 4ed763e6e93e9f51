"""``modelbudget show``, ``compare``, ``explain`` and ``init``: the commands that measure a model.

Each prints, and tells whether every number that it needed could be worked out.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from shlex import quote

from pytest_modelbudget.budget import FOLDER, SUFFIXES, verdict, yaml_text
from pytest_modelbudget.budget.budget import BETWEEN
from pytest_modelbudget.budget.lock_file import lock_path
from pytest_modelbudget.budget.read_budget import names_transform, read_budget
from pytest_modelbudget.cli.build import measured_change
from pytest_modelbudget.cli.options import (
    add_deployment,
    add_format,
    add_source,
    deployment_of,
    source_of,
    whole_number,
)
from pytest_modelbudget.cli.reference import metric_named
from pytest_modelbudget.cli.screen import naming, print_json, print_text, terminal_width
from pytest_modelbudget.errors import DeviceError, InputError, ModelBudgetError, UnitError
from pytest_modelbudget.formats.benchmark import clock
from pytest_modelbudget.formats.source import USUAL_OPTIMIZER, InputSpecs, ModelSource, names_attribute
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.locks import first_numbers, write_drafted
from pytest_modelbudget.graph.graph import MODEL, is_in_scope
from pytest_modelbudget.graph.tensor import unbound_symbols
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.metrics.measurement import Stage, part_of
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import draft_budget, explain, show
from pytest_modelbudget.reports.compared import compared_record, compared_text
from pytest_modelbudget.reports.layer_table import layer_table, layer_text
from pytest_modelbudget.reports.text import folded
from pytest_modelbudget.units import quantity


def add_show(command: argparse.ArgumentParser) -> None:
    """The options of ``show``: one model's layers, or operations, and its totals."""
    add_source(command)
    add = command.add_argument
    add("--depth", metavar="N", type=whole_number("depth"), help="unfold this many levels (default: all)")
    add_format(command)
    add("--ops", action="store_true", help="operations instead of layers: census and attributes")
    add("--by", choices=show.BY, help="a row for each operator, or operation, with its bytes: what reads most is first")
    add("--vary", metavar="NAME=VALUES", action="append", help="a line for each value of a symbol: seq=128,512,2048")
    add_deployment(command)
    command.set_defaults(command=show_model)


def show_model(options: argparse.Namespace) -> bool:
    """Print a model's layers (or operations) and totals."""
    if options.vary:
        return show_varied(options)
    registry = tables()
    own: tuple[str, ...] = ()
    deployment = deployment_of(options, registry)
    if names_transform(options.source):
        model = _on_device(measured_change(options.source, registry), deployment, registry)
    else:
        given, model = _measured(source := source_of(options, registry), registry, deployment)
        if given is not source:
            own = (f"inputs: {given.inputs}, the model's own example: --input gives others",)
    if options.format == "json":
        table = layer_table(model.loaded, model.costed, options.depth)
        record = show.layer_record(model.loaded, table, model.measurements)
        record |= show.op_record(model.costed) if options.ops else {}
        record |= {f"by_{options.by}": show.moved_records(model.costed, options.by)} if options.by else {}
        print_json(record | {"notes": [*record["notes"], *own]})
    else:
        print_text(_show_table(model, options, own))
    return model.is_complete


def _show_table(model: measuring.CostedModel, options: argparse.Namespace, own: Iterable[str]) -> str:
    """Layers or operations, then totals, then how the numbers came about."""
    width = terminal_width()
    if options.by:
        shown = [show.moved_text(model.costed, options.by)]
    elif options.ops:
        shown = [show.census_text(model.costed), show.ops_text(model.costed, width)]
    else:
        shown = [layer_text(layer_table(model.loaded, model.costed, options.depth), width)]
    file = f"file: {model.loaded.traced}" if model.loaded.format == "onnx" else ""
    notes = [*own, *(note for note in model.notes if not unbound_symbols(note))]  # the totals end in how to bind them
    lacking = [f"{key} unknown: {failure}" for key, failure in model.failures.items()]
    said = [model.reservation, file, *lacking, *notes]
    remarks = "\n".join(part for line in said if line for part in folded(line, width))
    return "\n\n".join(filter(None, [*shown, show.totals_text(model.measurements, width), remarks]))


VARIED = ("input", "args", "kwargs")  # options in whose values a symbol may stand


def add_compare(command: argparse.ArgumentParser) -> None:
    """The options of ``compare``: two models, and what both are run on."""
    add_source(command)
    command.add_argument("other", metavar="OTHER", help="the second model")
    add_format(command)
    add_deployment(command)
    command.set_defaults(command=compare_models)


def compare_models(options: argparse.Namespace) -> bool:
    """Print what two models measure, and by how much they differ."""
    if options.source.endswith(".json") and Path(options.source).name != "config.json":
        raise InputError(f"{options.source} is a report: modelbudget diff {options.source} {options.other}")
    second = argparse.Namespace(**{**vars(options), "source": options.other})
    return _print_compared(["model"], {options.source: options, options.other: second}, options)


def show_varied(options: argparse.Namespace) -> bool:
    """Print what one model measures with each value of a symbol; of several symbols with each of all values."""
    symbols = dict(map(_symbol, options.vary))
    sizes = [dict(zip(symbols, values, strict=True)) for values in product(*symbols.values())]
    return _print_compared([*symbols], {" ".join(each.values()): _bound(options, each) for each in sizes}, options)


def _symbol(word: str) -> tuple[str, list[str]]:
    match = re.fullmatch(r"([A-Za-z_]\w*)=([^,\s]+(?:,[^,\s]+)*)", word)
    if match is None:
        raise InputError(f"--vary '{word}' is not NAME=VALUE,VALUE, such as seq=128,512,2048")
    return match[1], match[2].split(",")


def _bound(options: argparse.Namespace, sizes: Mapping[str, str]) -> argparse.Namespace:
    """The options with values for symbols: in their words, as in 1xseq and bx3xsxs, or as dimensions of a file."""
    names, unused = "|".join(sizes), {*sizes}
    shape = re.compile(rf"(?<!\w)(?:\d+|{names})(?:x(?:\d+|{names}))*(?!\w)")
    symbol = re.compile(rf"(?:(?<=x)|(?<!\w))(?:{names})(?=x|(?!\w))")

    def value(found: re.Match[str]) -> str:
        unused.discard(found[0])
        return sizes[found[0]]

    def replaced(word: str) -> str:
        key, equals, text = word.partition("=") if re.match(r"[A-Za-z_]\w*=", word) else ("", "", word)
        return key + equals + shape.sub(lambda found: symbol.sub(value, found[0]), text)

    words = {key: [replaced(word) for word in getattr(options, key)] for key in VARIED}
    if unused and names_attribute(options.source):
        raise InputError(f"--vary {min(unused)}: write it in --input, --args or --kwargs: 'int64 1x{min(unused)}'")
    words["dims"] = [*options.dims, *(f"{name}={sizes[name]}" for name in sizes if name in unused)]
    return argparse.Namespace(**{**vars(options), **words})


def _print_compared(titles: Sequence[str], args: Mapping[str, argparse.Namespace], options: argparse.Namespace) -> bool:
    registry = tables()
    models = {label: _measured_as(f"{' '.join(titles)} {label}", words, registry) for label, words in args.items()}
    numbers = {label: model.measurements for label, model in models.items()}
    notes = {label: model.notes for label, model in models.items()}
    if options.format == "json":
        print_json(compared_record(numbers, notes))
    else:
        known = {key for each in numbers.values() for key, number in each.items() if number.complete or number.value}
        keys = [key for key, metric in registry.metrics.items() if metric.drafted and key in known]
        print_text(compared_text(titles, numbers, keys, notes, terminal_width()))
    return all(model.is_complete for model in models.values())


def _measured_as(label: str, words: argparse.Namespace, registry: Tables) -> measuring.CostedModel:
    try:
        source = source_of(words, registry)
        if registry.formats[source.format].stores_alone:  # inputs are those of the other model
            source = replace(source, inputs=InputSpecs(), dims={})
        return measure_source(source, registry, deployment_of(words, registry))
    except ModelBudgetError as error:
        error.args = (f"{label}: {error}",)
        raise


def add_explain(command: argparse.ArgumentParser) -> None:
    """The options of ``explain``: where a number of one layer comes from."""
    command.add_argument("metric", metavar="METRIC", help="such as macs, params or bandwidth")
    add_source(command)
    command.add_argument("scope", metavar="SCOPE", help=f"a module's path, such as layer4.0.conv1, or '{MODEL}'")
    add_deployment(command)
    command.set_defaults(command=explain_metric)


def explain_metric(options: argparse.Namespace) -> bool:
    """Print the formulas of one metric for the operations or weights of one module."""
    registry = tables()
    if options.metric not in registry.metrics and options.source in registry.metrics:
        raise InputError(f"METRIC is before SOURCE: explain {options.source} {options.metric} {options.scope}")
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
    print_text(explain.explanation(metric, measurement, model.programs[metric.stage], scope, terminal_width()))
    return not part_of(measurement, scope).unmeasured


def add_init(command: argparse.ArgumentParser) -> None:
    """The options of ``init``: a first budget, with what the model measures as its limits."""
    add_source(command)
    command.add_argument("--headroom", metavar="SHARE", default="0%", help="room above what is measured, such as 5%%")
    command.add_argument("--name", metavar="NAME", help="what the budget calls the model")
    command.add_argument("--output", metavar="FILE", help="write the budget there, and its lock file next to it")
    command.add_argument("--append", action="store_true", help="add the model to the budget that --output names")
    add_deployment(command)
    command.set_defaults(command=write_draft)


def write_draft(options: argparse.Namespace) -> bool:
    """Print or write a first budget; what is unmeasured stays a comment, and the error stream says why."""
    registry = tables()
    source = source_of(options, registry)
    path, target = _new_budget(options.output, is_added=options.append), str(source.target)
    if (is_file := bool(registry.formats[source.format].suffixes)) and _seen_from(Path(), source, target)[:3] == "../":
        raise InputError(f"{target} lies outside the project folder {Path.cwd()}: copy it there, or run there")
    try:
        headroom = Fraction(quantity(options.headroom, "%"))
    except UnitError as error:
        raise InputError(f"--headroom: {error}") from error
    deployment = deployment_of(options, registry)
    if options.lower and not options.device:
        raise InputError("--lower is what the compiler of a device does: add --device NAME")
    source, model = _measured(source, registry)
    on_device = measuring.deployed(model, deployment, registry, with_parts=True) if deployment else None
    if on_device is not None and on_device.measured.failure is not None:
        raise on_device.measured.failure
    text = draft_budget.draft_text(
        options.name or _name(target),
        source,
        _seen_from(path, source, target) if is_file else target,
        registry.metrics,
        model.measurements,
        headroom=headroom,
        deployed=on_device,
        hardware=_seen_from(path, source, options.device.rpartition(BETWEEN)[0]) if options.device else "",
        inputs_about="" if options.input else "The inputs are the model's own example: write those that you run.",
    )
    drafted = read_budget(path, registry, root=Path.cwd(), text=text)  # refuses what the gate would not take
    if options.output:
        measured = measuring.without_graph(model, clock(), registry, with_parts=True)
        there = on_device.measured if on_device else measured
        write_drafted(path, text, first_numbers(drafted, measured, there, registry), registry, is_added=options.append)
        print(f"{path} and {lock_path(path).name} written; check them with\n  pytest --model-budget {quote(str(path))}")
    else:
        print(text, end="")
    for line in show.unmeasured_lines(model.measurements):
        print_text(line, stream=sys.stderr)
    return model.is_complete


def _new_budget(output: str | None, *, is_added: bool) -> Path:
    """Where a draft is written, or would lie; InputError where it cannot."""
    path = Path(output or f"{FOLDER}/budget.yaml")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is no name of a budget: end it in .yaml, such as {FOLDER}/{path.stem}.yaml")
    if output and path.exists() and not is_added:
        raise InputError(f"{path} exists: add the model with --append, or name another file")
    if is_added and not (output and path.exists()):
        raise InputError("--append adds to a budget that exists: name it with --output")
    return path


def _measured(
    source: ModelSource, registry: Tables, deployment: Deployment | None = None
) -> tuple[ModelSource, measuring.CostedModel]:
    """A model measured, where none are given on the inputs that it carries, and the source with these."""
    try:
        return source, measure_source(source, registry, deployment)
    except NoInputsError as error:
        if not error.offered:
            raise
        return _measured(replace(source, inputs=error.offered), registry, deployment)


def _name(target: str) -> str:
    """What to call a model: the callable's name, or the file's."""
    is_attribute = re.search(r":[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", target)
    return target.rpartition(":")[2].rpartition(".")[2] if is_attribute else Path(target).stem


def _seen_from(path: Path, source: ModelSource, file: str) -> str:
    """A file's path as seen from the budget; "" of none."""
    return Path(os.path.relpath(source.base / file, source.base / path.parent)).as_posix() if file else ""


class NoInputsError(InputError):
    """A model was given no inputs, and cannot be run without; offered are examples that it carries itself."""

    def __init__(self, source: ModelSource, offered: InputSpecs) -> None:
        own = f" '{offered}', the model's own example" if offered else " 'float32 1x3x224x224'"
        super().__init__(f"{source.target} needs inputs: --input{own}")
        self.offered = offered


def measure_source(
    source: ModelSource, registry: Tables, deployment: Deployment | None = None
) -> measuring.CostedModel:
    """The model behind a source, fully measured, on a device as far as that says enough."""
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        model = measuring.costed_model(source, registry, root=source.base)
    if model.loaded.graph.operations_unknown and not (source.inputs or registry.formats[source.format].stores_alone):
        raise NoInputsError(source, getattr(model.loaded, "offered", InputSpecs()))  # an extension's may not know it
    return _on_device(model, deployment, registry)


def _on_device(model: measuring.CostedModel, deployment: Deployment | None, registry: Tables) -> measuring.CostedModel:
    """A measured model, as it runs on a device where one is asked for; raises what could not be measured."""
    if deployment is not None:
        _, model = measuring.lowered_for(deployment, model, registry)
    for failure in model.failures.values():
        if not isinstance(failure, DeviceError):
            raise failure
    return model
