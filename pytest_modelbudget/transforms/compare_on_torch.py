"""``compare: {torch: package.module:callable}``: a second model that must agree with the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import onnx
from torch import nn

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.divergence import Divergence, first_divergence
from pytest_modelbudget.equivalence.figures import stores_other_values
from pytest_modelbudget.equivalence.inputs import FAMILIES, SCALES, Returned, Row, drawn
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec, existing_file
from pytest_modelbudget.formats.table import frontend_table
from pytest_modelbudget.onnx_models.files import model_with_weights
from pytest_modelbudget.onnx_models.graph_reader import measured_graph
from pytest_modelbudget.onnx_models.pairs import output_types, outputs_of
from pytest_modelbudget.onnx_models.program import floating_arrays
from pytest_modelbudget.onnx_models.running import Feeds, OnnxRun, given_inputs, upcast
from pytest_modelbudget.torch_models.building import is_an_instance
from pytest_modelbudget.torch_models.running import (
    CountedSide,
    Runnable,
    TorchSide,
    floating_weights,
    leaf_specs,
    products_of,
    stored_dtype,
    true_subject,
)
from pytest_modelbudget.torch_models.tracing import Subject
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.on_torch import sides, verified_beside_torch, watched
from pytest_modelbudget.transforms.transform import Job, Transformed

TORCH = ("torch", "torchscript", "exported")


def transformed(job: Job) -> Transformed:
    """The second model, measured on the first one's inputs, and both run side by side."""
    given = job.settings["compare"]
    assert isinstance(given, ModelSource)
    if given.format == "onnx":
        return _compared_with_onnx(job)
    if given.format not in TORCH:
        raise TransformError(f"a {job.source.format} model cannot be compared with {given.format}")
    second = given if given.format == "exported" else replace(given, inputs=job.source.inputs)
    loaded = frontend_table()[second.format].load(second, job.rules)
    products = products_of(loaded.graph, job.rules)
    may_draw = second.format == "torch" and not is_an_instance(second)

    def sides_of(subject: Subject, specs: InputSpecs, weights_are_drawn: bool) -> Sides:
        other, _ = true_subject(second)
        notes: tuple[str, ...] = ()
        if weights_are_drawn:
            redraw(other.model)
            notes = tuple(_partners(subject.model, other.model))
        both = sides(
            TorchSide(Runnable(subject), specs),
            CountedSide(Runnable(other), specs, promised=products, rules=job.rules),
        )
        return replace(
            both,
            notes=notes,
            other_weights=lambda: stores_other_values(
                *map(floating_weights, (subject.model, other.model))
            ),
        )

    def verify(claim: Claim) -> Equivalence:
        return verified_beside_torch(claim, job.source, sides_of, may_draw=may_draw)

    return Transformed(loaded, (), verify)


def _partners(first: nn.Module, second: nn.Module) -> Iterator[str]:
    """A word about weights that only one of two models has, and so cannot be equal in both."""
    mine, theirs = ({name for name, _ in each.named_parameters()} for each in (first, second))
    alone = sorted(mine ^ theirs)
    if alone:
        yield (
            f"weights are drawn by name, and {len(alone)} have no partner of their name, such as "
            f"{alone[0]}: let both factories load their weights"
        )


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


def _compared_with_onnx(job: Job) -> Transformed:
    """The file's graph, measured, and both run side by side on the weights that each one has."""
    given = job.settings["compare"]
    assert isinstance(given, ModelSource)
    path = existing_file(given, "an ONNX model")
    model = model_with_weights(path)
    loaded = measured_graph(model, path.name, given.dims, job.rules)

    def verify(claim: Claim) -> Equivalence:
        models = OnnxModels(stored=model, exact=model)
        return compared(claim, job.source, lambda original: models, may_draw=False)

    return Transformed(loaded, (), verify)
