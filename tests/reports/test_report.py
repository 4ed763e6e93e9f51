"""The record: JSON-able, exact, and the same whichever order it came in."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.budget.budget import Level, Limit, Place
from pytest_modelbudget.budget.verdict import judge
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Share, UnmeasuredOp
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.registry import environment
from pytest_modelbudget.reports.build import (
    Assembly,
    Statement,
    check_report,
    metric_report,
    model_report,
    session_report,
)
from pytest_modelbudget.reports.json_records import from_json, json_text, number_json, to_json
from pytest_modelbudget.reports.record import BrokenFile, MeasuredMetric, Report, Version

FILE = "budgets/a.yaml"


@pytest.mark.parametrize(
    ("value", "record"),
    [
        pytest.param(1814073344, 1814073344, id="int"),
        pytest.param(Fraction(3628146688, 116950592), "31.02", id="ratio"),
        pytest.param(Fraction(1, 3), "0.3333", id="no end"),
        pytest.param(Fraction("12.345678"), "12.345678", id="short is exact"),
        pytest.param(Fraction(2), "2", id="whole ratio"),
    ],
)
def test_counts_are_ints_and_ratios_decimal_strings(value: Fraction, record: object) -> None:
    """No float gets into the record."""
    assert number_json(value) == record


def test_a_measurement_tells_all_it_knows() -> None:
    """Value, unit, completeness, what is unmeasured, parts, the exact pair, and shares."""
    measurement = Measurement(
        Fraction(6, 4),
        "FLOP/B",
        shares=(Share("a", Fraction(1, 2)),),
        unmeasured=(UnmeasuredOp("aten::foo", 3, "head", "no rule"),),
        parts={"read": 4},
        unreduced=(6, 4),
    )
    assert to_json(metric_report(measurement)) == {
        "value": "1.5",
        "unit": "FLOP/B",
        "complete": False,
        "unmeasured": [{"op": "aten::foo", "count": 3, "scope": "head", "why": "no rule"}],
        "parts": {"read": 4},
        "exact": [6, 4],
        "shares": [{"scope": "a", "value": "0.5"}],
    }


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_a_document_is_written_as_json_writes_it(words: dict[str, str]) -> None:
    """The standard library's text, byte for byte; names that are no Unicode, too."""
    report = Report(schema=Version.ONE, environment=words, extra={"of others": [words, None, 1.5], "extra": {"a": 1}})
    assert json_text(report) == json.dumps(to_json(report), indent=1)
    assert from_json(Report, to_json(report)) == report


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([], id="none"),
        pytest.param([{"scope": 'a"b\n%s', "value": 1}, {"scope": "", "value": 0}], id="counts"),
        pytest.param([{"scope": "a", "value": 2**63}, {"scope": "b", "value": -(2**70)}], id="wider than a machine's"),
        pytest.param([{"scope": "a", "value": "1.50"}, {"scope": "b", "value": 2}], id="ratios"),
    ],
)
def test_shares_come_back_as_they_were_written(shares: list[object]) -> None:
    """The same JSON, and the text that json gives of it."""
    document = {"value": 1, "unit": "B", "complete": True, "shares": shares}
    metric = from_json(MeasuredMetric, document)
    assert to_json(metric) == document
    assert json_text(metric) == json.dumps(document, indent=1)


def test_a_stored_report_of_the_first_schema_reads_and_writes_the_same() -> None:
    """Every outcome, growth, changes, locks, a transform and a device: written by the version before this record."""
    text = (Path(__file__).with_name("stored_report.json")).read_text(encoding="utf-8")
    report = from_json(Report, json.loads(text))
    assert json.dumps(to_json(report)) + "\n" == text
    assert {case.outcome for case in report.cases()} == {"over", "unused", "warn", "accepted", "within", "unknown"}
    assert all((report.broken, report.loosened, report.redefined, report.lock))


def statements(models: int) -> list[str]:
    """Two limits of each of so many models, and a broken file."""
    broken = BrokenFile(id="budgets/b.yaml::budget", problems=("budgets/b.yaml:1:1: no",))
    said = [Statement(broken=broken)]
    for number in range(models):
        model_id = f"{FILE}::net{number}"
        measurement = Measurement(number, "param", shares=(Share("fc", number),))
        model = MeasuredModel("torch", "meta", measurements={"params": measurement})
        for line, most in enumerate((0, 5)):
            limit = Limit("params", Place(FILE, 10 * number + line + 1), max=most)
            check = check_report(f"{model_id}::params{line}", judge(limit, measurement), metric_table())
            report = model_report(model_id, Place(FILE, 10 * number), model) if not line else None
            said.append(Statement(check=check, model=report, took={model_id: "0.500"} if report else {}))
    return [str(statement) for statement in said]


@given(st.permutations(statements(3)))
def test_the_order_of_arrival_changes_nothing(said: list[str]) -> None:
    """Workers finish as they like; the report is sorted by file and line."""
    assembly = Assembly()
    for statement in said:
        assembly.add(Statement.parse(statement))
    in_order = Assembly()
    for statement in statements(3):
        in_order.add(Statement.parse(statement))
    first, second = (json.dumps(to_json(each.report(session_report()))) for each in (assembly, in_order))
    assert first == second
    assert assembly.answered == 3 * 2 + 1


def test_an_item_that_runs_again_replaces_its_verdict() -> None:
    """A rerun counts once."""
    assembly = Assembly()
    for statement in (*statements(1), *statements(1)):
        assembly.add(Statement.parse(statement))
    assert len(assembly.report(session_report()).models[0].checks) == 2


def test_a_lost_limit_of_an_unheard_model_is_unknown() -> None:
    """A worker that crashed leaves a model with nothing but its limit."""
    assembly = Assembly()
    assembly.lose(f"{FILE}::net::params@layer4.*", "worker 'gw0' crashed")
    (model,) = assembly.report(session_report()).models
    (check,) = model.checks
    assert (model.file, check.metric, check.outcome.value) == (FILE, "params", "unknown")
    assert check.fails


@pytest.mark.parametrize(
    ("level", "actual", "failing", "warning"),
    [
        pytest.param(Level.ERROR, 11, True, False, id="over"),
        pytest.param(Level.WARN, 11, False, True, id="over, to be warned of"),
        pytest.param(Level.WARN, 10, False, False, id="within"),
    ],
)
def test_level_softens_over(level: Level, actual: int, failing: bool, warning: bool) -> None:
    """A warning is over without failing."""
    limit = Limit("params", Place(FILE, 1), max=10, level=level)
    check = check_report("id", judge(limit, Measurement(actual, "param")), metric_table())
    assert (check.fails, check.warns) == (failing, warning)


def test_the_environment_names_what_numbers_depend_on() -> None:
    """Python and this project always; frameworks where they are installed."""
    assert list(environment())[:2] == ["python", "pytest-modelbudget"]
