"""Trials of a model with some of its layers quantised by the public transform, and the search over what they show.

The original is run once; each trial runs on the same inputs and is judged as the gate judges ``equivalence``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Bound, Outcome
from pytest_modelbudget.equivalence.comparison import Comparison
from pytest_modelbudget.equivalence.figures import reals
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputPair, judged
from pytest_modelbudget.equivalence.runs import OriginalRuns, Pair, original_runs
from pytest_modelbudget.errors import InputError, UnmeasurableError
from pytest_modelbudget.evaluation.evaluate import Evaluated, drop, evaluate
from pytest_modelbudget.formats.model import Model, RunnableModel, must_run
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.search.asked import TRANSFORM, Asked
from pytest_modelbudget.search.plan import Layer, Plan, Point, Reals, Trial, first_passing, front, uniform
from pytest_modelbudget.transforms.transform import Settings

MOST_ELEMENTS = 2**14  # of the errors of one output that are kept, spread over it
MOST = 300.0  # dB, in place of an infinite SQNR
CLOSE = 6.0  # dB that a prediction may be off by, where a uniform plan is looked at once more
Bits = Mapping[str, int]  # by the module path of a layer; layers that are not named stay as they are
Progress = Callable[[int, int, str], None]  # trials that are done, of how many, and the next one


@dataclass(frozen=True, slots=True)
class Run:
    """A plan on the real model: its cost, its least SQNR in dB, whether it keeps the bound, and the figure of that."""

    cost: Fraction
    sqnr: float
    is_kept: bool
    figure: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has seen: plans that no other one beats or that were run, cheapest first, with the runs.

    unquantised is the cost of the model as it is, and best None where no plan keeps the bound.
    """

    asked: Asked
    unquantised: Measurement
    layers: tuple[Layer, ...]
    points: tuple[Point, ...]
    runs: Mapping[Plan, Run]
    best: Point | None
    evaluations: int


class Bench:
    """Runs of the original, and trials on the same inputs. Weights are drawn where the gate draws them."""

    def __init__(self, asked: Asked, registry: Tables) -> None:
        self.asked, self.evaluations = asked, 0
        self._registry = replace(registry, metrics={asked.metric: registry.metrics[asked.metric]})
        format = registry.formats[asked.source.format]
        self._apply = registry.transforms[TRANSFORM].applied_to(format)
        self.model = must_run(format.load(asked.source, registry.ops))
        self.unquantised = self._measured(self.model)

    @cached_property
    def layers(self) -> Mapping[str, str]:
        """The operation of each layer that the transform quantises, by its module path, outer ones first."""
        quantised = [each for each in self._apply(self.model, self.asked.settings).changes if each.became]
        return {each.scope: each.operation for each in sorted(quantised, key=lambda each: each.scope.count("."))}

    def settings(self, bits: Bits) -> Settings:
        """The transform with an entry for every layer, of which the last that matches counts: inner ones come last."""
        layers = {scope_text(scope): {"weights": {"bits": bits[scope]}} if scope in bits else "keep"
                  for scope in self.layers}  # fmt: skip
        return {**self.asked.settings, "layers": {**self.asked.settings["layers"], **layers}}

    @cached_property
    def _original(self) -> RunnableModel:
        can_draw = self.asked.drop is None and self.model.can_be_redrawn and self.model.draws_its_weights()
        return self.model.redrawn() if can_draw else self.model

    @cached_property
    def _runs(self) -> OriginalRuns:
        runs = original_runs(self.asked.claim, Pair(self._original, Changed(self._original), Changed))
        if runs.still() == runs.names:
            raise InputError(f"{self.asked.source.target}: no output moves with its inputs: nothing could be seen")
        return runs

    @cached_property
    def _answers(self) -> Evaluated:
        return self._evaluated(self._original)

    def _evaluated(self, model: Model) -> Evaluated:
        assert self.asked.source.evaluate is not None, "a drop is asked for of labelled data alone"
        return evaluate(model, self.asked.source.evaluate)

    def alone(self, progress: Progress) -> tuple[Layer, ...]:
        """Every layer alone at every width. Raises InputError where no width makes a difference to the cost."""
        trials = len(self.layers) * len(self.asked.bits)

        def trial(scope: str, bits: int) -> Trial:
            progress(self.evaluations, trials, f"{scope_text(scope)} at {bits} bits")
            cost, verdict, pairs = self._judged({scope: bits})
            errors = {(each.name, each.family): _error(each) for each in pairs}
            return Trial(bits, cost - Fraction(self.unquantised.value), _sqnr(verdict), errors)

        layers = tuple(Layer(scope, operation, tuple(trial(scope, bits) for bits in self.asked.bits))
                       for scope, operation in self.layers.items())  # fmt: skip
        if len(self.asked.bits) > 1 and not any(len({each.cost for each in layer.trials}) > 1 for layer in layers):
            raise InputError(f"{self.asked.metric} is the same at all widths: search for the least bytes or bops")
        return layers

    def whole(self, plan: Plan) -> Run:
        """A plan for all layers, run."""
        bits = dict(zip(self.layers, plan, strict=True))
        cost, verdict, _ = self._judged(bits)
        if self.asked.drop is not None:
            changed = self._apply(self._original, self.settings(bits)).model
            lost = drop(self._answers, self._evaluated(changed))
            figure = f"top1 drop {float(lost.at_least or 0):.2%} to {float(lost.value):.2%}"
            return Run(cost, _sqnr(verdict), lost.value <= self.asked.drop, figure)
        figure = verdict.decision.measured if verdict.decision else verdict.reason
        return Run(cost, _sqnr(verdict), verdict.outcome is Outcome.WITHIN, figure)

    def _judged(self, bits: Bits) -> tuple[Fraction, Equivalence, Sequence[OutputPair]]:
        """The cost of the model with these layers quantised, the judgement on it, and its outputs."""
        changed = self._apply(self._original, self.settings(bits))
        comparison = Comparison(self.asked.claim, Pair(self._original, changed, lambda _: changed), self._runs)
        after = comparison.second_runs()
        pairs = tuple(comparison.pairs(after))
        verdict = judged(self.asked.claim, pairs, structure=after.structure, weights=self._original.weights)
        must_run(changed.model).release()
        self.evaluations += 1
        return Fraction(self._measured(changed.model).value), verdict, pairs

    def _measured(self, model: Model) -> Measurement:
        """The metric of a model. Raises UnmeasurableError where it is a lower bound."""
        key = self.asked.metric
        costed = measuring.costed(model, self._registry, replace(self.asked.source, evaluate=None))
        if self.asked.deployment:
            _, costed = measuring.lowered_for(self.asked.deployment, costed, self._registry)
        if key not in costed.measurements:
            raise costed.failures.get(key) or InputError(f"{key} is of a model on a device: add --device NAME")
        if not (number := costed.measurements[key]).complete:
            raise UnmeasurableError(f"{key} is a lower bound: what is cheapest is not known")
        return number


def search(asked: Asked, registry: Tables, progress: Progress, *, root: Path) -> Found:
    """Try each layer alone, then plans from a predicted one on, until the cheapest that keeps the bound is known.

    Raises InputError where no width makes a difference to the cost, TransformError where nothing can be quantised.
    """
    with searched_first(asked.source.searched(root)), measuring.undisturbed(registry.formats[asked.source.format]):
        bench = Bench(asked, registry)
        layers = bench.alone(progress)
        points, runs = list(front(layers)), dict[Plan, Run]()

        def keeps(point: Point) -> bool:
            if point.plan not in runs:
                progress(bench.evaluations, bench.evaluations + 1, "a plan for all layers")
                runs[point.plan] = bench.whole(point.plan)
            return runs[point.plan].is_kept

        bound = float(asked.claim.bounds.get(Bound.SQNR, 0)) or points[len(points) // 2].sqnr
        guess = next((at for at, point in enumerate(points) if point.sqnr >= bound), len(points) - 1)
        at = first_passing(len(points), guess, lambda at: keeps(points[at]))
        best = None if at is None else points[at]
        cheaper = [each for each in uniform(layers) if best and each.cost < best.cost and each.plan not in runs]
        rival = max(cheaper, key=lambda each: each.cost, default=None)
        if best and rival and rival.sqnr >= best.sqnr - CLOSE:  # which a front may lack that is off
            best = rival if keeps(rival) else best
            points.append(rival)
        progress(bench.evaluations, bench.evaluations, "")
    ordered = tuple(sorted(set(points), key=lambda each: (each.cost, each.sqnr)))
    return Found(asked, bench.unquantised, layers, ordered, runs, best, bench.evaluations)


def _sqnr(verdict: Equivalence) -> float:
    """The least of all outputs and families; none at all where outputs differ in their structure."""
    return float(np.clip(min((record.figures.sqnr for record in verdict.outputs), default=-MOST), -MOST, MOST))


def _error(pair: OutputPair) -> Reals:
    """The error of an output over its root mean square, so that its square is the noise; at some elements of many."""
    assert pair.original is not None, "a run in the model's own type"
    assert pair.transformed is not None, "a run in the model's own type"
    signal = reals(pair.original).ravel()
    error = reals(pair.transformed).ravel() - signal
    power, noise = float(signal @ signal), float(error @ error)
    some = error[:: max(1, -(-error.size // MOST_ELEMENTS))]
    kept = float(some @ some)
    return np.asarray(some * np.sqrt(noise / power / kept)) if power and kept else np.zeros_like(some)
