"""A torch model as the comparison takes it: it runs on named arrays, and returns such."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_modelbudget.equivalence.batches import Output, Returned, Row, Specs, drawn
from pytest_modelbudget.equivalence.input_families import FAMILIES, SCALES
from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, TensorSpec
from pytest_modelbudget.frontends.torch_inputs import CallInputs, call_inputs, dtype_named
from pytest_modelbudget.frontends.torch_running import (
    Executed,
    Product,
    Result,
    Runnable,
    weight_names,
)
from pytest_modelbudget.frontends.torch_values import dtype_of
from pytest_modelbudget.frontends.torch_weights import module_tree, named_weights
from pytest_modelbudget.ops.op_table import OpTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class TorchSide:
    """A torch model that runs on the tensors that specs describe."""

    def __init__(self, model: Runnable, specs: InputSpecs) -> None:
        self.model = model
        self.specs = specs

    def run(self, inputs: Arrays, *, float64: bool) -> Returned:
        """All tensors that the model returns, in their order."""
        try:
            result = self._result(call_of(self.specs, inputs), float64)
        except TraceError as error:
            raise TransformError(str(error)) from error
        outputs = tuple(
            Output(each.name, dtype_of(each.tensor.dtype).name, array(each.tensor))
            for each in result.outputs
        )
        return Returned(outputs, result.structure)

    def _result(self, inputs: CallInputs, float64: bool) -> Result:
        return self.model.run(inputs, float64=float64)


class CountedSide(TorchSide):
    """A torch model whose runs must multiply what its graph has promised.

    exact is what runs in float64, where that is not the model's own float64 twin.
    """

    def __init__(
        self,
        model: Runnable,
        specs: InputSpecs,
        *,
        promised: Counter[Product],
        rules: OpTable,
        exact: Runnable | None = None,
    ) -> None:
        super().__init__(model, specs)
        self._exact = exact or model
        self._promised = promised
        self._rules = rules
        self._was_kept = False

    def _result(self, inputs: CallInputs, float64: bool) -> Result:
        if float64:
            return self._exact.run(inputs, float64=True)
        result, counts = self._counted(inputs)
        done = attributed(counts, self._promised)
        self._was_kept = self._was_kept or done == self._promised
        return result

    def _counted(self, inputs: CallInputs) -> tuple[Result, Counter[Product]]:
        counting = Executed(self._rules, weight_names(self.model.subject.model))
        result = self.model.run(inputs, listening=(counting,))
        return result, counting.counts

    def disagreements(self) -> Iterator[str]:
        """The first product that the graph and the runs do not count alike.

        A model may loop over its rows: where no run so far kept the promise, inputs of the very
        shapes that the graph was measured on decide.
        """
        if self._was_kept:
            return
        inputs = drawn(leaf_specs(self.specs), Row(FAMILIES[0], 0), SCALES[0])
        _, counts = self._counted(call_of(self.specs, inputs))
        executed = attributed(counts, self._promised)
        for product in sorted({*self._promised, *executed}):
            said, done = self._promised[product], executed[product]
            if said != done:
                name, shape = product
                size = f" by weights {list(shape)}" if shape else ""
                yield f"the graph has {said:,} {name}{size}, and the run executes {done:,}"
                return


def attributed(counts: Counter[Product], promised: Counter[Product]) -> Counter[Product]:
    """What a run multiplied, where products by nameless weights stand for promised ones.

    Autocast reads a copy of a weight, and quantised layers read packed ones: such a product counts
    as () and may be any that the graph has and the run lacks, of the same operator.
    """
    executed = counts.copy()
    for product in sorted(promised - counts):
        nameless = product[0], ()
        spare = executed[nameless] - promised[nameless]
        taken = min(spare, promised[product] - counts[product])
        if taken > 0:
            executed[product] += taken
            executed[nameless] -= taken
    return +executed


def leaf_specs(specs: InputSpecs) -> Specs:
    """The type and shape of every tensor that a model takes: "0", "1.0", "mask".

    A type that numpy has not is drawn in float32: ``call_of`` rounds to it.
    """
    found: dict[str, TensorSpec] = {}

    def add(name: str, spec: InputSpec) -> None:
        if isinstance(spec, TensorSpec):
            is_narrow = dtype_named(spec.dtype).is_floating_point and spec.dtype not in NUMPY_HAS
            found[name] = replace(spec, dtype="float32") if is_narrow else spec
            return
        for position, part in enumerate(spec):
            add(f"{name}.{position}", part)

    for position, spec in enumerate(specs.positional):
        add(str(position), spec)
    for name, spec in specs.named.items():
        add(name, spec)
    return found


NUMPY_HAS = frozenset({"float16", "float32", "float64"})


def stacks(specs: Specs) -> bool:
    """Whether all tensors have one first dimension, along which rows may be stacked."""
    sizes = {spec.shape[:1] for spec in specs.values()}
    return len(sizes) == 1 and sizes != {()}


def call_of(specs: InputSpecs, inputs: Arrays) -> CallInputs:
    """Arrays, in the order of ``leaf_specs``, as arguments of a torch call."""
    given = iter(inputs.values())

    def tensor(spec: TensorSpec) -> torch.Tensor:
        return torch.from_numpy(next(given).copy()).to(dtype_named(spec.dtype))

    return call_inputs(specs, tensor)


def floating_weights(model: nn.Module) -> Mapping[str, Callable[[], NDArray[Any]]]:
    """What reads the values of every stored floating tensor, by name."""
    return {
        weight.name: partial(array, weight.tensor)
        for weight in named_weights(module_tree(model))
        if weight.tensor.is_floating_point()
    }


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """Values as float64, or as the integers they are; complex ones as complex128."""
    if tensor.is_floating_point():
        tensor = tensor.double()
    found: NDArray[Any] = tensor.detach().cpu().resolve_conj().numpy()
    return found
