"""Where one number of one module comes from: operands, formula with its numbers, and reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from fractions import Fraction

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.ir.graph import Weight
from pytest_modelbudget.ir.scopes import is_in_scope
from pytest_modelbudget.metrics.costed_graph import CostedGraph, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.ops.op_rule import Formula, OpRule, nothing
from pytest_modelbudget.reports.formula_text import formula_lines, where_written
from pytest_modelbudget.reports.op_text import operand_text, tensor_text
from pytest_modelbudget.reports.scope_text import scope_text
from pytest_modelbudget.units import exact, percentage

COMPUTED = ("macs", "flops")
MOVED = {"bandwidth": ("read", "weights", "write"), "total_activation": ("write",)}
WIDTH = 12  # of the words at the beginning of a line


def explanation(
    metric: Metric, measurement: Measurement, costed: CostedGraph, scope: str | None
) -> str:
    """The whole text: the module's part of the number, then who it is made of and why.

    scope is a glob on module paths, None the whole model.
    """
    lines = [_headline(metric, measurement, scope)]
    if metric.by_weight is not None:
        lines += _weights(metric, costed, scope)
    elif metric.key in COMPUTED or metric.key in MOVED:
        for cost in costed.costs:
            if is_in_scope(cost.op.scope, scope):
                lines += ["", *_operation(metric, cost, costed)]
    elif measurement.unreduced is None:
        lines += ["", *_shares(measurement, scope)]
    lines += ["", f"{metric.key}: {metric.definition}"]
    return "\n".join(lines)


def _headline(metric: Metric, measurement: Measurement, scope: str | None) -> str:
    """One line: layer4.0.conv1: macs 57,802,752 MAC of 1,814,073,344 MAC (3.2%)."""
    if measurement.unreduced is not None:
        above, below = measurement.unreduced
        return f"{metric.key} is a ratio, and has no parts: {above:,} / {below:,}"
    part = sum(share.value for share in measurement.shares if is_in_scope(share.scope, scope))
    unit, whole = measurement.unit, measurement.value
    share = f" ({percentage(Fraction(part) / whole)})" if whole else ""
    return f"{scope_text(scope)}: {metric.key} {exact(part, unit)} of {exact(whole, unit)}{share}"


def _shares(measurement: Measurement, scope: str | None) -> Iterator[str]:
    """Who the number is made of, in execution order, where no formula of an operation tells."""
    for share in measurement.shares:
        if is_in_scope(share.scope, scope):
            yield f"{scope_text(share.scope)}  {exact(share.value, measurement.unit)}"


def _weights(metric: Metric, costed: CostedGraph, scope: str | None) -> Iterator[str]:
    assert metric.by_weight is not None  # the caller has asked
    for weight, amount in metric.by_weight(costed):
        if is_in_scope(weight.scope, scope):
            yield ""
            yield f"{weight.tensor.name}  {tensor_text(weight.tensor)}"
            yield f"  {_weight_formula(weight, amount, metric.unit)}"


def _weight_formula(weight: Weight, amount: int, unit: str) -> str:
    """The product of the sizes, and for bytes of the width of an element: 64 x 3 x 3 = 576."""
    tensor = weight.tensor
    product = " x ".join(f"{size:,}" for size in tensor.shape) or "1"
    if unit == "B":
        product += f" x {tensor.dtype.bits} bits / 8"
    expected = tensor.nbytes if unit == "B" else tensor.elements
    if weight.packed is not None:
        return f"{exact(amount, unit)}: packed, {weight.packed:,} logical elements"
    if amount == expected:
        return f"{product} = {exact(amount, unit)}"
    return f"{exact(amount, unit)}: it shares memory with a tensor that is counted already"


def _operation(metric: Metric, cost: OpCost, costed: CostedGraph) -> Iterator[str]:
    """One operation: name, operands by role, formula, reason."""
    op, rule = cost.op, costed.rules.get(cost.op.name)
    repeated = f", run {op.times} times" if op.times != 1 else ""
    yield f"{scope_text(op.scope)}: {op.name} ({cost.kind}){repeated}"
    yield from _operands(cost, rule)
    if metric.key in MOVED:
        yield from _traffic(cost, MOVED[metric.key])
        return
    if rule is None:
        yield _line("unmeasured", "no rule knows this operation")
        return
    yield from _formulas(metric, cost, rule)
    yield _line("because", rule.because)


def _line(word: str, text: str) -> str:
    return f"  {word:<{WIDTH}}{text}"


def _operands(cost: OpCost, rule: OpRule | None) -> Iterator[str]:
    op = cost.op
    try:
        bound = rule.bind(op) if rule else {}
    except UnmeasurableError:
        bound = {}
    named = bound.items() if bound else ((str(at), each) for at, each in enumerate(op.operands))
    for role, operand in named:
        yield _line(role, operand_text(operand))
    for output in op.outputs:
        yield _line("out", tensor_text(output))


def _formulas(metric: Metric, cost: OpCost, rule: OpRule) -> Iterator[str]:
    """The formula of MACs; for FLOPs twice that, and what the convention adds."""
    yield from _formula("macs", rule.macs, cost, rule)
    if metric.key == "flops":
        yield from _formula("more flops", rule.flops, cost, rule)
        if isinstance(cost.macs, int) and isinstance(cost.flops, int):
            total = 2 * cost.macs + cost.flops
            yield _line("flops", f"2 x {cost.macs:,} + {cost.flops:,} = {total:,}")


def _formula(word: str, formula: Formula | None, cost: OpCost, rule: OpRule) -> Iterator[str]:
    value = cost.macs if word == "macs" else cost.flops
    if isinstance(value, Unknown):
        yield _line(word, f"unmeasured: {value.why}")
        return
    if formula is None or formula is nothing or cost.op.is_view:
        yield _line(word, "0")
        return
    op = cost.op
    values = {**rule.bind(op), "attributes": op.attributes, "outputs": op.outputs}
    if op.outputs:
        values["out"] = op.outputs[0]
    wanted = inspect.signature(formula).parameters
    lines = formula_lines(formula, {name: values[name] for name in wanted if name in values})
    for number, line in enumerate(lines):
        yield _line("" if number else word, line)
    if op.times != 1:
        yield _line("", f"x {op.times} times = {value:,}")
    yield _line("source", where_written(formula))
    said = inspect.getdoc(formula)
    for line in said.splitlines() if said else ():
        yield _line("", line).rstrip()


def _traffic(cost: OpCost, kinds: tuple[str, ...]) -> Iterator[str]:
    traffic = cost.traffic
    if isinstance(traffic, Unknown):
        yield _line("unmeasured", traffic.why)
        return
    for kind in kinds:
        yield _line(kind, f"{getattr(traffic, kind):,} B")
    if len(kinds) > 1:
        yield _line("together", f"{traffic.total:,} B")
