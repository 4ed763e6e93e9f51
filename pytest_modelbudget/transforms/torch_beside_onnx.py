"""A torch model beside an ONNX model that must compute the same: runs of both on named arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.frontends.torch_inputs import CallInputs
from pytest_modelbudget.frontends.torch_running import (
    Runnable,
    loads_no_weights,
    stored_dtype,
    true_subject,
)
from pytest_modelbudget.frontends.torch_tracing import Subject
from pytest_modelbudget.frontends.torch_values import dtype_of
from pytest_modelbudget.frontends.torch_weights import module_tree, named_weights
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.comparison import (
    DRAWN,
    LOADED,
    Comparison,
    Output,
    Outputs,
    Sides,
)
from pytest_modelbudget.transforms.divergence import Divergence, first_divergence
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.onnx_running import OnnxRun, given_inputs
from pytest_modelbudget.transforms.onnx_sides import output_types, outputs_of, upcast
from pytest_modelbudget.transforms.torch_modules import watched
from pytest_modelbudget.transforms.torch_verifying import array

Feeds = Mapping[str, Any]


def leaf_specs(specs: InputSpecs) -> Mapping[str, TensorSpec]:
    """Every input by its name ("0", "mask"); raises TransformError for what arrays cannot be."""
    given = {**{str(i): spec for i, spec in enumerate(specs.positional)}, **specs.named}
    for name, spec in given.items():
        if not isinstance(spec, TensorSpec) or spec.dtype == "bfloat16":
            what = "a list" if not isinstance(spec, TensorSpec) else spec.dtype
            raise TransformError(f"input '{name}' is {what}: ONNX Runtime takes no such input")
    return {name: spec for name, spec in given.items() if isinstance(spec, TensorSpec)}


def call_of(specs: InputSpecs, inputs: Feeds) -> CallInputs:
    """The same arrays as arguments of a torch call."""

    def tensor(name: str, spec: InputSpec) -> torch.Tensor:
        return torch.from_numpy(inputs[name].copy())

    args = tuple(tensor(str(i), spec) for i, spec in enumerate(specs.positional))
    return CallInputs(args, {name: tensor(name, spec) for name, spec in specs.named.items()})


@dataclass(frozen=True, slots=True)
class OnnxModels:
    """An ONNX model as it is stored, and the one that step 1 runs: itself, or made in float64."""

    stored: onnx.ModelProto
    exact: onnx.ModelProto


ModelsOf = Callable[[Runnable], OnnxModels]


class TorchSide:
    """A torch model that runs on arrays."""

    def __init__(self, runnable: Runnable, specs: InputSpecs) -> None:
        self.runnable = runnable
        self.specs = specs

    def run(self, inputs: Feeds, *, float64: bool) -> Outputs:
        """All tensors that the model returns, in their order."""
        try:
            result = self.runnable.run(call_of(self.specs, inputs), float64=float64)
        except TraceError as error:
            raise TransformError(str(error)) from error
        return tuple(
            Output(each.name, dtype_of(each.tensor.dtype).name, array(each.tensor))
            for each in result.outputs
        )


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

    def run(self, inputs: Feeds, *, float64: bool) -> Outputs:
        """All outputs; those that the torch model has too go by its names."""
        given = self.feeds(inputs)
        found = outputs_of(
            self._exact(upcast(given)) if float64 else self._stored(given), self._types
        )
        if len(found) != len(self._names):
            return found
        return tuple(
            replace(each, name=name) for each, name in zip(found, self._names, strict=True)
        )


def compared(
    claim: Claim, source: ModelSource, models_of: ModelsOf, *, may_draw: bool
) -> Equivalence:
    """Hold an ONNX model to what a torch model computes; models_of gives it for that model."""
    subject, specs = true_subject(source)
    weights = LOADED
    if may_draw and loads_no_weights(source, subject):
        redraw(subject.model)
        weights = DRAWN
    found = _comparison(claim, subject, specs, models_of)
    if weights is LOADED and may_draw and not found.moves():
        subject, specs = true_subject(source)
        redraw(subject.model)
        weights = DRAWN
        found = _comparison(claim, subject, specs, models_of)
    return found.equivalence(weights)


def _comparison(
    claim: Claim, subject: Subject, specs: InputSpecs, models_of: ModelsOf
) -> Comparison:
    first = TorchSide(Runnable(subject), specs)
    models = models_of(first.runnable)
    given = leaf_specs(specs)
    names = tuple(each.name for each in _one_run(first, given))
    second = OnnxSide(models, names)

    def divergence(inputs: Feeds) -> Divergence | None:
        before = watched(first.runnable, call_of(specs, inputs))
        made = [name for node in models.exact.graph.node for name in node.output if name]
        after = OnnxRun(models.exact, float64=True, watched=made)(upcast(second.feeds(inputs)))
        return first_divergence(before, [(name, after[name]) for name in made])

    dtype = stored_dtype(subject.model)
    sides = Sides(
        first,
        second,
        dtype,
        divergence,
        other_weights=lambda: stores_other_values(subject, models.exact),
    )
    return Comparison(claim, sides, given, stacks=False)


def stores_other_values(subject: Subject, model: onnx.ModelProto) -> bool:
    """Whether an ONNX model holds weights, transposed or not, that the torch model has nowhere.

    Folding and merging round to the stored type on a route of their own.
    """
    import numpy as np

    def fingerprint(values: Any) -> bytes:
        return bytes(np.sort(values.astype(np.float64).ravel()).tobytes())

    stored = (weight.tensor for weight in named_weights(module_tree(subject.model)))
    known = {fingerprint(array(each.detach())) for each in stored if each.is_floating_point()}
    mine = (numpy_helper.to_array(each) for each in model.graph.initializer)
    return any(each.dtype.kind == "f" and each.size > 1 and fingerprint(each) not in known
               for each in mine)  # fmt: skip


def _one_run(side: TorchSide, specs: Mapping[str, TensorSpec]) -> Outputs:
    """What one run on zeros returns, for the names of it."""
    import numpy as np

    zeros = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    return side.run(zeros, float64=False)
