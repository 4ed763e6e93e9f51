"""The layer table of one model for a page: bounded, and with the bytes that its rows move.

A linear layer in a container, drawn once::

    {"rows": [{"scope": "", "depth": 0, "type": "Net", "calls": 1, "inputs": [[1, 3]],
               "outputs": [[1, 8]], "params": None, ...},
              {"scope": "fc", "depth": 1, "type": "Linear", "calls": 1, "inputs": [[1, 3]],
               "outputs": [[1, 8]], "params": 32, "weight_bytes": 128, "macs": 24,
               "output_bytes": 32, "traffic": 172, "unmeasured": 0}],
     "folded_at": None, "left_out": 0}

Figures are None in a container whose layers stand below it, so each column adds up to its metric
(output_bytes, which counts aliases, to the total of ``modelbudget show``).
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.ir.scopes import paths
from pytest_modelbudget.metrics.bandwidth import bandwidth
from pytest_modelbudget.metrics.costed_graph import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.params import weight_memory
from pytest_modelbudget.reports.layer_record import calls_record
from pytest_modelbudget.reports.layer_table import (
    OWN_OPERATIONS,
    OWN_PARAMETERS,
    LayerRow,
    layer_table,
)
from pytest_modelbudget.reports.report import Record

MOST_ROWS = 2000
FIGURES = ("params", "weight_bytes", "macs", "output_bytes", "traffic", "unmeasured")
SMALLER = "(smaller layers)"


def layer_profile(model: LoadedModel, costed: CostedGraph) -> Record:
    """The rows as deep as they fit; where even the first level does not, its largest rows.

    folded_at is the level below which layers were added up, left_out how many rows were.
    """
    table = layer_table(model, costed)
    folded_at = None
    deepest = max((row.depth for row in table.rows), default=0)
    while len(table.rows) > MOST_ROWS and deepest > 1:
        deepest -= 1
        folded_at = deepest
        table = layer_table(model, costed, depth=deepest)
    stored, moved = _Amounts(weight_memory(costed)), _Amounts(bandwidth(costed))
    rows = [_row(row, stored, moved) for row in table.rows]
    kept = _largest(rows)
    return {"rows": kept, "folded_at": folded_at, "left_out": max(0, len(rows) - MOST_ROWS)}


class _Amounts:
    """What each module path contributes to a metric, alone and with all that lies below it."""

    def __init__(self, measurement: Measurement) -> None:
        self._own: dict[str, int] = {}
        self._below: dict[str, int] = {}
        for share in measurement.shares:
            value = int(share.value)
            self._own[share.scope] = value
            for path in _with_ancestors(share.scope):
                self._below[path] = self._below.get(path, 0) + value

    def of(self, row: LayerRow) -> int | None:
        """The amount that belongs to a row; None where its layers stand below it."""
        if row.params is None:
            return None
        is_own = row.type in {OWN_OPERATIONS, OWN_PARAMETERS}
        return (self._own if is_own else self._below).get(row.scope, 0)


def _with_ancestors(scope: str) -> list[str]:
    """a.b, a and the model itself, of a.b."""
    return [*paths(scope), ""] if scope else [""]


def _row(row: LayerRow, stored: _Amounts, moved: _Amounts) -> Record:
    return {
        **calls_record(row),
        "params": row.params,
        "weight_bytes": stored.of(row),
        "macs": row.macs,
        "output_bytes": row.output_nbytes,
        "traffic": moved.of(row),
        "unmeasured": row.unmeasured,
    }


def _largest(rows: list[Record]) -> list[Record]:
    """At most MOST_ROWS of them, in their order; the others in one row at the end."""
    if len(rows) <= MOST_ROWS:
        return rows
    totals = {figure: sum(row[figure] or 0 for row in rows) or 1 for figure in FIGURES}

    def weight(position: int) -> tuple[float, int]:
        """A container comes first, then the largest part of any column."""
        row = rows[position]
        if row["params"] is None:
            return (-2.0, position)
        return (-max((row[figure] or 0) / totals[figure] for figure in FIGURES), position)

    by_weight = sorted(range(len(rows)), key=weight)
    kept, rest = by_weight[: MOST_ROWS - 1], by_weight[MOST_ROWS - 1 :]
    return [rows[position] for position in sorted(kept)] + [_summed([rows[i] for i in rest])]


def _summed(rows: list[Record]) -> Record:
    figures: Mapping[str, int] = {
        figure: sum(row[figure] or 0 for row in rows) for figure in FIGURES
    }
    nowhere: Record = {
        "scope": None,
        "depth": 1,
        "type": SMALLER,
        "calls": 0,
        "inputs": [],
        "outputs": [],
    }
    return {**nowhere, **figures}
