"""What is said of the element that is furthest off: of which output it is, and numbers that are seen to differ."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from pytest_modelbudget.equivalence.claim import Bound, Kind, Outcome
from pytest_modelbudget.equivalence.figures import Figures, Worst
from pytest_modelbudget.equivalence.judgement import Decision, Equivalence, OutputRecord
from pytest_modelbudget.reports.claims import equivalence_report, two_numbers
from pytest_modelbudget.reports.messages import evidence_lines


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(1.5, 0.2, "1.5 -> 0.2", id="short"),
        pytest.param(1 / 3, 0.5, "0.3333 -> 0.5", id="four digits"),
        pytest.param(-0.5891921, -0.5891924, "-0.5891921 -> -0.5891924", id="the seventh"),
        pytest.param(1.0, 1 + 2**-23, "1 -> 1.0000001", id="float32's next"),
        pytest.param(1.0, 1 + 2**-52, "1 -> 1.0000000000000002", id="float64's next"),
        pytest.param(123456789.0, 123456788.0, "123456789 -> 123456788", id="whole numbers"),
        pytest.param(0.25, math.nan, "0.25 -> nan", id="NaN"),
        pytest.param(math.inf, -math.inf, "inf -> -inf", id="Inf"),
        pytest.param(0.25, 0.25, "0.25 -> 0.25", id="equal"),
    ],
)
def test_two_numbers_are_told_apart(before: float, after: float, expected: str) -> None:
    """Four digits, or the first that differs."""
    assert " -> ".join(two_numbers(before, after)) == expected


TWICE = Decision(Bound.MAX_ABS, 0.2, Fraction("0.1"), "normal")  # as much as is allowed
THRICE = Decision(Bound.SQNR, 10.0, Fraction(30), "normal")
FIRST = Worst((0,), 1.0, 2.0)
FIGURES = Figures(max_abs=1.0, mse=1.0, sqnr=10.0, cosine=0.0, top1=None, p99_abs=1.0)


def output(
    name: str, algebra: float | None, precision: float | None = None, decision: Decision | None = None, *,
    is_over: bool = True, worst: Worst | None = FIRST,
) -> OutputRecord:  # fmt: skip
    """One output under normal inputs."""
    outcome = Outcome.OVER if is_over else Outcome.WITHIN
    return OutputRecord(name, "normal", "float32", outcome, "", algebra, precision, FIGURES, worst, decision)


@pytest.mark.parametrize(
    ("outputs", "furthest"),
    [
        pytest.param([output("a", 1e-3, 2.0), output("b", 2e-3, 1.0)], "b", id="by step 1"),
        pytest.param([output("a", 1.0004e-3), output("b", 1.0001e-3)], "a", id="behind the digits that are written"),
        pytest.param([output("a", None, 1.0), output("b", None, 2.0)], "b", id="then by step 2"),
        pytest.param([output("a", None, None, THRICE), output("b", None, None, TWICE)], "a", id="then by what decided"),
        pytest.param([output("a", 1e-3), output("b", 2e-3, is_over=False)], "a", id="not one that is within"),
        pytest.param([output("a", 1e-3), output("b", 2e-3, worst=None)], "a", id="not one without an element"),
    ],
)
def test_every_report_names_the_same_output(outputs: list[OutputRecord], furthest: str) -> None:
    """The terminal says it, and the record marks it for all others."""
    equivalence = Equivalence(Outcome.OVER, Kind.LOSSY, "", outputs=tuple(outputs))
    lines = list(evidence_lines(equivalence_report(equivalence)))
    assert f"  worst output element: '{furthest}', normal inputs, most at [0]: 1 -> 2" in lines
    assert [each.name for each in equivalence_report(equivalence).outputs if each.furthest] == [furthest]
