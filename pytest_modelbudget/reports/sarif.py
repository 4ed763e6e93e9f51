"""``--model-budget-report=sarif``: SARIF 2.1.0, one rule a metric and one result a limit that is not within.

Written for code scanning, which shows a result on its line and knows it again by its fingerprint: the limit's node id,
whichever line it stands on and whatever was measured. Drawn once, with one limit that is over::

    {"version": "2.1.0", "runs": [{
        "tool": {"driver": {"name": "pytest-modelbudget", "rules": [{"id": "params", ...}]}},
        "results": [{"ruleId": "params", "level": "error", "message": {"text": "net: params 3.729 M > 3.510 M ..."},
                     "locations": [{"physicalLocation": {"artifactLocation": {"uri": "budgets/a.yaml"},
                                                         "region": {"startLine": 8}}}],
                     "fingerprints": {"modelBudget/v1": "budgets/a.yaml::net::params"}}]}]}

The standard: docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from typing import Any
from urllib.parse import quote

from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports.findings import (
    BROKEN,
    LOOSENED,
    NOTE,
    REDEFINED,
    UNMEASURED,
    Finding,
    problems,
    unmeasured,
)
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.record import LOCK, Case, Report
from pytest_modelbudget.reports.text import printable, printed_line

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
TOOL = "pytest-modelbudget"
INFORMATION = f"https://pypi.org/project/{TOOL}/"
ROOT = "%SRCROOT%"  # the name by which readers know the top of a checkout
FIGURES = ("metric", "unit", "actual", "limit", "min", "least", "most", "baseline", "allowed", "outcome", "level")
RULES = {metric.key: metric.definition for metric in METRICS} | {
    "equivalence": "whether a transformed model's outputs are still the same",
    BROKEN: "a budget that cannot be read, so that nothing in it is checked",
    LOOSENED: "a limit that a change makes easier to keep",
    REDEFINED: "a model whose limits a change holds on something else",
    LOCK: "a lock file that is not what was measured",
    UNMEASURED: "limits that were not measured",
}


def render(report: Report) -> str:
    """The log with its one run."""
    found = list(problems(report))
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report, found)]}
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _run(report: Report, found: list[Finding]) -> dict[str, Any]:
    """The run; one in which limits stayed without an answer has not been carried out successfully."""
    rules = [
        {"id": (name := printed_line(rule)), "shortDescription": {"text": RULES.get(rule) or f"a limit on {name}"}}
        for rule in dict.fromkeys(finding.rule for finding in found)
    ]
    driver: dict[str, Any] = {"name": TOOL, "informationUri": INFORMATION, "rules": rules}
    if version := report.environment.get(TOOL):
        driver["version"] = printed_line(version)
    return {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not unmeasured(report)}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding) for finding in found],
    }


def _result(finding: Finding) -> dict[str, Any]:
    identity = printed_line(finding.id)
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(finding.path), "uriBaseId": ROOT},
            "region": {"startLine": max(finding.line, 1)},
        },
        "logicalLocations": [{"fullyQualifiedName": identity}],
    }
    return {
        "ruleId": printed_line(finding.rule),
        "level": finding.level,
        "message": {"text": printable("\n".join([finding.message, *finding.lines[1:]]))},
        "locations": [location],
        "fingerprints": {"modelBudget/v1": identity},
        "partialFingerprints": {"primaryLocationLineHash": f"{finding.fingerprint[:16]}:1"},  # what GitHub reads
        **_suppressions(finding),
        **_figures(finding),
    }


def _suppressions(finding: Finding) -> dict[str, Any]:
    """The exception that keeps a broken limit from failing, with its reason; of anything else nothing."""
    waiver = finding.source.check.waiver if isinstance(finding.source, Case) else None
    if waiver is None or finding.level != NOTE:
        return {}
    words = {"kind": "inSource", "status": "accepted", "justification": printed_line(waiver.text)}
    return {"suppressions": [words]}


def _figures(finding: Finding) -> dict[str, Any]:
    """The figures of a limit as the JSON report spells them, those that are known."""
    if not isinstance(finding.source, Case):
        return {}
    check = to_json(finding.source.check)
    known = {key: check[key] for key in FIGURES if check.get(key) is not None}
    return {
        "properties": {key: printed_line(value) if isinstance(value, str) else value for key, value in known.items()}
    }
