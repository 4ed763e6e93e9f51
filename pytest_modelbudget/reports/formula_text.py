"""A cost formula as it is written in the code, and with the numbers of one operation put in.

``out.elements * prod(weight.shape[1:])`` of a convolution, drawn once::

    out.elements * prod(weight.shape[1:])
    = 3,211,264 * 147
    = 472,055,808
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

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
