"""``--model-budget-report=codequality``: GitLab's code quality report, a list with one issue a finding.

GitLab shows them in a merge request: those that are new in it, and those that it resolves, told apart by their
fingerprints, which a number that changes leaves alone. Drawn once::

    [{"description": "net: params 3.729 M > 3.510 M ...", "check_name": "params", "severity": "major",
      "fingerprint": "5d41402abc4b2a76b9719d911017c592",
      "location": {"path": "budgets/a.yaml", "lines": {"begin": 8}}}]

The fields: docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

import json

from pytest_modelbudget.reports.findings import ERROR, NOTE, WARNING, problems
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.text import printed_line

SEVERITIES = {ERROR: "major", WARNING: "minor", NOTE: "info"}


def render(report: Report) -> str:
    """The list; empty where all is well."""
    issues = [
        {
            "description": printed_line(finding.message),
            "check_name": printed_line(finding.rule),
            "fingerprint": finding.fingerprint,
            "severity": SEVERITIES[finding.level],
            "location": {"path": finding.path, "lines": {"begin": max(finding.line, 1)}},
        }
        for finding in problems(report)
    ]
    return json.dumps(issues, indent=1, allow_nan=False) + "\n"
