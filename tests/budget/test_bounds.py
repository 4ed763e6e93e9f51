"""Bounds of a claim as they are written: exact numbers from 0, and shares up to 1."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_modelbudget.budget.transform_forms import BOUNDS
from pytest_modelbudget.equivalence.claim import Bound
from pytest_modelbudget.formats.spellings import exact_number
from tests.builders.texts import Problems


@pytest.mark.parametrize(
    ("bound", "written", "expected"),
    [
        (Bound.MAX_ABS, "1e-3", Fraction(1, 1000)),
        (Bound.MAX_ABS, "0", Fraction(0)),
        (Bound.MAX_ABS, "-1", None),
        (Bound.MAX_ABS, "1/3", None),
        (Bound.SQNR, "30.5", Fraction(61, 2)),
        (Bound.MSE, "1e400", None),
        (Bound.MSE, "nan", None),
        (Bound.P99_ABS, "", None),
        (Bound.TOP1, "99%", Fraction(99, 100)),
        (Bound.TOP1, "100%", Fraction(1)),
        (Bound.TOP1, "1.5", None),
        (Bound.TOP1, "101%", None),
        (Bound.COSINE, "1", Fraction(1)),
        (Bound.COSINE, "2", None),
    ],
)
def test_amounts(bound: Bound, written: str, expected: Fraction | None) -> None:
    """What is written is what is held; no output has a cosine or a share of rows above 1."""
    amount, numbers = exact_number(written), BOUNDS[bound][0]
    assert (amount if amount is not None and numbers.fits(amount) else None) == expected


def test_a_bound_that_no_output_keeps_is_refused_in_its_place(problems: Problems) -> None:
    """With what it may be."""
    text = (
        "model_budget: 1\nmodels:\n  net:\n    torch: a:b\n    inputs: float32 1x3\n"
        "    transforms:\n"
        "      t: {apply: 'c:d', equivalence: {kind: custom, mse: 1, top1: 1.5}}\n"
    )
    assert problems(text) == ["7:67: expected top1: a number from 0 to 1, or a share such as 5%, found '1.5'"]
