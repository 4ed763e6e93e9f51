"""One number of one module explained: operands, formula as its rule declares it, result and reason."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import prod
from pathlib import PurePath
from types import FunctionType
from typing import Any

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Weight, is_in_scope, scope_text
from pytest_modelbudget.graph.tensor import Storage
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import (
    PROGRAM,
    ByFormula,
    ByTraffic,
    ByWeight,
    Measurement,
    Metric,
    Term,
    part_of,
    surpluses,
)
from pytest_modelbudget.ops.rule import OpRule, nothing
from pytest_modelbudget.reports.show import attributes_text, operand_text, tensor_text
from pytest_modelbudget.reports.text import folded
from pytest_modelbudget.units import exact, percentage, some_of

WIDTH = 12  # of the words at the beginning of a line


def declared(formula: Callable[..., Any]) -> str:
    """A formula as it is written, without its docstring: "out.elements * prod(weight.shape[1:])".

    The name of a formula that is not defined by ``def``, or has no source.
    """
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(formula))).body
    except (OSError, TypeError, SyntaxError):
        function = None
    if not isinstance(function, ast.FunctionDef):
        return str(getattr(formula, "__name__", type(formula).__name__))
    steps = function.body[1:] if ast.get_docstring(function) else function.body
    return "\n".join(map(ast.unparse, steps)).removeprefix("return ")


def explanation(metric: Metric, measurement: Measurement, costed: CostedGraph, scope: str | None, width: int) -> str:
    """The whole text: the module's part of the number, then who it is made of and why.

    scope is a glob on module paths, None the whole model. No line is wider than that many characters, where it can be
    folded: below a word at its beginning stays free.
    """
    lines = [_headline(metric, measurement, scope)]
    if isinstance(metric.how, ByWeight):
        lines += _weights(metric.how, metric.unit, costed, scope)
    elif metric.how is not None:
        for cost in costed.costs:
            if is_in_scope(cost.op.scope, scope):
                lines += ["", *_operation(metric.key, metric.how, cost, costed)]
    elif measurement.unreduced is None:  # no formula of an operation tells: the shares, in execution order
        shares = [share for share in measurement.shares if is_in_scope(share.scope, scope)]
        told = [f"{scope_text(share.scope)}  {exact(share.value, measurement.unit)}" for share in shares]
        others = some_of(dict.fromkeys(scope_text(share.scope) for share in measurement.shares))
        lines += ["", *(told or [f"nothing of it is in the number, which is made in {others}"])]
    lines += [f"unmeasured: {op.why}" for op in measurement.unmeasured if op.op == PROGRAM]
    part = part_of(measurement, scope)
    lines += [f"{op.op}: {op.why}" for op in surpluses(part) if op in part.unmeasured]
    lines += ["", f"{metric.key}: {metric.definition}"]
    column = WIDTH + 2  # where what stands behind a word begins
    parts = (folded(line, width, column if line.startswith("  ") else None) for line in lines)
    return "\n".join(line for part in parts for line in part)


def _headline(metric: Metric, measurement: Measurement, scope: str | None) -> str:
    """One line: layer4.0.conv1: macs 57,802,752 MAC of 1,814,073,344 MAC (3.2%)."""
    if measurement.unreduced is not None:
        above, below = measurement.unreduced
        return f"{metric.key} is a ratio, and has no parts: {above:,} / {below:,}"
    unit, whole = measurement.unit, measurement.value
    if whole and not measurement.shares:
        parts = ", ".join(f"{name} {exact(value, unit)}" for name, value in measurement.parts.items())
        return f"{metric.key} is of the whole program, and has no parts by layer: {exact(whole, unit)}, {parts}".rstrip(
            ", "
        )
    part = sum(share.value for share in measurement.shares if is_in_scope(share.scope, scope))
    share = f" ({percentage(Fraction(part) / whole)})" if whole else ""
    return f"{scope_text(scope)}: {metric.key} {exact(part, unit)} of {exact(whole, unit)}{share}"


def _weights(how: ByWeight, unit: str, costed: CostedGraph, scope: str | None) -> Iterator[str]:
    sharing: dict[Storage, list[str]] = {}  # names of weights that are counted, by their memory
    for weight, amount in how.amounts(costed):
        counted = sharing.setdefault(weight.tensor.storage, [])
        if is_in_scope(weight.scope, scope):
            yield from ("", f"{weight.tensor.name}  {tensor_text(weight.tensor)}")
            yield f"  {_weight_formula(weight, amount, unit, counted)}"
        if amount:
            counted.append(weight.tensor.name)


def _weight_formula(weight: Weight, amount: int, unit: str, counted: Sequence[str]) -> str:
    """The product of the sizes, and for bytes of the width of an element: 64 x 3 x 3 = 576."""
    tensor = weight.tensor
    if weight.packed is not None:
        return f"{exact(amount, unit)}: packed, {weight.packed:,} logical elements"
    if amount == (tensor.nbytes if unit == "B" else tensor.elements):
        product = " x ".join(f"{size:,}" for size in tensor.shape) or "1"
        return f"{product}{f' x {tensor.dtype.bits} bits / 8' if unit == 'B' else ''} = {exact(amount, unit)}"
    where = f"{some_of(counted)}, where it is counted" if counted else "a tensor that is counted already"
    return f"{exact(amount, unit)}: it shares memory with {where}"


def _operation(key: str, how: ByFormula | ByTraffic, cost: OpCost, costed: CostedGraph) -> Iterator[str]:
    """One operation: name, operands by role, formula, reason."""
    op, rule = cost.op, costed.rules.get(cost.op.name)
    repeated = f", run {op.times} times" if op.times != 1 else ""
    yield f"{scope_text(op.scope)}: {op.name} ({cost.kind}){repeated}"
    yield from _operands(cost, rule)
    if isinstance(how, ByTraffic):
        yield from _traffic(cost, how.directions)
        return
    if rule is None:
        yield _line("unmeasured", "no rule knows this operation")
        return
    for term in how.terms:
        yield from _formula(term, cost, rule)
    values = [getattr(cost, term.formula) for term in how.terms]
    if len(values) > 1 and not any(isinstance(value, Unknown) for value in values):  # such as 2 x 256 + 32 = 544
        addends = [
            f"{term.times} x {value:,}" if term.times != 1 else f"{value:,}"
            for term, value in zip(how.terms, values, strict=True)
        ]
        total = sum(term.times * value for term, value in zip(how.terms, values, strict=True))
        yield _line(key, f"{' + '.join(addends)} = {total:,}")
    if how.by is not None and cost.macs and not isinstance(cost.macs, Unknown):
        yield _line(key, _multiplied(cost.macs, how.by(cost, costed.rules)))
    yield _line("because", rule.because)


def _multiplied(amount: int, factors: tuple[int, ...] | Unknown) -> str:
    """The product with its numbers: 256 x 32 x 8 = 65,536."""
    if isinstance(factors, Unknown):
        return f"unmeasured: {factors.why}"
    return f"{' x '.join(f'{each:,}' for each in (amount, *factors))} = {amount * prod(factors):,}"


def _line(word: str, text: str) -> str:
    return f"  {word:<{WIDTH}}{text}"


def _operands(cost: OpCost, rule: OpRule | None) -> Iterator[str]:
    op = cost.op
    try:
        bound = rule.bind(op) if rule else {}
    except UnmeasurableError:
        bound = {}
    for role, operand in bound.items() or ((str(at), operand) for at, operand in enumerate(op.operands)):
        yield _line(role, operand_text(operand))
    for output in op.outputs:
        yield _line("out", tensor_text(output))


def _formula(term: Term, cost: OpCost, rule: OpRule) -> Iterator[str]:
    """One formula as it is declared, its result, and its place."""
    formula, value = getattr(rule, term.formula), getattr(cost, term.formula)
    word = term.word or term.formula
    if isinstance(value, Unknown):
        yield _line(word, f"unmeasured: {value.why}")
        return
    if formula is None or formula is nothing or cost.op.is_view:
        yield _line(word, "0")
        return
    op = cost.op
    for number, line in enumerate(declared(formula).splitlines()):
        yield _line("" if number else word, line)
    repeated = f" x {op.times} times = {value:,}" if op.times != 1 else ""
    yield _line("", f"= {value // op.times:,}{repeated}")
    if op.attributes and "attributes" in inspect.signature(formula).parameters:
        yield _line("attributes", attributes_text(op))
    if isinstance(formula, FunctionType):
        enclosed = inspect.getclosurevars(formula).nonlocals.items()
        if constants := ", ".join(f"{name} = {number}" for name, number in enclosed if isinstance(number, int)):
            yield _line("with", constants)
        code, file = formula.__code__, PurePath(formula.__code__.co_filename)
        yield _line("source", f"{formula.__name__}, {'/'.join(file.parts[-3:])}:{code.co_firstlineno}")
    for line in (inspect.getdoc(formula) or "").splitlines():
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
