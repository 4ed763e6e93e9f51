"""What measuring promises of a live module and of its process, and no more."""

from __future__ import annotations

import os
import random
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.errors import ModelBudgetError

pytestmark = pytest.mark.needs_torch


class Careless(nn.Module):
    """Writes to itself, draws numbers and may fail half way."""

    def __init__(self, *, needs_a_run: bool, fails: bool) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.old = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.register_buffer("seen", torch.zeros(1))
        self.calls, self.cache, self.needs_a_run, self.fails = 0, None, needs_a_run, fails
        self.counter, self.history = torch.zeros(1), []
        self.nested = {"a": {}}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.cache = x
        self.seen += 1
        self.counter += 1
        self.history.append(x)
        self.nested["a"]["k"] = x
        self.extra = x
        self.drop.register_forward_hook(lambda layer, given, result: result)
        random.random(), np.random.rand(), torch.rand(1)
        y = self.old(self.drop(self.norm(x)))
        if self.needs_a_run and x.sum() > 0:
            y = -y
        if self.fails:
            raise ValueError("half way")
        return y


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Identity, flags, attributes and hooks of a model's modules."""
    return {
        "identity": {name: id(value) for name, value in model.state_dict(keep_vars=True).items()},
        "flags": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: [len(module._forward_hooks), len(module._forward_pre_hooks)] for name, module in model.named_modules()
        },
    }


def surroundings() -> dict[str, Any]:
    """All of the process that is as before."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "einsum": torch.backends.opt_einsum.enabled,
        "initialisers": [id(getattr(nn.init, name)) for name in sorted(vars(nn.init))],
    }


@pytest.mark.parametrize("fails", [False, True], ids=["after success", "after failure"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("needs_a_run", [False, True], ids=["meta", "real"])
def test_a_live_module_is_as_before(fails: bool, training: bool, needs_a_run: bool) -> None:
    """Its values, identity, flags, attributes and hooks; random state, grad mode and defaults of the process."""
    model = Careless(needs_a_run=needs_a_run, fails=fails).train(training)
    model.norm.eval()  # a frozen layer inside a training model
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before, around = snapshot(model), surroundings()
    if fails:
        with pytest.raises(ModelBudgetError, match="half way"):
            measure(model, "float32 2x4")
    else:
        measure(model, "float32 2x4")
    assert snapshot(model) == before
    assert all(torch.equal(values[name], kept) for name, kept in model.state_dict().items())
    assert surroundings() == around
    assert (model.calls, model.counter.item(), model.history) == (0, 0.0, [])
    assert model.nested == {"a": {}}


def test_what_a_factory_sets_holds_for_its_model_and_is_as_before_afterwards() -> None:
    """4 x 4 + 4 weights of 8 bytes; the current folder is no part of the promise."""

    def build() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.environ["MODELBUDGET_TEST"] = "stays"
        random.seed(9), np.random.seed(9), torch.manual_seed(9)
        return nn.Linear(4, 4)

    around = surroundings()
    assert measure(build, "float64 2x4")["weight_memory"].value == 8 * (4 * 4 + 4)
    assert surroundings() == around
    assert os.environ.pop("MODELBUDGET_TEST") == "stays"


def test_a_default_device_is_as_before() -> None:
    around = surroundings()

    def build() -> nn.Module:
        torch.set_default_device("meta")
        return nn.Linear(4, 4)

    assert measure(build, "float32 2x4")["macs"].value == 2 * 4 * 4
    assert surroundings() == around


@lru_cache(maxsize=8)
def mask(n: int, device: torch.device) -> torch.Tensor:
    """As allenai/longformer caches its masks: also without memory, on what says that it is a CPU."""
    return torch.arange(n, device=device).float()


@cache
def settings() -> Any:
    """The only one of its kind."""
    return object()


class Masked(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x + mask(4, x.device))
        return y


def test_a_cached_tensor_of_one_pass_meets_no_other() -> None:
    """Neither the next attempt, nor a claim, nor the module's own code."""
    model, only = Masked(4, 4), settings()
    assert measure(model, "float32 2x4")["macs"].value == 2 * 4 * 4
    assert settings() is only
    assert not model(torch.ones(2, 4)).is_meta
    assert check_equivalence(Masked(4, 4), Masked(4, 4), "float32 2x4", seeds=(0,)).weights == "as loaded"


class Locked(nn.Linear):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.file, self.rows, self.call = open(os.devnull), (row for row in ()), lambda x: x  # noqa: SIM115

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.call(x))  # type: ignore[no-any-return]  # of a module


def test_a_module_that_cannot_be_copied_is_measured() -> None:
    model = Locked()
    assert measure(model, "float32 2x4")["macs"].value == 2 * 4 * 4
    model.file.close()


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


NO_DICT = {
    "not made yet": property(lambda self: (_ for _ in ()).throw(AttributeError("__dict__"))),
    "hidden": lambda self, name: (_ for _ in ()).throw(AttributeError(name)),
}


@pytest.mark.parametrize("kind", NO_DICT)
def test_objects_that_tell_of_no_dictionary_are_let_be(kind: str) -> None:
    """As those of a class that mypyc compiled, which fastai's models hold; 2 x 16 x 16 MACs."""
    held = type("Held", (), {"__dict__" if kind == "not made yet" else "__getattribute__": NO_DICT[kind]})
    model: Any = nn.Linear(16, 16)
    model.held, model.more = held(), [held()]
    assert measure(model, "float32 2x16")["macs"].value == 2 * 16 * 16
