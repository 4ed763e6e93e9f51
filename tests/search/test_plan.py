"""Plans of bits: against all assignments, a knapsack over whole bytes, and a linear scan."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import inf, log10

import numpy as np
import pytest

from pytest_modelbudget.search.plan import Layer, Trial, first_passing, front, uniform

PARTS = (("y", "normal"), ("y", "large"))


def drawn(layers: int, widths: Sequence[int], seed: int, size: int = 6) -> tuple[Layer, ...]:
    """Layers whose errors are vectors of ever fewer bits, with costs of some bytes a bit."""
    generator = np.random.default_rng(seed)

    def trial(bits: int, weights: int, power: float) -> Trial:
        errors = {part: generator.standard_normal(size) * power * 2.0**-bits for part in PARTS}
        least = min(-10 * log10(float(error @ error)) for error in errors.values())
        return Trial(bits, Fraction(bits * weights), least, errors)

    sizes = generator.integers(1, 100, layers).tolist()
    powers = generator.uniform(0.1, 4, layers).tolist()
    return tuple(
        Layer(f"l{at}", "Linear", tuple(trial(bits, sizes[at], powers[at]) for bits in widths)) for at in range(layers)
    )


def decibels(trials: Sequence[Trial]) -> float:
    """The SQNR of errors that add as vectors, by its definition."""
    return min(
        -10 * log10(sum(sum(each.errors[part][at] for each in trials) ** 2 for at in range(6))) for part in PARTS
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_front_is_that_of_all_assignments(seed: int) -> None:
    """27 to 64 assignments, each by hand: what none beats in both is there, and nothing else."""
    widths = (8, 4, 3) if seed % 2 else (8, 6, 4, 3)
    layers = drawn(3, widths, seed)
    every = [(sum(t.cost for t in plan), decibels(plan), tuple(t.bits for t in plan))
             for plan in product(*(layer.trials for layer in layers))]  # fmt: skip
    best, expected = -inf, []
    for cost, sqnr, plan in sorted(every, key=lambda each: (each[0], -each[1])):
        if sqnr > best:
            best = sqnr
            expected.append((cost, pytest.approx(sqnr), plan))
    assert [(point.cost, point.sqnr, point.plan) for point in front(layers)] == expected


def test_many_layers_reach_the_best_of_a_knapsack() -> None:
    """4¹² assignments of errors at right angles: within 0.1 dB of the exact least noise for each number of bytes."""
    widths, size = (8, 6, 4, 3), 12
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 40, 12).tolist()
    noises = [[float(generator.uniform(0.5, 2)) * 4.0**-bits for bits in widths] for _ in sizes]

    def trial(at: int, place: int) -> Trial:
        error = np.zeros(size)
        error[at] = noises[at][place] ** 0.5
        bits = widths[place]
        return Trial(bits, Fraction(bits * sizes[at]), -10 * log10(noises[at][place]), {PARTS[0]: error})

    layers = tuple(Layer(f"l{at}", "Linear", tuple(trial(at, place) for place in range(4))) for at in range(12))
    most = sum(8 * each for each in sizes)
    least = [0.0] + [inf] * most  # by bytes: the least noise of the layers so far
    for weights, powers in zip(sizes, noises, strict=True):
        now = [inf] * (most + 1)
        for before, noise in enumerate(least):
            for bits, power in zip(widths, powers, strict=True):
                if noise < inf:
                    now[before + bits * weights] = min(now[before + bits * weights], noise + power)
        least = now
    exact = np.minimum.accumulate(least)
    points = front(layers)
    assert len(points) > 100
    for point in points:
        assert -10 * log10(exact[int(point.cost)]) - point.sqnr < 0.1
    assert {point.plan for point in uniform(layers)} == {(bits,) * 12 for bits in widths}


@pytest.mark.parametrize("points", [1, 2, 3, 7, 40])
def test_the_first_that_passes_is_found_from_every_guess(points: int) -> None:
    """As a linear scan does, in about twice the logarithm of how far the guess is off."""
    for first, start in product(range(points + 1), range(points)):
        tried: list[int] = []

        def passes(at: int, first: int = first, tried: list[int] = tried) -> bool:
            tried.append(at)
            return at >= first

        assert first_passing(points, start, passes) == (first if first < points else None)
        assert len(set(tried)) == len(tried)
        assert len(tried) <= 2 * log10(abs(first - start) + 1) / log10(2) + 3
