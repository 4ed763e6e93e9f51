"""``quantize`` on torch models of every format: weights on their grids in a copy, results in its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.formats.model import Change, LoadedModel
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.recording import signature
from pytest_modelbudget.torch_models.rewriting import Call
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.values import tensors_in
from pytest_modelbudget.torch_models.versions import disable_current_modes
from pytest_modelbudget.torch_models.weights import module_tree, named_weights
from pytest_modelbudget.transforms.on_torch import ChangedModule
from pytest_modelbudget.transforms.quantize.costs import Quantised, changed, quantised
from pytest_modelbudget.transforms.quantize.grid import Scheme, on_grid, scheme_of
from pytest_modelbudget.transforms.quantize.values import (
    Ends,
    Point,
    Points,
    Scales,
    bias_on_grid,
    calibrated,
    ends_of,
    points_of,
)
from pytest_modelbudget.transforms.transform import Changed, Settings

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model on integers; raises TransformError where nothing would be."""
    scheme = scheme_of(settings)
    plan = quantised(model, model.rules, scheme)
    rounding = Rounding(model, plan, scheme) if plan.values else None
    scales: dict[str, Any] = {} if rounding is None else rounding.of_weights

    def changer(module: nn.Module) -> nn.Module:
        scales.update(put_on_grids(module, plan, scheme.group))
        return module

    made = model.changed(QuantisedModule(model, changer, plan), rounding)
    return changed(made, plan, scheme, is_copy=model.is_copy)


@dataclass(frozen=True, slots=True)
class QuantisedModule(ChangedModule):
    """A module whose weights have the values of their integers, measured as the program on these."""

    plan: Quantised

    def trace(self, model: TorchModel) -> LoadedModel:
        return self.plan.measured

    def training_step(self, model: TorchModel, optimizer: str) -> Graph:
        raise TraceError("integers have no gradient: measure the training of the model itself")


@torch.no_grad()
def put_on_grids(module: nn.Module, plan: Quantised, group: int) -> Mapping[str, Any]:
    """Give every chosen weight of a module the values that its integers stand for; tied ones stay tied.

    The scales of each, by name.
    """
    chosen, scales = {name: (grid, axes) for name, grid, axes in plan.on_grids}, {}
    for weight in named_weights(module_tree(module)):
        if weight.name in chosen:
            grid, axes = chosen[weight.name]
            values = weight.tensor.detach().double().numpy()
            parts = on_grid(values, grid, axes, group, name=weight.name)
            scales[weight.name] = parts.scale
            weight.tensor.data.copy_(torch.from_numpy(parts.values(axes, values.dtype)))
    return scales


class InOrder:
    """Meets the operations of a trace again in a run, in their order: a rewrite of each, by its place.

    changes has one entry for each that was met, so that each run begins anew. Raises TransformError where a run
    multiplies what the trace does not.
    """

    partial_sums = 1

    def __init__(self, points: Points, rules: OpTable) -> None:
        self.points, self.rules = points, rules
        self.changes: list[Change] = []

    def result(self, call: Call) -> Any:
        """The operation on rounded operands, and its results rounded; NotImplemented for what no trace has."""
        at = self._place(call)
        if at is None:
            return NotImplemented
        op = self.points.graph.ops[at]
        args, kwargs = list(call.args), dict(call.kwargs)
        for (place, name), operand in zip(signature(call.func).tensors_at, op.operands, strict=False):
            now: Any = None
            given = call.argument(place, name)
            if isinstance(operand, Tensor) and isinstance(given, torch.Tensor):
                now = self.operand(operand, given)
            elif isinstance(operand, tuple) and isinstance(given, (list, tuple)):
                pairs = zip(operand, given, strict=False)
                now = [self.operand(one, each) if one and each is not None else each for one, each in pairs]
            else:
                continue
            if place < len(args):
                args[place] = now
            else:
                kwargs[name] = now
        result = call.func(*args, **kwargs)
        return self._written(at, op, result)

    def _place(self, call: Call) -> int | None:
        """The place of a call in the trace; None of one that it does not have.

        A run may leave out what a trace has, such as the making of a mask, but no product and no point.
        """
        ops, points = self.points.graph.ops, self.points.places
        for at in range(len(self.changes), len(ops)):
            if ops[at].name == call.name:
                self.changes += [Change(op.scope, op.name) for op in ops[len(self.changes) : at + 1]]
                return at
            rule = self.rules.get(ops[at].name)
            if at in points or (rule is not None and rule.contraction):
                break
        if call.rule is not None and call.rule.contraction:
            words = f"{call.name} runs where the trace has another operation"
            raise TransformError(f"quantize: activations: {words}: quantize weights alone")
        return None

    def _written(self, at: int, op: Op, result: Any) -> Any:
        """What an operation gave, with the results that have a point of their own rounded in place."""
        for out, tensor in zip(op.outputs, tensors_in(result), strict=False):
            point = self.points.points.get((at, out.storage))
            if point is not None:
                tensor.copy_(self.value(point, tensor))
        return result

    def operand(self, operand: Tensor, given: torch.Tensor) -> torch.Tensor:
        """What an operation reads in place of an operand."""
        point = self.points.of_inputs(operand.storage)
        return given if point is None else self.value(point, given)

    def value(self, point: Point, given: torch.Tensor) -> torch.Tensor:
        """The value that replaces another one at a point."""
        raise NotImplementedError


class Observing(InOrder):
    """Notes the ends of every value at a point, and changes none."""

    def __init__(self, points: Points, rules: OpTable) -> None:
        super().__init__(points, rules)
        self.ends: dict[Point, Ends] = {}

    def value(self, point: Point, given: torch.Tensor) -> torch.Tensor:
        if given.numel():
            least, most = ends_of((given.float() if given.dtype is torch.bfloat16 else given).numpy())
            known = self.ends.get(point, (least, most))
            self.ends[point] = min(known[0], least), max(known[1], most)
        return given


class Rounding(InOrder):
    """Rounds values to their grids, whose scales a calibration of the original says before the first run."""

    def __init__(self, model: TorchModel, plan: Quantised, scheme: Scheme) -> None:
        super().__init__(points_of(plan, model.rules), model.rules)
        self.of_weights: dict[str, Any] = {}
        self._model, self._calibrate = model, scheme.calibrate

    @cached_property
    def _scales(self) -> Scales:
        model, seen = self._model, Observing(self.points, self.rules)
        watched = TorchModel(
            model.source, model.rules, rewrite=seen, built=(model.subject, model.specs), is_exact=model.is_exact,
            copy_of=model,
        )  # fmt: skip

        def observe(inputs: Arrays) -> Iterator[tuple[Point, Ends]]:
            seen.ends.clear()
            watched.run(inputs)
            yield from seen.ends.items()

        with disable_current_modes():
            return calibrated(self.points, model, self._calibrate, observe)

    def operand(self, operand: Tensor, given: torch.Tensor) -> torch.Tensor:
        bias = self.points.biases.get(operand.storage)
        if bias is None:
            return super().operand(operand, given)
        parts = bias_on_grid(given.double().numpy(), bias, self.of_weights[bias.weight], self._scales)
        return torch.from_numpy(parts[0] * parts[1]).to(given.dtype).reshape(given.shape)

    def value(self, point: Point, given: torch.Tensor) -> torch.Tensor:
        scale, zero = self._scales[point]
        low, high = point.grid.ends
        wide = given if given.dtype is torch.float64 else given.float()
        return ((((wide / scale).round() + zero).clamp(low, high) - zero) * scale).to(given.dtype)
