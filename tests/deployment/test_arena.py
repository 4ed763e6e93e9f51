"""Placing activations in one arena: the rules hold for any buffers, and public cases are met."""

from itertools import combinations
from random import Random

import pytest

from pytest_modelbudget.deployment.arena import PLANNERS, Arena, Buffer, as_offline_plan, planned
from pytest_modelbudget.errors import DeviceError
from pytest_modelbudget.graph.graph import Lifetime


def buffers(*rows: tuple[int, int, int]) -> list[Buffer]:
    """(bytes, first, last) of each."""
    return [Buffer(f"b{i}", nbytes, Lifetime(first, last)) for i, (nbytes, first, last) in enumerate(rows)]


def live_together(one: Buffer, other: Buffer) -> bool:
    return one.life.first <= other.life.last and other.life.first <= one.life.last


def assert_sound(arena: Arena) -> None:
    placed = list(zip(arena.buffers, arena.offsets, strict=True))
    for (one, at), (other, there) in combinations(placed, 2):
        if live_together(one, other) and one.nbytes and other.nbytes:
            assert at + one.nbytes <= there or there + other.nbytes <= at
    assert all(offset % arena.align == 0 for offset in arena.offsets)
    assert arena.nbytes == max((offset + buffer.nbytes for buffer, offset in placed), default=0)


def test_the_case_of_tflm() -> None:
    """greedy_memory_planner_test.cc, TestGreedyMedium: five buffers, 90 bytes."""
    arena = planned(buffers((10, 0, 1), (20, 1, 2), (30, 2, 3), (40, 3, 4), (50, 0, 1)), align=1)
    assert (arena.offsets, arena.nbytes) == ((50, 70, 40, 0, 0), 90)
    assert as_offline_plan(arena) == [1, 0, 5, 50, 70, 40, 0, 0]


def test_ten_thousand_random_sets_are_placed_soundly() -> None:
    """No two buffers share a byte while both live, and no arena is below what lives at once."""
    random = Random(0)
    for number in range(10_000):
        rows = []
        for _ in range(random.randint(0, 9)):
            first = random.randint(0, 12)
            rows.append((random.choice((0, 1, 7, 16, 100)), first, first + random.randint(0, 6)))
        align = random.choice((1, 4, 16))
        arena = planned(buffers(*rows), planner=list(PLANNERS)[number % len(PLANNERS)], align=align)
        assert_sound(arena)
        alive = [sum(n for n, first, last in rows if first <= moment <= last) for moment in range(20)]
        assert arena.bound == max(alive) <= arena.nbytes


def least(sizes: list[Buffer]) -> int:
    """The least arena of any placement, by trying every offset that sums of sizes can give."""
    sums = {0}
    for buffer in sizes:
        sums |= {total + buffer.nbytes for total in sums}
    best = sum(buffer.nbytes for buffer in sizes)

    def place(placed: list[tuple[Buffer, int]], rest: list[Buffer], high: int) -> None:
        nonlocal best
        if high >= best:
            return
        if not rest:
            best = high
            return
        buffer = rest[0]
        for offset in sorted(sums):
            fits = all(
                not live_together(buffer, other) or offset + buffer.nbytes <= at or at + other.nbytes <= offset
                for other, at in placed
            )
            if fits:
                place([*placed, (buffer, offset)], rest[1:], max(high, offset + buffer.nbytes))

    place([], sizes, 0)
    return best


def test_best_is_near_exhaustive_placement() -> None:
    """Over 150 small cases the planner "best" is at the optimum, or a few bytes above in the total."""
    random, excess, total = Random(1), 0, 0
    for _ in range(150):
        rows = []
        for _ in range(5):
            first = random.randint(0, 5)
            rows.append((random.randint(1, 9), first, first + random.randint(0, 4)))
        optimum = least(buffers(*rows))
        arena = planned(buffers(*rows), planner="best", align=1)
        assert optimum <= arena.nbytes
        excess, total = excess + arena.nbytes - optimum, total + optimum
    assert excess * 100 <= total  # one per cent


@pytest.mark.parametrize(("settings", "words"), [({"align": 0}, "1 or more"), ({"planner": "best_fit"}, "greedy_by")])
def test_settings_that_place_nothing_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        planned(buffers((1, 0, 0)), **settings)  # type: ignore[arg-type]
