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

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Values
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Listing, Text, shown, suggestion, tree
from pytest_modelbudget.deployment.arena import PLANNERS
from pytest_modelbudget.deployment.array import DATAFLOWS, Array
from pytest_modelbudget.deployment.device import HOLDS, ArenaRules, Device, Memory
from pytest_modelbudget.errors import BudgetError, DeviceError
from pytest_modelbudget.lowering.retyping import TYPES
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import Number, exact, quantity, quantity_pattern

VERSION = 1
SHIPPED = Path(__file__).parents[1] / "deployment" / "devices.yaml"
NO_TABLES = Tables(OpTable(()), {}, {}, {})  # a device asks for no rules, metrics or formats
RATED = (*TYPES, "int4", "uint8", "int32", "float64")  # types whose multiplications a device may give a rate of
NO_UNIT = re.compile(r"\s*[0-9_.]+([eE][+-]?[0-9]+)?\s*([kMGTPE]i?)?\s*")  # a number, or one with a prefix of nothing

Made = TypeVar("Made")


def _amount(unit: str, example: str, *, may_be_none: bool = False) -> Form[Number]:
    """A quantity with its unit, above zero where it may not be none."""

    def meaning(word: Text, key: str, reading: Reading) -> Number:
        if NO_UNIT.fullmatch(word.text):
            raise BudgetError(f"{shown(word.text)} has no unit: write it as {example}")
        amount = quantity(word.text, unit)
        if not amount and not may_be_none:
            raise BudgetError(f"{shown(word.text)} is nothing: write it as {example}, or leave out what is not known")
        return amount

    schema = {"type": "string", "pattern": quantity_pattern(unit)}
    return grammar.spelled(f"{{key}}: a quantity such as {example}", meaning, schema, lead="{key}: ")


def _word_of(known: Mapping[str, object] | tuple[str, ...], what: str, name: str = "") -> Form[str]:
    words = tuple(known)
    return grammar.one_word(words, f"{what}: {', '.join(words)}", f"{{word}} is no {what}: {{guess}}", name=name)


def _in_place(make: Callable[[Values], Made]) -> Callable[[Values, Reading], Made | None]:
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


TEXT = grammar.spelled("{key}: where the figure is from", _origin, SOME_TEXT)
SOURCE = Field("source", TEXT, "where these figures are from, where that is not the device's source", default="")
_HELD = _word_of(HOLDS, "content of a memory")
_SEVERAL = grammar.listed(_HELD, "holds: weights, activations, or a list of both", empty="a memory holds something")


def _holds(entry: Entry, reading: Reading) -> tuple[str, ...] | None:
    if isinstance(entry.value, Listing):
        return tuple(dict.fromkeys(_SEVERAL.read(entry, reading) or ())) or None
    held = _HELD.read(entry, reading)
    return None if held is None else (held,)


MEMORY_GRAMMAR = Grammar(
    "a memory",
    (
        Field("size", _amount("B", "2 MiB"), "all its bytes", required=True),
        Field(
            "holds",
            Form(_holds, {"anyOf": [_HELD.schema, _SEVERAL.schema]}),
            "weights, activations, or a list of both",
            required=True,
        ),
        Field("reserve", _amount("B", "64 KiB", may_be_none=True), "bytes that are taken by others", default=0),
        Field("bandwidth", _amount("B/s", "3.2 GB/s"), "bytes a second that it gives or takes"),
        SOURCE,
    ),
)


def _memory(values: Values, reading: Reading) -> Memory | None:
    if values["size"] is None or values["holds"] is None:
        return None
    keys = ("size", "holds", "reserve", "bandwidth", "source")
    return _in_place(lambda known: Memory(known.key.text, **{key: known[key] for key in keys}))(values, reading)


def _must_be_a_type(name: Text, reading: Reading) -> None:
    if name.text not in RATED:
        reading.refuse(name.place, f"{shown(name.text)} is no type of operands: {suggestion(name.text, RATED)}")


MACS = grammar.named(
    _amount("MAC/s", "25.6 GMAC/s"),
    "macs: a mapping of types to peak rates, such as {int8: 25.6 GMAC/s}",
    names={"enum": list(RATED)},
    check=_must_be_a_type,
)
ARENA_GRAMMAR = Grammar(
    "an arena",
    (
        Field("planner", _word_of(PLANNERS, "planner"), "how activations are placed", default="greedy_by_size"),
        Field(
            "align",
            grammar.whole_number(
                least=1, most=2**31 - 1, refusal="an alignment of {number} B: it is 1 to 2147483647",
                schema={"type": "integer", "minimum": 1},
            ),
            "bytes of which every offset is a multiple",
            default=16,
        ),
        Field("io", _word_of(("inside", "outside"), "place"), "where inputs and outputs lie", default="inside"),
    ),
)  # fmt: skip
ARENA = ARENA_GRAMMAR.form(
    _in_place(lambda values: ArenaRules(values["planner"], values["align"], io_inside=values["io"] == "inside"))
)
_CELLS = grammar.whole_number(
    least=1, most=2**31 - 1, refusal="{key} of {number}: an array has 1 to 2147483647",
    schema={"type": "integer", "minimum": 1},
)  # fmt: skip
ARRAY_GRAMMAR = Grammar(
    "an array",
    (
        Field("rows", _CELLS, "multipliers of a column", required=True),
        Field("columns", _CELLS, "multipliers of a row", required=True),
        Field("dataflow", _word_of(DATAFLOWS, "dataflow"), "what stays in place", default="weight_stationary"),
        Field("clock", _amount("Hz", "500 MHz"), "cycles a second"),
        SOURCE,
    ),
)


def _array(values: Values, reading: Reading) -> tuple[Array, Fraction | None] | None:
    if values["rows"] is None or values["columns"] is None:
        return None
    return Array(values["rows"], values["columns"], values["dataflow"]), values["clock"]


def _must_be_a_name(what: str, name: Text, reading: Reading) -> None:
    if not name.text.strip() or name.text != name.text.strip() or not name.text.isprintable() or "::" in name.text:
        reading.refuse(name.place, f"{shown(name.text)} is no name of {what}: write visible characters without '::'")


MEMORIES = grammar.named(
    MEMORY_GRAMMAR.form(_memory), "memories: a mapping of names to memories", check=partial(_must_be_a_name, "a memory")
)
DEVICE_GRAMMAR = Grammar(
    "a device",
    (
        Field("memories", MEMORIES, "what it stores in", default={}),
        Field("macs", MACS, "multiply-accumulates a second at the most, by type", default={}),
        Field("arena", ARENA, "how its runtime places activations", default=ArenaRules()),
        Field("array", ARRAY_GRAMMAR.form(_array), "its array of multipliers", default=(None, None)),
        Field("source", TEXT, "where its figures are from", required=True, default=""),
    ),
)


def _made(values: Values) -> Device:
    array, clock = values["array"]
    memories = tuple(values["memories"].values())
    device = Device(values.key.text, memories, values["macs"], values["arena"], array, clock, values["source"])
    for what in HOLDS:
        device.holding(what)  # refuses several
    return device


def _version(entry: Entry, reading: Reading) -> None:
    number = grammar.scalar(entry.value.text) if isinstance(entry.value, Text) and entry.value.plain else None
    if type(number) is not int or number != VERSION:
        reading.refuse(entry.value.place, f"hardware must be {VERSION}: that is the version of this format")


DEVICE = DEVICE_GRAMMAR.form(_in_place(_made))
DEVICES = grammar.named(DEVICE, "devices: a mapping of names to devices", check=partial(_must_be_a_name, "a device"))
HARDWARE_GRAMMAR = Grammar(
    "a hardware file",
    (
        Field("hardware", Form(_version, {"const": VERSION}), "the version of this format", required=True),
        Field("devices", DEVICES, "every device by a name of your choice", required=True, default={}),
    ),
)


def read_devices(text: str, file: str) -> Mapping[str, Device]:
    """The devices of a hardware file by name; file names it in problems.

    Raises BudgetFileError with every problem of the file.
    """
    node, problems = tree(text, file)
    reading = Reading(Path(), Path(), NO_TABLES, problems)
    values = HARDWARE_GRAMMAR.read(Entry(Text("", False, node.place), node), reading)
    if reading.problems or values is None:
        raise BudgetFileError(reading.problems)
    devices: Mapping[str, Device] = values["devices"]
    return devices


@cache
def shipped_devices() -> Mapping[str, Device]:
    """The devices that come with the project, by name."""
    return read_devices(SHIPPED.read_text("utf-8"), SHIPPED.name) if SHIPPED.exists() else {}


def device_texts(device: Device) -> dict[str, str]:
    """Every figure of a device by name, however it was spelled; not where it is from."""
    texts = {"name": device.name}
    for memory in device.memories:
        texts[f"{memory.name}.holds"] = " and ".join(sorted(memory.holds))
        figures: dict[str, Number | None] = {"size": memory.size, "reserve": memory.reserve}
        for key, value in (figures | {"bandwidth": memory.bandwidth}).items():
            if value is not None:
                texts[f"{memory.name}.{key}"] = exact(value, "B/s" if key == "bandwidth" else "B")
    texts |= {f"macs.{name}": exact(rate, "MAC/s") for name, rate in device.macs.items()}
    rules, array = device.arena, device.array
    texts |= {"arena.planner": rules.planner, "arena.align": str(rules.align)}
    texts["arena.io"] = "inside" if rules.io_inside else "outside"
    if array is not None:
        texts["array"] = f"{array.rows}x{array.columns} {array.dataflow}"
    if device.clock is not None:
        texts["array.clock"] = exact(device.clock, "Hz")
    return texts
