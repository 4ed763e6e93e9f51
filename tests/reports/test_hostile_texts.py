"""Texts that others wrote, in every renderer: a name is a name, and never a command to a terminal or to GitHub."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.cli import main
from pytest_modelbudget.cli.screen import print_json
from pytest_modelbudget.reports import codequality, json_records, junit, markdown, openmetrics, record, sarif, terminal
from pytest_modelbudget.reports.annotations import commands
from pytest_modelbudget.reports.diff import changes, comparison_markdown, comparison_text
from pytest_modelbudget.reports.text import LONGEST_LINE, folded, printable
from tests.builders.marks import TIMES
from tests.builders.records import broken, check, grown, loosened, model, over, redefined, report, transformed

TURNING = "\u202e\u2066\u200f"
NASTY = st.text(
    st.one_of(
        st.sampled_from("\x1b\x00\x07\x08\x7f\x9b\r\n\t\u2028\u2029\udcff" + TURNING),
        st.sampled_from(["::error::", "[2K", "&", "<", "]]>", "|"]).map(lambda words: words[0]),
        st.characters(),
    ),
    min_size=1,
    max_size=30,
).map(lambda text: f"a{text}\n::error::x\x1b[2K")
WRITTEN = ("reason", "error", "why", "op", "scope", "name", "text", "before", "after", "notes", "problems")


def sample() -> record.Report:
    """A report with everything that reports have."""
    unmeasured = [{"op": "aten::foo", "count": 1, "scope": "head", "why": "no rule"}]
    params = {"value": 40, "unit": "param", "complete": False, "unmeasured": unmeasured, "shares": []}
    return report(
        grown(),
        transformed(),
        model(check(outcome="unknown"), of="part", metrics={"params": params}),
        model(check(outcome="unknown"), of="gone", error="it raised", metrics={}, notes=["a note"]),
        model(over(), over("params@head", level="warn"), of="wide"),
        broken=[broken("budgets/bad.yaml:3:1: no such key")],
        loosened=[loosened(), loosened(forbidden=True)],
        redefined=[redefined()],
    )


def infected(value: Any, text: str, key: str = "") -> Any:
    """A document whose texts by others hold a text more."""
    if isinstance(value, dict):
        return {name: infected(inner, text, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [infected(inner, text, key) for inner in value]
    return value + text if isinstance(value, str) and key in WRITTEN else value


def texts(value: Any) -> Iterator[str]:
    """Every text in a document, keys among them, as its reader has it."""
    if isinstance(value, str):
        yield value
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from texts(one)


def starts_command(text: str) -> bool:
    """Whether GitHub's runner reads a command in the text, as TryParseV2 and TryParse of its ActionCommand.cs do."""
    return any(line.lstrip().startswith("::") or "##[" in line for line in text.split("\n"))


def must_be_harmless(text: str) -> None:
    """Nothing that moves a cursor, turns the text, cannot be written, or has no end."""
    text.encode("utf-8")
    odd = {
        letter for letter in text if (letter < " " and letter not in "\n\t") or letter in TURNING or letter == "\x7f"
    }
    assert not odd
    assert not {"\x9b", "\u2028", "\u2029"} & set(text)


@given(NASTY)
@settings(max_examples=25)
def test_r9_no_renderer_hands_on_a_command(text: str) -> None:
    """Terminal, GitHub's commands, JUnit, Markdown, lists of findings, gauges and comparisons show letters alone."""
    before = sample()
    odd = json_records.from_json(record.Report, infected(json_records.to_json(before), text))
    for detail in terminal.Detail:
        for line in terminal.lines(odd, detail):
            must_be_harmless(line.text)
            assert "\n" not in line.text
            assert not starts_command(line.text)
    for command in commands(odd):
        must_be_harmless(command)
        assert "\n" not in command
    xml = junit.render(odd)
    must_be_harmless(xml)
    ElementTree.fromstring(xml)
    for rendered in (markdown.render(odd), markdown.comment(odd), openmetrics.render(odd)):
        must_be_harmless(rendered)
    for rendered in (sarif.render(odd), codequality.render(odd)):
        for inner in texts(json.loads(rendered)):
            must_be_harmless(inner)
    changed = changes(before, odd)
    must_be_harmless(printable(comparison_text(changed)))
    must_be_harmless(printable(comparison_markdown(changed)))


@given(NASTY)
def test_r9_printable_says_what_it_leaves_out(text: str) -> None:
    """Harmless text is as it was, and everything else can still be told apart."""
    shown = printable(text)
    must_be_harmless(shown)
    assert printable(shown) == shown


@pytest.mark.parametrize(
    "text", ["::error::x", "a\n \t\u3000::error::x", "layer ##[error]x", "###[error]x", "##[##[a]"]
)
def test_no_printed_line_is_a_command(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A node of an ONNX file may be called so: behind blanks, which the runner trims, and in its older form."""
    assert starts_command(text)
    assert not starts_command(printable(text))
    assert not starts_command("\n".join(folded(f"the node {text.strip()}", 9)))
    assert printable("a::error::x, #[1]") == "a::error::x, #[1]"
    print_json({"scope": text})
    printed = capsys.readouterr().out
    assert not starts_command(printed)
    assert json.loads(printed) == {"scope": text}


def test_printable_keeps_letters_and_ends_long_lines() -> None:
    """Letters of any script, tabs and ends of lines are harmless."""
    assert len(printable("x" * 300_000)) == LONGEST_LINE
    assert printable("größe 重み 🎉\n\t") == "größe 重み 🎉\n\t"


# Comparing reports that something has damaged.

ODD = (
    None,
    True,
    -1,
    0,
    10**4000,
    "",
    "x",
    "1/0",
    "1e999999999",
    "nan",
    [],
    {},
    [1, 0],
    [{"value": 3}],
    1.5,
    "\x1b[2K",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def damaged(document: Any, chance: random.Random) -> Any:
    """A copy with one value gone, or another in its place."""
    copy = json.loads(json.dumps(document))
    path = chance.choice(places(copy)[1:])
    owner = copy
    for key in path[:-1]:
        owner = owner[key]
    if chance.random() < 0.3:
        del owner[path[-1]]
    else:
        owner[path[-1]] = chance.choice(ODD)
    return copy


@pytest.fixture
def exact() -> Any:
    """A document with whole numbers, a ratio and a transform."""
    ratio = {"value": "1.50", "unit": "FLOP/B", "complete": True, "exact": [3, 2]}
    shares = [{"scope": "features.0", "value": 15}, {"scope": "classifier.1", "value": 25}]
    params = {"value": 40, "unit": "param", "complete": True, "shares": shares}
    metrics = {"params": params, "arithmetic_intensity": ratio}
    return json_records.to_json(report(model(check(), metrics=metrics), transformed()))


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_r5_diff_of_damaged_reports_ends_in_a_sentence(
    form: str, exact: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """300 mutations, or so many times more: exit code 0, 1 or 2 and never a traceback; 2 says why."""
    chance, base, head = random.Random(0), tmp_path / "base.json", tmp_path / "head.json"
    base.write_text(json.dumps(exact))
    ends = []
    for _ in range(150 * TIMES):
        head.write_text(json.dumps(damaged(exact, chance)))
        files = chance.sample([str(base), str(head)], 2)
        ends.append(main(["diff", *files, "--format", form]))
        said = capsys.readouterr()
        assert ends[-1] in (0, 1, 2)
        assert said.err.startswith("modelbudget: error: ") is (ends[-1] == 2)
        assert "\x1b" not in said.out + said.err
    assert len(set(ends)) > 1
