"""A transform of an ONNX file: the cost of what it became, and its outputs held to a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.frontends.model_files import existing_file
from pytest_modelbudget.ops.op_table import OpTable
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.comparison import Comparison, Sides
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.onnx_drawing import redrawn, without_values
from pytest_modelbudget.transforms.onnx_loading import measured_graph, model_with_weights
from pytest_modelbudget.transforms.onnx_precision import wholly_in_float64
from pytest_modelbudget.transforms.onnx_sides import input_specs, sides
from pytest_modelbudget.transforms.outcome import Outcome
from pytest_modelbudget.transforms.transform import Change, Job, Transformed

DRAWN, LOADED = "drawn, seed 0", "as loaded"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten model, what became of each operation, and how much it rounds.

    partial_sums is the largest number of sums per output that are rounded to the storage type.
    """

    model: onnx.ModelProto
    changes: tuple[Change, ...]
    partial_sums: int = 1


Rewrite = Callable[[onnx.ModelProto], Rewritten]


def transformed_file(job: Job, rewrite: Rewrite, *, changes_weights: bool = False) -> Transformed:
    """A file's model under a rewrite of its graph.

    A rewrite that changes_weights is applied to the float64 copy once more: what it makes of the
    stored ones is rounded.
    """
    path = existing_file(job.source, "an ONNX model")
    model = model_with_weights(path)
    is_drawn = bool(without_values(model))
    if is_drawn:
        model = redrawn(model, job.rules)
    rewritten = rewrite(model)
    loaded = measured_graph(rewritten.model, path.name, job.source.dims, job.rules)

    def sides_of(weights: onnx.ModelProto) -> Sides:
        found = rewritten if weights is model else rewrite(weights)
        exact = None
        if changes_weights:
            copy = wholly_in_float64(weights)
            exact = (copy, rewrite(copy).model)
        return sides(weights, found.model, exact=exact, partial_sums=found.partial_sums)

    def verify(claim: Claim) -> Equivalence:
        judge = Judge(claim, job.source.dims, sides_of)
        return judge.equivalence(model, job.rules, is_drawn=is_drawn)

    return Transformed(loaded, rewritten.changes, verify)


@dataclass(frozen=True, slots=True)
class Judge:
    """Holds a transformed model to a claim; sides_of makes both models from the original's."""

    claim: Claim
    dims: Mapping[str, int]
    sides_of: Callable[[onnx.ModelProto], Sides]

    def equivalence(
        self, model: onnx.ModelProto, rules: OpTable, *, is_drawn: bool = False
    ) -> Equivalence:
        """The judgement, on weights that can prove something; what cannot run is unknown."""
        weights = DRAWN if is_drawn else LOADED
        try:
            comparison = self._comparison(model)
            if not comparison.moves() and not is_drawn:
                weights = DRAWN
                comparison = self._comparison(redrawn(model, rules))
            return comparison.equivalence(weights)
        except ModelBudgetError as error:
            return self._unknown(error, weights)

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
        return Comparison(self.claim, self.sides_of(model), specs, stacks=stacks)
