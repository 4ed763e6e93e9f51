"""The one stream of findings: its order, levels and places, which every renderer of a list of problems shows."""

from __future__ import annotations

import json

import pytest

from pytest_modelbudget.reports import codequality, sarif
from pytest_modelbudget.reports.findings import Finding, findings, problems
from pytest_modelbudget.reports.record import Report
from tests.builders.records import BAN, FILE, check, everything, grown, lock, loosened, model, report

LOCK_FILE = "budgets/mobile.lock.json"


ORDER = [
    ("broken-budget", "error", "budgets/bad.yaml", 4, "broken budget"),
    ("broken-budget", "error", "budgets/bad.yaml", 5, "broken budget"),
    ("params", "error", FILE, 8, "mobilenet_v2 / params"),
    ("params", "error", FILE, 12, "odd / params"),
    ("macs", "warning", FILE, 13, "odd / macs"),
    ("flops", "note", FILE, 14, "odd / flops"),
    ("params", "", FILE, 8, "net / params"),
    ("equivalence", "error", FILE, 13, "net / tiled / equivalence"),
    ("macs", "error", FILE, 14, "net / tiled / macs"),
    ("loosened", "warning", FILE, 8, "net / params / loosened"),
    ("loosened", "error", FILE, 8, "net / params / loosened"),
    ("redefined", "warning", FILE, 5, "net / redefined"),
    ("lock", "", LOCK_FILE, 1, "lock file"),
    ("lock", "error", LOCK_FILE, 1, "lock file"),
    ("unmeasured", "error", FILE, 1, "model budget"),
]


def row(finding: Finding) -> tuple[str, str, str, int, str]:
    return finding.rule, finding.level, finding.path, finding.line, finding.title


def test_there_is_one_order() -> None:
    """Unreadable files, limits, changes, locks, limits without an answer; ids tell all of them apart."""
    found = list(findings(everything()))
    assert [row(each) for each in found] == ORDER
    assert len({each.id for each in found}) == len({each.fingerprint for each in found}) == len(found)


def test_lists_of_problems_show_what_has_a_level() -> None:
    """SARIF and GitLab's list have the same findings in the same order, and none where all is within."""
    amiss = [row(each) for each in problems(everything())]
    assert amiss == [each for each in ORDER if each[1]]
    (run,) = json.loads(sarif.render(everything()))["runs"]
    assert [result["ruleId"] for result in run["results"]] == [rule for rule, *_ in amiss]
    issues = json.loads(codequality.render(everything()))
    assert [(issue["check_name"], issue["location"]["path"]) for issue in issues] == [
        (rule, path) for rule, _, path, _, _ in amiss
    ]
    assert list(problems(report(model(check())))) == []


@pytest.mark.parametrize(
    ("some", "lines", "message"),
    [
        pytest.param(
            report(grown()),
            ("params 3.729 M > 3.510 M (+6.4%)", "  classifier.1   1000x1280 becomes 1175x1280"),
            "mobilenet_v2: params 3.729 M > 3.510 M (+6.4%)",
            id="a limit, with its layers",
        ),
        pytest.param(
            report(loosened=[loosened(**BAN)], selected=True),
            ("budget loosened +14.3 %: params 3.5 M -> 4.0 M", "forbidden by loosen: forbid   budgets/mobile.yaml:2"),
            "net: budget loosened +14.3 %: params 3.5 M -> 4.0 M (forbidden)",
            id="a change, with what forbids it",
        ),
        pytest.param(report(), ("nothing measured",), "nothing measured", id="nothing measured"),
    ],
)
def test_the_first_line_says_everything(some: Report, lines: tuple[str, ...], message: str) -> None:
    """The lines below it help; with the name of its subject it stands alone."""
    (finding,) = findings(some)
    assert finding.message == message
    assert [line.startswith(start) for line, start in zip(finding.lines, lines, strict=False)] == [True] * len(lines)


def test_what_has_no_file_of_its_own_says_so() -> None:
    """A base that is not there, and limits without an answer, stand in any budget where a reader needs a place."""
    base = {"file": None, "state": "unreachable", "text": "no base", "fails": True}
    found = findings(report(model(check()), lock=[base, lock(fails=True)], unanswered=1))
    assert [(each.kind, each.path, each.is_placed) for each in found if each.level] == [
        ("lock", FILE, False), ("lock", LOCK_FILE, True), ("unmeasured", FILE, False),
    ]  # fmt: skip
