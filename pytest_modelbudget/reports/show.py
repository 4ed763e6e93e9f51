"""The layer table, totals and operations of one model as plain, JSON-able values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any

from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.graph.graph import Operand
from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.compute import census
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.assembly import counted_ops, metric_report
from pytest_modelbudget.reports.layers import LayerRow, LayerTable, shape_text
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.reports.typed_json import to_json
from pytest_modelbudget.units import exact, readable

SCHEMA = "model-budget-layers/1"

Record = dict[str, Any]


def layer_record(model: Model, table: LayerTable, measurements: Mapping[str, Measurement]) -> Record:
    """The JSON of ``modelbudget show --format json``, but for the operations."""
    return {
        "schema": SCHEMA,
        "format": model.format,
        "traced": model.traced,
        "notes": list(model.notes),
        "layers": [_row(row) for row in table.rows],
        "totals": {"params": table.params, "macs": table.macs, "output_bytes": table.output_nbytes},
        "metrics": {key: to_json(metric_report(measurement)) for key, measurement in measurements.items()},
    }


def op_record(costed: CostedGraph) -> Record:
    """The census and every operation in execution order."""
    return {
        "census": [to_json(ops) for ops in counted_ops(census(costed))],
        "ops": [_op(cost) for cost in costed.costs],
    }


def calls_record(row: LayerRow) -> Record:
    """Which module a row stands for, how often it was called, and on what shapes."""
    return {
        "scope": row.scope,
        "depth": row.depth,
        "type": row.type,
        "calls": row.calls,
        "inputs": [list(shape) for shape in row.inputs],
        "outputs": [list(shape) for shape in row.outputs],
    }


def _row(row: LayerRow) -> Record:
    return {
        **calls_record(row),
        "kernel": list(row.kernel),
        "params": row.params,
        "macs": row.macs,
        "output_bytes": row.output_nbytes,
        "unmeasured": row.unmeasured,
    }


def _op(cost: OpCost) -> Record:
    op = cost.op
    return {
        "scope": op.scope,
        "name": op.name,
        "kind": cost.kind,
        "times": op.times,
        "operands": [_operand(operand) for operand in op.operands],
        "outputs": [_tensor(output) for output in op.outputs],
        "attributes": {name: _plain(value) for name, value in op.attributes.items()},
        "macs": cost.macs if isinstance(cost.macs, int) else None,
        "bytes": _moved(cost.traffic),
    }


def _moved(traffic: Traffic | Unknown) -> Record | None:
    """Bytes read, of weights and written; None where they are not known."""
    if isinstance(traffic, Unknown):
        return None
    return {"read": traffic.read, "weights": traffic.weights, "write": traffic.write}


def _operand(operand: Operand) -> object:
    if isinstance(operand, tuple):
        return [_operand(inner) for inner in operand]
    return None if operand is None else _tensor(operand)


def _tensor(tensor: Tensor) -> Record:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "kind": tensor.storage.kind.value}


def _plain(value: object) -> object:
    """A JSON value; anything that is none as its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


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
    yield f"    {operands or 'nothing'} -> {', '.join(map(tensor_text, op.outputs)) or 'nothing'}"
    yield f"    {_traffic_text(cost.traffic)}"
    if op.attributes:
        yield f"    {_attributes_text(op.attributes)}"


def _traffic_text(traffic: Traffic | Unknown) -> str:
    """Bytes that one line of the table moves, all its executions together."""
    if isinstance(traffic, Unknown):
        return f"bytes unmeasured: {traffic.why}"
    return f"read {traffic.read:,} B, weights {traffic.weights:,} B, write {traffic.write:,} B"


def tensor_text(tensor: Tensor) -> str:
    """Type and shape, and for stored tensors what they are: "float32 64x3x11x11 (parameter)"."""
    kind = "" if tensor.storage.is_activation else f" ({tensor.storage.kind.value})"
    return f"{tensor.dtype.name} {shape_text(tensor.shape)}{kind}"


def operand_text(operand: Operand) -> str:
    """A tensor, "none", or several in brackets."""
    if operand is None:
        return "none"
    if isinstance(operand, Tensor):
        return tensor_text(operand)
    return f"[{', '.join(operand_text(inner) for inner in operand)}]"


def _attributes_text(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in attributes.items())


def _short(value: object) -> str:
    """A plain value; long sequences are cut."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        listed = [_short(item) for item in value]
        more = [f"... {len(listed)} in all"] if len(listed) > 8 else []
        return f"[{', '.join(listed[:8] + more)}]"
    return str(value)


def totals_text(measurements: Mapping[str, Measurement], width: int) -> str:
    """One line a metric, in the order of the metric table; then what could not be measured.

    What a number is the sum of continues on lines of its own where ``width`` asks for it.
    """
    cells = [
        (
            key,
            ("" if measurement.complete else ">= ") + _figure(measurement),
            readable(measurement.value, measurement.unit),
            _summands(measurement),
        )
        for key, measurement in measurements.items()
    ]
    layout = "{:<}  {:>}  {:<}"
    wholes, starts = aligned(layout + "  {}", cells), aligned(layout, cells)
    lines = [
        line
        for whole, start, (*_, summands) in zip(wholes, starts, cells, strict=True)
        for line in _wrapped(whole, start, summands, width)
    ]
    return "\n".join([*lines, *_left_out(measurements)])


def _wrapped(whole: str, start: str, summands: str, width: int) -> list[str]:
    """The whole line, or its start and the summands below it where they do not fit."""
    if len(whole) <= width or not summands:
        return [whole]
    return [start, *wrap(summands, width, initial_indent="    ", subsequent_indent="    ")]


def _figure(measurement: Measurement) -> str:
    """The exact count, or the exact pair that a ratio was made from."""
    if measurement.unreduced:
        above, below = measurement.unreduced
        return f"{above:,} / {below:,}"
    return exact(measurement.value, measurement.unit)


def _summands(measurement: Measurement) -> str:
    """The numbers that it is the sum of: bandwidth by read, weights and write; ops by kind."""
    if measurement.convention:
        return measurement.convention
    return ", ".join(f"{name} {value:,}" for name, value in measurement.parts.items())


def _left_out(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """A line for each unmeasured operation, and the metrics that are lower bounds for it."""
    lacking: dict[tuple[str, int, str, str], list[str]] = {}
    for key, measurement in measurements.items():
        for op in measurement.unmeasured:
            lacking.setdefault((op.op, op.count, op.scope, op.why), []).append(key)
    for (name, count, scope, why), keys in lacking.items():
        place = f" in {scope}" if scope else ""
        yield f"unmeasured: {count} x {name}{place} ({', '.join(keys)}): {why}"
