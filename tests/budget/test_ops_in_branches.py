"""Limits on operators where data decide which branch runs, on branches written by hand."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.budget import OpsLimit, Place
from pytest_modelbudget.budget.verdict import judge_ops
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.metrics.branches import OUTERMOST, Branch
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.measurement import Measurement, Share


def convolutions(**places: int) -> tuple[OpCount, ...]:
    """So many convolutions in each scope."""
    return (OpCount("convolution", "aten::conv2d", sum(places.values()), tuple(places.items())),)


def branch(fork: int, within: int, *, counted: bool = False, **places: int) -> Branch:
    """A branch of convolutions."""
    return Branch(f"branch {fork}", "torch::cond", fork, within, convolutions(**places), is_counted=counted)


COUNTED = convolutions(stem=1, a=2, c=4)  # 1 outside, then one of a choice, then one of another choice
MEASURED = Measurement(7, "op", (Share("stem", 1), Share("a", 2), Share("c", 4)))
BRANCHES = (
    branch(0, OUTERMOST, counted=True, a=2),
    branch(0, OUTERMOST, b=3),
    branch(1, OUTERMOST, c=1),
    branch(1, OUTERMOST, counted=True, c=4),
    branch(2, 1, counted=True, b=1),  # within the branch in b, one of its three
    branch(2, 1, b=6),
)


@pytest.mark.parametrize(
    ("scope", "most"),
    [
        pytest.param(None, 1 + (3 - 1 + 6) + 4, id="the largest of each choice"),
        pytest.param("stem", 1, id="outside"),
        pytest.param("a", 2, id="the counted one alone is there"),
        pytest.param("b", 3 - 1 + 6, id="the other one alone is there"),
        pytest.param("c", 4, id="fewer in the other one"),
    ],
)
def test_a_maximum_holds_the_largest_over_branches(scope: str | None, most: int) -> None:
    """In a part of the model, the path with most of it there; exactly as many are within."""
    for allowed, outcome in ((most, Outcome.WITHIN), (most - 1, Outcome.OVER)):
        limit = OpsLimit(Place("b.yaml", 1), max={"convolution": allowed}, scope=scope)
        verdict = judge_ops(limit, MEASURED, COUNTED, BRANCHES)
        assert (verdict.outcome, verdict.measurement and verdict.measurement.unit) == (outcome, "op")


def test_the_line_names_the_branches_of_the_path() -> None:
    """Those that are not counted, in their order."""
    verdict = judge_ops(OpsLimit(Place("b.yaml", 1), max={"convolution": 12}), MEASURED, COUNTED, BRANCHES)
    assert verdict.reason == "ops 13 convolution > 12, where data take the branch 0, the branch 2"


def test_an_operation_that_is_counted_too_is_said_once() -> None:
    """The place that is counted is the first."""
    verdict = judge_ops(OpsLimit(Place("b.yaml", 1), deny=("convolution",)), MEASURED, COUNTED, BRANCHES)
    assert verdict.reason == "ops 7 aten::conv2d > 0   denied, first in stem"
