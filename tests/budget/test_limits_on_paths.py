"""Limits on numbers that data make larger or smaller by other branches, on paths written by hand."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest

from pytest_modelbudget.budget.budget import Acceptance, Limit, Place
from pytest_modelbudget.budget.verdict import judge, with_exception
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.gate.measuring import lockable
from pytest_modelbudget.metrics.measurement import Measurement, OtherPath, Share, UnmeasuredOp, part_of, surpluses

WITHIN, OVER, UNKNOWN = Outcome.WITHIN, Outcome.OVER, Outcome.UNKNOWN
PLACE = Place("b.yaml", 1)
FOO = UnmeasuredOp("onnx::Foo", 1, "small.foo", "no rule")
LESS = OtherPath("onnx::If", "the else_branch of If 'y'", 5 + 8, (Share("big", -16), Share("small.a", 8)))
PART = OtherPath("onnx::If", "the else_branch of If 'y'", 5 + 8, LESS.differences, (FOO,))
MANY = UnmeasuredOp("onnx::If", 1, "big", "which path is taken is not known")
OPEN = OtherPath("onnx::If", "another path", 5 + 16, unmeasured=(MANY,), is_known=False)


def number(*others: OtherPath, unmeasured: tuple[UnmeasuredOp, ...] = ()) -> Measurement:
    """5 outside, and 16 in the branch that is counted."""
    return Measurement(5 + 16, "MAC", (Share("stem", 5), Share("big", 16)), unmeasured, others=others)


@pytest.mark.parametrize(
    ("other", "glob", "most", "outcome"),
    [
        pytest.param(LESS, "small", 8, WITHIN, id="all of it is elsewhere, and exactly at the limit"),
        pytest.param(LESS, "small.*", 8 - 1, OVER, id="one less"),
        pytest.param((LESS, OPEN), "small", 100, WITHIN, id="of a path that is not known elsewhere"),
        pytest.param((LESS, OPEN), "[bs]*", 100, UNKNOWN, id="of a path that is not known there"),
        pytest.param((LESS, OPEN), "small", 7, OVER, id="more, whatever another path has"),
        pytest.param(LESS, "big", 16, WITHIN, id="the counted one has more there"),
        pytest.param(LESS, "stem", 5, WITHIN, id="outside"),
        pytest.param(LESS, "[bs]*", 5 + 16, WITHIN, id="parts are added up"),
        pytest.param(PART, "small", 100, UNKNOWN, id="unmeasured there"),
        pytest.param(PART, "small", 8 - 1, OVER, id="unmeasured there, and too much already"),
        pytest.param(PART, "big", 16, WITHIN, id="unmeasured elsewhere"),
        pytest.param(OPEN, "big", 16, UNKNOWN, id="not known there"),
        pytest.param(OPEN, "stem", 5, WITHIN, id="not known elsewhere"),
    ],
)
def test_a_maximum_of_a_part(other: OtherPath | tuple[OtherPath, ...], glob: str, most: int, outcome: Outcome) -> None:
    """Held against the most that any path has there, where all are measured; macs of the whole are the most."""
    others = (other,) if isinstance(other, OtherPath) else other
    verdict = judge(Limit("macs", PLACE, max=most, scope=glob), number(*others), scopes=("small.a",))
    assert verdict.outcome is outcome


def test_a_lower_bound_of_a_part_proves_a_maximum_broken() -> None:
    """16 are counted there."""
    dearer = OtherPath("onnx::If", "the else_branch of If 'y'", 5 + 20, (Share("big", 4),))
    assert judge(Limit("macs", PLACE, max=15, scope="big"), number(dearer)).outcome is OVER


TWO = OtherPath("onnx::If", "the then_branch of If 'y'", 5 + 9, (Share("big", -16), Share("small.a", 9)))


@pytest.mark.parametrize(
    ("most", "outcome", "reason"),
    [
        (1, OVER, "macs of small 9 MAC > 1 MAC (+800.0%) where data take the then_branch of If 'y'"),
        (10, WITHIN, "macs of small 9 MAC < 10 MAC (10.0% left) where data take the then_branch of If 'y'"),
    ],
)
def test_the_line_says_where_there_is_most(most: int, outcome: Outcome, reason: str) -> None:
    """Of two branches the one with more; what is counted stays a lower bound."""
    verdict = judge(Limit("macs", PLACE, max=most, scope="small"), number(LESS, TWO))
    assert (verdict.outcome, verdict.reason, verdict.marked) == (outcome, reason, False)
    assert verdict.measurement
    assert (verdict.measurement.value, verdict.measurement.complete, verdict.measurement.most) == (0, False, 9)


def test_an_accepted_lower_bound_is_judged_as_counted() -> None:
    """As the budget asks, marked as what it is."""
    limit = Limit("macs", PLACE, max=1, scope="small", allow_unmeasured=("onnx::If",))
    verdict = judge(limit, number(LESS))
    assert (verdict.outcome, verdict.marked) == (WITHIN, True)


def test_what_is_not_known_on_a_path_is_said() -> None:
    """With the way out."""
    assert judge(Limit("macs", PLACE, max=100, scope="big"), number(LESS, OPEN)).reason == (
        "macs of big 16 MAC or more, max 100 MAC   unmeasured: 1 onnx::If (how much another path has is not known); "
        "allow_unmeasured: [onnx::If] accepts a lower bound"
    )


def test_a_part_that_every_scope_makes_up_says_each_fork_once() -> None:
    """A glob for all, the model itself too."""
    whole = Measurement(5, "B", (Share("", 5),), others=(LESS,))
    whole = Measurement(5, "B", (Share("", 5),), surpluses(whole), others=(LESS,))
    assert part_of(whole, "*").unmeasured == ()  # 5 + 8 - 16 there
    more = OtherPath("onnx::If", "the else_branch of If 'y'", 5 + 8, (Share("small.a", 8),))
    whole = Measurement(5, "B", (Share("", 5),), others=(more,))
    whole = Measurement(5, "B", (Share("", 5),), surpluses(whole), others=(more,))
    assert [op.op for op in part_of(whole, "*").unmeasured] == ["onnx::If"]


@pytest.mark.parametrize(
    ("others", "least", "glob", "outcome"),
    [
        pytest.param((LESS,), 5 + 8, None, WITHIN, id="exactly the least"),
        pytest.param((LESS,), 5 + 8 + 1, None, OVER, id="one more than the least"),
        pytest.param((LESS,), 5 + 16 + 1, None, OVER, id="more than any"),
        pytest.param((LESS,), 1, "big", OVER, id="nothing there on the other path"),
        pytest.param((LESS,), 5, "stem", WITHIN, id="outside"),
        pytest.param((LESS,), 1, "small", OVER, id="nothing there on the counted path"),
        pytest.param((PART,), 5 + 8, None, WITHIN, id="a lower bound proves a minimum kept"),
        pytest.param((PART,), 5 + 8 + 1, None, UNKNOWN, id="and none broken"),
        pytest.param((PART, LESS), 5 + 8 + 1, None, OVER, id="which another path breaks"),
        pytest.param((OPEN,), 1, None, UNKNOWN, id="not known"),
        pytest.param((OPEN,), 1, "big", UNKNOWN, id="not known there"),
        pytest.param((OPEN,), 5, "stem", WITHIN, id="not known elsewhere"),
        pytest.param((OPEN, LESS), 5 + 8 + 1, None, OVER, id="of one not known, another breaks it"),
    ],
)
def test_a_minimum(others: tuple[OtherPath, ...], least: int, glob: str | None, outcome: Outcome) -> None:
    """Held against the least of all paths; where that is not known, unknown. Macs of the whole are the most."""
    assert judge(Limit("macs", PLACE, min=least, scope=glob), number(*others)).outcome is outcome


def test_the_line_says_where_a_minimum_is_broken() -> None:
    """By how much, and in which branch; both ends are held."""
    verdict = judge(Limit("macs", PLACE, min=14, max=21), number(LESS))
    words = "macs 13 MAC < 14 MAC (-7.1%) where data take the else_branch of If 'y'"
    assert (verdict.outcome, verdict.reason) == (OVER, words)
    assert verdict.measurement
    assert (verdict.measurement.value, verdict.measurement.least) == (5 + 16, 5 + 8)
    assert judge(Limit("macs", PLACE, min=13, max=20), number(LESS)).reason == ("macs 21 MAC > 20 MAC (+5.0%)")


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        pytest.param(LESS, OVER, id="what is known to be less is accepted by nothing"),
        pytest.param(PART, OVER, id="an accepted operation is judged as measured"),
        pytest.param(OPEN, UNKNOWN, id="an accepted lower bound says nothing of the least"),
    ],
)
def test_a_minimum_over_what_is_accepted(other: OtherPath, outcome: Outcome) -> None:
    """allow_unmeasured has the fork and the operation."""
    limit = Limit("macs", PLACE, min=14, allow_unmeasured=("onnx::If", "onnx::Foo"))
    assert judge(limit, number(other)).outcome is outcome


def test_a_minimum_below_what_both_paths_lack_is_unknown() -> None:
    """An operation outside of the branches may make up for it."""
    verdict = judge(Limit("macs", PLACE, min=14), number(LESS, unmeasured=(FOO,)))
    assert (verdict.outcome, "1 onnx::Foo in small.foo (no rule)" in verdict.reason) == (UNKNOWN, True)


def test_a_minimum_of_a_ratio() -> None:
    """Held against the least of both paths, which are measured."""
    lower = OtherPath("onnx::If", "the else_branch of If 'y'", Fraction(1, 3))
    ratio = Measurement(Fraction(1, 2), "FLOP/B", unreduced=(2, 4), others=(lower,))
    ratio = Measurement(Fraction(1, 2), "FLOP/B", unmeasured=surpluses(ratio), unreduced=(2, 4), others=(lower,))
    limits = [Limit("arithmetic_intensity", PLACE, min=Fraction(*each)) for each in ((1, 3), (2, 5), (3, 5))]
    assert [judge(limit, ratio).outcome for limit in limits] == [WITHIN, OVER, OVER]
    ends = [Limit("arithmetic_intensity", PLACE, min=Fraction(1, 3), max=Fraction(*each)) for each in ((1, 2), (2, 5))]
    assert [judge(limit, ratio).outcome for limit in ends] == [WITHIN, OVER]


@pytest.mark.parametrize(("to", "outcome"), [(9, Outcome.ACCEPTED), (8, OVER)])
def test_an_exception_to_a_maximum_reaches_up_to_the_most(to: int, outcome: Outcome) -> None:
    """9 is the most there, and no path is without a number; with one that is, no lower bound is accepted."""
    waiver = Acceptance(PLACE, to, "why", date(2027, 1, 31), written=f"{to} MAC")
    limit = Limit("macs", PLACE, max=1, scope="small", waiver=waiver)
    assert with_exception(judge(limit, number(LESS, TWO)), date(2027, 1, 1)).outcome is outcome
    assert with_exception(judge(limit, number(PART, TWO)), date(2027, 1, 1)).outcome is OVER


@pytest.mark.parametrize(("to", "outcome"), [(13, Outcome.ACCEPTED), (14, OVER)])
def test_an_exception_to_a_minimum_reaches_down_to_the_least(to: int, outcome: Outcome) -> None:
    """13 is the least."""
    waiver = Acceptance(PLACE, to, "why", date(2027, 1, 31), written=f"{to} MAC", end="min")
    verdict = judge(Limit("macs", PLACE, min=15, waiver=waiver), number(LESS))
    assert with_exception(verdict, date(2027, 1, 1)).outcome is outcome


def test_an_automatic_minimum_is_not_what_was_counted() -> None:
    """Nothing is locked for it, and the line says what to write."""
    verdict = judge(Limit("macs", PLACE, auto=("min",)), number(LESS))
    words = "min is auto, which sets no limit, and data may take branches with less: write 13 MAC"
    assert (verdict.outcome, verdict.reason) == (UNKNOWN, f"macs 21 MAC   {words}")
    assert lockable(verdict, None, {}) is None
    assert lockable(judge(Limit("macs", PLACE, auto=("max",)), number(LESS)), None, {}) is not None


@pytest.mark.parametrize(("glob", "is_locked"), [("big", True), ("small", False), (None, True)])
def test_a_part_with_more_on_another_path_is_not_locked(glob: str | None, *, is_locked: bool) -> None:
    """Nothing of it is counted: no zero is locked. The whole is the most."""
    verdict = judge(Limit("macs", PLACE, max=100, scope=glob), number(LESS))
    assert (lockable(verdict, None, {}) is not None) is is_locked
