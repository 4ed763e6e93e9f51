"""The judgement on arrays alone: integers, NaN and Inf by kind, complex numbers, and figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind, Outcome
from pytest_modelbudget.equivalence.divergence import worst_element
from pytest_modelbudget.equivalence.figures import figures, odd_kinds
from pytest_modelbudget.equivalence.judgement import OutputPair, algebra_error, judged

NAN, INF = np.nan, np.inf


def outcome(reference: Any, algebra: Any, original: Any, transformed: Any, claim: Claim) -> Outcome:
    """What is said of one output of a model that stores float32."""
    values = (None if each is None else np.array(each) for each in (
        reference, algebra, original, transformed
    ))  # fmt: skip
    pair = OutputPair("0", "normal", "float32", *values)
    return judged(claim, [pair], weights="as loaded").outcome


@pytest.mark.parametrize(
    ("kind", "runs", "expected"),
    [
        pytest.param(Kind.EXACT_ALGEBRA, ([3], [3], [3], [3]), "within", id="equal"),
        pytest.param(Kind.EXACT_ALGEBRA, ([3], [3], [4], [2]), "within", id="float64 decides"),
        pytest.param(Kind.EXACT_ALGEBRA, ([3], [4], [3], [3]), "over", id="float64 differs"),
        pytest.param(Kind.LOSSY, ([3], None, [4], [4]), "within", id="both rounded alike"),
        pytest.param(Kind.LOSSY, ([3], None, [3], [4]), "over", id="only one is right"),
    ],
)
def test_integers(kind: Kind, runs: tuple[Any, ...], expected: str) -> None:
    """In exact algebra float64 runs are compared, in a lossy claim the runs as they are."""
    bounds = {Bound.SQNR: Fraction(10)} if kind is Kind.LOSSY else {}
    assert outcome(*runs, Claim(kind, bounds)) == expected


@pytest.mark.parametrize("found", [-INF, NAN, 7.0])
def test_inf_is_inf_of_one_sign(found: float) -> None:
    """With same_non_finite another kind of no number, or a number, is another output."""
    claim = Claim(same_non_finite=True)
    own = [INF, 1.0]
    assert outcome(own, own, own, own, claim) is Outcome.WITHIN
    assert outcome(own, [found, 1.0], own, own, claim) is Outcome.OVER
    assert outcome(own, own, own, [found, 1.0], claim) is Outcome.OVER
    assert outcome(own, own, own, own, Claim()) is Outcome.UNKNOWN


def test_kinds_of_no_numbers() -> None:
    """Real and imaginary parts are told apart."""
    assert odd_kinds(np.array([0.0, NAN, INF, -INF])).tolist() == [0, 1, 2, 3]
    assert odd_kinds(np.array([complex(INF, 1), complex(1, NAN)])).tolist() == [[2, 0], [0, 1]]


@pytest.mark.parametrize(
    ("original", "transformed", "expected"),
    [
        pytest.param([1.0, 2.0], [1.0, 2.0], None, id="equal"),
        pytest.param([], [], None, id="nothing"),
        pytest.param([NAN, INF, -INF], [NAN, INF, -INF], None, id="no numbers, equal"),
        pytest.param([NAN, 2.0, 5.0], [NAN, 3.0, 5.0], ((1,), 2.0, 3.0), id="beside equal NaN"),
        pytest.param([1.0, 2.0, 5.0], [9.0, NAN, 5.0], ((1,), 2.0, NAN), id="NaN"),
        pytest.param([1.0, 2.0, NAN], [9.0, 2.0, 0.0], ((2,), NAN, 0.0), id="NaN of the first"),
        pytest.param([1.0, INF], [1e300, -INF], ((1,), INF, -INF), id="other sign"),
        pytest.param([1.0, INF], [1e300, NAN], ((1,), INF, NAN), id="other kind"),
        pytest.param([1 + 2j, 3j], [1 + 2j, 7j], ((1, 1), 3.0, 7.0), id="imaginary part"),
        pytest.param([True, False], [True, True], ((1,), 0.0, 1.0), id="flags"),
        pytest.param(2.0, NAN, ((), 2.0, NAN), id="a scalar"),
    ],
)
def test_the_worst_element(original: Any, transformed: Any, expected: Any) -> None:
    """The furthest off, and before any distance a NaN or Inf that only one of the two has."""
    worst = worst_element(np.array(original), np.array(transformed))
    found = None if worst is None else (worst.index, worst.original, worst.transformed)
    assert repr(found) == repr(expected)  # NaN is not equal to itself


def test_a_nan_is_the_worst_element_of_its_output() -> None:
    """The record names the element that is no number, not one that only moved."""
    reference, found = np.array([1.0, 2.0, 5.0]), np.array([9.0, NAN, 5.0])
    pair = OutputPair("0", "normal", "float32", reference, found, reference, found)
    worst = judged(Claim(), [pair], weights="as loaded").outputs[0].worst
    assert worst is not None
    assert (worst.index, worst.original, repr(worst.transformed)) == ((1,), 2.0, "nan")


def test_step_1_sees_complex_numbers() -> None:
    """|6 + 5i - (1 + 5i)| / |1 + 5i| = 5 / √26."""
    pair = OutputPair("0", "normal", "", np.array([1 + 5j]), np.array([6 + 5j]), None, None)
    assert algebra_error(pair) == pytest.approx(5 / 26**0.5)


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        pytest.param([[1.0, 5.0, 3.0], [0.0, 1.0, 2.0]], [[4.0, 5.0, 3.0], [9.0, 1.0, 2.0]], 0.5,
                     id="one of two rows"),
        pytest.param([1.0, 5.0, 3.0], [4.0, 5.0, -3.0], None, id="one number for each input"),
        pytest.param([[1.0], [5.0]], [[4.0], [5.0]], None, id="rows of one number"),
    ],
)  # fmt: skip
def test_top_1_is_of_rows(reference: Any, found: Any, expected: float | None) -> None:
    """The share of rows whose largest element is the same one; inputs are no row."""
    assert figures(np.array(reference), np.array(found)).top1 == expected
