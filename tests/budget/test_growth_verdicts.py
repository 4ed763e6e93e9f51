"""Growth: what is allowed from a locked number, and what nobody knows without one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_modelbudget.budget.budget import Level, Limit, Place
from pytest_modelbudget.budget.lock_file import Baseline, LockedValue
from pytest_modelbudget.budget.verdict import judge, with_blame
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement, Share, UnmeasuredOp

PLACE = Place("budgets/b.yaml", 8)
WITHIN, OVER, UNKNOWN = Outcome.WITHIN, Outcome.OVER, Outcome.UNKNOWN
FOO = UnmeasuredOp("aten::foo", 3, "head", "no rule")


def macs(value: int, *unmeasured: UnmeasuredOp) -> Measurement:
    return Measurement(value, "MAC", unmeasured=unmeasured)


def locked(value: int) -> Baseline:
    return Baseline(LockedValue(value, "MAC"))


@pytest.mark.parametrize(
    ("grow", "floor", "baseline", "allowed"),
    [
        pytest.param("2", 0, 1000, 1000 + 20, id="a share"),
        pytest.param("2", 0, 1049, 1049 + 20, id="rounded down: 20.98"),
        pytest.param("2", 50, 1000, 1000 + 50, id="the floor is more"),
        pytest.param("2", 10, 1000, 1000 + 20, id="the share is more"),
        pytest.param("0", 0, 1000, 1000, id="none"),
        pytest.param("2", 0, 0, 0, id="from nothing"),
        pytest.param("2", 7, 0, 7, id="from nothing, with a floor"),
        pytest.param("0.1", 0, 10**20 + 1, 10**20 + 1 + 10**17, id="exact in any size"),
    ],
)
def test_growth_is_a_maximum(grow: str, floor: int, baseline: int, allowed: int) -> None:
    """Allowed is baseline + max(share, floor), in whole units, itself included."""
    limit = Limit("macs", PLACE, grow=Fraction(grow) / 100, floor=floor)
    for value, outcome in ((allowed, WITHIN), (allowed + 1, OVER)):
        verdict = judge(limit, macs(value), baseline=locked(baseline))
        assert (verdict.outcome, verdict.allowed) == (outcome, allowed)
        assert verdict.limit is limit


@pytest.mark.parametrize(
    ("value", "outcome"), [pytest.param(1020, WITHIN, id="both"), pytest.param(1021, OVER, id="growth is tighter")]
)
def test_the_tighter_of_maximum_and_growth_holds(value: int, outcome: Outcome) -> None:
    """Either is enough to be over."""
    limit = Limit("macs", PLACE, max=1030, grow=Fraction(2, 100))
    assert judge(limit, macs(value), baseline=locked(1000)).outcome is outcome
    tighter = Limit("macs", PLACE, max=1010, grow=Fraction(2, 100))
    assert judge(tighter, macs(value), baseline=locked(1000)).outcome is OVER


@pytest.mark.parametrize(
    ("value", "outcome"), [pytest.param(9, UNKNOWN, id="below"), pytest.param(11, OVER, id="over")]
)
def test_without_a_baseline_only_what_is_over_is_known(value: int, outcome: Outcome) -> None:
    """What breaks the maximum is over; whether the rest grew too much nobody knows."""
    limit = Limit("macs", PLACE, max=10, grow=Fraction(2, 100), level=Level.WARN)
    verdict = judge(limit, macs(value), baseline=Baseline(why_none="no lock"))
    assert verdict.outcome is outcome
    assert verdict.fails == (outcome is UNKNOWN)
    assert ("no lock" in verdict.reason) == (outcome is UNKNOWN)


@pytest.mark.parametrize(
    ("value", "outcome"), [pytest.param(9, UNKNOWN, id="below"), pytest.param(11, OVER, id="over")]
)
def test_a_lower_bound_can_prove_too_much_growth(value: int, outcome: Outcome) -> None:
    """And nothing else."""
    limit = Limit("macs", PLACE, grow=Fraction(0))
    assert judge(limit, macs(value, FOO), baseline=locked(10)).outcome is outcome
    assert judge(limit, macs(value, FOO)).outcome is UNKNOWN


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(Limit("macs", PLACE, auto=("max",)), id="max"),
        pytest.param(Limit("macs", PLACE, min=1, auto=("max",)), id="beside a kept minimum"),
    ],
)
def test_auto_holds_nothing(limit: Limit) -> None:
    """Until it is filled in, the limit is unknown and red."""
    verdict = judge(limit, macs(10))
    assert (verdict.outcome, verdict.fails) == (UNKNOWN, True)
    assert "max is auto" in verdict.reason


def test_a_broken_end_beside_auto_is_over() -> None:
    """What is known to be broken is said."""
    assert judge(Limit("macs", PLACE, min=11, auto=("max",)), macs(10)).outcome is OVER


def test_who_grew_is_told_within_the_scope() -> None:
    """Parts outside of a limit's scope are none of its business."""
    limit = Limit("macs", PLACE, grow=Fraction(0), scope="body.*")
    baseline = Baseline(LockedValue(4, "MAC", (Part("body.a", 4),)))
    measured = Measurement(107, "MAC", shares=(Share("body.a", 7), Share("head", 100)))
    today = [Part("body.a", 7), Part("head", 100)]
    verdict = with_blame(judge(limit, measured, baseline=baseline), today)
    (only,) = verdict.blame.differences
    assert (only.scope, only.delta, verdict.blame.rest) == ("body.a", 3, 0)
    shrunk = Baseline(LockedValue(9, "MAC", (Part("body.a", 9),)))
    assert not with_blame(judge(limit, measured, baseline=shrunk), today).blame.differences


@pytest.mark.parametrize(("today", "deltas"), [(4, []), (5, [5 - 4])])
def test_growth_by_one_is_growth(today: int, deltas: list[int]) -> None:
    """The least growth of a count has somebody to blame, and standing still has nobody."""
    baseline = Baseline(LockedValue(4, "MAC", (Part("body", 4),)))
    verdict = judge(Limit("macs", PLACE, grow=Fraction(0)), macs(today), baseline=baseline)
    blamed = with_blame(verdict, [Part("body", today)]).blame.differences
    assert [part.delta for part in blamed] == deltas


@pytest.mark.parametrize(("unit", "words"), [("param", "in param, and"), ("", "in no unit, and")])
def test_the_unit_of_a_lock_that_does_not_fit_is_named(unit: str, words: str) -> None:
    """A lock without a unit is said to have none."""
    verdict = judge(Limit("macs", PLACE, grow=Fraction(0)), macs(7), baseline=Baseline(LockedValue(7, unit)))
    assert f"the lock holds macs {words} it is counted in MAC" in verdict.reason


@pytest.mark.parametrize(
    "value", [LockedValue(Fraction(1, 2), "FLOP/B"), LockedValue(1000, "param"), LockedValue(1000, "")],
)  # fmt: skip
def test_n14_a_locked_number_of_another_unit_is_no_baseline(value: LockedValue) -> None:
    """A ratio where a count is meant would let it grow without end."""
    limit = Limit("macs", PLACE, grow=Fraction(2, 100))
    verdict = judge(limit, macs(1000), baseline=Baseline(value))
    assert verdict.outcome is UNKNOWN
    assert "nothing to grow from: the lock holds macs in " in verdict.reason
    assert judge(Limit("macs", PLACE, max=1000), macs(1000), baseline=Baseline(value)).outcome is WITHIN
