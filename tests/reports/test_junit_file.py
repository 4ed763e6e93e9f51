"""The JUnit file: read by a parser, by Jenkins' grammar, and as each dashboard reads it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Properties

from pytest_modelbudget.reports.junit import render
from tests.builders.junit_readers import azure, dorny, enrico_mi, gitlab, mikepenz, offences
from tests.builders.records import FILE, Record, broken, check, grown, lock, loosened, model, over, report, transformed

HEADLINE = "mobilenet_v2: params 3.729 M > 3.510 M (+6.4%)"
NAME = "mobilenet_v2 / params"
TEXT = """\
params 3.729 M > 3.510 M (+6.4%)   budgets/mobile.yaml:8
measured           3,729,059
limit              3,510,000
base               3,504,872
allowed growth to  3,540,000
change             +6.4% vs base
outcome            over
level              error
grown since the base
  +224,000  classifier.1.weight   [1000, 1280] -> [1175, 1280]
      +175  classifier.1.bias     [1000] -> [1175]
       +12  (2 others)"""


def everything() -> Record:
    """Grown, within, to be warned of, unknown, a transform, a broken file, a loosened limit."""
    unknown = check(outcome="unknown", line=12, reason="params unknown: no rule")
    warned = over(level="warn", line=13, name="macs")
    return report(
        grown(),
        model(unknown, warned, of="odd", line=10),
        transformed(),
        broken=[broken("budgets/bad.yaml:4:1: did you mean 'params'?", "budgets/bad.yaml:5:1: no")],
        loosened=[loosened(), loosened(forbidden=True, what="level lowered")],
        lock=[lock(), lock(fails=True)],
    )


def read(record: Record) -> ElementTree.Element:
    return ElementTree.fromstring(render(record))


def test_a_real_parser_reads_everything_back(tmp_path: Path) -> None:
    """junitparser finds every case, its figures, its message and its text."""
    path = tmp_path / "junit.xml"
    path.write_text(render(everything()), encoding="utf-8")
    suites = {suite.name: suite for suite in JUnitXml.fromfile(str(path))}
    assert list(suites) == ["budgets/bad.yaml", FILE, "budgets/mobile.lock.json"]
    mobile = suites[FILE]
    assert (mobile.tests, mobile.failures, mobile.errors) == (8, 3 + 1, 1)
    assert {prop.name: prop.value for prop in mobile.properties()}["torch"] == "2.15.0"
    case = next(iter(mobile))
    assert (case.classname, case.name) == ("budgets.mobile.mobilenet_v2", NAME)
    (failure,) = case.result
    assert isinstance(failure, Failure)
    assert (failure.type, failure.message, failure.text) == ("over", HEADLINE, TEXT)
    assert case.system_out == TEXT
    (properties,) = case.iterchildren(Properties)
    assert {prop.name: prop.value for prop in properties} == {
        "metric": "params", "unit": "param", "actual": "3729059", "limit": "3510000",
        "baseline": "3504872", "allowed": "3540000", "outcome": "over", "level": "error",
        "change": "+6.4% vs base", "blame.1": "+224000 classifier.1.weight",
        "blame.2": "+175 classifier.1.bias", "blame.3": "+12 (2 others)",
    }  # fmt: skip
    (bad,) = suites["budgets/bad.yaml"]
    assert bad._elem.get("line") == "4"
    assert isinstance(bad.result[0], Error)
    assert bad.result[0].text.count("\n") == 1


def test_jenkins_grammar_refuses_nothing_but_what_others_need() -> None:
    """The xUnit plugin's schema lacks file, line and properties; the junit step has none."""
    assert offences(read(everything())) == {"testcase@file", "testcase@line", "testcase/properties"}


def test_the_file_is_as_red_as_the_gate() -> None:
    """Over and what may not be loosened fail, unknown and broken are errors, the rest passes."""
    cases = [
        (case.get("name"), [child.tag for child in case if child.tag in ("failure", "error")])
        for case in read(everything()).iter("testcase")
    ]
    assert cases == [
        ("budget", ["error"]),
        (NAME, ["failure"]),
        ("odd / params", ["error"]),
        ("odd / macs", []),
        ("net / params", []),
        ("net / tiled / equivalence", ["failure"]),
        ("net / tiled / macs", ["failure"]),
        ("net / params loosened: max raised", []),
        ("net / params loosened: level lowered", ["failure"]),
        ("lock", ["failure"]),
    ]


def test_a_dropped_model_is_a_case_of_its_own() -> None:
    """It has no limit to be named by."""
    dropped = loosened(id=f"{FILE}::net", metric=None, what="model dropped", after=None)
    (_, case) = read(report(model(check()), loosened=[dropped])).iter("testcase")
    assert case.get("classname") == "budgets.mobile.net"
    assert case.get("name") == "net loosened: model dropped"


def test_limits_without_an_answer_are_an_error() -> None:
    """They fail the session, and have no line to stand on."""
    (case, left) = read(report(model(check()), unanswered=2)).iter("testcase")
    assert case.find("error") is None
    assert left.find("error") is not None
    assert {key: left.get(key) for key in ("classname", "name", "file", "line")} == {
        "classname": "model budget", "name": "unanswered", "file": None, "line": None,
    }  # fmt: skip


def test_a_session_without_limits_is_no_empty_success() -> None:
    """Nothing measured fails the session; where somebody selected nothing, it does not."""
    root = read(report())
    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    root = read(report(selected=True))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("0", "0", "0")


def test_a_claim_tells_what_differs_and_where() -> None:
    """An equivalence has no number that is held; its evidence stands in the text."""
    (_, claim, _) = read(report(transformed())).iter("testcase")
    failure = claim.find("failure")
    assert failure is not None
    assert failure.get("message") == "net / tiled: equivalence over: output '0': float64 outputs differ by 3.2e-04"
    assert (failure.text or "").splitlines()[1:] == [
        "measured  3.2e-04",
        "allowed   1e-10",
        "outcome   over",
        "level     error",
        "  first layer that differs: classifier.1, by 0.032 of its size",
        "  weights: drawn, seed 0; inputs: seeds 0, 1",
    ]


def test_dorny_shows_groups_and_times() -> None:
    """A group for each model, a number for each time; what took long is told once."""
    shown = dorny(read(report(grown(), model(check(), over("macs")))))
    assert shown == [
        (FILE, "budgets.mobile.mobilenet_v2", NAME, "failed", 250.0),
        (FILE, "budgets.mobile.net", "net / params", "success", 250.0),
        (FILE, "budgets.mobile.net", "net / macs", "failed", 0.0),
    ]


def test_mikepenz_annotates_the_line_of_the_limit() -> None:
    """File and line are the case's, and a message is one line."""
    assert mikepenz(read(report(grown()))) == [(FILE, 8, f"{FILE}.{NAME}", HEADLINE, TEXT)]


def test_enrico_mi_takes_place_and_figures() -> None:
    """File, line, class, name, and the figures from the output."""
    (case,) = enrico_mi(read(report(grown())))
    assert case == {
        "test_file": FILE,
        "line": 8,
        "class_name": "budgets.mobile.mobilenet_v2",
        "test_name": NAME,
        "result": "failure",
        "message": HEADLINE,
        "stdout": TEXT,
    }


def test_gitlab_shows_the_text_and_loses_no_case() -> None:
    """The headline opens the text, and names that other models share stay apart."""
    record = report(
        grown(),
        model(check(), of="net.batch8"),
        model(check(), of="net::batch8"),
        model(check(), file="budgets/mobile.yml"),
        model(check()),
    )
    taken = gitlab(read(record))
    assert len(taken) == 5
    assert taken["budgets.mobile.mobilenet_v2", NAME] == ("failed", FILE, TEXT)
    assert {name for klass, name in taken if klass == "budgets.mobile.net.batch8"} == {
        "net.batch8 / params",
        "net / batch8 / params",
    }


def test_azure_shows_title_message_and_trace() -> None:
    """It ignores properties and file: the text has to say it all."""
    assert azure(read(report(grown()))) == [(NAME, "budgets.mobile.mobilenet_v2", "Failed", HEADLINE, TEXT)]


@pytest.mark.parametrize("line", [None, 0, 1])
def test_a_line_counts_from_one(line: int | None) -> None:
    """A limit whose item was lost, or whose model was, stands on the file's first line."""
    (case,) = read(report(model(check(line=line), line=0))).iter("testcase")
    assert case.get("line") == "1"


LETTERS = st.characters(exclude_categories=("Cc", "Cs", "Cn"), exclude_characters=":")


@given(st.text(LETTERS, min_size=1))
def test_names_come_back_letter_by_letter(name: str) -> None:
    """Whatever a name holds, but for control characters, a reader gets the same."""
    (case,) = read(report(model(check(), of=name))).iter("testcase")
    assert case.get("classname") == f"budgets.mobile.{name}"


def test_hostile_text_is_seen() -> None:
    """A bell, a null and a lone surrogate are written out, markup is escaped."""
    (case,) = read(report(model(check(), of='a<b>&"\x07\x00\udc80'))).iter("testcase")
    assert case.get("classname") == 'budgets.mobile.a<b>&"\\x07\\x00\\udc80'
