"""``deployments:`` of a model: a device, what its compiler does to the program, and what must hold there."""

from collections.abc import Mapping
from dataclasses import replace

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import FITS, FitsCheck, Subject
from pytest_modelbudget.budget.grammar import SOME_TEXT, Field, Form, Grammar, Reading, Texts, Values
from pytest_modelbudget.budget.hardware_file import device_named, device_texts, read_devices, shipped_devices
from pytest_modelbudget.budget.limit_forms import held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import place_problem
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Problem, Text, shown, suggestion
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.lowering.lowered import IN_PLACE, Lowering
from pytest_modelbudget.lowering.retyping import TYPES
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

PROGRAMS: Form[str] = grammar.one_word(("true", "training"), "program that has to fit")  # a pass, or a training step
TYPE: Form[str] = grammar.one_word(TYPES, "type that a model can be lowered to", name="lowered_type")


def _kind(word: Text, key: str, reading: Reading) -> str:
    ops = reading.tables.ops
    kinds = sorted(ops.kinds | {"clamp"})
    if word.text in kinds:
        return word.text
    raise BudgetError(f"no op rule is of the kind {shown(word.text)}: {suggestion(word.text, kinds, ops.bare_names)}")


KIND = grammar.spelled("a kind of activation such as relu", _kind, SOME_TEXT)
FUSED = grammar.listed(KIND, "{key}: a list such as [relu, clamp]", may_be_empty=True)
LOWER_GRAMMAR = Grammar(
    "lower",
    (
        Field("fold_batchnorm", grammar.FLAG, "batch norms become part of the weights before them", default=True),
        Field("fuse_activations", FUSED, "activations computed inside what feeds them: [relu, clamp]"),
        Field("dtype", TYPE, "the type of floating activations and weights", default=""),
        Field("io_dtype", TYPE, "the type of the graph's own inputs and outputs", default=""),
        Field(
            "in_place",
            grammar.one_word(IN_PLACE, "way to work in place"),
            "operations whose result takes the memory of an operand: none, elementwise, depthwise",
        ),
    ),
    elsewhere={"layout": "no number here depends on it: remove it"},
    expected="lower: a mapping such as {dtype: int8}",
)
LOWER = LOWER_GRAMMAR.form(
    lambda values, reading: Lowering(**{key: value for key, value in values.read.items() if value is not None}),  # type: ignore[arg-type]  # keys and fields are the same
    "lower",
)


def lower_texts(lowering: Lowering) -> Texts:
    """Every setting of a lowering as a budget spells it; nothing of one that is not given."""
    values = ((key, getattr(lowering, key)) for key in LOWER_GRAMMAR.keys)
    return {key: grammar.plain_text(value) for key, value in values if value != ""}


def deployment_form(tables: Tables) -> Form[Subject[Deployment]]:
    """One entry under deployments, on one of the devices that the file knows."""
    programs = replace(PROGRAMS, schema={"enum": [True, "training"]})
    return Grammar(
        "a deployment",
        (
            Field("device", grammar.text_form("device: the name of a device"), "a device by name", required=True),
            Field("lower", LOWER, "what the device's compiler does: {dtype: int8}", default=Lowering()),
            Field(FITS, programs, "that a pass, or a step of training, fits the memories of the device"),
            *limit_fields(tables.metrics, deployed=True),
        ),
        needs=(FITS, "limits", "scopes"),
    ).form(_deployment, "deployment")


def _deployment(values: Values, reading: Reading) -> Subject[Deployment] | None:
    name = values.key
    device = device_named(values.entries["device"], reading) if values["device"] else None
    if device is None:
        return None
    is_trained = values[FITS] == "training"
    if is_trained and "lower" in values:
        reading.refuse(values.place("lower"), "a training step is not lowered: remove 'lower'")
    deployment = Deployment(name.text, device, values["lower"], is_trained)
    fits = [FitsCheck(values.place(FITS), deployment)] if FITS in values else []
    return Subject(name.text, name.place, deployment, (*fits, *held_limits(values)), declared_at=values.places)


def deployment_texts(deployment: Deployment) -> dict[str, Texts]:
    """Device and lowering by key, with every figure as a text."""
    return {"device": device_texts(deployment.device), "lower": lower_texts(deployment.lowering)}


# The file of devices that a budget names.


def _devices(word: Text, key: str, reading: Reading) -> Mapping[str, Device] | None:
    """The devices of a file, which the deployments of the budget know."""
    reading.devices = None
    if problem := place_problem(word.text, "a hardware file", reading):
        raise BudgetError(problem)
    path = (reading.folder / word.text).resolve()
    shown_as = path.relative_to(reading.root).as_posix() if path.is_relative_to(reading.root) else word.text
    assert reading.read_text is not None, "a budget file is read with what reads texts"
    try:
        devices = read_devices(reading.read_text(path, shown_as), shown_as)
    except BudgetFileError as error:
        missing = Problem(word.place, f"there is no {shown_as}: write its path as seen from this file's folder")
        reading.problems.extend(error.problems if path.exists() else [missing])
        return None
    if twice := devices.keys() & shipped_devices().keys():
        raise BudgetError(f"{shown_as} has a device {shown(min(twice))}, as one that is shipped: rename it")
    reading.devices = devices
    return devices


HARDWARE = Field(
    "hardware",
    grammar.spelled("{key}: the path of a file of devices, such as hardware.yaml", _devices, SOME_TEXT),
    "a file of devices, seen from this one; shipped ones are known without it",
)
