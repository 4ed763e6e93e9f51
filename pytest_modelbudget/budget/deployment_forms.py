"""``deployments:`` of a model: a device, what its compiler does to the program, and what must hold there."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_modelbudget.budget import SUFFIXES, grammar
from pytest_modelbudget.budget.budget import BETWEEN, FITS, FitsCheck, Place, Subject
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Texts, Values
from pytest_modelbudget.budget.hardware_file import device_texts, read_devices, shipped_devices
from pytest_modelbudget.budget.limit_forms import held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import place_problem
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Node, Text, entries_of, shown, suggestion
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.lowering.lowered import IN_PLACE, Lowering
from pytest_modelbudget.lowering.retyping import TYPES
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

HELD = (FITS, "limits", "scopes")  # keys that hold a deployment to anything
ReadText = Callable[[Path, str], str]  # the text of a file, under the name that problems give it


TYPE: Form[str] = grammar.one_word(
    TYPES,
    f"{{key}}: a type that a model can be lowered to: {', '.join(TYPES)}",
    "a model cannot be lowered to {word}: {guess}",
    name="lowered_type",
)
IN_PLACE_FORM: Form[str] = grammar.one_word(
    IN_PLACE, f"{{key}}: {', '.join(IN_PLACE)}", "{word} is no way to work in place: {guess}"
)


def _kind(word: Text, key: str, reading: Reading) -> str:
    """A kind of operation that some rule knows."""
    ops = reading.tables.ops
    kinds = sorted(ops.kinds | {"clamp"})
    if word.text in kinds:
        return word.text
    raise BudgetError(f"no op rule is of the kind {shown(word.text)}: {suggestion(word.text, kinds, ops.bare_names)}")


FUSED = grammar.listed(
    grammar.spelled("a kind of activation such as relu", _kind, SOME_TEXT), "{key}: a list such as [relu, clamp]"
)
NO_LAYOUT = grammar.refused("layout", "'layout' is not modelled, for no number here depends on it: remove it")
LOWER_GRAMMAR = Grammar(
    "lower",
    (
        Field("fold_batchnorm", grammar.FLAG, "batch norms become part of the weights before them", default=True),
        Field("fuse_activations", FUSED, "activations computed inside what feeds them: [relu, clamp]"),
        Field("dtype", TYPE, "the type of floating activations and weights", default=""),
        Field("io_dtype", TYPE, "the type of the graph's own inputs and outputs", default=""),
        Field("in_place", IN_PLACE_FORM, "results in the memory of an operand: none, elementwise, depthwise"),
        NO_LAYOUT,
    ),
    expected="lower: a mapping such as {dtype: int8}",
)


def _lowering(values: Values, reading: Reading) -> Lowering:
    """What is given, and the defaults of a lowering for all else."""
    return Lowering(**{key: values.read[key] for key in values.entries if values.read.get(key) is not None})  # type: ignore[arg-type]


LOWER = LOWER_GRAMMAR.form(_lowering, "lower")


def lower_texts(lowering: Lowering) -> Texts:
    """Every setting of a lowering as a budget spells it; nothing of one that is not given."""
    return {key: grammar.plain_text(_plain(value)) for key in LOWER_KEYS if (value := getattr(lowering, key)) != ""}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


LOWER_KEYS = tuple(known.key for known in LOWER_GRAMMAR.fields if known.offered)


def _fits(entry: Entry, reading: Reading) -> Place | None:
    truth = grammar.FLAG.read(entry, reading)
    if truth is False:
        reading.refuse(entry.place, "'fits: false' holds nothing: write true, or remove it")
    return entry.place if truth else None


DEVICE_NAME = grammar.spelled("device: the name of a device", lambda word, key, reading: word.text, SOME_TEXT)


def deployment_grammar(tables: Tables) -> Grammar:
    """The keys of one entry under deployments."""
    return Grammar(
        "a deployment",
        (
            Field("device", DEVICE_NAME, "a device by name", required=True),
            Field("lower", LOWER, "what the device's compiler does: {dtype: int8}", default=Lowering()),
            Field(FITS, Form(_fits, {"const": True}), "that weights and activations fit in every memory of the device"),
            *limit_fields(tables.metrics, deployed=True),
        ),
        needs=HELD,
        lacking="the deployment {name} holds nothing: give it fits, limits or scopes",
    )  # fmt: skip


def deployment_form(tables: Tables) -> Form[Subject[Deployment]]:
    """One entry under deployments, on one of the devices that the file knows."""
    return deployment_grammar(tables).form(_check, "deployment")


def _check(values: Values, reading: Reading) -> Subject[Deployment] | None:
    name, asked, devices = values.key, values["device"], reading.devices
    device = (devices or {}).get(asked) or shipped_devices().get(asked)
    if asked is not None and device is None and devices is not None:
        file, _, device_in_it = asked.partition(BETWEEN)
        if file.endswith(SUFFIXES):
            where = f"write hardware: {file} at the top of the file, and here {device_in_it or 'a device in it'}"
        else:
            where = suggestion(asked, (*devices, *shipped_devices()))
        reading.refuse(values.entries["device"].value.place, f"there is no device {shown(asked)}: {where}")
    if device is None:
        return None
    deployment = Deployment(name.text, device, values["lower"])
    fits = [FitsCheck(values[FITS], deployment)] if values[FITS] else []
    return Subject(name.text, name.place, deployment, (*fits, *held_limits(values)), declared_at=values.places)


def deployment_texts(deployment: Deployment) -> dict[str, Texts]:
    """Device and lowering by key, with every figure as a text."""
    return {"device": device_texts(deployment.device), "lower": lower_texts(deployment.lowering)}


# The file of devices that a budget names.


def hardware_field() -> Field:
    """The key of a budget that names a file of devices."""

    def path(word: Text, key: str, reading: Reading) -> str:
        if problem := place_problem(word.text, "a hardware file", reading):
            raise BudgetError(problem)
        return word.text

    form = grammar.spelled("{key}: the path of a file of devices, such as hardware.yaml", path, SOME_TEXT)
    return Field("hardware", form, "a file of devices, seen from this one; shipped ones are known without it")


def devices_of(file: Node, reading: Reading, read: ReadText) -> Mapping[str, Device] | None:
    """The devices of the file that a budget names; none where it names none, None where that cannot be read."""
    entry = next((Entry(key, value) for key, value in entries_of(file) if key.text == "hardware"), None)
    if entry is None:
        return {}
    # What is wrong with the path is said where the whole file is read.
    path = hardware_field().form.read(entry, Reading(reading.folder, reading.root, reading.tables))
    if path is None:
        return None
    where = (reading.folder / path).resolve()
    shown_as = where.relative_to(reading.root).as_posix() if where.is_relative_to(reading.root) else path
    try:
        devices = read_devices(read(where, shown_as), shown_as)
    except BudgetFileError as error:
        reading.problems.extend(error.problems)
        return None
    for twice in devices.keys() & shipped_devices().keys():
        reading.refuse(entry.place, f"{shown_as} has a device {shown(twice)}, as one that is shipped: rename it")
    return devices
