"""What ``modelbudget show`` shows of one model: its layer table, totals and operations, as text and as JSON.

The layer table is the module tree with what each layer holds, computes and puts out: of a linear layer in a container
that also adds, drawn once::

    LayerTable((
        LayerRow("", 0, "Net", 1, inputs=((2, 3),), outputs=((2, 8),)),
        LayerRow("fc", 1, "Linear", 1, inputs=((2, 3),), outputs=((2, 8),),
                 params=32, macs=48, output_nbytes=64),
        LayerRow("", 1, OWN_OPERATIONS, 1, params=0, macs=0, output_nbytes=64)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from textwrap import wrap
from typing import Any, Protocol, Union

from pytest_modelbudget.formats.model import LayerCall, Model
from pytest_modelbudget.graph.graph import Operand, scope_text
from pytest_modelbudget.graph.tensor import Tensor, unbound_symbols
from pytest_modelbudget.metrics.compute import census
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.storage import params
from pytest_modelbudget.reports.assembly import counted_ops, metric_report
from pytest_modelbudget.reports.sentences import uncovered
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.reports.typed_json import to_json
from pytest_modelbudget.units import exact, readable

SCHEMA = "model-budget-layers/1"
Record = dict[str, Any]
OWN_OPERATIONS = "(own operations)"
OWN_PARAMETERS = "(own parameters)"

Shape = tuple[Union[int, str], ...]  # sizes, and names of symbols that nobody bound


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of the table; the numbers of all lines add up to the totals.

    params, macs and output_nbytes are None in a container whose layers stand below it. calls is
    0 for a layer of which no call is known; shapes are those of the first call. has_operations says that
    some of it were recorded, with or without a cost: those of a file know no calls. unmeasured counts
    operations without a MAC formula, which makes macs a lower bound, and unwritten those whose
    bytes are not known, which makes output_nbytes one.
    """

    scope: str
    depth: int
    type: str
    calls: int
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    kernel: Shape = ()
    params: int | None = None
    macs: int | None = None
    output_nbytes: int | None = None
    unmeasured: int = 0
    unwritten: int = 0
    has_operations: bool = False

    @property
    def name(self) -> str:
        """Last part of the module path; "" for the model itself and for own operations."""
        return "" if self.type in {OWN_OPERATIONS, OWN_PARAMETERS} else self.scope.rpartition(".")[2]

    @property
    def never_called(self) -> bool:
        """Whether neither a call nor an operation of it was recorded."""
        return self.params is not None and not (self.calls or self.has_operations or self.unmeasured)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The rows of a model in call order, layers never called last in their container."""

    rows: tuple[LayerRow, ...]

    @property
    def params(self) -> int:
        """Sum of the column: elements of distinct parameters."""
        return sum(row.params or 0 for row in self.rows)

    @property
    def macs(self) -> int:
        """Sum of the column: multiply-accumulates whose formula is known."""
        return sum(row.macs or 0 for row in self.rows)

    @property
    def output_nbytes(self) -> int:
        """Sum of the column: bytes that layers put out, aliases of other tensors included."""
        return sum(row.output_nbytes or 0 for row in self.rows)


def layer_table(model: Model, costed: CostedGraph, depth: int | None = None) -> LayerTable:
    """The table of a measured model, unfolded down to ``depth`` levels (all without one)."""
    return LayerTable(tuple(_rows(_tree(model, costed), 0, depth)))


@dataclass(slots=True)
class _Layer:
    """One module path while the tree grows: its calls, and what is its own alone."""

    scope: str
    calls: list[LayerCall] = field(default_factory=list)
    costs: list[OpCost] = field(default_factory=list)
    children: dict[str, _Layer] = field(default_factory=dict)
    params: int = 0
    programs: int = 0  # 1 where its operations are not known at all

    @property
    def macs(self) -> int:
        return sum(cost.macs for cost in self.costs if isinstance(cost.macs, int))

    @property
    def unmeasured(self) -> int:
        return self.programs + sum(cost.op.times for cost in self.costs if isinstance(cost.macs, Unknown))

    @property
    def unwritten(self) -> int:
        return self.programs + sum(cost.op.times for cost in self.costs if isinstance(cost.traffic, Unknown))

    @property
    def written(self) -> int:
        moved = (cost.traffic for cost in self.costs)
        return sum(traffic.write for traffic in moved if isinstance(traffic, Traffic))

    @property
    def output_nbytes(self) -> int:
        """Bytes of a leaf's results; of a container (or where no call is known) what ops write."""
        if not self.children and self.calls:
            return sum(out.nbytes for call in self.calls for out in call.outputs)
        return self.written

    def subtree(self) -> Iterator[_Layer]:
        yield self
        for child in self.children.values():
            yield from child.subtree()


def _tree(model: Model, costed: CostedGraph) -> _Layer:
    """Module paths as a tree: layers in the order of their calls, then those never called."""
    root = _Layer("")
    for call in model.layers:
        _at(root, call.scope).calls.append(call)
    for cost in costed.costs:
        _at(root, cost.op.scope).costs.append(cost)
    for share in params(costed).shares:
        _at(root, share.scope).params += int(share.value)
    if costed.graph.operations_unknown:
        for layer in root.subtree():
            layer.programs = int(bool(layer.params or not layer.children))
    return root


def _at(root: _Layer, scope: str) -> _Layer:
    """The layer of a module path, grown with all that lead to it."""
    layer = root
    for name in scope.split(".") if scope else ():
        path = f"{layer.scope}.{name}" if layer.scope else name
        layer = layer.children.setdefault(name, _Layer(path))
    return layer


def _rows(layer: _Layer, level: int, depth: int | None) -> Iterator[LayerRow]:
    """A layer that is not unfolded with the numbers of its whole subtree; else its own, and its children's."""
    if not layer.children or level == depth:
        covered = tuple(layer.subtree())
        yield replace(
            _described(layer, level),
            params=sum(part.params for part in covered),
            macs=sum(part.macs for part in covered),
            output_nbytes=sum(part.output_nbytes for part in covered),
            unmeasured=sum(part.unmeasured for part in covered),
            unwritten=sum(part.unwritten for part in covered),
            has_operations=any(part.costs for part in covered),
        )
        return
    yield _described(layer, level)
    if layer.params or layer.macs or layer.unmeasured or layer.written:
        yield LayerRow(
            layer.scope,
            level + 1,
            OWN_OPERATIONS if layer.costs else OWN_PARAMETERS,
            len(layer.calls),
            params=layer.params,
            macs=layer.macs,
            output_nbytes=layer.written,
            unmeasured=layer.unmeasured,
            unwritten=layer.unwritten,
        )
    for child in layer.children.values():
        yield from _rows(child, level + 1, depth)


def _described(layer: _Layer, level: int) -> LayerRow:
    """A row without numbers: what the layer is, and the shapes of its first call.

    For files, which record no calls, it is what the layer's own operations say of it.
    """
    if layer.calls:
        call = layer.calls[0]
        kind, inputs, outputs, kernel = call.type, call.inputs, call.outputs, call.kernel
    elif layer.costs and not layer.children:
        first, last = layer.costs[0].op, layer.costs[-1].op
        kind, kernel = "+".join(dict.fromkeys(cost.kind for cost in layer.costs)), ()
        inputs, outputs = tuple(t for t in first.tensors() if t.storage.is_activation), last.outputs
    else:
        kind, inputs, outputs, kernel = "", (), (), ()
    return LayerRow(layer.scope, level, kind, len(layer.calls), _shapes(inputs), _shapes(outputs), kernel)


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple(tensor.shown_shape for tensor in tensors)


# The layer table as text.

NARROWEST_LABEL = 24
EXPENDABLE = ("Input", "Kernel", "Output")  # left out in this order where the terminal is narrow


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, what it shows of a row, and where the figures stand."""

    heading: str
    cell: Callable[[LayerRow], str]
    total: Callable[[LayerTable], str] = lambda table: ""
    is_number: bool = True


def shape_text(shape: Shape) -> str:
    """Sizes joined, as in 1x3x224x224; the word scalar where there are none."""
    return "x".join(str(size) for size in shape) or "scalar"


def _shapes_text(shapes: Sequence[Shape]) -> str:
    """The first shape, and how many more there are."""
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return shape_text(shapes[0]) + more if shapes else ""


def _count(value: int | None, missing: int | bool = 0) -> str:
    """The count; ">=" says that operations are missing from it."""
    return "" if value is None else f"{'>= ' if missing else ''}{value:,}"


def _label(row: LayerRow) -> str:
    """The module tree by indentation: name, type, and how often it was called if not once."""
    words = [row.name, row.type] if row.name else [row.type or "model"]
    if row.name and row.calls > 1:
        words.append(f"x{row.calls}")
    if row.name and row.never_called:
        words.append("(never called)")
    return "  " * row.depth + " ".join(filter(None, words))


COLUMNS: tuple[Column, ...] = (
    Column("Layer", _label, lambda table: "Total", is_number=False),
    Column("Input", lambda row: _shapes_text(row.inputs), is_number=False),
    Column("Output", lambda row: _shapes_text(row.outputs), is_number=False),
    Column("Params", lambda row: _count(row.params), lambda table: _count(table.params)),
    Column("Kernel", lambda row: shape_text(row.kernel) if row.kernel else ""),
    Column(
        "MACs",
        lambda row: _count(row.macs, row.unmeasured),
        lambda table: _count(table.macs, sum(row.unmeasured for row in table.rows)),
    ),
    Column(
        "Output B",
        lambda row: _count(row.output_nbytes, row.unwritten),
        lambda table: _count(table.output_nbytes, sum(row.unwritten for row in table.rows)),
    ),
)


def layer_text(table: LayerTable, width: int) -> str:
    """The table, its totals in the last line, in at most ``width`` columns where that is possible.

    A narrow terminal first costs the gaps, then shortens labels, then leaves columns out and says
    so; figures are never shortened.
    """
    cells = {
        column: [column.heading, *(column.cell(row) for row in table.rows), column.total(table)] for column in COLUMNS
    }
    left_out = []
    for heading in EXPENDABLE:
        label, *others = (len(max(texts, key=len)) for texts in cells.values())
        if min(label, NARROWEST_LABEL) + sum(others) + len(others) <= width:
            break
        cells = {column: texts for column, texts in cells.items() if column.heading != heading}
        left_out.append(heading)
    lines = list(_lines(list(cells), list(cells.values()), width))
    if left_out:
        lines.append(f"left out, for want of width: {', '.join(left_out)}")
    return "\n".join(lines)


def _lines(columns: Sequence[Column], cells: list[list[str]], width: int) -> Iterator[str]:
    widths = [len(max(column, key=len)) for column in cells]
    gap = 2 if sum(widths) + 2 * (len(columns) - 1) <= width else 1
    room = width - sum(widths[1:]) - gap * (len(columns) - 1)
    widths[0] = min(widths[0], max(room, NARROWEST_LABEL))
    cells[0] = [label if len(label) <= widths[0] else label[: widths[0] - 1] + "~" for label in cells[0]]
    layout = (" " * gap).join("{:>}" if column.is_number else "{:<}" for column in columns)
    heading, *rows, totals = aligned(layout, list(zip(*cells, strict=True)))
    rule = "-" * (sum(widths) + gap * (len(columns) - 1))
    yield from (heading, rule, *rows, rule, totals)


# As JSON.


class Described(Protocol):
    """How the numbers of a model came about."""

    @property
    def format(self) -> str: ...
    @property
    def traced(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def layer_record(model: Described, table: LayerTable, measurements: Mapping[str, Measurement]) -> Record:
    """The JSON of ``modelbudget show --format json``, but for the operations."""
    return {
        "schema": SCHEMA,
        "format": model.format,
        "traced": model.traced,
        "notes": list(model.notes),
        "layers": [
            {**calls_record(row), "kernel": list(row.kernel), "params": row.params, "macs": row.macs,
             "output_bytes": row.output_nbytes, "unmeasured": row.unmeasured, "unwritten": row.unwritten}
            for row in table.rows
        ],
        "totals": {"params": table.params, "macs": table.macs, "output_bytes": table.output_nbytes},
        "metrics": {key: to_json(metric_report(measurement)) for key, measurement in measurements.items()},
    }  # fmt: skip


def op_record(costed: CostedGraph) -> Record:
    """The census and every operation in execution order."""
    return {
        "census": [to_json(ops) for ops in counted_ops(census(costed))],
        "ops": [_op(cost) for cost in costed.costs],
    }


def calls_record(row: LayerRow) -> Record:
    """Which module a row stands for, how often it was called, and on what shapes."""
    return {
        "scope": row.scope, "depth": row.depth, "type": row.type, "calls": row.calls,
        "inputs": [list(shape) for shape in row.inputs], "outputs": [list(shape) for shape in row.outputs],
    }  # fmt: skip


def _op(cost: OpCost) -> Record:
    """One operation; macs and bytes are None where they are not known."""
    op, moved = cost.op, cost.traffic
    return {
        "scope": op.scope, "name": op.name, "kind": cost.kind, "times": op.times,
        "operands": [_operand(operand) for operand in op.operands],
        "outputs": [_tensor(output) for output in op.outputs],
        "attributes": {name: _plain(value) for name, value in op.attributes.items()},
        "macs": cost.macs if isinstance(cost.macs, int) else None,
        "bytes": None if isinstance(moved, Unknown) else
                 {"read": moved.read, "weights": moved.weights, "write": moved.write},
    }  # fmt: skip


def _operand(operand: Operand) -> object:
    if isinstance(operand, tuple):
        return [_operand(inner) for inner in operand]
    return None if operand is None else _tensor(operand)


def _tensor(tensor: Tensor) -> Record:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shown_shape), "kind": tensor.storage.kind.value}


def _plain(value: object) -> object:
    """A JSON value; anything that is none as its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


# Operations and totals as text.


def census_text(costed: CostedGraph) -> str:
    """The number of operations of each kind and foreign name, the most frequent first."""
    rows = sorted(census(costed), key=lambda row: -row.count)
    cells = [(str(row.count), row.kind, row.name) for row in rows]
    return "\n".join(aligned("{:>6}  {:<}  {}", cells))


def ops_text(costed: CostedGraph) -> str:
    """Every operation in execution order: where, what, shapes, bytes and attributes."""
    return "\n".join(line for cost in costed.costs for line in _op_lines(cost))


def _op_lines(cost: OpCost) -> Iterator[str]:
    op = cost.op
    repeated = f"  x{op.times}" if op.times != 1 else ""
    macs = f"{cost.macs:,} MAC" if isinstance(cost.macs, int) else f"unmeasured: {cost.macs.why}"
    yield f"{scope_text(op.scope)}: {op.name} ({cost.kind}){repeated}  {macs}"
    operands = ", ".join(operand_text(operand) for operand in op.operands)
    if op.scales:
        operands += f" by {', '.join(map(tensor_text, op.scales))}"
    yield f"    {operands or 'nothing'} -> {', '.join(map(tensor_text, op.outputs)) or 'nothing'}"
    moved = cost.traffic
    if isinstance(moved, Unknown):
        yield f"    bytes unmeasured: {moved.why}"
    else:
        yield f"    read {moved.read:,} B, weights {moved.weights:,} B, write {moved.write:,} B"
    if op.attributes:
        yield f"    {', '.join(f'{name}={_short(value)}' for name, value in op.attributes.items())}"


def tensor_text(tensor: Tensor) -> str:
    """Type and shape, and for stored tensors what they are: "float32 64x3x11x11 (parameter)"."""
    kind = "" if tensor.storage.is_activation else f" ({tensor.storage.kind.value})"
    return f"{tensor.dtype.name} {shape_text(tensor.shown_shape)}{kind}"


def operand_text(operand: Operand) -> str:
    """A tensor, "none", or several in brackets."""
    if operand is None:
        return "none"
    if isinstance(operand, Tensor):
        return tensor_text(operand)
    return f"[{', '.join(operand_text(inner) for inner in operand)}]"


def _short(value: object) -> str:
    """A plain value; long sequences are cut."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        listed = [_short(item) for item in value]
        more = [f"... {len(listed)} in all"] if len(listed) > 8 else []
        return f"[{', '.join(listed[:8] + more)}]"
    return str(value)


def bound(number: Measurement, above: str, below: str) -> str:
    """The word for a number that is a bound alone: of one that may be more, or less."""
    return "" if number.complete else above if number.at_least is None else below


def totals_text(measurements: Mapping[str, Measurement], width: int) -> str:
    """One line a metric, in the order of the metric table; then what could not be measured.

    What a number is the sum of (bandwidth by read, weights and write; ops by kind) continues on lines of its own
    where ``width`` asks for it.
    """
    cells = [
        (
            key,
            bound(number, ">= ", "<= ") + figure(number),
            readable(number.value, number.unit) + bound(number, " or more", " or less"),
            number.convention
            or ", ".join(f"{part} {_count(value, not number.complete)}" for part, value in number.parts.items()),
        )
        for key, number in measurements.items()
    ]
    layout, lines = "{:<}  {:>}  {:<}", []
    for line, start, (*_, summands) in zip(aligned(layout + "  {}", cells), aligned(layout, cells), cells, strict=True):
        if len(line) <= width or not summands:
            lines.append(line)
        else:
            lines += [start, *wrap(summands, width, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join([*lines, *unmeasured_lines(measurements)])


def unmeasured_lines(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """A line for each operation that a number leaves out; one for all that wait for the sizes of symbols."""
    waiting: dict[str, set[str]] = {}
    for (name, count, scope, why), keys in uncovered(measurements).items():
        if unbound_symbols(why):
            waiting.setdefault(why, set()).update(keys)
            continue
        place = f" in {scope}" if scope else ""
        yield f"unmeasured: {count} x {name}{place} ({', '.join(keys)}): {why}"
    for why, left_out in waiting.items():
        named = ", ".join(key for key in measurements if key in left_out)
        sizes = " ".join(f"--dims {quote(f'{symbol}=1')}" for symbol in unbound_symbols(why))
        yield f"unmeasured: {named}: {why}; bind it: {sizes}"


def figure(measurement: Measurement) -> str:
    """The exact count, or the exact pair that a ratio was made from."""
    if measurement.unreduced:
        above, below = measurement.unreduced
        return f"{above:,} / {below:,}"
    return exact(measurement.value, measurement.unit)
