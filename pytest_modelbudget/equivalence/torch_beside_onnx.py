"""A torch model beside an ONNX model that must compute the same: runs of both on named arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import onnx

from pytest_modelbudget.equivalence.batches import Returned, Row, drawn
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.divergence import Divergence, first_divergence
from pytest_modelbudget.equivalence.input_families import FAMILIES, SCALES
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.onnx_running import Feeds, OnnxRun, given_inputs, upcast
from pytest_modelbudget.equivalence.onnx_sides import output_types, outputs_of
from pytest_modelbudget.equivalence.onnx_stored import floating_arrays
from pytest_modelbudget.equivalence.stored_values import stores_other_values
from pytest_modelbudget.equivalence.torch_sides import TorchSide, floating_weights, leaf_specs
from pytest_modelbudget.equivalence.torch_verifying import verified_beside_torch
from pytest_modelbudget.equivalence.torch_watching import watched
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.frontends.torch_running import Runnable, stored_dtype
from pytest_modelbudget.frontends.torch_tracing import Subject


@dataclass(frozen=True, slots=True)
class OnnxModels:
    """An ONNX model as it is stored, and the one that step 1 runs: itself, or made in float64."""

    stored: onnx.ModelProto
    exact: onnx.ModelProto


ModelsOf = Callable[[Runnable], OnnxModels]


class OnnxSide:
    """An ONNX model that runs on a torch model's inputs, in the file's order of both."""

    def __init__(self, models: OnnxModels, names: tuple[str, ...]) -> None:
        model = models.stored
        self._stored, self._exact = OnnxRun(model), OnnxRun(models.exact, float64=True)
        self._types = output_types(model)
        self._inputs = tuple(value.name for value in given_inputs(model))
        self._names = names

    def feeds(self, inputs: Feeds) -> Feeds:
        """Arrays under the file's own names."""
        if len(inputs) != len(self._inputs):
            raise TransformError(
                f"the ONNX model takes {len(self._inputs)} inputs, the torch model {len(inputs)}"
            )
        return dict(zip(self._inputs, inputs.values(), strict=True))

    def run(self, inputs: Feeds, *, float64: bool) -> Returned:
        """All outputs; those that the torch model has too go by its names."""
        given = self.feeds(inputs)
        found = outputs_of(
            self._exact(upcast(given)) if float64 else self._stored(given), self._types
        )
        if len(found.outputs) != len(self._names):
            return found
        pairs = zip(found.outputs, self._names, strict=True)
        return Returned(tuple(replace(each, name=name) for each, name in pairs))


def compared(
    claim: Claim, source: ModelSource, models_of: ModelsOf, *, may_draw: bool
) -> Equivalence:
    """Hold an ONNX model to what a torch model computes; models_of gives it for that model."""

    def sides_of(subject: Subject, specs: InputSpecs, weights_are_drawn: bool) -> Sides:
        must_be_arrays(specs)
        return _sides(TorchSide(Runnable(subject), specs), models_of)

    return verified_beside_torch(claim, source, sides_of, may_draw=may_draw, may_stack=False)


def must_be_arrays(specs: InputSpecs) -> None:
    """Raise TransformError for inputs that ONNX Runtime does not take."""
    for name, spec in (*enumerate(specs.positional), *specs.named.items()):
        if not isinstance(spec, TensorSpec) or spec.dtype == "bfloat16":
            what = "a list" if not isinstance(spec, TensorSpec) else spec.dtype
            raise TransformError(f"input '{name}' is {what}: ONNX Runtime takes no such input")


def _sides(first: TorchSide, models_of: ModelsOf) -> Sides:
    models = models_of(first.model)
    names = tuple(each.name for each in _one_run(first).outputs)
    second = OnnxSide(models, names)

    made = [name for node in models.exact.graph.node for name in node.output if name]

    @cache
    def watched_run() -> OnnxRun:
        return OnnxRun(models.exact, float64=True, watched=made)

    def divergence(inputs: Feeds) -> Divergence | None:
        before = watched(first, inputs)
        after = watched_run()(upcast(second.feeds(inputs)))
        return first_divergence(before, [(name, after[name]) for name in made])

    def other_weights() -> bool:
        arrays = floating_arrays(models.exact)
        constants = {name: read for name, read in arrays.items() if read().size > 1}
        return stores_other_values(floating_weights(module), constants)

    module = first.model.subject.model
    return Sides(
        first,
        second,
        stored_dtype(module),
        divergence,
        rounding=lambda inputs: None,  # layers have other names in the file
        other_weights=other_weights,
    )


def _one_run(side: TorchSide) -> Returned:
    """What one run returns, for the names of it."""
    inputs = drawn(leaf_specs(side.specs), Row(FAMILIES[0], 0), SCALES[0])
    return side.run(inputs, float64=False)
