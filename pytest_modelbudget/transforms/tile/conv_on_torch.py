"""``tile_conv`` on torch models: each convolution as partial ones over tiles of its channels.

x (batch, K, positions ...) by W (N, K, kernel ...) + b (N,) with tiles of k by n channels::

    out[j-th n] = b_j + Σ_i conv(x[i-th k], W[j-th n, i-th k])        ⌈K/k⌉ · ⌈N/n⌉ products

A grouped convolution is as many of these as it has groups, K and N being channels of one group.
Each product is the operator that was called, with its stride, padding and dilation, on a part of
the channels; a transposed convolution turns W, and is the same sum.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.torch_models.rewriting import Call
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.transforms.tile import products_on_torch as products
from pytest_modelbudget.transforms.tile.grid import ONE_CHANNEL, tile_of
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings, is_chosen

# Operators that take (input, weight, bias, ..., groups, ...); those that turn the weight.
TURNED = frozenset({"aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"})
SPLIT = TURNED | {
    "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution", "aten::_convolution",
    "aten::_convolution.deprecated",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution, or a transposed one, which turns its weight.

    x (..., K, positions ...), weight (N, K / groups, kernel ...), or (K, N / groups, kernel ...) where it is turned.
    product is the operator on some channels of one group, with all weights (n, k, kernel ...).
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    groups: int
    turned: bool
    product: products.Product

    @property
    def axis(self) -> int:
        """Where x has its channels, counted from behind."""
        return 1 - self.weight.dim()

    @property
    def inputs(self) -> int:
        return self.x.shape[self.axis] // self.groups

    def parts(self) -> tuple[products.Linear, ...]:
        """What each group computes, weights (n, k, kernel ...)."""
        inputs = self.x.split_with_sizes([self.inputs] * self.groups, self.axis)
        weights = self.weight.split_with_sizes([len(self.weight) // self.groups] * self.groups)
        if self.turned:
            weights = tuple(each.transpose(0, 1) for each in weights)
        outputs = [len(weights[0])] * self.groups
        biases = [None] * self.groups if self.bias is None else self.bias.split_with_sizes(outputs)
        return tuple(map(products.Linear, inputs, weights, biases))


class TileConv(products.TileRewrite):
    """Replaces the convolutions that globs on scopes select."""

    def result(self, call: Call) -> Any:
        """The partial convolutions in place of one."""
        if not call.multiplied(Over.CHANNELS):
            return NotImplemented
        weight = call.argument(1, "weight")
        scope = call.owner(weight) if isinstance(weight, torch.Tensor) else call.scope_now()
        if not is_chosen(scope, self.layers):
            return self.leave(scope, call, LEFT_OUT)
        if call.name not in SPLIT or call.writes:
            return self.leave(scope, call, products.WHOLE)
        convolution = convolution_of(call)
        if convolution.groups > 1 and convolution.inputs == 1:
            return self.leave(scope, call, ONE_CHANNEL)
        groups = convolution.parts()
        self.note(scope, call, groups[0], groups=len(groups))
        outputs = [part for each in groups for part in self.columns(each, convolution.product)]
        return products.joined(outputs, convolution.axis)

    def columns(self, group: products.Linear, product: products.Product) -> list[torch.Tensor]:
        """The outputs of one group, one column of tiles after the other."""
        return products.columns(group, self.tile, partial(self.column, product))

    def column(self, product: products.Product, x: products.Tensors, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        """One tile's width of outputs: the sum of its products, on top of the bias."""
        return products.summed(x, weight, bias, self.tile, product)


def convolution_of(call: Call) -> Convolution:
    """A call of one of the operators that are split."""
    arguments = call.arguments
    turned = arguments.get("transposed", call.name in TURNED)

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = weight.transpose(0, 1) if turned else weight
        part = {"input": x, "weight": weight, "bias": bias, "groups": 1}
        result: torch.Tensor = call.func(*(arguments | part).values())
        return result

    x, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    return Convolution(x, weight, bias, arguments["groups"], turned, product)


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model with its convolutions tiled; raises TransformError where one stayed whole."""
    rewrite = TileConv(tile_of(settings), cast("tuple[str, ...]", settings["layers"]))
    return products.tiled_model(model, rewrite, "tile_conv", "convolution", (LEFT_OUT, ONE_CHANNEL))
