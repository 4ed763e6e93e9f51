"""The judgement on arrays alone: integers, NaN and Inf by kind, complex numbers, and figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind, Outcome
from pytest_modelbudget.equivalence.figures import bands, figures, odd_kinds, relative_error, worst_element
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


@pytest.mark.parametrize(
    ("size", "own", "wrong", "expected"),
    [
        pytest.param(256, 0, 0, "within", id="none"),
        pytest.param(256, 0, 1, "over", id="one where the original has none"),
        pytest.param(256, 1, 6, "within", id="as many as chance gives beside one"),
        pytest.param(256, 1, 7, "over", id="more than chance gives beside one"),
        pytest.param(2**18, 0, 6, "within", id="one of 2^18 is near a step"),
        pytest.param(2**18, 0, 7, "over", id="more of them"),
    ],
)
def test_integers_turned_by_rounding(size: int, own: int, wrong: int, expected: str) -> None:
    """With a = own + 64 * 2^-24 * size, 2 * a + 4 * sqrt(a) of them may be others in float32: 6 where a is 1."""
    reference = np.zeros(size, int)
    assert outcome(reference, reference, np.arange(size) < own, np.arange(size) < wrong, Claim()) == expected


@pytest.mark.parametrize(
    ("by", "wrong", "expected"),
    [
        pytest.param(1, 6, "within", id="neighbours of large integers"),
        pytest.param(-1, 7, "over", id="more of them"),
        pytest.param(2, 1, "over", id="none by two steps"),
    ],
)
def test_large_integers_turned_by_rounding(by: int, wrong: int, expected: str) -> None:
    """1024 integers of 256: a = 64 * 2^-24 * 256 * 1024 = 1 for a step of one, and 1/256 for others: 0.26 of them."""
    reference = np.full(1024, 256)
    turned = reference + by * (np.arange(1024) < wrong)
    assert outcome(reference, reference, reference, turned, Claim()) == expected


@pytest.mark.parametrize(
    ("size", "own", "wrong", "by", "expected"),
    [
        pytest.param(512, 512, 512, 2, "within", id="each twice as far off"),
        pytest.param(512, 512, 512, 3, "over", id="each three times as far off"),
        pytest.param(512, 512, 1, 10**6, "over", id="one by a million"),
        pytest.param(512, 64, 64, 3, "within", id="an eighth of them, by three of 2 * 1.5"),
        pytest.param(512, 64, 64, 4, "over", id="an eighth of them, further off"),
        pytest.param(512, 63, 63, 100, "within", id="fewer: their number decides"),
        pytest.param(8, 8, 8, 4, "within", id="eight, by four of 2 * 2.41"),
        pytest.param(8, 8, 8, 5, "over", id="eight, further off"),
        pytest.param(7, 7, 7, 100, "within", id="so few that their size is chance"),
    ],
)
def test_many_turned_integers_are_no_further_off(size: int, own: int, wrong: int, by: int, expected: str) -> None:
    """(2 * rmse + 8 * 2^-24 * 1000) * (1 + 4 / sqrt(own)), where the original is off by one."""
    reference = np.full(size, 1000)
    original, transformed = reference + (np.arange(size) < own), reference + by * (np.arange(size) < wrong)
    assert outcome(reference, reference, original, transformed, Claim()) == expected


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


@pytest.mark.parametrize("fill", [-1e4, -1e9, -3.4028234663852886e38])
def test_what_a_mask_writes_hides_nothing(fill: float) -> None:
    """Nine logits of which one is off by a thousandth, beside a banned one: each order of size is held by itself."""
    logits = [0.5, -0.25, 0.75, 1.0, -0.5, 0.125, -1.0, 0.25, 0.375]
    right, wrong = [fill, *logits], [fill, 0.5005, *logits[1:]]
    assert outcome(right, right, right, right, Claim()) is Outcome.WITHIN
    assert outcome(right, wrong, right, right, Claim()) is Outcome.OVER
    assert outcome(right, right, right, wrong, Claim()) is Outcome.OVER
    assert outcome(right, [fill * 1.001, *logits], right, right, Claim()) is Outcome.OVER
    lossy = Claim(Kind.LOSSY, {Bound.SQNR: Fraction(65)})
    # The squares of the nine add up to 3.296875: 10·log10(3.296875 / 0.0005²) = 71.2 dB.
    assert outcome(right, None, right, wrong, lossy) is Outcome.WITHIN
    assert outcome(right, None, right, [fill, 0.5015, *logits[1:]], lossy) is Outcome.OVER  # 9.5 dB less


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_sizes_beyond_the_range_of_squares_are_compared(size: float) -> None:
    """A tenth of the size off is over, though its square is no number of float64."""
    right, wrong = np.array([1.0, 2.0]) * size, np.array([1.0, 2.1]) * size
    assert relative_error(right, right.copy()) == 0.0
    assert relative_error(right, wrong) == pytest.approx(0.1 / 5**0.5)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        pytest.param([-INF, 3.0, 4.0], 0.0, id="the same"),
        pytest.param([-INF, 3.0, 4.5], 0.1, id="a number beside it: 0.5 of 5"),
        pytest.param([INF, 3.0, 4.0], INF, id="of another sign"),
        pytest.param([-1e9, 3.0, 4.0], INF, id="a number in its place"),
        pytest.param([-INF, NAN, 4.0], INF, id="NaN"),
    ],
)
def test_an_infinite_mask_differs_by_nothing_where_both_have_it(wrong: list[float], expected: float) -> None:
    """What a causal mask is made of, with which a network counts as its values are; and no warning is raised."""
    assert relative_error(np.array([-INF, 3.0, 4.0]), np.array(wrong)) == pytest.approx(expected)


@pytest.mark.parametrize("size", [0.5, 9.0, 40.0, 600.0])
@pytest.mark.parametrize("is_added", [True, False])
def test_a_mask_hides_no_larger_scores(size: float, is_added: bool) -> None:
    """Sixteen scores, eight of them masked by -1e4, the others off by a tenth of their size: 20 dB."""
    scores = size * np.array([1.0, -1.0, 0.5, -0.5, 0.75, -0.75, 0.25, -0.25] * 2)
    masked = np.arange(16) >= 8
    filled = scores * is_added - 1e4
    right, wrong = (np.where(masked, filled, factor * scores) for factor in (1.0, 1.1))
    assert figures(right, wrong).sqnr == pytest.approx(20.0)
    for bound, expected in ((19, Outcome.WITHIN), (21, Outcome.OVER)):
        claim = Claim(Kind.LOSSY, {Bound.SQNR: Fraction(bound)})
        assert outcome(right, None, right, wrong, claim) is expected


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1e4, 600.0, *[1.0] * 20], id="one large value"),
        pytest.param([*(1e4 + 400.0 * np.arange(8)), *[20.0] * 20], id="eight that are wider than what is below"),
        pytest.param([*[1e4 + 5] * 3, *[1500.0] * 20], id="less than eight times as large"),
        pytest.param([*[8e3] * 9, *[20.0] * 20], id="below 8,192"),
    ],
)
def test_what_no_mask_has_made_is_one_band(values: list[float]) -> None:
    """Large values are held with the others where nothing says that they are a mask's."""
    assert bands(np.array(values)) == (...,)


def test_bands_need_a_gap_and_enough_below_it() -> None:
    """A power of two in each step has no gap; seven elements below one may be near zero by chance; ones are no fill."""
    steps = 2.0 ** np.arange(-10, 40)
    assert bands(steps) == (...,)
    assert bands(np.array([1e9, *[1.0] * 7])) == (...,)
    assert bands(np.array([1.0, *[1e-9] * 20])) == (...,)
    assert bands(np.array([1e9, 1.001e9, *[1.0] * 7])) == (...,)
    for masked in ([1e9, 1e9, 1.0], [1e9, 1e9 - 5, 1.0]):  # below several of one value one element is enough
        below, above = bands(np.array(masked))
        assert (below.tolist(), above.tolist()) == ([False, False, True], [True, True, False])
    below, above = bands(np.array([0.0, 1e9, *[1.0] * 8]))
    assert above.tolist() == [False, True, *[False] * 8]
    assert below.tolist() == [True, False, *[True] * 8]


@pytest.mark.parametrize(
    ("below", "error", "expected"),
    [
        pytest.param(1, 2**-17, "within", id="one"),
        pytest.param(7, 2**-17, "within", id="a few"),
        pytest.param(7, 2**-16, "over", id="a few that are further off"),
        pytest.param(8, 2**-21, "within", id="enough"),
        pytest.param(8, 2**-20, "over", id="enough that are further off"),
    ],
)
def test_few_numbers_below_a_mask_may_be_further_off(below: int, error: float, expected: str) -> None:
    """8 * 2^-24 of their size, and 16 times that of fewer than eight, which the original may meet by chance."""
    reference = np.array([1e9, 1e9, *[1.0] * below, *[0.0] * 20])
    turned = reference + error * (reference == 1)
    assert outcome(reference, reference, reference, turned, Claim()) == expected
