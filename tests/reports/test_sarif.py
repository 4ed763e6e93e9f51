"""The SARIF file: valid by the standard's own schema, a result for each thing amiss, known again by its fingerprint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from pytest_modelbudget.reports.findings import problems
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.sarif import render
from tests.builders.records import FILE, accepted, check, everything, grown, model, over, report

SCHEMA = Path(__file__).parents[1] / "builders" / "sarif" / "sarif-schema-2.1.0.json"
HEADLINE = "mobilenet_v2: params 3.729 M > 3.510 M (+6.4%)"


@pytest.fixture(scope="module")
def official() -> Draft7Validator:
    """The standard's schema, whose bytes are those that OASIS publishes."""
    content = SCHEMA.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert digest == "7402cdfd5bfbff98071b3358e573041b86adb7e1c6ec8743303f93715937c371"
    return Draft7Validator(json.loads(content))


def run(record: Report) -> dict[str, Any]:
    (one,) = json.loads(render(record))["runs"]
    return dict(one)


def results(record: Report) -> list[dict[str, Any]]:
    return list(run(record)["results"])


@pytest.mark.parametrize("record", [everything(), report(), report(selected=True), report(model(check()))])
def test_the_official_schema_refuses_nothing(official: Draft7Validator, record: Report) -> None:
    """The schema of OASIS finds no offence, and does find one that is there."""
    log = json.loads(render(record))
    assert list(official.iter_errors(log)) == []
    assert log["runs"][0]["tool"]["driver"]["informationUri"].startswith("https://")  # the standard's tools ask for it
    del log["runs"][0]["tool"]
    assert list(official.iter_errors(log))


def test_each_finding_has_its_level_and_place() -> None:
    """The line of the limit, and of a file that has none the first."""
    places = [(one["level"], one["locations"][0]["physicalLocation"]) for one in results(everything())]
    found = [(level, each["artifactLocation"]["uri"], each["region"]["startLine"]) for level, each in places]
    assert found == [(each.level, each.path, each.line) for each in problems(everything())]


def test_a_result_says_what_a_terminal_says() -> None:
    """The headline, and below it the layers that grew; the figures stand beside it, whole."""
    (one,) = results(report(grown()))
    assert one["message"]["text"].splitlines() == [
        HEADLINE,
        "  classifier.1   1000x1280 becomes 1175x1280",
        "  and 2 others",
    ]
    assert one["properties"] == {
        "metric": "params", "unit": "param", "actual": 3_729_059, "limit": 3_510_000, "baseline": 3_504_872,
        "allowed": 3_540_000, "outcome": "over", "level": "error",
    }  # fmt: skip


def test_rules_are_the_metrics_that_have_results() -> None:
    """Each once, with what it counts; a metric of an extension has its name."""
    rules = run(report(model(over(), over("params@head"), over("charge"))))["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["params", "charge"]
    assert "parameters" in rules[0]["shortDescription"]["text"]
    assert rules[1]["shortDescription"]["text"] == "a limit on charge"


def test_a_fingerprint_outlives_line_and_number() -> None:
    """The same limit on another line, further off, is the same alert; no two results share one."""

    def printed(record: Report) -> list[tuple[str, str]]:
        return [
            (one["fingerprints"]["modelBudget/v1"], one["partialFingerprints"]["primaryLocationLineHash"])
            for one in results(record)
        ]

    before, after = printed(report(model(over(by=1, line=8)))), printed(report(model(over(by=30, line=80))))
    assert before == after
    assert before[0][0] == f"{FILE}::net::params"
    several = printed(everything())
    assert len({one for one, _ in several}) == len({one for _, one in several}) == len(several) == 13


def test_an_exception_is_a_note_that_is_suppressed(official: Draft7Validator) -> None:
    """It fails nothing, its reason stands beside it, and no reader counts it as open."""
    record = report(model(accepted()))
    (one,) = results(record)
    assert one["level"] == "note"
    justification = "accepted to 130 until 2027-01-31: the head is being replaced"
    assert one["suppressions"] == [{"kind": "inSource", "status": "accepted", "justification": justification}]
    assert list(official.iter_errors(json.loads(render(record)))) == []
    assert sum("suppressions" in other for other in results(everything())) == 1


def test_limits_without_an_answer_are_no_successful_run() -> None:
    """Nothing measured is a result of its own, with a place, which readers ask for; all within is none."""
    empty = run(report())
    (one,) = empty["results"]
    assert (one["ruleId"], one["level"]) == ("unmeasured", "error")
    assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "budgets"
    assert empty["invocations"] == [{"executionSuccessful": False}]
    well = run(report(model(check())))
    assert (well["results"], well["invocations"]) == ([], [{"executionSuccessful": True}])


def test_a_place_is_a_uri() -> None:
    """Blanks, umlauts and signs of a path are written as URIs have them."""
    (one,) = results(report(model(over(), file="budgets/größe 100%.yaml")))
    place = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "budgets/gr%C3%B6%C3%9Fe%20100%25.yaml", "uriBaseId": "%SRCROOT%"}
