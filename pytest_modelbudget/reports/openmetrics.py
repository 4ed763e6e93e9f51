"""``--model-budget-report=openmetrics``: every number as a gauge, for Prometheus and GitLab's metrics report.

    # TYPE model_budget_measured gauge
    # HELP model_budget_measured A number of a model, or of a part or a run of it where a limit asks for one.
    model_budget_measured{file="budgets/a.yaml",model="net",variant="",metric="params",scope="",unit="param"} 3729047
    # EOF

A lower bound is no number: it is a gauge of another name. What is unknown has none, and counts among the checks.
The text format: github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.budget.budget import BETWEEN, Address
from pytest_modelbudget.reports.findings import ERROR, NOTE, WAIVED, WARNING, counts, problems
from pytest_modelbudget.reports.json_records import number_json
from pytest_modelbudget.reports.record import Case, Report, SubjectReport
from pytest_modelbudget.reports.text import printed_line
from pytest_modelbudget.units import Number

Labels = Mapping[str, str]
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\""})  # in the text of a label


class Sample(NamedTuple):
    """One line: the family that it is of, its labels, its value."""

    family: str
    labels: Labels
    value: Number


FAMILIES = {
    "measured": "A number of a model, or of a part or a run of it where a limit asks for one.",
    "measured_at_least": "The same where operations have no rule: the number is this or more.",
    "measured_at_most": "The same where nothing better is proved: the number is this or less.",
    "limit": "The most that a limit lets pass, growth since the baseline included.",
    "minimum": "The least that a limit asks for.",
    "accepted": "How far an exception lets a limit be broken.",
    "check": "1 for each limit, with its outcome as a label.",
    "checks": "How many limits there are of each outcome.",
    "findings": "How many things a session found amiss: an error fails it.",
}


MEASURED = {"=": "measured", "≥": "measured_at_least", "≤": "measured_at_most"}


def render(report: Report) -> str:
    """All families, each with its samples together; the same bytes for the same numbers."""
    samples = list(_samples(report))
    lines = []
    for family, describes in FAMILIES.items():
        name = f"model_budget_{family}"
        lines += [f"# TYPE {name} gauge", f"# HELP {name} {describes}"]
        for each in (each for each in samples if each.family == family):
            texts = {key: printed_line(text).translate(ESCAPED) for key, text in each.labels.items()}
            labels = ",".join(f'{key}="{text}"' for key, text in texts.items())
            lines.append(f"{name}{{{labels}}} {_value(each.value)}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _samples(report: Report) -> Iterator[Sample]:
    """The measured and checked numbers of each subject, then the counts of the whole."""
    for model in report.models:
        for subject in model.subjects():
            yield from _measured(subject)
    for case in report.cases():
        yield from _held(case)
    outcomes = {**dict.fromkeys(WAIVED, 0), **counts(report)}
    yield from (Sample("checks", {"outcome": outcome}, number) for outcome, number in sorted(outcomes.items()))
    levels = Counter(finding.level for finding in problems(report))
    yield from (Sample("findings", {"level": level}, levels[level]) for level in (ERROR, WARNING, NOTE))


def _measured(subject: SubjectReport) -> Iterator[Sample]:
    """All numbers of a model, under its inputs or after a transform."""
    for metric in subject.metrics:
        if number := subject.measured(metric):
            labels = {**_subject(subject.address), "metric": metric, "scope": "", "unit": number.unit}
            yield Sample(MEASURED[number.bounds], labels, number.value)


def _held(case: Case) -> Iterator[Sample]:
    """What a limit asks, and what became of it; its number, too, where that is of a part of the model, or of a run."""
    check = case.check
    _, _, part = case.address.name.partition("@")
    labels = {**_subject(case.address.above), "metric": check.metric, "scope": part}
    amounts = {"limit": check.maximum, "minimum": check.min, "accepted": check.waiver.to if check.waiver else None}
    if part and check.actual is not None:
        amounts["measured" if check.complete else "measured_at_least"] = check.actual
    yield from (
        Sample(family, {**labels, "unit": check.unit}, amount)
        for family, amount in amounts.items()
        if amount is not None
    )
    yield Sample("check", {**labels, "outcome": case.outcome, "level": check.level.value}, 1)


def _subject(address: Address) -> dict[str, str]:
    """A model by its name; variant is what stands below it, of inputs, transforms and devices."""
    name, *below = address.names or ("",)
    return {"file": address.file, "model": name, "variant": BETWEEN.join(below)}


def _value(value: Number) -> int | str:
    """A whole number in all its digits, a ratio as the JSON report spells it."""
    return int(value) if Fraction(value).denominator == 1 else number_json(value)
