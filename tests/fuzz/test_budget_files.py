"""Budgets at random: reader and schema of one mind, and an update that changes its scalars and nothing else."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.budget.budget import Budget, Limit
from pytest_modelbudget.budget.changes import CheckKey
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Edit, edited
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.units import quantity
from tests.builders.editor import accepts
from tests.builders.marks import TIMES
from tests.builders.texts import VISION

WORD = re.compile(r"'[^'\n]*'|[\w.%]+(?: [A-Z][\w/]*)?|\{[^{}\n]*\}|\[[^\]\n]*\]")
WORDS = ("1", "0", "12 MiB", "1.5 B", "3 k", "2%", "auto", "'auto'", "true", "~", "0x10", "1e3", "'1e3'",
         "1_000", "error", "warn", "int8", "bfloat16", "float32 1x3", "()", "1x3", "macs", "params", "min",
         "max", "grow", "floor", ".5", "ops", "allow", "deny", "level", "torch", "inputs", "dims", "dtype",
         "kwargs", "args", "scopes", "variants", "isolate", "timeout", "memory", "30 s", "{}", "[]", "[1, 2]",
         "{batch: 1}", "{max: 3 k}", "{min: 1, max: 2}", "{grow: 1%}", "{grow: 1%, floor: 2}",
         "{max: 1, allow_unmeasured: [a::b]}", "''", "é", "a::b")  # fmt: skip


@cache
def known() -> Tables:
    return tables()


def read(text: str) -> Budget | None:
    """The budget of a text, where it is one."""
    try:
        return read_budget(Path("b.yaml"), known(), root=Path(), text=text)
    except BudgetFileError:
        return None


def numbers(budget: Budget) -> dict[CheckKey, tuple[object, object]]:
    """Both ends of every limit on a metric."""
    return {held.key: (held.check.max, held.check.min) for held in budget.held() if isinstance(held.check, Limit)}


@st.composite
def reworded(draw: st.DrawFn) -> str:
    """A good budget with up to three of its words, lists or mappings replaced by others."""
    text = VISION
    for _ in range(draw(st.integers(1, 3))):
        start, end = draw(st.sampled_from([word.span() for word in WORD.finditer(text)]))
        text = text[:start] + draw(st.sampled_from(WORDS)) + text[end:]
    return text


@settings(max_examples=125 * TIMES)
@given(reworded())
def test_what_the_reader_reads_the_schema_accepts(text: str) -> None:
    """An editor never marks a budget that the gate holds; what it marks, the gate refuses."""
    assert read(text) is None or accepts(text)


QUANTITIES = st.builds("{}{}".format, st.integers(0, 10**9), st.sampled_from(("", " k", " M", "k")))
AROUND = st.sampled_from(("", "  # é: 'why' {not} a.b", " # \U0001f600"))


@settings(max_examples=75 * TIMES)
@given(QUANTITIES, QUANTITIES, st.sampled_from(("", "'", '"')), AROUND, st.sampled_from(("\n", "\r\n")), st.booleans())
def test_an_update_changes_its_scalar_and_nothing_else(
    old: str, new: str, quote: str, comment: str, newline: str, in_flow: bool
) -> None:
    """Quotes, comments, line ends and every other character stay; the limit is read as the new quantity."""
    limits = f"{{params: {{max: {quote}OLD{quote}, level: warn}}}}" if in_flow else f"\n      params: {quote}OLD{quote}"
    lines = ["# é", "model_budget: 1", "models:", "  net:", "    torch: a:b", f"    limits: {limits}{comment}", "# end"]
    text = "\n".join((*lines, "")).replace("\n", newline)
    keys = ("models", "net", "limits", "params", "max")
    before, after = text.replace("OLD", old), text.replace("OLD", new)
    assert edited(before, "b.yaml", [Edit(keys, new)]) == after
    assert edited(after, "b.yaml", [Edit(keys, old)]) == before


@settings(max_examples=50 * TIMES)
@given(reworded(), QUANTITIES)
def test_an_update_of_any_budget_reads_as_the_new_quantity(text: str, new: str) -> None:
    """Wherever a maximum stands, the one limit holds the new quantity, and all others what they held."""
    budget = read(text)
    for held in budget.held() if budget else ():
        if not isinstance(held.check, Limit) or held.check.max is None:
            continue
        part = ("limits",) if held.check.scope is None else ("scopes", held.check.scope)
        after = read(edited(text, "b.yaml", [Edit((*held.keys, *part, held.check.metric, "max"), new)]))
        assert after is not None
        was, ends = numbers(budget), numbers(after)
        assert ends.keys() == was.keys()
        assert {check for check, pair in ends.items() if pair != was[check]} <= {held.key}
        assert ends[held.key] == (quantity(new, known().metrics[held.check.metric].unit), held.check.min)
