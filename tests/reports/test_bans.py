"""Which line forbids a change, and the way out, stand in every report that says that it is forbidden."""

import html
import json
from collections.abc import Callable
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from pytest_modelbudget.reports import annotations, junit, markdown, sarif
from pytest_modelbudget.reports.html import page
from pytest_modelbudget.reports.record import Report
from tests.builders.records import check, loosened, model, redefined, report

BAN = "budgets/mobile.yaml:2 at main (1a2b3c4)"
WORDS = (
    f"forbidden by loosen: forbid   {BAN}",
    "fix: take that back, or first merge a change that only sets loosen: warn, past this check",
)
BANNED = {"forbidden": True, "forbidden_by": BAN}
GRANT = "exception added"


def _annotated(some: Report) -> str:
    return unquote("\n".join(annotations.commands(some)))


def _sarif(some: Report) -> str:
    (run,) = json.loads(sarif.render(some))["runs"]
    return "\n".join(result["message"]["text"] for result in run["results"])


def _junit(some: Report) -> str:
    return "\n".join(one.text or "" for one in ElementTree.fromstring(junit.render(some)).iter("failure"))


def _overview(some: Report) -> str:
    return html.unescape(page.render(some).partition("</main>")[0])


FORMATS = {
    "annotations": _annotated, "sarif": _sarif, "junit": _junit, "summary": markdown.render,
    "comment": markdown.comment, "page": _overview,
}  # fmt: skip


@pytest.mark.parametrize("shown", FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"loosened": [loosened(**BANNED)]}, id="loosened"),
        pytest.param({"loosened": [loosened(what=GRANT, **BANNED)]}, id="an exception"),
        pytest.param({"redefined": [redefined() | BANNED]}, id="redefined"),
    ],
)
def test_a_ban_is_named_with_the_way_out(shown: Callable[[Report], str], changed: dict[str, object]) -> None:
    """In the words of the terminal, both lines once."""
    text = shown(report(model(check()), **changed))
    assert [text.count(line) for line in WORDS] == [1, 1]
    assert "\n".join(WORDS) in text


@pytest.mark.parametrize("shown", FORMATS.values(), ids=list(FORMATS))
def test_what_nobody_forbids_has_no_ban(shown: Callable[[Report], str]) -> None:
    """Of two changes of a file that forbids one of them, only that one has it."""
    allowed = report(model(check()), loosened=[loosened(what="level lowered")], redefined=[redefined()])
    assert "forbidden by" not in shown(allowed)
    both = replace(allowed, loosened=report(loosened=[loosened(**BANNED)]).loosened)
    assert shown(both).count(WORDS[0]) == 1


def test_a_summary_names_a_ban_once_for_a_file() -> None:
    """However many of its changes that forbids; lines of annotations and results have it each."""
    some = report(model(check()), loosened=[loosened(**BANNED), loosened(what="level lowered", **BANNED)])
    assert [shown(some).count(WORDS[0]) for shown in (markdown.render, _overview, _sarif)] == [1, 1, 2]
