"""``modelbudget fit`` and ``devices``: whether a model fits a device, and which devices are known."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from pytest_modelbudget.budget.budget import FitsCheck, Place
from pytest_modelbudget.budget.hardware_file import device_texts
from pytest_modelbudget.budget.kinds import judge_fit
from pytest_modelbudget.cli.options import add_deployment, add_format, add_source, deployment_of, source_of
from pytest_modelbudget.cli.screen import naming, print_json, print_text, terminal_width
from pytest_modelbudget.deployment.arena import as_json, as_offline_plan
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.asked_device import devices_named
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports import fit

HERE = Place("the command line", 1)


def add_fit(command: argparse.ArgumentParser) -> None:
    """The options of ``fit``: whether one model fits one device."""
    add_source(command)
    add_deployment(command, required=True)
    add_format(command)
    text = "write the offsets of the arena: TFLM's offline plan as a JSON list (*.json: names and lives, too)"
    command.add_argument("--plan", metavar="FILE", help=text)
    command.set_defaults(command=print_fit)


def print_fit(options: argparse.Namespace) -> bool:
    """Print how full each memory is, and the verdict; incomplete where it does not fit, or nobody knows."""
    registry = tables()
    deployment = deployment_of(options, registry)
    assert deployment is not None, "a device is required"
    source = source_of(options, registry)
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        measured = measuring.measure_model(source, registry, root=source.base, deployments=[deployment])
    model = measured.on(deployment)
    if model.measured.failure is not None:
        raise model.measured.failure
    verdict = judge_fit(FitsCheck(HERE, deployment), model)
    if options.plan:
        _write_plan(Path(options.plan), model)
    if options.format == "json":
        print_json(fit.fit_record(model, verdict))
    else:
        print_text(fit.fit_text(str(source.target), model, verdict, terminal_width()))
    return not verdict.fails


def _write_plan(path: Path, model: DeployedModel) -> None:
    """The offsets of the arena: all of each buffer as JSON, or for any other file as TFLM reads them."""
    assert model.arena is not None, "a model that could be measured has one"
    plan = as_json(model.arena) if path.suffix == ".json" else as_offline_plan(model.arena)
    try:
        path.write_text(json.dumps(plan) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


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
