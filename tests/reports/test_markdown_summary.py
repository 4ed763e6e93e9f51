"""The summary and the comment: what fails first, nothing of a user's read as markup, in bounds."""

from __future__ import annotations

import re
from html import unescape

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from pytest_modelbudget.reports import markdown as markdown_summary
from pytest_modelbudget.reports.markdown import MARKER
from tests.builders.records import (
    Record,
    broken,
    check,
    claimed,
    grown,
    lock,
    loosened,
    model,
    over,
    redefined,
    report,
    transformed,
)

MARKDOWN = MarkdownIt("commonmark").enable("table")
MIB, MOST_CHARACTERS = 2**20, 65_536


def rendered(text: str) -> str:
    """The summary as HTML, by a parser of Markdown."""
    return str(MARKDOWN.render(text))


def cells(text: str, *, exact: bool = False) -> list[list[str]]:
    """Rows of all tables, without headings, as a reader sees them; of the folded one with exact figures apart."""
    before, _, behind = text.partition("<details><summary>Exact figures</summary>")
    text = behind if exact else before
    return [
        [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", rendered(text), re.DOTALL)
        if "<td" in row
    ]


def many(count: int, *, failing: bool = False) -> Record:
    """So many models with eight limits each, failing or within, under names of fair length."""
    some = [
        model(
            *((over if failing else check)(f"params@layer{part}.*", line=10 * number + part) for part in range(8)),
            of=f"vision_transformer_large_{number}",
            line=10 * number + 1,
        )
        for number in range(count)
    ]
    return report(*some)


def test_a_growing_layer_is_named_with_shapes_and_delta() -> None:
    """A reviewer sees what broke, by how much, since when, and which layer did it."""
    text = markdown_summary.render(report(grown()))
    assert text.startswith("## Model budget: 1 over (1 limit)\n")
    assert cells(text) == [
        ["❌ over", "mobilenet_v2", "params", "3.729 M", "3.510 M", "+6.4% vs base", "budgets/mobile.yaml:8"]
    ]
    assert cells(text, exact=True) == [
        ["mobilenet_v2", "params", "3,729,059", "3,510,000", "3,504,872 (+224,187, +6.4%)"]
    ]
    assert "<pre>mobilenet_v2: params 3.729 M > 3.510 M (+6.4%)   base 3.505 M" in unescape(text)
    assert "\n  classifier.1   1000x1280 becomes 1175x1280\n" in text
    assert "\nfix: shrink the layer above, or raise the limit at budgets/mobile.yaml:8</pre>" in text


def test_a_claim_says_how_to_repeat_it() -> None:
    """What nobody can accept is run again, alone."""
    text = markdown_summary.render(report(transformed()))
    assert "\nrepeat: pytest --model-budget budgets/mobile.yaml::net::tiled::equivalence" in unescape(text)


def test_what_fails_stands_first_and_what_is_unchanged_is_folded() -> None:
    """Broken, failing, loosened, warnings, changed, then the rest behind a click."""
    record = report(
        model(check(baseline=40), check("macs", baseline=39), of="calm"),
        model(over(level="warn"), of="loud"),
        transformed(),
        broken=[broken("budgets/bad.yaml:4:1: no")],
        loosened=[loosened()],
        lock=[lock(), lock(state="fresh")],
    )
    text = markdown_summary.render(record)
    headings = re.findall(r"^(?:#+ (.*)|<details><summary>(\d+ within)</summary>)$", text, re.M)
    assert [heading or folded for heading, folded in headings] == [
        "Model budget: 2 over, 1 warn, 1 broken file, 1 loosened (6 limits)",
        "Broken budget files",
        "Failing",
        "Loosened by this change",
        "Lock files",
        "Warnings",
        "Changed since the base",
        "2 within",
    ]
    assert "budget loosened +14.3 %: params 3.5 M -> 4.0 M" in text
    assert text.count("mobile.lock.json") == 1
    assert [row[0].split()[1] for row in cells(text)] == [
        "over", "over", "warn", "within", "within", "within",
    ]  # fmt: skip


def test_columns_say_what_is_known_and_no_more() -> None:
    """A lower bound is marked, a ratio keeps its digits, unmeasured figures are empty."""
    record = report(
        model(
            check("macs", outcome="unknown", actual=1_000, limit=2_000, unit="MAC"),
            check("arithmetic_intensity", actual="31.02", limit=None, min="30", unit="FLOP/B"),
            check("bandwidth", outcome="unknown", actual=None, limit=None),
        )
    )
    rows = {row[2]: row[3:6] for row in cells(markdown_summary.render(record))}
    assert rows == {
        "macs": ["≥ 1.000 kMAC", "2.000 kMAC", ""],
        "arithmetic_intensity": ["31.02 FLOP/B", "30.00 FLOP/B", "3.4% left"],
        "bandwidth": ["", "", ""],
    }


@pytest.mark.parametrize(
    "name",
    ["a|b", "`c`", "<img src=x>", "@someone", "#12", "*em*_em_", "__a__b_c", "$x$", "~~s~~",
     "a_b_", "[l](http://x.y)", "https://a.b", "www.a.b", "a\\|b",
     "</code></pre></details>", "-->", "&amp;", "a :tada: b"],
)  # fmt: skip
def test_a_name_is_shown_letter_by_letter(name: str) -> None:
    """Nothing of it becomes a cell, a tag, a link or a mention."""
    text = markdown_summary.render(report(model(over(reason=name), of=name)))
    ((_, shown, *_rest),) = cells(text)
    assert shown == name
    assert not re.search(r"<(img|a|em|script)\b", rendered(text))
    assert not re.search(r"(?<!&)[@#]\w", text.replace("&#", ""))


def test_a_part_of_the_limits_says_so() -> None:
    """A selected run is no verdict on all."""
    assert "Only a part" in markdown_summary.render(report(model(check()), selected=True))
    assert "nothing measured" in markdown_summary.render(report())


@pytest.mark.parametrize(
    ("more", "title"),
    [
        pytest.param({}, "1 limit, all within", id="green"),
        pytest.param({"lock": [lock(fails=True)]}, "1 unfit lock file (1 limit)", id="lock"),
        pytest.param({"unanswered": 2}, "2 not measured (1 limit)", id="unanswered"),
        pytest.param({"loosened": [loosened()]}, "1 loosened (1 limit)", id="loosened"),
        pytest.param({"redefined": [redefined()]}, "1 redefined (1 limit)", id="redefined"),
    ],
)
def test_a_heading_is_as_red_as_the_session(more: Record, title: str) -> None:
    """All limits within is not all that a session fails for."""
    text = markdown_summary.render(report(model(check()), **more))
    assert text.startswith(f"## Model budget: {title}\n")


def test_text_that_no_file_can_hold_is_written_out() -> None:
    """A file name of bytes that are no UTF-8 brings lone surrogates."""
    text = markdown_summary.render(report(model(over(reason="no \udc80"), of="\x07\udc80")))
    assert text.encode().count(b"udc80") == 4


@pytest.mark.parametrize("failing", [False, True])
def test_500_models_fit_the_page_of_a_run(failing: bool) -> None:
    """GitHub drops a page of more than 1 MiB: rows give way, and are counted."""
    text = markdown_summary.render(many(500, failing=failing))
    assert len(text.encode()) < MIB
    rows = len(cells(text))
    left = re.search(r"and ([\d,]+) more, not shown here", text.partition("Exact figures")[0])
    assert rows + int(left[1].replace(",", "") if left else 0) == 500 * 8
    assert rows > 3000


@pytest.mark.parametrize("failing", [False, True])
def test_500_models_fit_a_comment(failing: bool) -> None:
    """GitHub refuses a comment of more than 65,536 characters."""
    text = markdown_summary.comment(many(500, failing=failing))
    assert text.startswith(MARKER)
    assert len(text) < MOST_CHARACTERS
    assert text.count("<details>") == text.count("</details>")
    assert len(cells(text)) > 100 if failing else text.count("\n") == 2


def test_failures_are_the_last_to_be_left_out() -> None:
    """One failure among 4,000 limits is in the comment, with its layers."""
    record = many(500)
    record = replace(record, models=(*record.models, *report(grown()).models))
    text = markdown_summary.comment(record)
    assert cells(text)[0][1] == "mobilenet_v2"
    assert "classifier.1   1000x1280 becomes 1175x1280" in text
    assert len(text) < MOST_CHARACTERS


def test_a_page_that_holds_other_things_is_not_overfilled() -> None:
    """The room that is left is what counts, down to none."""
    record = many(50)
    for most in (100_000, 10_000, 2_000):
        assert len(markdown_summary.summary(record, most).encode()) <= most


@pytest.mark.parametrize(
    ("record", "line"),
    [
        pytest.param(report(model(check(), check("macs"))), "✅ Model budget: 2 limits, all within", id="all within"),
        pytest.param(
            report(model(check(baseline=39))),
            "✅ Model budget: 1 limit, all within, 1 changed since the base",
            id="changed",
        ),
    ],
)
def test_a_comment_shrinks_to_a_line_when_all_is_well(record: Record, line: str) -> None:
    """Below the marker by which it is found again."""
    assert markdown_summary.comment(record).splitlines() == [MARKER, line]


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(report(), id="nothing measured"),
        pytest.param(report(model(check()), selected=True), id="selected"),
        pytest.param(report(model(check()), broken=[broken("x")]), id="broken"),
        pytest.param(report(model(check()), loosened=[loosened()]), id="loosened"),
        pytest.param(report(model(check()), redefined=[redefined()]), id="redefined"),
        pytest.param(report(model(check()), lock=[lock(fails=True)]), id="lock"),
        pytest.param(report(model(check()), unanswered=1), id="unanswered"),
        pytest.param(report(model(over(level="warn"))), id="warning"),
        pytest.param(report(model(check(outcome="unknown"))), id="unknown"),
    ],
)
def test_a_comment_is_green_only_where_everything_is(record: Record) -> None:
    """Anything to look at brings the whole summary."""
    assert "✅ Model budget" not in markdown_summary.comment(record)


def test_a_green_claim_says_what_it_rests_on() -> None:
    """Beside its figure: step 2 alone, and why; nothing beside a claim that all runs hold."""
    text = markdown_summary.render(report(claimed("whole network"), claimed("precision only", "precision only: a | b")))
    assert [row[3] for row in cells(text)] == ["127.2 dB", "127.2 dB; precision only: a | b"]
