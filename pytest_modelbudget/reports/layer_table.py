"""The layer table of one model: the module tree with what each layer holds, computes and puts out, and as text.

Of a linear layer in a container that also adds, drawn once::

    LayerTable((
        LayerRow("", 0, "Net", 1, inputs=((2, 3),), outputs=((2, 8),)),
        LayerRow("fc", 1, "Linear", 1, inputs=((2, 3),), outputs=((2, 8),),
                 params=32, macs=48, output_nbytes=64),
        LayerRow("", 1, OWN_OPERATIONS, 1, params=0, macs=0, output_nbytes=64)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Union

from pytest_modelbudget.formats.model import LayerCall, Model
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.metrics.storage import params, saved_nbytes
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.units import room

OWN_OPERATIONS = "(own operations)"
OWN_PARAMETERS = "(own parameters)"

Shape = tuple[Union[int, str], ...]  # sizes, and names of symbols that nobody bound


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of the table; the numbers of all lines add up to the totals.

    params, macs and output_nbytes are None in a container whose layers stand below it. calls is
    0 for a layer of which no call is known; shapes are those of the first call. has_operations says that
    some of it were recorded, with or without a cost: those of a file know no calls; is_read that some operation,
    of any layer, reads what it stores. unmeasured counts
    operations without a MAC formula, which makes macs a lower bound, and unwritten those whose
    bytes are not known, which makes output_nbytes one. stored is the types of its tensors, with the shape of a single
    one; it and nbytes are of tables without operations.
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
    is_read: bool = False
    stored: str = ""
    nbytes: int | None = None

    @property
    def name(self) -> str:
        """Last part of the module path; "" for the model itself and for own operations."""
        return "" if self.type in {OWN_OPERATIONS, OWN_PARAMETERS} else self.scope.rpartition(".")[2]

    @property
    def lacks(self) -> str:
        """The remark on a layer of which neither a call nor an operation was recorded; "" of any other."""
        if self.params is None or self.calls or self.has_operations or self.unmeasured:
            return ""
        return "weights alone" if self.is_read else "never called"


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The rows of a model in call order, layers never called last in their container."""

    rows: tuple[LayerRow, ...]
    stores_alone: bool = False

    def total(self, column: str) -> int:
        """Sum of a column of whole numbers, such as "macs"; outputs include aliases of other tensors."""
        return sum(getattr(row, column) or 0 for row in self.rows)


def layer_table(model: Model, costed: CostedGraph, depth: int | None = None) -> LayerTable:
    """The table of a measured model, unfolded down to ``depth`` levels (all without one)."""
    return LayerTable(tuple(_rows(_tree(model, costed), 0, depth)), bool(costed.graph.operations_unknown))


@dataclass(slots=True)
class _Layer:
    """One module path while the tree grows: its calls, and what is its own alone."""

    scope: str
    calls: list[LayerCall] = field(default_factory=list)
    costs: list[OpCost] = field(default_factory=list)
    children: dict[str, _Layer] = field(default_factory=dict)
    params: int = 0
    programs: int = 0  # 1 where its operations are not known at all
    is_read: bool = False
    nbytes: int = 0  # of what it stores, and the tensors of it, where its operations are not known
    stored: list[Tensor] = field(default_factory=list)

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
    read = {tensor.storage for op in costed.graph.ops for tensor in op.tensors()}
    scopes = {weight.scope for weight in costed.graph.weights if weight.tensor.storage in read}
    for layer in root.subtree():
        layer.is_read = layer.scope in scopes
    if costed.graph.operations_unknown:
        for weight, nbytes in costed.once(saved_nbytes):
            layer = _at(root, weight.scope)
            layer.nbytes += nbytes
            layer.stored.append(weight.tensor)
        for layer in root.subtree():
            layer.programs = int(bool(layer.stored or not layer.children))
    return root


def _at(root: _Layer, scope: str) -> _Layer:
    """The layer of a module path, grown with all that lead to it."""
    layer = root
    for name in scope.split(".") if scope else ():
        path = f"{layer.scope}.{name}" if layer.scope else name
        layer = layer.children.setdefault(name, _Layer(path))
    return layer


SUMMED = ("params", "macs", "output_nbytes", "unmeasured", "unwritten")


def _rows(layer: _Layer, level: int, depth: int | None) -> Iterator[LayerRow]:
    """A layer that is not unfolded with the numbers of its whole subtree; else its own, and its children's."""
    if not layer.children or level == depth:
        covered = tuple(layer.subtree())
        yield replace(
            _described(layer, level),
            **{column: sum(getattr(part, column) for part in covered) for column in SUMMED},
            has_operations=any(part.costs for part in covered),
            is_read=any(part.is_read for part in covered),
            **_stored(covered),
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
            **_stored((layer,)),
        )
    for child in layer.children.values():
        yield from _rows(child, level + 1, depth)


def _stored(layers: Iterable[_Layer]) -> dict[str, Any]:
    """The types that layers store, with the shape of a single tensor, and their bytes."""
    layers = tuple(layers)
    tensors = [tensor for layer in layers for tensor in layer.stored]
    shape = f" {shape_text(tensors[0].shape)}" if len(tensors) == 1 else ""
    types = ", ".join(dict.fromkeys(tensor.dtype.name for tensor in tensors))
    return {"stored": types + shape, "nbytes": sum(layer.nbytes for layer in layers)} if tensors else {}


def _described(layer: _Layer, level: int) -> LayerRow:
    """A row without numbers: what the layer is, and the shapes of its first call."""
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
SHARE = "%"  # of the column before it
EXPENDABLE = ("Input", "Kernel", "Output", SHARE)  # left out in this order where the terminal is narrow


def _each(cell: Callable[[LayerRow], str]) -> Callable[[LayerTable], list[str]]:
    return lambda table: [cell(row) for row in table.rows]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, what it shows of each row, and where the figures stand."""

    heading: str
    cells: Callable[[LayerTable], list[str]]
    total: Callable[[LayerTable], str] = lambda table: ""
    is_number: bool = True


def shape_text(shape: Shape) -> str:
    """Sizes joined, as in 1x3x224x224; the word scalar where there are none."""
    return "x".join(str(size) for size in shape) or "scalar"


def _shapes_text(shapes: Sequence[Shape]) -> str:
    """The first shape, and how many more there are."""
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return shape_text(shapes[0]) + more if shapes else ""


def count_text(value: int | None, missing: int | bool = 0) -> str:
    """The count; ">=" says that operations are missing from it."""
    return "" if value is None else f"{'>= ' if missing else ''}{value:,}"


def _label(row: LayerRow) -> str:
    """The module tree by indentation: name, type, and how often it was called if not once."""
    words = [row.name, row.type] if row.name else [row.type or "model"]
    if row.name and row.calls > 1:
        words.append(f"x{row.calls}")
    if row.name and row.lacks:
        words.append(f"({row.lacks})")
    return "  " * row.depth + " ".join(filter(None, words))


def _counted(heading: str, column: str, missing: str = "") -> tuple[Column, Column]:
    """A column of counts, and one of their shares; these are empty where operations are missing from a count."""

    def cells(table: LayerTable) -> list[str]:
        return [count_text(getattr(row, column), getattr(row, missing) if missing else 0) for row in table.rows]

    def total(table: LayerTable) -> str:
        return count_text(table.total(column), table.total(missing) if missing else 0)

    def shares(table: LayerTable) -> list[str]:
        whole = 0 if missing and table.total(missing) else table.total(column)
        amounts = (getattr(row, column) for row in table.rows)
        return [room(Fraction(amount, whole)) if amount and whole else "" for amount in amounts]

    return Column(heading, cells, total), Column(SHARE, shares)


COLUMNS: tuple[Column, ...] = (
    Column("Layer", _each(_label), lambda table: "Total", is_number=False),
    Column("Input", _each(lambda row: _shapes_text(row.inputs)), is_number=False),
    Column("Output", _each(lambda row: _shapes_text(row.outputs)), is_number=False),
    *_counted("Params", "params"),
    Column("Kernel", _each(lambda row: shape_text(row.kernel) if row.kernel else "")),
    *_counted("MACs", "macs", "unmeasured"),
    _counted("Output B", "output_nbytes", "unwritten")[0],
)
STORED = Column("Stored", _each(lambda row: row.stored), is_number=False)
OF_STORED = (COLUMNS[0], STORED, *COLUMNS[3:5], *_counted("Bytes", "nbytes"))  # of a table without operations


def layer_text(table: LayerTable, width: int) -> str:
    """The table, its totals in the last line, in at most ``width`` columns where that is possible."""
    columns = OF_STORED if table.stores_alone else COLUMNS
    cells = {column: [column.heading, *column.cells(table), column.total(table)] for column in columns}
    left_out = []
    for heading in EXPENDABLE:
        label, *others = (len(max(texts, key=len)) for texts in cells.values())
        if min(label, NARROWEST_LABEL) + sum(others) + len(others) <= width:
            break
        cells = {column: texts for column, texts in cells.items() if column.heading != heading}
        left_out.append(heading)
    lines = list(_lines(list(cells), list(cells.values()), width))
    if left_out:
        lines.append(f"columns hidden at this width: {', '.join(left_out)}")
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
