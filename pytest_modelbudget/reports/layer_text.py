"""The layer table as text: as wide as the terminal allows, and no wider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_modelbudget.reports.layer_table import LayerRow, LayerTable, Shape

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
    if not shapes:
        return ""
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return shape_text(shapes[0]) + more


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _macs_text(row: LayerRow) -> str:
    """The count; ">=" says that operations without a formula are missing from it."""
    return (">= " if row.unmeasured and row.macs is not None else "") + _count(row.macs)


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
    Column("MACs", _macs_text, lambda table: _count(table.macs)),
    Column(
        "Output B", lambda row: _count(row.output_nbytes), lambda table: _count(table.output_nbytes)
    ),
)


def layer_text(table: LayerTable, width: int) -> str:
    """The table, its totals in the last line, in at most ``width`` columns where that is possible.

    A narrow terminal first costs the gaps, then shortens labels, then leaves columns out and says
    so; figures are never shortened.
    """
    columns = list(COLUMNS)
    left_out: list[str] = []
    for heading in EXPENDABLE:
        if _least_width(table, columns) <= width:
            break
        columns = [column for column in columns if column.heading != heading]
        left_out.append(heading)
    lines = list(_lines(table, columns, width))
    if left_out:
        lines.append(f"left out, for want of width: {', '.join(left_out)}")
    return "\n".join(lines)


def _least_width(table: LayerTable, columns: Sequence[Column]) -> int:
    widths = [len(max(cells, key=len)) for cells in _cells(table, columns)]
    return min(widths[0], NARROWEST_LABEL) + sum(widths[1:]) + len(columns) - 1


def _lines(table: LayerTable, columns: Sequence[Column], width: int) -> Iterator[str]:
    cells = _cells(table, columns)
    widths = [len(max(column, key=len)) for column in cells]
    gap = 2 if sum(widths) + 2 * (len(columns) - 1) <= width else 1
    room = width - sum(widths[1:]) - gap * (len(columns) - 1)
    widths[0] = min(widths[0], max(room, NARROWEST_LABEL))
    rule = "-" * (sum(widths) + gap * (len(columns) - 1))
    for number, line in enumerate(zip(*cells, strict=True)):
        if number == len(table.rows) + 1:
            yield rule
        yield (
            (" " * gap)
            .join(
                text.rjust(size) if column.is_number else _shortened(text, size).ljust(size)
                for text, size, column in zip(line, widths, columns, strict=True)
            )
            .rstrip()
        )
        if not number:
            yield rule


def _cells(table: LayerTable, columns: Sequence[Column]) -> list[list[str]]:
    """Each column's texts: heading, one per row, total."""
    return [
        [
            column.heading,
            *(column.cell(row) for row in table.rows),
            column.total(table),
        ]
        for column in columns
    ]


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "~"
