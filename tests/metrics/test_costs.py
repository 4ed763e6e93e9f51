"""What formulas give is a cost where it is a whole number from 0 on, and unmeasured with the reason where it is not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.metrics.compute import bops, flops, macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable
from tests.builders.graphs import tensor

X, Y = tensor("x", 4, 6), tensor("y", 4, 6)
NO_AMOUNTS = [1.5, 12.0, -3, float("nan"), Fraction(3, 2), np.float64(2), None, "12"]


def costed(**formulas: object) -> CostedGraph:
    """One operation of a rule of somebody's own."""
    rule = OpRule("mystery", {"own::mystery": ("x",)}, "as its owner says", **formulas)  # type: ignore[arg-type]
    return CostedGraph(Graph((Op("own::mystery", (X,), (Y,)),), (X,), (Y,)), OpTable((rule,)))


@pytest.mark.parametrize("amount", NO_AMOUNTS)
def test_what_is_no_whole_number_from_0_on_is_unmeasured(amount: object) -> None:
    """It was left out: macs were 0, and complete."""
    for metric, graph in (
        (macs, costed(macs=lambda: amount)),
        (bops, costed(macs=lambda: amount)),
        (flops, costed(flops=lambda: amount)),
        (bandwidth, costed(reads=lambda: {"x": amount})),
        (bandwidth, costed(writes=lambda: amount)),
    ):
        number = metric(graph)
        assert not number.complete
        assert f"gives {amount!r}, which is no whole number" in number.unmeasured[0].why


@pytest.mark.parametrize("amount", [7, np.int64(7), np.uint8(7)])
def test_whole_numbers_of_numpy_are_amounts(amount: int) -> None:
    """7 MACs; 7 B read and 24 floats written."""
    assert (macs(costed(macs=lambda: amount)).value, type(macs(costed(macs=lambda: amount)).value)) == (7, int)
    assert bandwidth(costed(reads=lambda: {"x": amount})).value == 7 + 24 * 4
    assert bandwidth(costed(writes=lambda: amount)).value == 24 * 4 + 7


@pytest.mark.parametrize("amounts", [None, 7, {"y": 7}, {0: 7}])
def test_bytes_of_no_operand_are_unmeasured(amounts: object) -> None:
    """A rule that reads in part says of which of its roles: these raised an error of Python's."""
    number = bandwidth(costed(reads=lambda: amounts))
    assert not number.complete
    assert f"gives {amounts!r}, and no bytes by roles (x)" in number.unmeasured[0].why
