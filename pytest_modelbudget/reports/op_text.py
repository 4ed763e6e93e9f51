"""The operations of a model as text: the census, then every one with its shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pytest_modelbudget.ir.graph import Operand
from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.metrics.census import census
from pytest_modelbudget.metrics.costed_graph import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.reports.layer_text import shape_text
from pytest_modelbudget.reports.scope_text import scope_text


def census_text(costed: CostedGraph) -> str:
    """How many operations of each kind and foreign name, the most frequent first."""
    rows = sorted(census(costed), key=lambda row: -row.count)
    kind_width = max((len(row.kind) for row in rows), default=0)
    return "\n".join(f"{row.count:>6}  {row.kind:<{kind_width}}  {row.name}" for row in rows)


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
    return f"[{', '.join(operand_text(each) for each in operand)}]"


def _attributes_text(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in attributes.items())


def _short(value: object) -> str:
    """A plain value; long sequences are cut."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        listed = [_short(each) for each in value]
        more = [f"... {len(listed)} in all"] if len(listed) > 8 else []
        return f"[{', '.join(listed[:8] + more)}]"
    return str(value)
