"""What is said of the element that is furthest off: numbers that are seen to differ."""

from __future__ import annotations

import math

import pytest

from pytest_modelbudget.reports.sentences import told_apart


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(1.5, 0.2, "1.5 -> 0.2", id="short"),
        pytest.param(1 / 3, 0.5, "0.333333 -> 0.5", id="six digits"),
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
    """Six digits, or the first that differs."""
    assert told_apart(before, after) == expected
