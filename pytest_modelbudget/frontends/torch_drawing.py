"""Weights drawn from a seed, for models that come without: an untrained network proves nothing."""

from __future__ import annotations

from math import prod, sqrt
from zlib import crc32

import torch
from torch import nn

from pytest_modelbudget.frontends.torch_weights import NamedWeight, module_tree, named_weights

SPREAD = ("weight", "scale", "gamma", "var")  # names of vectors that multiply or divide


def redraw(model: nn.Module, seed: int = 0) -> None:
    """Fill every floating parameter and statistic, at the scale that keeps a network alive.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5). Each is
    drawn under its own name, so that two models that share names share weights. Buffers that are
    no statistics (masks, tables, scalars) mean something by their values, and stay.
    """
    done: set[int] = set()
    with torch.no_grad():
        for weight in named_weights(module_tree(model)):
            if id(weight.tensor) not in done and _is_drawn(weight):
                done.add(id(weight.tensor))
                weight.tensor.data.copy_(
                    drawn_weight(weight.name, tuple(weight.tensor.shape), seed)
                )


def _is_drawn(weight: NamedWeight) -> bool:
    statistic = weight.name.endswith(("running_mean", "running_var"))
    return weight.tensor.is_floating_point() and (weight.is_parameter or statistic)


def drawn_weight(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """The value of one weight, from its name, shape and seed alone."""
    generator = torch.Generator().manual_seed(crc32(f"{seed}/{name}".encode()))
    last = name.rpartition(".")[2]
    if len(shape) < 2:
        if last.endswith(SPREAD):
            return torch.rand(shape, generator=generator) + 0.5
        return torch.randn(shape, generator=generator) * 0.1
    fan_in = prod(shape[1:]) if shape[0] > 1 else shape[-1]
    return torch.randn(shape, generator=generator) / sqrt(max(fan_in, 1))
