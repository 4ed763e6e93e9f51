"""Modules as torch's own tools rewrite them are within; rewritten from a damaged module they are over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from tests.builders.marks import needs

from .networks import NETWORKS, module, spec

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
    needs("torchao", extra="wild"),
]


def fused_by_fx(network: nn.Module, sample: torch.Tensor) -> nn.Module:
    from torch.fx.experimental.optimization import fuse

    return fuse(network)


def fused_by_hand(network: nn.Module, sample: torch.Tensor) -> nn.Module:
    """Every convolution takes its batch norm in, in each sequence of layers."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for parent in list(network.modules()):
        names = list(parent._modules) if isinstance(parent, nn.Sequential) else []
        for first, second in pairwise(names):
            conv, norm = parent._modules[first], parent._modules[second]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                parent._modules[first] = fuse_conv_bn_eval(conv, norm)
                parent._modules[second] = nn.Identity()
    return network


def traced(network: nn.Module, sample: torch.Tensor) -> Any:
    return torch.jit.trace(network, sample)


def frozen(network: nn.Module, sample: torch.Tensor) -> Any:
    return torch.jit.freeze(torch.jit.trace(network, sample))


def decomposed(network: nn.Module, sample: torch.Tensor) -> nn.Module:
    program = torch.export.export(network, (sample,))
    return program.run_decompositions().module()


def quantised_dynamically(network: nn.Module, sample: torch.Tensor) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear})


def quantised_by_torchao(network: nn.Module, sample: torch.Tensor) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(network, Int8WeightOnlyConfig())
    return network


@dataclass(frozen=True)
class Tool:
    """A rewrite of a module, and what it may do to the outputs."""

    work: Callable[[nn.Module, torch.Tensor], Any]
    kind: str = "exact_algebra"
    bounds: Mapping[str, float] = field(default_factory=dict)
    families: tuple[str, ...] = ()  # of inputs, where not all are meant


INT8 = {"sqnr": 20.0}
TOOLS: Mapping[str, Tool] = {
    "fx_fuse": Tool(fused_by_fx),
    "fuse_conv_bn": Tool(fused_by_hand),
    "jit_trace": Tool(traced),
    "jit_freeze": Tool(frozen),
    "export_decompose": Tool(decomposed),
    "ao_dynamic": Tool(quantised_dynamically, "lossy", INT8, ("normal", "uniform")),
    "torchao_int8": Tool(quantised_by_torchao, "lossy", INT8),
}


def damages(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Copies of a module, each with one mistake: a wrong weight, swapped rows, a lost activation."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    wrong = copy.deepcopy(network)
    weight = wrong.get_submodule(layers[-1]).weight.data  # type: ignore[union-attr]
    weight.view(-1)[weight.abs().argmax()] *= -4  # type: ignore[operator]
    yield "one_weight", wrong
    wrong = copy.deepcopy(network)
    weight = wrong.get_submodule(layers[0]).weight.data  # type: ignore[union-attr]
    weight[[0, 1]] = weight[[1, 0]].clone()  # type: ignore[index]
    yield "two_rows", wrong
    kinds = (nn.Sigmoid, nn.LeakyReLU, nn.Tanh, nn.Hardswish)  # a ReLU may shut nothing off
    active = [name for name, layer in network.named_modules() if isinstance(layer, kinds)]
    if active:
        wrong = copy.deepcopy(network)
        parent, _, name = active[-1].rpartition(".")
        setattr(wrong.get_submodule(parent), name, nn.Identity())
        yield "a_lost_node", wrong


ROWS = [
    pytest.param(network, name, id=f"{network}-{name}")
    for network in NETWORKS
    for name in TOOLS
    if network in ("perceptron", "decoder") or name not in ("jit_trace", "jit_freeze", "export_decompose")  # slow ones
]


@pytest.mark.parametrize(("network", "name"), ROWS)
def test_clean_is_within_and_damaged_over(network: str, name: str) -> None:
    """No false alarm, and no mistake that passes."""
    tool, original = TOOLS[name], module(network)
    expected = {"clean": "within"}
    outcomes = {"clean": outcome(original, tool, copy.deepcopy(original), network)}
    for damage, wrong in damages(original):
        expected[damage], outcomes[damage] = "over", outcome(original, tool, wrong, network)
    assert outcomes == expected


def outcome(original: nn.Module, tool: Tool, copied: nn.Module, network: str) -> str:
    rewritten = tool.work(copied, torch.zeros(NETWORKS[network][1]))
    claim = {"kind": tool.kind, "bounds": tool.bounds, "families": tool.families}
    return str(check_equivalence(original, rewritten, spec(network), **claim).outcome.value)
