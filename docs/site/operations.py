"""A page for every family of operations, out of the table of rules: names, formulas and their reasons."""

import ast
import inspect
import pkgutil
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any

from docs.site.metrics import sentence
from pytest_modelbudget import ops
from pytest_modelbudget.ops import table
from pytest_modelbudget.ops.rule import OpRule, nothing

START = """# Operations

What each kind of operation costs, and why. A name that stands here has a rule; any other is *unmeasured*: the limits
that it concerns are unknown, and fail, until [an extension](../extensions.md) gives it a rule or `allow_unmeasured`
accepts it. Budgets name kinds, or foreign names, under [`ops`](../metrics/ops.md).

| kind | family |
|---|---|
"""
FAMILY = """# {title}

{about}

Formulas are those of the rules: `out` is the first result, a shape is outermost first. FLOPs are those
beyond two for each MAC.
"""


def pages() -> dict[str, str]:
    """The list of kinds, and a page for each family."""
    written: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for name, family in families().items():
        kinds = rules_by_kind(family)
        written[f"operations/{name}.md"] = "\n".join([opening(name), *map(section, kinds, kinds.values())])
        rows += [(kind, name) for kind in kinds]
    listed = "".join(f"| [`{kind}`]({name}.md#{kind}) | {name.replace('_', ' ')} |\n" for kind, name in sorted(rows))
    return {"operations/index.md": START + listed, **written}


def families() -> dict[str, Sequence[OpRule]]:
    """The rules of each module that has some, by its name, in the order of the table."""
    modules = (import_module(f"{ops.__name__}.{found.name}") for found in pkgutil.iter_modules(ops.__path__))
    homes = {id(value): module for module in modules if module is not table for value in vars(module).values()}
    found: dict[str, list[OpRule]] = defaultdict(list)
    for family in table.FAMILIES:
        found[homes[id(family)].__name__.rpartition(".")[2]] += family
    return dict(found)


def rules_by_kind(family: Sequence[OpRule]) -> dict[str, list[OpRule]]:
    """Rules of each kind, in order."""
    kinds: dict[str, list[OpRule]] = defaultdict(list)
    for rule in family:
        kinds[rule.kind].append(rule)
    return kinds


def opening(name: str) -> str:
    """The head of a family's page: what its module says."""
    about = inspect.getdoc(import_module(f"{table.__package__}.{name}"))
    return FAMILY.format(title=name.replace("_", " ").capitalize(), about=sentence(about or ""))


def section(kind: str, rules: Sequence[OpRule]) -> str:
    """One kind: its rules, each with its names, costs and reason."""
    return "\n".join([f"## {kind}\n", *(line for rule in rules for line in rule_lines(rule))])


def rule_lines(rule: OpRule) -> Iterator[str]:
    """Names with the roles of their operands, why, and the formulas."""
    yield f"*Why*: {rule.because.rstrip('.')}.\n"
    by_roles: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for name, roles in rule.names.items():
        by_roles[roles].append(name)
    for roles, names in by_roles.items():
        yield f"- {', '.join(f'`{name}`' for name in names)}: `({', '.join(map(str, roles))})`"
    yield ""
    plain = [f"{word}: {cost}" for word, cost in costs(rule) if "\n" not in cost]
    if plain:
        yield f"{'; '.join(plain)}.\n"
    for word, cost in costs(rule):
        if "\n" in cost:
            yield f"{word}:\n\n```python\n{cost}```\n"


def costs(rule: OpRule) -> Iterator[tuple[str, str]]:
    """What a rule says of each cost: none, that nobody knows it, or its formula."""
    for word, formula in (("MACs", rule.macs), ("FLOPs", rule.flops)):
        yield word, "none" if formula is nothing else "unmeasured" if formula is None else written(formula)
    for word, asked in (("bytes read", rule.reads), ("bytes written", rule.writes)):
        if asked is not None:
            yield word, written(asked)


def written(formula: Callable[..., object]) -> str:
    """A formula as its module has it, without its docstring; the name of one that is made by another function."""
    if not isinstance(formula, FunctionType) or formula.__name__ == "<lambda>":
        return "none of what the rule declares unread" if "__post_init__" in str(formula) else f"`{formula}`"
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(formula))).body
    if isinstance(function, ast.FunctionDef) and ast.get_docstring(function) and len(function.body) > 1:
        function.body = function.body[1:]
    return f"{ast.unparse(function)}\n"
