"""Who a number's growth is due to: a line for each layer, with its shapes then and now.

+224,000  classifier.1.weight   [1000, 1280] -> [1175, 1280]
    +175  classifier.1.bias     [1000] -> [1175]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.reports.scope_text import scope_text


def grown_lines(blame: Sequence[Record]) -> Iterator[str]:
    """A line for each entry of a check's blame, in columns; none where nothing is blamed."""
    rows = [(f"{entry['delta']:+,}", grown_name(entry), shapes(entry)) for entry in blame]
    deltas, names = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for delta, name, change in rows:
        yield f"  {delta:>{deltas}}  {name:<{names}}   {change}".rstrip()


def grown_name(entry: Record) -> str:
    """The parameter or scope that grew; "(3 others)" for the rest of a long list."""
    if entry["scope"] is None:
        count = entry.get("count", 0)
        others = "one other" if count == 1 else f"{count} others"
        return f"({others if count else 'not told apart'})"
    names = (entry["scope"], entry.get("name"))
    return scope_text(".".join(name for name in names if name))


def shapes(entry: Record) -> str:
    """The shape then and now: "[1000, 1280] -> [1175, 1280]", "new [64, 3]", "gone", or ""."""
    if entry["scope"] is None:
        return ""
    before, after = (_shape(entry.get(key)) for key in ("shape_before", "shape_after"))
    if entry.get("before") is None:
        return f"new {after}".rstrip()
    if entry.get("after") is None:
        return f"gone {before}".rstrip()
    return after if before == after else f"{before} -> {after}"


def _shape(sizes: Sequence[int] | None) -> str:
    return "" if sizes is None else str(list(sizes))
