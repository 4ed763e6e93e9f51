"""Devices read from a hardware file, each figure with its unit, every problem in place; and those that are shipped.

The whole of one device::

    hardware: 1
    devices:
      m55_board:
        memories:
          flash: {size: 2 MiB, holds: weights, reserve: 200 KiB, bandwidth: 400 MB/s}
          sram: {size: 2 MiB, holds: activations, bandwidth: 3.2 GB/s}
        macs: {int8: 25.6 GMAC/s, float32: 0.4 GMAC/s}
        arena: {planner: greedy_by_size, align: 16}
        array: {rows: 64, columns: 64, dataflow: weight_stationary, clock: 500 MHz}
        source: vendor data sheet, revision 3, page 12
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Values
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Text, shown, suggestion, tree
from pytest_modelbudget.deployment.arena import PLANNERS
from pytest_modelbudget.deployment.array import DATAFLOWS, Array
from pytest_modelbudget.deployment.device import HOLDS, ArenaRules, Device, Memory
from pytest_modelbudget.errors import BudgetError, DeviceError
from pytest_modelbudget.lowering.retyping import TYPES
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import IEC, Number, exact

VERSION = 1
SHIPPED = Path(__file__).parents[1] / "deployment" / "devices.yaml"
NO_TABLES = Tables(OpTable(()), {}, {}, {})  # a device asks for no rules, metrics or formats
RATED = (*TYPES, "int4", "uint8", "int32", "float64")  # types whose multiplications a device may give a rate of
MOST = 2**31 - 1

Made = TypeVar("Made")


def _in_place(make: Callable[[Values], Made | None]) -> Callable[[Values, Reading], Made | None]:
    """What is made of a mapping's values; what cannot exist is refused where it stands."""

    def made(values: Values, reading: Reading) -> Made | None:
        try:
            return make(values)
        except DeviceError as error:
            reading.refuse(values.key.place, str(error))
            return None

    return made


def _origin(word: Text, key: str, reading: Reading) -> str:
    if not word.text.strip():
        raise BudgetError(f"the {key} is empty: write where the figures are from")
    return word.text.strip()


ORIGIN = grammar.spelled("{key}: where the figure is from", _origin, SOME_TEXT)
SOURCE = Field("source", ORIGIN, "where these figures are from, where that is not the device's source", default="")


# What a device is made of.

MEMORY_GRAMMAR = Grammar(
    "a memory",
    (
        Field("size", grammar.amount("B", "2 MiB"), "all its bytes", required=True),
        Field(
            "holds",
            grammar.one_or_several(grammar.one_word(HOLDS, "content of a memory")),
            "weights, activations, or a list of both",
            required=True,
        ),
        Field("reserve", grammar.amount("B"), "bytes that are taken by others", default=0),
        Field("bandwidth", grammar.amount("B/s", "3.2 GB/s"), "bytes a second that it gives"),
        Field("energy", grammar.amount("J", "160 pJ"), "what a byte that is read or written takes"),
        SOURCE,
    ),
)


def _memory(values: Values) -> Memory | None:
    size, holds = values["size"], tuple(dict.fromkeys(values["holds"] or ()))
    if not size or not holds:
        return None
    binary = any(prefix in values.written("size") for prefix in IEC)
    figures = {key: values[key] for key in ("reserve", "bandwidth", "energy", "source")}
    return Memory(values.key.text, size, holds, **figures, binary=binary)


ARENA_GRAMMAR = Grammar(
    "an arena",
    (
        Field("planner", grammar.one_word(PLANNERS, "planner"), "how activations are placed", default="greedy_by_size"),
        Field("align", grammar.whole_number(1, MOST), "every offset is a multiple of these bytes", default=16),
        Field("io", grammar.one_word(("inside", "outside"), "place"), "where inputs, outputs lie", default="inside"),
    ),
)


ARENA = ARENA_GRAMMAR.form(
    _in_place(lambda values: ArenaRules(values["planner"], values["align"], io_inside=values["io"] == "inside"))
)
ARRAY_GRAMMAR = Grammar(
    "an array",
    (
        Field("rows", grammar.whole_number(1, MOST), "multipliers of a column", required=True),
        Field("columns", grammar.whole_number(1, MOST), "multipliers of a row", required=True),
        Field("dataflow", grammar.one_word(DATAFLOWS, "dataflow"), "what stays in place", default="weight_stationary"),
        Field("clock", grammar.amount("Hz", "500 MHz"), "cycles a second"),
        SOURCE,
    ),
)


def _array(values: Values) -> tuple[Array, Number | None] | None:
    rows, columns = values["rows"], values["columns"]
    return (Array(rows, columns, values["dataflow"]), values["clock"]) if rows and columns else None


def _by_type(key: str, unit: str, example: str) -> Form[Any]:
    """A figure for each type of operands."""
    expected = f"{key}: a mapping of types to figures, such as {{int8: {example}}}"
    return grammar.named(grammar.amount(unit, example), expected, keys=grammar.one_word(RATED, "type of operands"))


MEMORIES = grammar.by_name("memory", MEMORY_GRAMMAR.form(_in_place(_memory)), several="memories")
DEVICE_GRAMMAR = Grammar(
    "a device",
    (
        Field("memories", MEMORIES, "what it stores in", default={}),
        Field("macs", _by_type("macs", "MAC/s", "25.6 GMAC/s"), "the most MACs a second, by type", default={}),
        Field("energy", _by_type("energy", "J", "0.23 pJ"), "what a MAC takes, by type", default={}),
        Field("arena", ARENA, "how it places activations", default=ArenaRules()),
        Field("array", ARRAY_GRAMMAR.form(_in_place(_array)), "its array of multipliers", default=(None, None)),
        Field("source", ORIGIN, "where its figures are from", default=""),
    ),
)


def _device(values: Values) -> Device:
    array, clock = values["array"]
    memories = tuple(values["memories"].values())
    said = {key: values[key] for key in ("macs", "energy", "arena", "source")}
    device = Device(values.key.text, memories, array=array, clock=clock, **said)
    for what in HOLDS:
        device.holding(what)  # refuses several
    return device


def _version(entry: Entry, reading: Reading) -> None:
    if grammar.plain_value(entry.value) != VERSION:
        reading.refuse(entry.value.place, f"hardware must be {VERSION}: that is the version of this format")


DEVICE = DEVICE_GRAMMAR.form(_in_place(_device))
HARDWARE_GRAMMAR = Grammar(
    "a hardware file",
    (
        Field("hardware", Form(_version, {"const": VERSION}), "the version of this format", required=True),
        Field("devices", grammar.by_name("device", DEVICE), "every device by a name of your choice", required=True,
              default={}),
    ),
)  # fmt: skip


def read_devices(text: str, file: str) -> Mapping[str, Device]:
    """The devices of a hardware file by name; file names it in problems.

    Raises BudgetFileError with every problem of the file.
    """
    node, reading = tree(text, file), Reading(Path(), Path(), NO_TABLES)
    values = HARDWARE_GRAMMAR.read(Entry(Text("", False, node.place), node), reading)
    if reading.problems or values is None:
        raise BudgetFileError(reading.problems)
    return dict(values["devices"])


@cache
def shipped_devices() -> Mapping[str, Device]:
    """The devices that come with the project, by name."""
    return read_devices(SHIPPED.read_text("utf-8"), SHIPPED.name) if SHIPPED.exists() else {}


def device_named(entry: Entry, reading: Reading) -> Device | None:
    """The device that a key of a budget names; None where there is none, or its file has problems."""
    asked, known = str(grammar.plain_value(entry.value)), {**shipped_devices(), **(reading.devices or {})}
    if asked not in known and reading.devices is not None:
        reading.refuse(entry.value.place, f"there is no device {shown(asked)}: {suggestion(asked, known)}")
    return known.get(asked)


def device_texts(device: Device) -> dict[str, str]:
    """Every figure of a device by name, however it was spelled; not where it is from."""
    texts = {"name": device.name}
    for memory in device.memories:
        texts[f"{memory.name}.holds"] = " and ".join(sorted(memory.holds))
        texts |= {f"{memory.name}.{key}": exact(getattr(memory, key), "B") for key in ("size", "reserve")}
        figures = (("bandwidth", memory.bandwidth, "B/s"), ("energy", memory.energy, "J"))
        texts |= {f"{memory.name}.{key}": exact(value, unit) for key, value, unit in figures if value is not None}
    texts |= {f"macs.{name}": exact(rate, "MAC/s") for name, rate in device.macs.items()}
    texts |= {f"energy.{name}": exact(joules, "J") for name, joules in device.energy.items()}
    rules, array = device.arena, device.array
    texts |= {"arena.planner": rules.planner, "arena.align": str(rules.align)}
    texts["arena.io"] = "inside" if rules.io_inside else "outside"
    if array is not None:
        texts["array"] = f"{array.rows}x{array.columns} {array.dataflow}"
    if device.clock is not None:
        texts["array.clock"] = exact(device.clock, "Hz")
    return texts
