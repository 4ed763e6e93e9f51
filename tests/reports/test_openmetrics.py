"""The OpenMetrics file, read by the parser of Prometheus' own client."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_modelbudget.reports.openmetrics import render
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.text import printed_line
from tests.builders.records import FILE, accepted, broken, check, model, over, report, transformed

Sample = tuple[str, dict[str, str], float]
NET = {"file": FILE, "model": "net", "variant": ""}


def samples(record: Report, *names: str) -> list[Sample]:
    """What a scraper takes in of these families, all of them gauges."""
    families = list(text_string_to_metric_families(render(record)))
    assert {family.type for family in families} == {"gauge"}
    return [
        (sample.name.removeprefix("model_budget_"), dict(sample.labels), sample.value)
        for family in families
        for sample in family.samples
        if family.name.removeprefix("model_budget_") in names
    ]


def test_each_number_is_a_gauge_with_its_labels() -> None:
    """A model's, a variant's and a transform's numbers, each under its own name."""
    macs = {"macs": {"value": 48, "unit": "MAC", "complete": True}}
    tiled = {"id": f"{FILE}::net::batch8::tiled", "name": "tiled", "metrics": macs, "checks": []}
    record = report(model(metrics=macs), model(of="net::batch8", metrics=macs, transforms=[tiled]))
    labels = {"file": FILE, "model": "net", "metric": "macs", "scope": "", "unit": "MAC"}
    assert samples(record, "measured") == [
        ("measured", {**labels, "variant": ""}, 48),
        ("measured", {**labels, "variant": "batch8"}, 48),
        ("measured", {**labels, "variant": "batch8::tiled"}, 48),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(2**53 + 1, "9007199254740993", id="no float holds it"),
        pytest.param(10**30, "1" + 30 * "0", id="more than 64 bits"),
        pytest.param("1.50", "1.50", id="ratio"),
        pytest.param(0, "0", id="zero"),
    ],
)
def test_a_number_has_all_its_digits(value: int | str, text: str) -> None:
    """A whole number of any size, and a ratio as a decimal."""
    metrics = {"params": {"value": value, "unit": "x", "complete": True}}
    (line,) = (line for line in render(report(model(metrics=metrics))).splitlines() if 'unit="x"' in line)
    assert line.rpartition(" ")[2] == text
    assert samples(report(model(metrics=metrics)), "measured")[0][2] == Fraction(text)


def test_a_lower_bound_is_a_gauge_of_another_name() -> None:
    """A number means one thing, and what could not be worked out at all has none."""
    unmeasured = [{"op": "aten::foo", "count": 1, "scope": "head", "why": "no rule"}]
    least = {"value": 40, "unit": "MAC", "complete": False, "unmeasured": unmeasured}
    record = report(model(check("macs", outcome="unknown"), metrics={"macs": least, "flops": {"error": "it raised"}}))
    assert samples(record, "measured") == []
    assert [(name, labels["metric"], value) for name, labels, value in samples(record, "measured_at_least")] == [
        ("measured_at_least", "macs", 40)
    ]
    ((_, labels, value),) = samples(record, "check")
    assert (labels["outcome"], value) == ("unknown", 1)


def test_an_upper_bound_is_a_gauge_of_its_own() -> None:
    """A best order that is not proved: none needs more, and nobody knows whether one needs less."""
    most = {"value": 40, "unit": "B", "complete": False, "at_least": 30}
    record = report(model(metrics={"peak_activation_best": most}))
    assert samples(record, "measured_at_least") == []
    ((_, labels, value),) = samples(record, "measured_at_most")
    assert (labels["metric"], value) == ("peak_activation_best", 40)


def test_a_limit_stands_beside_its_number() -> None:
    """The most that it lets pass is the smaller of its maximum and what growth allows: 45 of 50 and 45."""
    grown = check(baseline=40, allowed=45, grow="0.125", min=30, complete=True)
    scoped = over("params@head", scope="head", complete=True, level="warn")
    record = report(model(grown, scoped))
    params = {**NET, "metric": "params", "scope": "", "unit": "param"}
    head = {**params, "scope": "head"}
    assert samples(record, "limit", "minimum") == [("limit", params, 45), ("limit", head, 100), ("minimum", params, 30)]
    assert samples(record, "measured") == [("measured", params, 40), ("measured", head, 125)]


def test_figures_of_runs_are_told_apart_by_what_they_are_of() -> None:
    """Two groups of layers and two devices: Prometheus refuses a file in which two lines have the same labels."""
    names = ("zeros@body", "zeros@head", "latency@cpu", "latency@cuda")
    figures = [check(name, metric=name.partition("@")[0], actual=n, complete=True) for n, name in enumerate(names)]
    record = report(model(*figures, metrics={}))
    for family in ("measured", "limit", "check"):
        told = [labels for _, labels, _ in samples(record, family)]
        assert ["@".join((labels["metric"], labels["scope"])) for labels in told] == list(names)
    assert {labels["scope"]: value for _, labels, value in samples(record, "measured")} == {
        "body": 0, "head": 1, "cpu": 2, "cuda": 3,
    }  # fmt: skip


def test_an_exception_has_its_own_gauge() -> None:
    """How far it goes beyond the limit, and that it was needed; outcomes that are not there count 0."""
    record = report(model(accepted()))
    assert [(name, value) for name, _, value in samples(record, "limit", "accepted")] == [
        ("limit", 100),
        ("accepted", 130),
    ]
    counted = {labels["outcome"]: value for _, labels, value in samples(record, "checks")}
    assert counted == {"accepted": 1, "over": 0, "unknown": 0, "unused": 0, "warn": 0, "within": 0}
    assert {labels["level"]: value for _, labels, value in samples(record, "findings")} == {
        "error": 0, "warning": 0, "note": 1,
    }  # fmt: skip


def test_the_whole_is_as_red_as_the_session() -> None:
    """An alert on findings of level error is one on a red gate: broken files, claims and lost limits among them."""
    record = report(transformed(), model(over(level="warn"), of="x"), broken=[broken("b:1:1: no")], unanswered=1)
    counted = {labels["outcome"]: value for _, labels, value in samples(record, "checks")}
    assert {outcome: counted[outcome] for outcome in ("over", "warn", "within", "unknown")} == {
        "over": 2, "warn": 1, "within": 1, "unknown": 0,
    }  # fmt: skip
    levels = {labels["level"]: value for _, labels, value in samples(record, "findings")}
    assert levels == {"error": 2 + 1 + 1, "warning": 1, "note": 0}
    assert {labels["level"]: value for _, labels, value in samples(report(), "findings")}["error"] == 1
    assert {value for *_, value in samples(report(model(check())), "findings")} == {0}


@given(st.text(st.characters(exclude_characters=":"), min_size=1))
def test_labels_come_back_as_any_report_shows_them(name: str) -> None:
    """Quotes, backslashes and line breaks of a name are the label's, and end no line."""
    record = report(model(check(), of=name))
    assert samples(record, "check")[0][1]["model"] == printed_line(name)


def test_the_bytes_are_the_same_for_the_same_numbers() -> None:
    """Times are no numbers of a model; the last line says that the file is whole."""
    text = render(report(model(check()), timings={f"{FILE}::net": "9.000"}))
    assert text == render(report(model(check())))
    assert text.endswith("\n# EOF\n")
