"""The JSON report and its schema: generated, shipped, and kept by what sessions write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pytest_modelbudget.cli import main
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.reports.json_records import from_json, to_json
from pytest_modelbudget.reports.record import Check, Report, schema_text
from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

SCHEMA = json.loads(schema_text())
ADDING = """
def pytest_model_budget_report(config, report):
    report["commit"] = {"sha": "abc123", "by": "vision team"}
"""
EVERY_OUTCOME = """  net:
    widths: net.widths
    limits:
      params: 47
      macs: {max: 50 MAC, min: 1 MAC}
      arithmetic_intensity: {min: 0.01 FLOP/B}
      ops: {allow: [linear], max: {linear: 1}}
    scopes: {layer0: {params: 32}}
  odd:
    widths: odd.widths
    limits: {params: 12, macs: 9 MAC, flops: {max: 1 FLOP, allow_unmeasured: ["test::mystery"]}}
"""


def valid_report(project: Project, *options: str) -> Any:
    """The report of a session: its schema accepts it, and it is read and written unchanged."""
    project.run("--model-budget-report=json:out.json", *options)
    document = json.loads((project.path / "out.json").read_text(encoding="utf-8"))
    Draft202012Validator(SCHEMA).validate(document)
    assert json.dumps(to_json(from_json(Report, document))) == json.dumps(document)
    return document


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """``modelbudget schema report``."""
    assert main(["schema", "report"]) == 0
    assert capsys.readouterr().out == schema_text()


def test_the_schema_is_valid_and_describes_its_entries() -> None:
    """JSON Schema 2020-12, with a sentence for each kind of entry."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["Check"]["description"].startswith("One limit, or one claim")
    assert all(entry["description"] for entry in SCHEMA["$defs"].values())


def test_a_report_of_every_outcome_is_valid(project: Project) -> None:
    """Within, over, unknown, a lower bound, a census, a scope, a broken file, a lost model."""
    project.write("budgets/odd.widths", "4 3?")
    project.write("budgets/bad.widths", "raise")
    lost = "  bad: {widths: bad.widths, limits: {params: 1}}\n"
    project.budget(EVERY_OUTCOME + lost)
    project.budget("  x: {widths: net.widths, limits: {parms: 3}}\n", "budgets/b.yaml")
    report = valid_report(project)
    outcomes = {check["outcome"] for model in report["models"] for check in model["checks"]}
    assert outcomes == {"within", "over", "unknown"}
    assert report["broken"][0]["id"] == "budgets/b.yaml::budget"


def test_a_report_of_growth_and_changed_budgets_is_valid(project: Project) -> None:
    """Blame, lock files, a loosened limit and a redefined model."""
    project.budget(BUDGET + "      macs: 100 MAC\n")
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    repository.write("budgets/net.widths", "4 9 2")
    project.budget(BUDGET + "      macs: 200 MAC\n    inputs: float32 2x4\n")
    report = valid_report(project, "--model-budget-base=main")
    blame = report["models"][0]["checks"][0]["blame"]
    assert [(entry["scope"], entry["delta"]) for entry in blame] == [("layer0", 4), ("layer1", 2)]
    assert [len(report[key]) for key in ("lock", "loosened", "redefined")] == [1, 1, 1]


def test_what_a_hook_adds_stands_where_it_was_put(project: Project) -> None:
    """Beside the report's own keys, and valid: the schema names keys, and forbids no others."""
    project.configure(ADDING)
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    assert valid_report(project)["commit"] == {"sha": "abc123", "by": "vision team"}


CHECK = {"id": "a.yaml::net::params", "metric": "params", "outcome": "within"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"outcome": "fine"}, r"Check: Invalid enum value 'fine' - at `\$.outcome`", id="a word"),
        pytest.param({"actual": True}, r"Expected a number, got True - at `\$.actual`", id="no number"),
        pytest.param({"actual": 1.5}, r"Expected a number, got 1.5 - at `\$.actual`", id="a float"),
        pytest.param({"blame": [3]}, r"Expected `BlameEntry`, got `int` - at `\$.blame\[0\]`", id="no entry"),
        pytest.param({"line": "8"}, r"Expected `int \| null`, got `str` - at `\$.line`", id="no line"),
    ],
)
def test_reader_and_schema_refuse_the_same(change: dict[str, Any], says: str) -> None:
    """A value of another type is an error in one sentence, and no valid report."""
    with pytest.raises(InputError, match=says):
        from_json(Check, {**CHECK, **change})
    schema = {**SCHEMA, "$ref": "#/$defs/Check"}
    whole = to_json(from_json(Check, CHECK))
    assert Draft202012Validator(schema).is_valid(whole)
    assert not Draft202012Validator(schema).is_valid({**whole, **change})
