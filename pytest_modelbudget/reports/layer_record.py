"""The layer table, totals and operations of one model as plain, JSON-able values."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.ir.graph import Operand
from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.metrics.census import census
from pytest_modelbudget.metrics.costed_graph import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.layer_table import LayerRow, LayerTable
from pytest_modelbudget.reports.report import Record, census_record, measurement_record

SCHEMA = "model-budget-layers/1"


def layer_record(
    model: LoadedModel, table: LayerTable, measurements: Mapping[str, Measurement]
) -> Record:
    """What ``modelbudget show --format json`` prints, but for the operations."""
    return {
        "schema": SCHEMA,
        "format": model.format,
        "traced": model.traced,
        "notes": list(model.notes),
        "layers": [_row(row) for row in table.rows],
        "totals": {
            "params": table.params,
            "macs": table.macs,
            "output_bytes": table.output_nbytes,
        },
        "metrics": {key: measurement_record(each) for key, each in measurements.items()},
    }


def op_record(costed: CostedGraph) -> Record:
    """The census and every operation in execution order."""
    return {
        "census": census_record(census(costed)),
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
        return [_operand(each) for each in operand]
    return None if operand is None else _tensor(operand)


def _tensor(tensor: Tensor) -> Record:
    return {
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "kind": tensor.storage.kind.value,
    }


def _plain(value: object) -> object:
    """A JSON value; anything that is none as its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)
