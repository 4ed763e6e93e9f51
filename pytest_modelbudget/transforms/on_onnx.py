"""An ONNX model held to a claim, on weights that can prove something, or by its layers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import onnx

from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
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
from pytest_modelbudget.errors import InputError, ModelBudgetError, TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import existing_file
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.onnx_models.files import model_with_weights
from pytest_modelbudget.onnx_models.graph_reader import measured_graph
from pytest_modelbudget.onnx_models.pairs import (
    LayerRuns,
    declared_differences,
    input_specs,
    layer_runs,
    sides,
)
from pytest_modelbudget.onnx_models.program import all_graphs
from pytest_modelbudget.onnx_models.running import wholly_in_float64
from pytest_modelbudget.onnx_models.weights import redrawn, without_values
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.transform import Job, Transformed


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
    promised = products_of(loaded.graph, job.rules) if is_flat(rewritten.model) else None

    def sides_of(weights: onnx.ModelProto) -> Sides:
        found = rewritten if weights is model else rewrite(weights)
        exact = None
        if changes_weights:
            copy = wholly_in_float64(weights)
            exact = (copy, rewrite(copy).model)
        sums = found.partial_sums
        return sides(weights, found.model, exact=exact, partial_sums=sums, promised=promised)

    def layers_of(weights: onnx.ModelProto, claim: Claim) -> Layers:
        before = wholly_in_float64(weights) if changes_weights else weights
        after = (rewritten if before is model else rewrite(before)).model
        runs = tuple(layer_runs(before, after, job.source.dims, claim))
        return Layers(runs, tuple(declared_differences(before, after)))

    def verify(claim: Claim) -> Equivalence:
        judge = Judge(claim, job.source.dims, sides_of, layers_of)
        return judge.equivalence(model, job.rules, is_drawn=is_drawn)

    return Transformed(loaded, rewritten.changes, verify)


def is_flat(model: onnx.ModelProto) -> bool:
    """Whether a session executes a model's nodes as they are counted: no bodies, no functions."""
    return not model.functions and next(islice(all_graphs(model.graph), 1, None), None) is None


def products_of(graph: Graph, rules: OpTable) -> Counter[str]:
    """How often each operator that multiplies stands in a measured graph, by its name."""
    return Counter(
        op.name
        for op in graph.ops
        if op.name in rules and rules[op.name].macs not in (None, nothing)
    )
