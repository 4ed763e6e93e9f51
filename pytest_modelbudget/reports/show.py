"""What ``modelbudget show`` prints after a layer table: totals and operations as text, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from shlex import quote
from textwrap import wrap
from typing import Any, Protocol

from pytest_modelbudget.graph.graph import Op, Operand, scope_text
from pytest_modelbudget.graph.tensor import Tensor, unbound_symbols
from pytest_modelbudget.metrics.compute import census
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import PROGRAM, Measurement, bound
from pytest_modelbudget.reports.build import counted_ops, metric_report
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.layer_table import LayerRow, LayerTable, count_text, shape_text
from pytest_modelbudget.reports.messages import uncovered
from pytest_modelbudget.reports.text import aligned, folded
from pytest_modelbudget.units import exact, readable, some_of

SCHEMA = "model-budget-layers/1"
Record = dict[str, Any]


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
             "output_bytes": row.output_nbytes, "unmeasured": row.unmeasured, "unwritten": row.unwritten,
             **({"stored": row.stored, "bytes": row.nbytes} if table.stores_alone else {})}
            for row in table.rows
        ],
        "totals": {
            "params": table.total("params"), "macs": table.total("macs"), "output_bytes": table.total("output_nbytes"),
        },
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


# Operations by what they move.

BY: Mapping[str, Callable[[int, OpCost], object]] = {  # what the rows of such a table stand for
    "operator": lambda _, cost: cost.op.name,
    "operation": lambda place, _: place,
}
MOVED = ("read", "weights", "write")


def moved_records(costed: CostedGraph, by: str) -> list[Record]:
    """Calls, MACs and bytes of each operator, or operation: what reads most comes first. None is not known."""
    groups: dict[object, list[OpCost]] = {}
    for place, cost in enumerate(costed.costs):
        groups.setdefault(BY[by](place, cost), []).append(cost)
    rows = []
    for costs in groups.values():
        op = costs[0].op
        row = {"operator": op.name, "scope": op.scope, "calls": sum(cost.op.times for cost in costs)}
        row["macs"] = _total(cost.macs for cost in costs)
        row |= {key: _total(getattr(cost.traffic, key, None) for cost in costs) for key in MOVED}
        rows.append(row if by == "operation" else {key: value for key, value in row.items() if key != "scope"})
    return sorted(rows, key=lambda row: -((row["read"] or 0) + (row["weights"] or 0)))


def _total(values: Iterable[object]) -> int | None:
    listed = list(values)
    known = [each for each in listed if isinstance(each, int)]
    return sum(known) if len(known) == len(listed) else None


def moved_text(costed: CostedGraph, by: str) -> str:
    """The same as a table."""
    cells: list[tuple[str, ...]] = [(by, "calls", "MACs", "read B", "weights B", "write B")]
    for row in moved_records(costed, by):
        name = f"{scope_text(row['scope'])}: {row['operator']}" if "scope" in row else row["operator"]
        counts = ("?" if row[key] is None else f"{row[key]:,}" for key in ("calls", "macs", *MOVED))
        cells.append((name, *counts))
    return "\n".join(aligned("{:<}" + "  {:>}" * 5, cells))


# Operations and totals as text.


def census_text(costed: CostedGraph) -> str:
    """The number of operations of each kind and foreign name, the most frequent first."""
    rows = sorted(counted_ops(census(costed)), key=lambda row: -row.count)
    cells = [(str(row.count), row.kind, row.name) for row in rows]
    return "\n".join(aligned("{:>6}  {:<}  {}", cells))


def ops_text(costed: CostedGraph, width: int) -> str:
    """Every operation in execution order: where, what, shapes, bytes and attributes."""
    return "\n".join(part for cost in costed.costs for line in _op_lines(cost) for part in folded(line, width))


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
        yield f"    {attributes_text(op)}"


def attributes_text(op: Op) -> str:
    """The attributes of an operation in one line: "stride=[4, 4], groups=1"."""
    return ", ".join(f"{name}={_short(value)}" for name, value in op.attributes.items())


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


def totals_text(measurements: Mapping[str, Measurement], width: int) -> str:
    """One line a metric, in the order of the metric table; then what could not be measured."""
    cells = [
        (
            key,
            number.sign + figure(number),
            readable(number.value, number.unit) + bound(number, " or more", " or less"),
            number.convention
            or ", ".join(
                f"{part} {count_text(int(value), not number.complete)}" for part, value in number.parts.items()
            ),
        )
        for key, number in measurements.items()
        if number.value or not any(op.op == PROGRAM for op in number.unmeasured)
    ]
    layout, lines = "{:<}  {:>}  {:<}", []
    for line, start, (*_, summands) in zip(aligned(layout + "  {}", cells), aligned(layout, cells), cells, strict=True):
        if len(line) <= width or not summands:
            lines.append(line)
        else:
            lines += [start, *wrap(summands, width, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join([*lines, *(part for line in unmeasured_lines(measurements) for part in folded(line, width))])


def unmeasured_lines(measurements: Mapping[str, Measurement]) -> Iterator[str]:
    """A line for all operations of a kind that numbers leave out; one for all that wait for the sizes of symbols."""
    waiting: dict[str, set[str]] = {}
    left: dict[tuple[str, str, str], dict[str, int]] = {}  # how many in each scope
    for (name, count, scope, why), keys in uncovered(measurements).items():
        if unbound_symbols(why):
            waiting.setdefault(why, set()).update(keys)
            continue
        scopes = left.setdefault((name, ", ".join(keys), why), {})
        scopes[scope] = scopes.get(scope, 0) + count
    for (name, metrics, why), scopes in left.items():
        place = f" in {some_of(filter(None, scopes))}" if any(scopes) else ""
        yield f"unmeasured: {sum(scopes.values())} x {name}{place} ({metrics}): {why}"
    for why, left_out in waiting.items():
        named = ", ".join(key for key in measurements if key in left_out)
        yield f"unmeasured: {named}: {why}; {binding(dict.fromkeys(unbound_symbols(why), 1))}"


def binding(sizes: Mapping[str, int]) -> str:
    """How the command line gives symbols these sizes: "bind it: --dims batch=1"."""
    return "bind it: " + " ".join(f"--dims {quote(f'{symbol}={size}')}" for symbol, size in sizes.items())


def figure(measurement: Measurement) -> str:
    """The exact count, or the exact pair that a ratio was made from."""
    if measurement.unreduced:
        above, below = measurement.unreduced
        return f"{above:,} / {below:,}"
    return exact(measurement.value, measurement.unit)
