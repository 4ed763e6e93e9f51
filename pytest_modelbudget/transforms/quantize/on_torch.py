"""``quantize`` on torch models of every format: weights on their grids in a copy, results in its runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.weights import module_tree, named_weights
from pytest_modelbudget.transforms.on_torch import ChangedModule
from pytest_modelbudget.transforms.quantize.costs import Quantised, changed, quantised
from pytest_modelbudget.transforms.quantize.grid import on_grid, scheme_of
from pytest_modelbudget.transforms.transform import Changed, Settings


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model on integers; raises TransformError where nothing would be."""
    scheme = scheme_of(settings)
    plan = quantised(model, model.rules, scheme)

    def changer(module: nn.Module) -> nn.Module:
        put_on_grids(module, plan, scheme.group)
        return module

    made = model.changed(QuantisedModule(model, changer, plan))
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
def put_on_grids(module: nn.Module, plan: Quantised, group: int) -> None:
    """Give every chosen weight of a module the values that its integers stand for; tied ones stay tied."""
    chosen = {name: (grid, axes) for name, grid, axes in plan.on_grids}
    for weight in named_weights(module_tree(module)):
        if weight.name in chosen:
            grid, axes = chosen[weight.name]
            values = weight.tensor.detach().double().numpy()
            parts = on_grid(values, grid, axes, group, name=weight.name)
            weight.tensor.data.copy_(torch.from_numpy(parts.values(axes, values.dtype)))
