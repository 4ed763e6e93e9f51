"""What a notebook shows of one model: its totals, and its layers in a table that unfolds.

Every text is escaped, for names of layers and operators are others'. No script, no style of the page's own beyond
alignment, so that it reads as the notebook does, dark or light, and in an export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from pytest_modelbudget.metrics.measurement import Measurement, bound
from pytest_modelbudget.reports.layer_table import COLUMNS, LayerTable, layer_text
from pytest_modelbudget.reports.show import figure
from pytest_modelbudget.reports.text import printable
from pytest_modelbudget.units import readable

LEFT, RIGHT = "left", "right"
WIDTH = 120  # columns of a table as text


class NotebookTable(LayerTable):
    """A layer table that shows itself: as text, and in a notebook unfolded by a click."""

    __slots__ = ()

    def __repr__(self) -> str:
        return printable(layer_text(self, WIDTH))

    def _repr_html_(self) -> str:
        return layers_html(self)


def measurements_html(numbers: Mapping[str, Measurement], layers: LayerTable, notes: Iterable[str] = ()) -> str:
    """The totals, notes and layers of a model as a fragment of HTML."""
    totals = [
        (key, bound(number, "≥ ", "≤ ") + figure(number), readable(number.value, number.unit))
        for key, number in numbers.items()
    ]
    return "".join((
        _table("totals", (("metric", LEFT), ("exactly", RIGHT), ("rounded", RIGHT)), totals),
        *(f"<p>{escape(printable(note))}</p>" for note in notes),
        layers_html(layers),
    ))  # fmt: skip


def layers_html(layers: LayerTable) -> str:
    """The layer table, folded under its size."""
    if not layers.rows:
        return ""
    heads = [(column.heading, RIGHT if column.is_number else LEFT) for column in COLUMNS]
    rows = zip(*([*column.cells(layers), column.total(layers)] for column in COLUMNS), strict=True)
    return f"<details><summary>{len(layers.rows):,} layers</summary>{_table('layers', heads, rows)}</details>"


def _table(caption: str, heads: Iterable[tuple[str, str]], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    sides = [side for _, side in heads]

    def cells(tag: str, texts: Iterable[str]) -> Iterator[str]:
        yield "<tr>"
        for text, side in zip(texts, sides, strict=True):
            scope = ' scope="col"' if tag == "th" else ""
            yield f'<{tag}{scope} style="text-align:{side};white-space:pre">{escape(printable(text))}</{tag}>'
        yield "</tr>"

    body = "".join("".join(cells("td", row)) for row in rows)
    head = "".join(cells("th", (name for name, _ in heads)))
    return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"
