"""An ONNX model held to a claim, on weights that can prove something, or by its layers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.comparison import (
    DRAWN,
    LOADED,
    Comparison,
    Sides,
    comparison,
    telling,
)
from pytest_modelbudget.equivalence.divergence import Divergence
from pytest_modelbudget.equivalence.judgement import Basis, Equivalence, judged
from pytest_modelbudget.equivalence.onnx_drawing import redrawn
from pytest_modelbudget.equivalence.onnx_layers import LayerRuns
from pytest_modelbudget.equivalence.onnx_sides import input_specs
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.errors import InputError, ModelBudgetError, TransformError
from pytest_modelbudget.ops.op_table import OpTable


@dataclass(frozen=True, slots=True)
class Layers:
    """Rewritten layers run alone, and how the two models' outputs differ already by declaration."""

    runs: tuple[LayerRuns, ...]
    differences: tuple[str, ...]

    @property
    def still(self) -> tuple[str, ...]:
        """Layers that give the same on all inputs, of which nothing can be seen."""
        return tuple(each.scope for each in self.runs if not each.moves)


@dataclass(frozen=True, slots=True)
class Judge:
    """Holds a transformed model to a claim; sides_of makes both models from the original's.

    layers_of gives the rewritten layers alone, for a network that does not run in float64.
    """

    claim: Claim
    dims: Mapping[str, int]
    sides_of: Callable[[onnx.ModelProto], Sides]
    layers_of: Callable[[onnx.ModelProto, Claim], Layers] | None = None

    def equivalence(
        self, model: onnx.ModelProto, rules: OpTable, *, is_drawn: bool = False
    ) -> Equivalence:
        """The judgement, on weights that can prove something; what cannot run is unknown."""
        weights = DRAWN if is_drawn else LOADED
        try:
            found = again = self._comparison(model)
            if found.before.still() and not is_drawn:
                weights, model = DRAWN, redrawn(model, rules)
                again = self._comparison(model)
        except TransformError as error:  # the original itself does not run
            return self._by_layers(error, model, rules, weights)
        except ModelBudgetError as error:
            return self._unknown(error, weights)
        try:
            if is_drawn:
                return found.equivalence(DRAWN, constant=found.before.still())
            return telling(found, lambda: again)
        except ModelBudgetError as error:
            return self._unknown(error, weights)

    def _by_layers(
        self, error: TransformError, model: onnx.ModelProto, rules: OpTable, weights: str
    ) -> Equivalence:
        """The judgement on the rewritten layers alone, where the network does not run."""
        if self.layers_of is None or self.claim.kind is not Kind.EXACT_ALGEBRA:
            return self._unknown(error, weights)
        try:
            layers = self.layers_of(model, self.claim)
            if layers.still and weights == LOADED:
                weights = DRAWN
                layers = self.layers_of(redrawn(model, rules), self.claim)
        except ModelBudgetError as other:
            return self._unknown(other, weights)
        found = judged(
            self.claim,
            (pair for each in layers.runs for pair in each.pairs),
            structure=layers.differences,
            weights=weights,
            basis=Basis.LAYERS,
            notes=(f"layers only: {error}",),
        )
        if layers.still and found.outcome is Outcome.WITHIN:
            words = (
                f"layer '{layers.still[0]}' does not move with its inputs: nothing could be seen"
            )
            return replace(found, outcome=Outcome.UNKNOWN, reason=words)
        wrong = next((each for each in found.outputs if each.outcome is Outcome.OVER), None)
        if wrong is None or wrong.algebra is None:
            return found
        divergence = Divergence(wrong.name, wrong.algebra, wrong.worst)
        return replace(found, first_divergence=divergence)

    def kept(self, model: onnx.ModelProto, weights: str) -> Equivalence:
        """The judgement on the weights that the model has, whatever they show."""
        try:
            return self._comparison(model).equivalence(weights)
        except ModelBudgetError as error:
            return self._unknown(error, weights)

    def _unknown(self, error: ModelBudgetError, weights: str) -> Equivalence:
        seeds = self.claim.seeds
        return Equivalence(Outcome.UNKNOWN, self.claim.kind, str(error), weights, seeds=seeds)

    def _comparison(self, model: onnx.ModelProto) -> Comparison:
        specs, stacks = input_specs(model, self.dims)
        if self.claim.batches and not stacks:
            raise InputError("batch: the file fixes the first axis of its inputs: export a symbol")
        return comparison(self.claim, self.sides_of(model), specs, stacks=stacks)
