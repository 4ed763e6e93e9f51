"""Whatever stands in a file, the reader answers with a budget or with problems in places."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_modelbudget.budget.read_budget import is_budget
from tests.builders.texts import VISION, Problems

PIECES = ("{", "}", "[", "]", ": ", "- ", "&a ", "*a", "<<: ", "!!int ", "'", '"', "|", ">", "#",
          "\t", "\n", "? ", "%YAML 1.1\n", "---\n", "...\n", "~", ".nan", "1e99", "\\U99999999",
          "\x00", "\ud800", "\u2028", "é", ",", "::", "-1", "auto", "ops", "scopes: ",
          "[]", "{}", "{a: 1}", "[{}]", "{? [a] : b}", "{dtype: [], shape: {}}")  # fmt: skip


@st.composite
def mutated_budgets(draw: st.DrawFn) -> str:
    """A good budget with a few cuts, copies and insertions."""
    text = VISION
    for _ in range(draw(st.integers(1, 4))):
        words = [word.span() for word in re.finditer(r"[\w.:/]+|\{[^{}]*\}|\[[^\]]*\]", text)]
        anywhere = st.tuples(st.integers(0, len(text)), st.integers(0, 12)).map(lambda place: (place[0], sum(place)))
        start, end = draw(anywhere | st.sampled_from(words or [(0, 0)]))
        inserted = draw(st.sampled_from(PIECES) | st.just(text[start:end]))
        text = text[:start] + inserted + text[draw(st.sampled_from([start, end])) :]
    return text


@given(mutated_budgets())
def test_mutated_budget(problems: Problems, text: str) -> None:
    """A damaged budget is read or refused, and every problem has a line and a column."""
    for line in problems(text.encode("utf-8", "surrogatepass")):
        number, column, message = line.split(":", 2)
        assert int(number) >= 1
        assert int(column) >= 1
        assert message.strip()


@given(st.text())
@example('"\\U99999999"')
@example("%YAML " + "9" * 5000 + ".1\n---\na")
@example("!<tag:yaml.org,2002:int> x")
@example("? ? ? a")
@example("&a [*a]")
def test_any_text(problems: Problems, text: str) -> None:
    """No text makes the reader raise anything but problems."""
    content = text.encode("utf-8", "surrogatepass")
    assert is_budget(content) in {True, False}
    assert problems(content)


@given(st.binary())
def test_any_bytes(problems: Problems, content: bytes) -> None:
    """No bytes make the reader raise anything but problems."""
    assert is_budget(content) in {True, False}
    assert problems(content)
