"""A measured model, and everything global, is as it was before, also after a failure."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks

from pytest_modelbudget import measure
from pytest_modelbudget.errors import ModelBudgetError

pytestmark = pytest.mark.needs_torch


class Careless(nn.Module):
    """Writes to itself, draws numbers and may fail half way."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.old = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.register_buffer("seen", torch.zeros(1))
        self.calls, self.cache, self.fails = 0, None, fails
        self.counter, self.history = torch.zeros(1), []
        self.needs_a_run, self.nested = False, {"a": {}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.cache = x
        self.seen += 1
        self.counter += 1
        self.history.append(x)
        self.nested["a"]["k"] = x
        self.extra = nn.Linear(2, 2)
        random.random(), np.random.rand(), torch.rand(1)
        y = self.old(self.drop(self.norm(x)))
        if self.needs_a_run and x.sum() > 0:
            y = -y
        if self.fails:
            raise ValueError("half way")
        return y


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a measurement could have touched."""
    return {
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "identity": {name: id(value) for name, value in model.state_dict(keep_vars=True).items()},
        "flags": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: [len(module._forward_hooks), len(module._forward_pre_hooks)] for name, module in model.named_modules()
        },
    }


def surroundings() -> dict[str, Any]:
    """Everything global that a measurement could have touched."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "dtype": torch.get_default_dtype(),
        "folder": os.getcwd(),
        "grad": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "einsum": torch.backends.opt_einsum.enabled,
        "hooks": [len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)],
        "initialisers": [id(getattr(nn.init, name)) for name in sorted(vars(nn.init))],
    }


@pytest.mark.parametrize("fails", [False, True], ids=["after success", "after failure"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("needs_a_run", [False, True], ids=["meta", "real"])
def test_a_module_is_bit_identical_afterwards(fails: bool, training: bool, needs_a_run: bool) -> None:
    """Values, identity, flags, attributes and hooks; random states and switches too."""
    model = Careless(fails).train(training)
    model.needs_a_run = needs_a_run
    model.norm.eval()  # a frozen layer inside a training model
    before, around = snapshot(model), surroundings()
    if fails:
        with pytest.raises(ModelBudgetError, match="half way"):
            measure(model, "float32 2x4")
    else:
        measure(model, "float32 2x4")
    after = snapshot(model)
    values, kept = before.pop("values"), after.pop("values")
    assert after == before
    assert all(torch.equal(values[name], kept[name]) for name in values)
    assert surroundings() == around
    assert (model.calls, model.counter.item(), model.history) == (0, 0.0, [])
    assert model.nested == {"a": {}}


def test_a_factory_leaves_nothing_either() -> None:
    """Building without filling weights replaces initialisers, and puts them back."""

    def build() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.chdir("/")
        return nn.Linear(4, 4)

    around = surroundings()
    measure(build, "float64 2x4")
    assert surroundings() == around


def test_a_factory_that_computes_with_its_weights_is_built_with_true_ones() -> None:
    """It raises on values nobody filled in, and is then called with initialisation on."""

    def build() -> nn.Module:
        layer = nn.Linear(1000, 1000, bias=False)
        nn.init.ones_(layer.weight)
        if layer.weight.sum() != 1_000_000:
            raise ValueError("weights are not ones")
        return layer

    assert measure(build, "float32 1x1000")["params"].value == 1_000_000


def test_tied_weights_stay_tied() -> None:
    """The same Parameter object under both names, before and after."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert measure(model, "float32 2x4")["params"].value == 16 + 4 + 4
    assert model[1].weight is model[0].weight
