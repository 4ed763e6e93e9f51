"""Where one number of one module comes from: operands, formula with its numbers, and reason."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Weight
from pytest_modelbudget.graph.scopes import is_in_scope, scope_text
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.ops.rule import Formula, OpRule, nothing
from pytest_modelbudget.reports.show import operand_text, tensor_text
from pytest_modelbudget.units import exact, percentage

ARITHMETIC = (ast.BinOp, ast.UnaryOp)


def formula_lines(formula: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The steps of a formula with these arguments; its bare name where they cannot be told."""
    body = _statements(formula)
    if body is None:
        return (formula.__name__,)
    scope = {**formula.__globals__, **_closed_over(formula), **_defaults(formula), **values}
    return tuple(_steps(body, scope)) or (formula.__name__,)


def where_written(formula: Callable[..., Any]) -> str:
    """Name, file and line of a formula: "conv_macs, pytest_modelbudget/ops/convolution.py:31"."""
    code = formula.__code__
    parts = code.co_filename.replace("\\", "/").split("/")
    return f"{formula.__name__}, {'/'.join(parts[-3:])}:{code.co_firstlineno}"


def _statements(formula: Callable[..., Any]) -> list[ast.stmt] | None:
    """What a function does, its docstring left out; None where its source is not to be had."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(formula)))
    except (OSError, TypeError, SyntaxError):
        return None
    function = parsed.body[0]
    if not isinstance(function, ast.FunctionDef):
        return None
    has_docstring = ast.get_docstring(function) is not None
    return function.body[1:] if has_docstring else function.body


def _closed_over(formula: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.getclosurevars(formula).nonlocals


def _defaults(formula: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(formula).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _steps(body: list[ast.stmt], scope: dict[str, Any]) -> Iterator[str]:
    """Lines for each assignment on the way, and for what is returned; loops are only run."""
    for statement in body:
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield from _step("", statement.value, scope)
            return
        if isinstance(statement, ast.If):
            taken = statement.body if _value(statement.test, scope) else statement.orelse
            if taken:
                yield f"if {ast.unparse(statement.test)}" if taken is statement.body else "else"
            lines = list(_steps(taken, scope))
            yield from lines
            if _returns(taken):
                return
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            yield from _step(f"{name} = ", statement.value, scope)
        module = ast.fix_missing_locations(ast.Module([statement], []))
        exec(compile(module, "<formula>", "exec"), scope)


def _returns(body: list[ast.stmt]) -> bool:
    """Whether a branch that is taken ends the function."""
    return any(isinstance(statement, (ast.Return, ast.Raise)) for statement in body)


def _step(lead: str, expression: ast.expr, scope: dict[str, Any]) -> Iterator[str]:
    """The expression, then with its numbers, then its value; each only where it says more."""
    written = ast.unparse(expression)
    value = _shown(_value(expression, scope))
    filled = ast.unparse(_Filled(scope).visit(ast.parse(written, mode="eval").body))
    yield lead + written
    said = [written]
    for text in (filled, value):
        if text not in said:
            said.append(text)
            yield f"{' ' * len(lead)}= {text}"


class _Filled(ast.NodeTransformer):
    """An expression with the value of every operand in its place; arithmetic stays."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ARITHMETIC) or not isinstance(node, ast.expr):
            return self.generic_visit(node)
        return ast.Name(_shown(_value(node, self.scope)), ast.Load())


def _value(expression: ast.expr, scope: dict[str, Any]) -> Any:
    whole = ast.fix_missing_locations(ast.Expression(expression))
    return eval(compile(whole, "<formula>", "eval"), scope)


def _shown(value: object) -> str:
    """A number with its thousands apart, a sequence of them, or a word."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, Fraction)):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_shown(each) for each in value)})"
    return str(getattr(value, "name", None) or type(value).__name__)


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
