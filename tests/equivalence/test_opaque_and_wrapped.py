"""Outputs in objects of others, and weights in wrapper tensors."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.errors import TraceError
from tests.builders.wrapper_tensors import Int8Rows

pytestmark = pytest.mark.needs_torch


class Layer:
    """Tensors in attributes."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.values = keys, [keys.cos()]
        self.is_initialised, self.kind, self.update = True, Layer, print


class Cache:
    """Layers in a list, and a way back to the cache."""

    def __init__(self, *keys: torch.Tensor) -> None:
        self.layers = [Layer(key) for key in keys]
        self.around = self


class Both:
    """Two caches in slots."""

    __slots__ = ("cross", "own")

    def __init__(self, own: Cache, cross: Cache) -> None:
        self.own, self.cross = own, cross


class Private:
    """A tensor in a slot that Python gives another name."""

    __slots__ = ("__own", "beside")

    def __init__(self, own: torch.Tensor) -> None:
        self.__own, self.beside = own, own > torch.inf


class Named(list):  # type: ignore[type-arg]
    """A list with a tensor beside its items."""

    def __init__(self, items: list[torch.Tensor], beside: torch.Tensor) -> None:
        super().__init__(items)
        self.beside = beside


Pair = namedtuple("Pair", ["first", "cache"])  # as libraries write them


class Returning(nn.Module):
    """A network whose last result is wrapped as ``wrap`` says."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any], factor: float) -> None:
        super().__init__()
        self.net, self.wrap, self.factor = nn.Linear(8, 4), wrap, factor

    def forward(self, x: torch.Tensor) -> Any:
        y = self.net(x)
        return {"logits": y, "cache": self.wrap(y * self.factor)}


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        pytest.param(lambda x: Cache(x, x.sin()), "cache.layers.0.keys", id="attributes and lists"),
        pytest.param(lambda x: Both(Cache(x), Cache(x.exp())), "cache.cross.layers.0.keys", id="slots"),
        pytest.param(Private, "cache._Private__own", id="a private slot"),
        pytest.param(lambda x: Pair(1, Cache(x)), "cache.cache.layers.0.keys", id="in a named tuple"),
        pytest.param(lambda x: Named([x.tanh()], x), "cache.beside", id="beside a list's items"),
    ],
)
def test_objects_are_looked_into(wrap: Callable[[torch.Tensor], Any], name: str) -> None:
    """Their tensors are outputs by the names of the attributes; a wrong one is over."""
    first = Returning(wrap, 1.0)
    same, other = copy.deepcopy(first), copy.deepcopy(first)
    other.factor = 1.5
    assert check_equivalence(first, same, "float32 2x8").outcome == "within"
    found = check_equivalence(first, other, "float32 2x8")
    assert found.outcome == "over"
    assert name in [output.name for output in found.outputs if output.outcome == "over"]


def test_what_stays_opaque_names_the_way_out() -> None:
    """A cache that hides its tensors is skipped by its configuration."""
    hidden = Returning(lambda x: {"past_key_values": {x}}, 1.0)
    with pytest.raises(TraceError, match=r"'cache.past_key_values' is a set, .*config.use_cache = False"):
        check_equivalence(hidden, copy.deepcopy(hidden), "float32 2x8")


def test_a_language_model_is_compared_as_it_is() -> None:
    """Keys and values of every layer are outputs: two of two layers, beside the logits."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
    )
    model = transformers.LlamaForCausalLM(config).eval()
    found = check_equivalence(model, copy.deepcopy(model), {"input_ids": "int64 1x12"})
    assert found.outcome == "within", found.reason
    assert len({output.name for output in found.outputs}) == 1 + 2 * 2


def quantised(model: nn.Module) -> nn.Module:
    """Every matrix as codes and scales."""
    other = copy.deepcopy(model)
    for layer in other.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(Int8Rows.of(layer.weight.data), requires_grad=False)
    return other


LOSSY: dict[str, Any] = {"kind": "lossy", "bounds": {"sqnr": 30}}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


def test_wrapped_weights_are_compared_by_what_they_give() -> None:
    """Rounding to eight bits keeps more than 30 dB; a row with its sign turned does not."""
    model = mlp()
    assert check_equivalence(model, quantised(model), "float32 4x64", **LOSSY).outcome == "within"
    damaged = copy.deepcopy(model)
    damaged[2].weight.data[3] *= -1
    found = check_equivalence(model, quantised(damaged), "float32 4x64", **LOSSY)
    assert found.outcome == "over"
    assert "sqnr" in found.reason


def test_torchao_is_compared_as_it_is() -> None:
    """Weights of torchao, in int8 with a scale for each row."""
    quantization = pytest.importorskip("torchao.quantization")
    model = mlp()
    second, damaged = copy.deepcopy(model), copy.deepcopy(model)
    damaged[2].weight.data[3] *= -1
    for each in (second, damaged):
        quantization.quantize_(each, quantization.Int8WeightOnlyConfig())
    found = check_equivalence(model, second, "float32 4x64", **LOSSY)
    assert found.outcome == "within", found.reason
    assert check_equivalence(model, damaged, "float32 4x64", **LOSSY).outcome == "over"
