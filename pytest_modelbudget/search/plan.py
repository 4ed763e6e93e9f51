"""Plans of bits for layers, their cost, and the noise that they should have; pure, from one trial of each layer alone.

Errors of layers add as vectors. With e the error that a layer alone makes in an output, as a share of the output's
root mean square, a plan has the noise |Σ e|²::

    layer a at 4 bits: e = (0.1, 0)     layer b at 3 bits: e = (0, 0.2)     both: 0.01 + 0.04, 13.0 dB
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MOST_PLANS = 20_000  # of all assignments
MOST_STEPS = 2_000  # that are kept from one of many layers to the next
LEAST_NOISE = 1e-30  # 300 dB, of an output that nothing changes
Reals = NDArray[np.float64]
Places = NDArray[np.intp]  # of trials, (plans, layers)
Plan = tuple[int, ...]  # bits of each layer


@dataclass(frozen=True, eq=False, slots=True)
class Trial:
    """One layer alone at some bits: what that adds to the cost of the model, its SQNR in dB, and its errors.

    errors has a vector for each output under each family of inputs, of which all trials have the same.
    """

    bits: int
    cost: Fraction
    sqnr: float
    errors: Mapping[tuple[str, str], Reals]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer whose weights are quantised, and its trials, one for each width."""

    scope: str
    operation: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A plan with the cost that it adds, and the SQNR in dB that the trials predict."""

    plan: Plan
    cost: Fraction
    sqnr: float


def front(layers: Sequence[Layer]) -> tuple[Point, ...]:
    """The plans that no other one beats in both cost and predicted SQNR, cheapest first."""
    best, points = -np.inf, []
    for point in sorted(_points(layers, _assignments(layers)), key=lambda each: (each.cost, -each.sqnr)):
        if point.sqnr > best:
            best = point.sqnr
            points.append(point)
    return tuple(points)


def uniform(layers: Sequence[Layer]) -> tuple[Point, ...]:
    """The same width for all layers, of each width."""
    return tuple(_points(layers, np.tile(np.arange(len(layers[0].trials))[:, None], len(layers))))


def _points(layers: Sequence[Layer], chosen: Places) -> list[Point]:
    """Plans with the least SQNR of all outputs and families."""
    widths, noise = len(layers[0].trials), np.full(len(chosen), LEAST_NOISE)
    has = np.zeros((len(chosen), len(layers) * widths))
    has[np.arange(len(chosen))[:, None], chosen + widths * np.arange(len(layers))] = 1
    for part in layers[0].trials[0].errors:
        errors = np.stack([trial.errors[part] for layer in layers for trial in layer.trials])
        noise = np.maximum(noise, np.einsum("ij,ij->i", has @ (errors @ errors.T), has))
    points = []
    for places, sqnr in zip(chosen.tolist(), (-10 * np.log10(noise)).tolist(), strict=True):
        trials = [layer.trials[at] for layer, at in zip(layers, places, strict=True)]
        cost = sum((each.cost for each in trials), Fraction(0))
        points.append(Point(tuple(each.bits for each in trials), cost, sqnr))
    return points


def _assignments(layers: Sequence[Layer]) -> Places:
    """All of them; of many layers those that are best by Σ |e|², layer after layer, and not more than so many."""
    chosen, costs, noise = np.zeros((1, 0), np.intp), np.zeros(1), np.zeros(1)
    widths = len(layers[0].trials)
    for layer in layers:
        powers = [max(float(error @ error) for error in trial.errors.values()) for trial in layer.trials]
        chosen = np.hstack([np.repeat(chosen, widths, axis=0), np.tile(np.arange(widths), len(chosen))[:, None]])
        costs = np.add.outer(costs, [float(trial.cost) for trial in layer.trials]).ravel()
        noise = np.add.outer(noise, powers).ravel()
        if widths ** len(layers) > MOST_PLANS:
            order = np.lexsort((noise, costs))
            least = np.minimum.accumulate(noise[order])
            order = order[np.append(True, least[1:] < least[:-1])]
            kept = order[np.unique(np.linspace(0, len(order) - 1, MOST_STEPS).astype(np.intp))]
            chosen, costs, noise = chosen[kept], costs[kept], noise[kept]
    return np.asarray(chosen)


def first_passing(points: int, start: int, passes: Callable[[int], bool]) -> int | None:
    """The first point that passes, where all behind one that passes do: found from a guess on; None where none does.

    Steps double until one passes and one fails, and halve from there.
    """
    low, high, at, step = -1, points, start, 1
    while low + 1 < high:
        low, high = (low, at) if passes(at) else (at, high)
        if low < 0:
            at = max(high - step, 0)
        elif high == points:
            at = min(low + step, points - 1)
        else:
            at = (low + high) // 2
        step *= 2
    return high if high < points else None
