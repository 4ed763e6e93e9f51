"""``modelbudget fit`` and ``devices``: whether a model fits a device, and which devices are known."""

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
from pytest_modelbudget.cli.options import add_deployment, add_format, add_source, lowering_of, source_of
from pytest_modelbudget.cli.screen import naming, print_json, print_text, terminal_width
from pytest_modelbudget.deployment.arena import as_json, as_offline_plan
from pytest_modelbudget.deployment.device import HOLDS, Device
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.asked_device import asked_device, devices_named
from pytest_modelbudget.metrics.measured_model import DeployedModel, Deployment
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import fit


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
