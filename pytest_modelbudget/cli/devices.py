"""``modelbudget fit``, ``serve`` and ``devices``: whether a model fits a device, and which devices are known."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from pytest_modelbudget.budget.budget import FitsCheck, Place
from pytest_modelbudget.budget.hardware_file import device_texts
from pytest_modelbudget.budget.kinds import judge_fit
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.cli.options import add_deployment, add_format, add_source, lowering_of, source_of, whole_number
from pytest_modelbudget.cli.screen import naming, print_json, print_text, terminal_width
from pytest_modelbudget.deployment.arena import as_json, as_offline_plan
from pytest_modelbudget.deployment.device import HOLDS, WEIGHTS, Device
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import DeviceError, InputError
from pytest_modelbudget.formats.source import CACHE_TYPES, ModelSource, Serving, names_attribute
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.asked_device import asked_device, devices_named
from pytest_modelbudget.metrics.measured_model import DeployedModel, Deployment
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import fit
from pytest_modelbudget.reports.build import metric_report
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.serving.fitting import longest_fitting
from pytest_modelbudget.units import quantity


def add_fit(command: argparse.ArgumentParser) -> None:
    """The options of ``fit``: whether one model fits one device, or which devices it fits."""
    add_source(command)
    add_deployment(command)
    add = command.add_argument
    add("--flash", metavar="SIZE", help="in place of a device: the memory for weights, such as 1MiB")
    add("--ram", metavar="SIZE", help="in place of a device: the memory for activations, such as 256KiB")
    add("--all", action="store_true", help="a table of all devices: those that are shipped, or of --device FILE")
    add_format(command)
    add("--plan", metavar="FILE", help="write the arena's offsets: TFLM's offline plan, or all as JSON (*.json)")
    command.set_defaults(command=print_fit)


def print_fit(options: argparse.Namespace) -> bool:
    """Print the verdict, and how full each memory is; incomplete where it does not fit, or nobody knows."""
    registry = tables()
    deployments = _deployments(options, registry)
    source = source_of(options, registry)
    fitted = _fitted(source, deployments, registry)
    if options.all:
        if options.format == "json":
            print_json([fit.fit_record(model, verdict) for model, verdict in fitted])
        else:
            print_text(fit.devices_fit_text(options.source, fitted))
        return any(not verdict.fails for _, verdict in fitted)
    ((model, verdict),) = fitted
    if model.measured.failure is not None:
        raise model.measured.failure
    if options.plan:
        _write_plan(Path(options.plan), model)
    if options.format == "json":
        print_json(fit.fit_record(model, verdict))
    else:
        way_out = "" if source.training else _in_int8(model, verdict, source, registry)
        print_text(fit.fit_text(str(source.target), model, verdict, terminal_width(), way_out))
    return not verdict.fails


Fitted = list[tuple[DeployedModel, Verdict]]


def _fitted(source: ModelSource, deployments: Sequence[Deployment], registry: Tables) -> Fitted:
    """A model on devices, and whether it fits each."""
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        measured = measuring.measure_model(source, registry, root=source.base, deployments=deployments)
    models = [measured.on(deployment) for deployment in deployments]
    return [(model, judge_fit(FitsCheck(Place("the command line", 1), model.deployment), model)) for model in models]


def _deployments(options: argparse.Namespace, registry: Tables) -> list[Deployment]:
    """The devices that the command's words name, each with the lowering; raises InputError where they name none."""
    sizes = {"flash": options.flash, "ram": options.ram}
    if sum([options.all, any(sizes.values()), options.device is not None and not options.all]) != 1:
        raise InputError(
            "name one device: --device NAME (modelbudget devices lists them), --flash 1MiB --ram 256KiB, or --all"
        )
    if options.training and options.lower:
        raise InputError("a training step is not lowered: leave out --lower or --training")
    if options.all:
        devices: Sequence[Device] = devices_named([], options.device, base=Path.cwd())
    elif options.device is None:
        devices = [_board(sizes, registry)]
    else:
        devices = [asked_device(options.device, registry, base=Path.cwd())]
    lowering = lowering_of(options, registry)
    return [Deployment(device.name, device, lowering, bool(options.training)) for device in devices]


def _board(sizes: Mapping[str, str | None], registry: Tables) -> Device:
    """A device of two memories alone."""
    if lacking := [name for name, size in sizes.items() if not size]:
        raise InputError(f"--flash and --ram belong together: add --{lacking[0]} SIZE")
    memories = {name: {"size": size, "holds": what} for (name, size), what in zip(sizes.items(), HOLDS, strict=True)}
    device = asked_device({"memories": memories}, registry, base=Path.cwd())
    return replace(device, name="this board")


def _in_int8(model: DeployedModel, verdict: Verdict, source: ModelSource, registry: Tables) -> str:
    """What int8 would change, of a model that is not lowered and does not fit; "" where it changes nothing."""
    deployment = model.deployment
    if deployment.lowering.dtype or not verdict.fails or model.fitting is None or not model.fitting.uses:
        return ""
    in_int8 = replace(deployment, lowering=replace(deployment.lowering, dtype="int8"))
    ((other, its),) = _fitted(source, [in_int8], registry)
    if other.fitting is None or other.fitting.uses == model.fitting.uses or its.outcome is Outcome.UNKNOWN:
        return ""
    return f"as int8 {fit.SAYS[its.outcome]}{' either' * its.fails}: --lower dtype=int8"


def _write_plan(path: Path, model: DeployedModel) -> None:
    """The offsets of the arena: all of each buffer as JSON, or for any other file as TFLM reads them."""
    assert model.arena is not None, "a model that could be measured has one"
    plan = as_json(model.arena) if path.suffix == ".json" else as_offline_plan(model.arena)
    try:
        path.write_text(json.dumps(plan) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    print(f"wrote {path}", file=sys.stderr)


def add_devices(command: argparse.ArgumentParser) -> None:
    """The options of ``devices``: those that are shipped, or of a file."""
    add = command.add_argument
    add("names", metavar="NAME", nargs="*", help="devices to show (default: all)")
    add("--hardware", metavar="FILE", help="a hardware file (default: the devices that are shipped)")
    add_format(command)
    command.set_defaults(command=print_devices)


def print_devices(options: argparse.Namespace) -> bool:
    """Print every figure of each device, with where it is from."""
    devices = devices_named(options.names, options.hardware, base=Path())
    if options.format == "json":
        print_json({device.name: {**device_texts(device), "source": device.source} for device in devices})
    else:
        print_text("\n\n".join(fit.device_text(device, terminal_width()) for device in devices))
    return True


# A language model in service.


def add_serve(command: argparse.ArgumentParser) -> None:
    """The options of ``serve``: a model, how it is served, and the memory that it has to fit."""
    add = command.add_argument
    add("source", metavar="SOURCE", help="a folder with config.json, the file itself, or module:callable")
    add("--context", metavar="N", type=whole_number("context", least=1), required=True, help="tokens of each sequence")
    add("--batch", metavar="B", type=whole_number("batch", least=1), default=1, help="sequences (default: 1)")
    add("--cache-dtype", metavar="TYPE", choices=CACHE_TYPES, default="", help="such as int8 (default: the program's)")
    add("--device", metavar="NAME", help="a shipped device (modelbudget devices lists them), or hardware.yaml::name")
    add("--memory", metavar="SIZE", help="in place of a device: 24GB")
    add("--reserve", metavar="SIZE", default="0", help="what the engine takes besides, such as 1GB")
    add("--fit", action="store_true", help="find the longest context and the largest batch that fit")
    add("-v", "--verbose", action="store_true", help="show the whole exception where the model's code raises one")
    add_format(command)
    command.set_defaults(command=serve_model, loads_model=True)


def serve_model(options: argparse.Namespace) -> bool:
    """Print what serving takes; incomplete where it does not fit the memory that is named, or that is unknown."""
    registry, room = tables(), _room(options)
    if options.fit and room is None:
        raise InputError("--fit needs a memory: add --device NAME or --memory 24GB")
    served = Serving(options.context, options.batch, options.cache_dtype, None, int(quantity(options.reserve, "B")))
    key = "torch" if names_attribute(options.source) else "huggingface"
    source = ModelSource(key, options.source, serving=served, base=Path.cwd())
    numbers = _numbers(source, registry)
    found = _most(source, numbers, room, registry) if options.fit and room is not None else {}
    if options.format == "json":
        records = {key: to_json(metric_report(number)) for key, number in numbers.items() if number.complete}
        print_json({"memory": room, "fits": fit.fits(numbers[fit.MEMORY], room), "metrics": records, **found})
    else:
        on = options.device or options.memory
        title = f"{options.source}, {options.context:,} tokens x {options.batch:,}{f' on {on}' if on else ''}"
        print_text(fit.serving_text(title, numbers, room, found))
    return numbers[fit.MEMORY].complete if room is None else bool(fit.fits(numbers[fit.MEMORY], room))


def _room(options: argparse.Namespace) -> int | None:
    """Bytes of the memory that the command's words name; None where they name none."""
    if options.memory:
        return int(quantity(options.memory, "B"))
    if options.device is None:
        return None
    device = asked_device(options.device, tables(), base=Path.cwd())
    memory = device.holding(WEIGHTS)
    if memory is None:
        raise DeviceError(f"{device.name} names no memory that holds weights: give --memory 24GB")
    return memory.room


def _numbers(source: ModelSource, registry: Tables) -> dict[str, Measurement]:
    """All metrics of a served model; raises where its memory could not be worked out."""
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        model = measuring.costed_model(source, registry, root=source.base)
    if fit.MEMORY not in model.measurements:
        raise model.failures[fit.MEMORY]
    return dict(model.measurements)


def _most(source: ModelSource, numbers: dict[str, Measurement], room: int, registry: Tables) -> dict[str, int]:
    """The longest context with this batch, and the largest batch at this context."""
    served, memory = source.serving, numbers[fit.MEMORY]
    assert served is not None, "the source is served"
    longest = _numbers(replace(source, serving=replace(served, memory=room)), registry).get("max_context")
    each = max(1, int(numbers["kv_cache"].value) // served.batch)
    most = max(0, room - memory.parts["weights"]) // each

    def with_batch(batch: int) -> Measurement:
        return _numbers(replace(source, serving=replace(served, batch=batch)), registry)[fit.MEMORY]

    batch = longest_fitting(with_batch, room, most)
    known = {} if longest is None else {f"longest context of {served.batch:,} sequences": int(longest)}
    return {**known, f"largest batch at {served.context:,} tokens": batch}
