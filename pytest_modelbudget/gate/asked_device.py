"""A device and a lowering as Python code and the command line give them, read as budgets and hardware files are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_modelbudget.budget import SUFFIXES, grammar, yaml_text
from pytest_modelbudget.budget.budget import BETWEEN
from pytest_modelbudget.budget.deployment_forms import LOWER
from pytest_modelbudget.budget.hardware_file import DEVICE, read_devices, shipped_devices
from pytest_modelbudget.budget.read_budget import budget_text
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import DeviceError, ModelBudgetError
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.metrics.costs import NO_DEVICE
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

Value = TypeVar("Value")


def asked_deployment(lower: object, device: object, registry: Tables, *, base: Path) -> Deployment | None:
    """A device and a lowering, either of which may be None; None where both are. Paths are relative to base.

    Raises DeviceError, with every problem, where they cannot be read.
    """
    if lower is None and device is None:
        return None
    on = NO_DEVICE if device is None else asked_device(device, registry, base=base)
    return Deployment(on.name, on, Lowering() if lower is None else asked_lowering(lower, registry))


def asked_lowering(lower: object, registry: Tables) -> Lowering:
    """The lowering that a mapping means, as under ``lower:`` of a budget."""
    if isinstance(lower, Lowering):
        return lower
    return read_python(LOWER, lower, "lower", registry, DeviceError)


def asked_device(device: object, registry: Tables, *, base: Path) -> Device:
    """A device by its shipped name, as "hardware.yaml::name", or as a mapping of its figures."""
    if isinstance(device, Device):
        return device
    if isinstance(device, Mapping):
        return read_python(DEVICE, device, "device", registry, DeviceError)
    file, is_file, name = str(device).rpartition(BETWEEN)
    return devices_named([name], file if is_file else None, base=base)[0]


def devices_named(names: Sequence[str], file: str | None, *, base: Path) -> list[Device]:
    """The devices of these names, or all where there is none, of a hardware file; without one, of those shipped.

    Raises DeviceError for a name that is none of them, and for a file that cannot be read.
    """
    try:
        known = shipped_devices() if file is None else read_devices(budget_text(base / file, file), file)
    except yaml_text.BudgetFileError as error:
        raise DeviceError(str(error)) from error
    for name in names:
        if name not in known:
            if file is None and name.endswith(SUFFIXES):
                raise DeviceError(f"{name} is a file and names no device in it: write {name}{BETWEEN}NAME")
            where = "no shipped device is called" if file is None else f"{file} has no device"
            raise DeviceError(f"{where} {yaml_text.shown(name)}: {yaml_text.suggestion(name, known)}")
    return [known[name] for name in names or known]


def read_python(
    form: grammar.Form[Value], value: object, key: str, registry: Tables, error: type[ModelBudgetError]
) -> Value:
    """A plain value of Python's, read as a file's; raises error with every problem."""
    read: Value
    read, problems = grammar.python_value(form, value, key, registry)
    if problems:
        raise error("\n".join(problem.message for problem in problems))
    return read
