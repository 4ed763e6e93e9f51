"""GitLab's code quality file: the fields that its documentation names, an issue for each thing amiss."""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_modelbudget.reports.codequality import render
from pytest_modelbudget.reports.findings import problems
from pytest_modelbudget.reports.record import Report
from tests.builders.records import FILE, everything, grown, report

# docs.gitlab.com/ci/testing/code_quality: "the report file must contain a JSON array of objects with" these.
SEVERITIES = {"info", "minor", "major", "critical", "blocker"}


def issues(record: Report) -> list[dict[str, Any]]:
    return list(json.loads(render(record)))


def test_the_documented_fields_are_there_and_no_other() -> None:
    """description, check_name, fingerprint, severity, location.path, location.lines.begin, of their types."""
    for issue in issues(everything()):
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert set(issue["location"]) == {"path", "lines"}
        assert set(issue["location"]["lines"]) == {"begin"}
        assert issue["location"]["lines"]["begin"] >= 1
        assert issue["severity"] in SEVERITIES
        assert re.fullmatch(r"[0-9a-f]{32}", issue["fingerprint"])
        assert not issue["location"]["path"].startswith(("/", "./"))
        assert "\n" not in issue["description"]


def test_levels_are_severities() -> None:
    """Failures are major, warnings minor, waivers notes; GitLab drops a fingerprint that comes twice, so none does."""
    found, severities = issues(everything()), {"error": "major", "warning": "minor", "note": "info"}
    assert [one["severity"] for one in found] == [severities[each.level] for each in problems(everything())]
    assert len({one["fingerprint"] for one in found}) == len(found)


def test_an_issue_stands_on_its_line_and_says_it_in_one() -> None:
    """GitLab shows the description on the line in the change."""
    (one,) = issues(report(grown()))
    assert one["location"] == {"path": FILE, "lines": {"begin": 8}}
    assert one["description"] == "mobilenet_v2: params 3.729 M > 3.510 M (+6.4%)"


def test_a_session_that_measured_nothing_has_an_issue() -> None:
    """An empty list would say that all is well."""
    (one,) = issues(report())
    assert (one["check_name"], one["description"]) == ("unmeasured", "nothing measured")
