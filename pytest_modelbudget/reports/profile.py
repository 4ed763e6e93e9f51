"""What a page shows of one model beyond its metrics: layers, memory over time, operations.

Worked out only where a report asks for it (``FileReport.needs_profile``): it takes the graph, and
is larger than all the rest of a model's record. So it is JSON text from the start: carried from
process to process and into the page without being read on its way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.metrics.costed_graph import CostedGraph
from pytest_modelbudget.reports.layer_profile import layer_profile
from pytest_modelbudget.reports.memory_profile import memory_profile
from pytest_modelbudget.reports.op_profile import op_profile
from pytest_modelbudget.reports.report import Record

LARGEST_EXACT = 2**53 - 1  # a larger whole number goes as text: JavaScript would round it


def profile(model: LoadedModel, costed: CostedGraph) -> str:
    """JSON, the same for the same graph; its size is bounded, whatever the model's."""
    layers, ops = layer_profile(model, costed), op_profile(costed)
    parts = {
        "layers": {**layers, "rows": packed(layers["rows"])},
        "memory": memory_profile(model.graph),
        "ops": {**ops, "points": packed(ops["points"])},
    }
    return json.dumps(_readable_by_scripts(parts), separators=(",", ":"))


def packed(rows: Sequence[Record]) -> Record:
    """Rows without their keys, which stand once above them: half the size."""
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in rows]}


def _readable_by_scripts(value: Any) -> Any:
    """The same with whole numbers as text where JavaScript would not know every digit."""
    if isinstance(value, dict):
        return {key: _readable_by_scripts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_readable_by_scripts(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > LARGEST_EXACT else value
