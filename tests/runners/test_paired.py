"""The growth of paired calls: its interval by hand, and when alternating ends, on clocks that are told."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import cycle
from math import inf

import pytest

from pytest_modelbudget.runners import paired
from pytest_modelbudget.runners.paired import MOST_PAIRS, Growth, alternated, rank_interval

INTERVALS = [
    pytest.param(9, (0.0, inf), id="1/512 is above one in a thousand"),
    pytest.param(10, (1, 10), id="1/1024 is below"),
    pytest.param(13, (1, 13), id="1 + 13 of 8192 are above"),
    pytest.param(14, (2, 13), id="1 + 14 of 16384 are below"),
    pytest.param(17, (2, 16), id="1 + 17 + 136 of 131072 are above"),
    pytest.param(18, (3, 16), id="1 + 18 + 153 of 262144 are below"),
]


@pytest.mark.parametrize(("count", "ends"), INTERVALS)
def test_the_interval_of_a_median_by_ranks(count: int, ends: tuple[float, float]) -> None:
    """Of the numbers 1 to n: as many are outside of each end as heads are rarer than one in a thousand."""
    assert rank_interval([*map(float, range(count, 0, -1))]) == ends


def clocks(*turns: float) -> tuple[Callable[[], float], Callable[[], float], list[str]]:
    """A change and a base whose turns take these seconds again and again, and the order in which they are asked."""
    asked: list[str] = []

    def side(name: str, seconds: tuple[float, ...]) -> Callable[[], float]:
        told = cycle(seconds)

        def turn() -> float:
            asked.append(name)
            return next(told)

        return turn

    return side("A", turns), side("B", (0.02,)), asked


def test_calls_alternate_until_one_side_of_the_limit_is_sure() -> None:
    """10 pairs are the fewest that say anything: three rounds of four, 21 ms against 20."""
    change, base, asked = clocks(0.021)
    growth = alternated(change, base, Fraction(3, 100))
    assert "".join(asked) == "ABBABAAB" * 3
    assert growth.ratio == pytest.approx(1.05)
    assert growth.is_decided(Fraction(3, 100))
    assert growth.text == "12 pairs of calls: 21.0 ms, and 20.0 ms at the base, 5.0% to 5.0%"


def test_a_growth_of_the_limit_itself_is_within() -> None:
    """All of the interval is at 1.05."""
    assert Growth(((21.0, 20.0),) * 10).is_decided(Fraction(1, 20))


def test_calls_that_differ_around_the_limit_are_not_told_apart() -> None:
    """Half of the pairs at 1.0 and half at 1.1: the interval of the median reaches from one to the other."""
    change, base, asked = clocks(0.020, 0.022)
    growth = alternated(change, base, Fraction(1, 20))
    assert (len(growth.pairs), len(asked)) == (MOST_PAIRS, 2 * MOST_PAIRS)
    assert not growth.is_decided(Fraction(1, 20))
    assert growth.interval == "0.0% to 10.0%"


def test_alternating_ends_after_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a hundred seconds at each look: two rounds before the end at 300."""
    moments = iter(range(0, 10_000, 100))
    monkeypatch.setattr(paired, "monotonic", lambda: float(next(moments)))
    change, base, asked = clocks(0.020, 0.022)
    alternated(change, base, Fraction(1, 20))
    assert "".join(asked) == "ABBABAAB" * 2


def test_a_model_that_is_new_has_not_grown() -> None:
    """It says why, and is on the safe side of every limit."""
    growth = Growth((), "net is new since main (1a2b3c4): what is new has not grown")
    assert (growth.ratio, growth.is_decided(0)) == (1.0, True)
    assert growth.text.startswith("net is new since main")
