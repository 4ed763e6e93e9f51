"""``tile`` on torch models: every product of two matrices as products of tiles, whatever operator makes it.

x (..., M, K) · y (..., K, N) with tiles of m by k by n, in each matrix of a batch::

    out[i-th m, j-th n] = Σ_l x[i-th m, l-th k] · y[l-th k, j-th n]        ⌈M/m⌉ · ⌈K/k⌉ · ⌈N/n⌉ products

A linear operation is x · Wᵀ + b, a convolution W times the patches that it reads (im2col). Attention, an einsum
or a recurrent layer is run as what torch makes it of, down to products of these kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.graph.tensor import broadcast
from pytest_modelbudget.ops.rule import SUMMED
from pytest_modelbudget.torch_models.recording import signature
from pytest_modelbudget.torch_models.rewriting import Call, MadeOf
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.transforms.on_torch import change_operations
from pytest_modelbudget.transforms.tile import products_on_torch as products
from pytest_modelbudget.transforms.tile.grid import became, cube_of, cut, must_be_complete, tiles_along, with_shares
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings, is_chosen, must_name_layers

Dot = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x (..., M, K) · y (..., K, N), or vectors as torch.matmul


class TileProducts(products.TileRewrite):
    """Replaces the products of operations that globs on scopes select."""

    def result(self, call: Call) -> Any:
        """The tile products in place of an operation, or what it is made of."""
        operands = [each for over in SUMMED for _, each in call.multiplied(over)]
        if not operands:
            return NotImplemented
        tensors = (each for each in operands if isinstance(each, torch.Tensor))
        weight = next(filter(call.weight_name, tensors), None)
        scope = call.scope_now() if weight is None else call.owner(weight)
        if not is_chosen(scope, self.layers):
            return self.leave(scope, call, LEFT_OUT)
        if not call.writes and call.name in FORMULAS:
            return FORMULAS[call.name](partial(self.dot, scope, call), *call.arguments.values())
        if not call.writes and (call.name in MATHS or signature(call.func).decomposes):
            return MadeOf(partial(apart, call))
        return self.leave(scope, call, products.WHOLE)

    def dot(self, scope: str, call: Call, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x · y in tiles; a vector is a matrix of one row or column meanwhile."""
        axes = [axis for axis, each in ((-2, x), (-1, y)) if each.dim() == 1]
        x, y = (x.unsqueeze(0) if x.dim() == 1 else x), (y.unsqueeze(1) if y.dim() == 1 else y)
        (m, k), n = x.shape[-2:], y.shape[-1]
        batch = prod(broadcast([tuple(each.shape[:-2]) for each in (x, y)]))
        what = became(self.tile, k, n, rows=m, groups=batch)
        self.changes.append(Change(scope, call.name, what))
        self.partial_sums = max(self.partial_sums, tiles_along(k, self.tile.k))
        result = self.tiled(x, y)
        return result.squeeze(axes) if axes else result

    def tiled(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """All blocks of outputs, one row of tiles after the other."""
        tile, (m, k), n = self.tile, x.shape[-2:], y.shape[-1]
        high, deep, wide = (
            cut(size, of or size, pads=tile.pads) for size, of in ((m, tile.m), (k, tile.k), (n, tile.n))
        )
        if high.zeros or deep.zeros:
            x = F.pad(x, (0, deep.zeros, 0, high.zeros))
        if wide.zeros or deep.zeros:
            y = F.pad(y, (0, wide.zeros, 0, deep.zeros))
        rows = [part.split_with_sizes(deep.sizes, -1) for part in x.split_with_sizes(high.sizes, -2)]
        columns = [part.split_with_sizes(deep.sizes, -2) for part in y.split_with_sizes(wide.sizes, -1)]
        blocks = products.computed(
            [partial(self.block, row, column) for row in rows for column in columns],
            is_large=prod(x.shape[:-2]) * high.sizes[0] * deep.sizes[0] * wide.sizes[0] >= products.LARGE,
        )
        width = len(columns)
        result = products.joined(
            [products.joined(blocks[at : at + width], -1) for at in range(0, len(blocks), width)], -2
        )
        return result[..., :m, :n] if high.zeros or wide.zeros else result

    def block(self, row: products.Tensors, column: products.Tensors) -> torch.Tensor:
        """One tile of outputs: the sum of its products."""
        total = torch.matmul(row[0], column[0])
        adds = torch.Tensor.add_ if products.adds_in_place(total) else torch.add
        for x, y in zip(row[1:], column[1:], strict=True):
            total = adds(total, torch.matmul(x, y))
        return total


def apart(call: Call) -> Any:
    """Run an operator as what it is made of; kernels for CPUs that hide that are off, as they are in a trace."""
    operator: Any = MATHS.get(call.name, call.func)
    with torch.backends.mkldnn.flags(enabled=False):
        result = operator.decompose(*call.args, **call.kwargs)
    return result[0] if call.name in MATHS else result


MATHS: Mapping[str, Any] = {
    "aten::scaled_dot_product_attention": torch.ops.aten._scaled_dot_product_attention_math.default
}


# Operators as products, each with the arguments of its schema.


def linear(dot: Dot, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x (..., K) · Wᵀ + b; W (N, K) or (K,)."""
    result = dot(x, weight.t())
    return result if bias is None else result + bias


def product_of(dot: Dot, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x · y."""
    return dot(x, y)


def added(dot: Dot, start: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: Any, alpha: Any) -> torch.Tensor:
    """beta · start + alpha · (x · y)."""
    result = dot(x, y)
    result = result if alpha == 1 else result * alpha
    return result if beta == 0 else result + (start if beta == 1 else start * beta)


def convolution(
    dot: Dot, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any
) -> torch.Tensor:
    """W (groups, N, K · taps) · patches (batch, groups, K · taps, positions); transposed, Wᵀ · x is added up."""
    stride, padding, dilation, transposed, more, groups = settings[:6]
    kernel, batch, matrix = weight.shape[2:], len(x), weight.reshape(groups, len(weight) // groups, -1)
    if transposed:
        sizes = [(n - 1) * s + d * (k - 1) + 1 + m for n, s, d, k, m in zip(
            x.shape[2:], stride, dilation, kernel, more, strict=True)]  # fmt: skip
        parts = dot(matrix.transpose(1, 2), x.reshape(batch, groups, -1, prod(x.shape[2:])))
        parts = parts.reshape(batch, weight.shape[1] * groups, -1, *x.shape[2:])
        result = x.new_zeros(batch, parts.shape[1], *sizes)
        for at, place in enumerate(places(kernel, stride, dilation, x.shape[2:])):
            result[place].add_(parts[:, :, at])
        for axis, (p, size) in enumerate(zip(padding, sizes, strict=True), 2):
            result = result.narrow(axis, p, size - 2 * p)
    else:
        x = F.pad(x, [each for p in reversed(padding) for each in (p, p)])
        sizes = [(n - d * (k - 1) - 1) // s + 1 for n, s, d, k in zip(
            x.shape[2:], stride, dilation, kernel, strict=True)]  # fmt: skip
        patches = torch.stack([x[place] for place in places(kernel, stride, dilation, sizes)], 2)
        patches = patches.reshape(batch, groups, matrix.shape[2], prod(sizes))
        result = dot(matrix, patches).reshape(batch, len(weight), *sizes)
    return result if bias is None else result + bias.view(-1, *[1] * len(kernel))


def places(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], sizes: Sequence[int]
) -> list[tuple[Any, ...]]:
    """For each tap of a kernel the elements that it meets at all positions, in the order of its weights."""
    axes = [
        [slice(k * d, k * d + s * (n - 1) + 1, s) for k in range(taps)]
        for taps, s, d, n in zip(kernel, stride, dilation, sizes, strict=True)
    ]
    return [(..., *each) for each in product(*axes)]


FORMULAS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten::linear": linear,
    **dict.fromkeys(("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot"), product_of),
    **dict.fromkeys(("aten::addmm", "aten::addmv", "aten::baddbmm"), added),
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), convolution),
}


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model with its products tiled; raises TransformError where one stayed whole."""
    layers = cast("tuple[str, ...]", settings["layers"])

    def check(changed: Changed) -> None:
        must_name_layers(layers, changed)
        must_be_complete(with_shares(changed, model.rules).changes, "tile", "product")

    return with_shares(change_operations(model, TileProducts(cube_of(settings), layers), check), model.rules)
