"""The sum of products that a torch layer computes, taken apart into products of tiles.

x (..., K, positions ...), weight (N, K, kernel ...), bias (N,), with tiles of k by n::

    out[j-th n] = b_j + Σ_i x[i-th k] · W[j-th n, i-th k]        ⌈K/k⌉ · ⌈N/n⌉ products

A linear operation has neither positions nor a kernel; · is its product, or a convolution.

``tile`` takes apart every x (..., M, K) · y (..., K, N), with tiles of m by k by n::

    out[i-th m, j-th n] = Σ_l x[i-th m, l-th k] · y[l-th k, j-th n]        ⌈M/m⌉ · ⌈K/k⌉ · ⌈N/n⌉ products

A convolution is W times its patches (im2col); attention, an einsum or a recurrent layer is what torch makes it of.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product as every
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.graph.tensor import broadcast
from pytest_modelbudget.ops.rule import SUMMED
from pytest_modelbudget.torch_models.recording import signature
from pytest_modelbudget.torch_models.rewriting import Call, MadeOf, Rewrite
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.versions import current_modes
from pytest_modelbudget.transforms.on_torch import change_operations
from pytest_modelbudget.transforms.tile.grid import (
    Tile,
    became,
    cut,
    must_be_complete,
    tile_of,
    tiles_along,
    with_shares,
)
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings, is_chosen, must_name_layers

LARGE = 2**21  # multiply-adds of a product that a thread of its own shortens: above 0.1 ms
WHOLE = "no tiling is known for it"
Tensors = Sequence[torch.Tensor]
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
Column = Callable[[Tensors, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear operation: x (..., K), weight (N, K), bias (N,) or None.

    Or a convolution: x (..., K, positions ...), weight (N, K, kernel ...).
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def axis(self) -> int:
        """Where x has its K and the output its N, counted from behind."""
        return 1 - self.weight.dim()


class TileRewrite(Rewrite):
    """Replaces the operations that globs on scopes select, and keeps what became of each."""

    def __init__(self, tile: Tile, layers: tuple[str, ...]) -> None:
        self.tile = tile
        self.layers = layers
        self.changes: list[Change] = []
        self.partial_sums = 1

    def leave(self, scope: str, call: Call, why: str) -> Any:
        """Note that an operation stays as it is, and let it run so."""
        self.changes.append(Change(scope, call.name, why=why))
        return NotImplemented

    def note(self, scope: str, call: Call, linear: Linear, *, rows: int = 1, groups: int = 1) -> None:
        """Note what takes an operation's place; linear is one of its groups."""
        n, k = linear.weight.shape[:2]
        what = became(self.tile, k, n, rows=rows, groups=groups)
        self.changes.append(Change(scope, call.name, what))
        self.partial_sums = max(self.partial_sums, tiles_along(k, self.tile.k))


def columns(linear: Linear, tile: Tile, column: Column) -> list[torch.Tensor]:
    """The outputs of an operation, one tile's width after the other; of filled tiles without what zeros made."""
    outputs = len(linear.weight)
    linear = padded(linear, tile) if tile.pads else linear
    n, k = linear.weight.shape[:2]
    widths = cut(n, tile.n).sizes
    parts = linear.x.split_with_sizes(cut(k, tile.k).sizes, linear.axis)
    weights = linear.weight.split_with_sizes(widths)
    biases: Sequence[torch.Tensor | None] = [None] * len(weights)
    if linear.bias is not None:
        biases = linear.bias.split_with_sizes(widths)
    results = computed(
        [partial(column, parts, w, b) for w, b in zip(weights, biases, strict=True)],
        is_large=linear.x.numel() // max(k, 1) * tile.k * tile.n >= LARGE,
    )
    if outputs < n:
        last = results[-1].narrow(linear.axis, 0, widths[-1] - (n - outputs))
        results[-1] = last if len(results) > 1 else last.contiguous()  # a reader may take a view of it
    return results


def computed(columns: Sequence[Callable[[], torch.Tensor]], *, is_large: bool) -> list[torch.Tensor]:
    """All columns, each on one thread; of large products as many at once as there are threads.

    Waking a second thread for a small product takes longer than the product. Modes see what their
    own thread does, so that under one there may be but that thread.
    """
    threads = torch.get_num_threads()
    in_turn = not is_large or threads == 1 or bool(current_modes())
    keeps_grad, infers = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def compute(column: Callable[[], torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode(infers), torch.set_grad_enabled(keeps_grad):
            return column()

    torch.set_num_threads(1)
    try:
        if in_turn:
            return [column() for column in columns]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(compute, columns))
    finally:
        torch.set_num_threads(threads)


def joined(columns: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Columns next to each other, as one tensor."""
    return torch.cat(list(columns), axis) if len(columns) > 1 else columns[0]


def summed(
    parts: Tensors, weight: torch.Tensor, bias: torch.Tensor | None, tile: Tile, product: Product
) -> torch.Tensor:
    """One tile's width of outputs: the sum of its products, on top of the bias."""
    widths = cut(weight.shape[1], tile.k).sizes
    first, *tiles = weight.split_with_sizes(widths, 1)
    total = product(parts[0], first, bias)
    if product is F.linear and adds_in_place(total):
        rows = total.view(-1, len(weight))
        for x, turned in zip(parts[1:], weight.t().split_with_sizes(widths)[1:], strict=True):
            rows.addmm_(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), turned)
        return total
    for x, each in zip(parts[1:], tiles, strict=True):
        total = total + product(x, each, None)
    return total


def is_unseen(*operands: torch.Tensor) -> bool:
    """Whether the making of a result of these is not observed: no mode, and no gradient."""
    return not current_modes() and not any(each.requires_grad for each in operands)


def adds_in_place(total: torch.Tensor) -> bool:
    """Whether partial sums are not observed, and each product is rounded as it would be alone.

    Then it is added where it is made, which takes half the time. A narrow type would round the sum alone.
    """
    return is_unseen(total) and total.dtype in (torch.float32, torch.float64) and total.is_contiguous()


def padded(linear: Linear, tile: Tile) -> Linear:
    """The same operation with K and N filled up with zeros to whole tiles."""
    n, k = linear.weight.shape[:2]
    more_k, more_n = -k % tile.k, -n % tile.n
    if not more_k and not more_n:
        return linear
    inner = (0, 0) * (linear.weight.dim() - 2)  # positions and kernel stay as they are
    bias = linear.bias
    return Linear(
        F.pad(linear.x, (*inner, 0, more_k)) if more_k else linear.x,
        F.pad(linear.weight, (*inner, 0, more_k, 0, more_n)),
        F.pad(bias, (0, more_n)) if bias is not None and more_n else bias,
    )


# ``tile``: every product of two matrices, whatever operator makes it.

Dot = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x (..., M, K) · y (..., K, N), or vectors as torch.matmul


class TileProducts(TileRewrite):
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
        return self.leave(scope, call, WHOLE)

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
        parts, stack = x.split_with_sizes(high.sizes, -2), x.shape[:-2]
        if stack and x.numel() and y.dim() == 2 and is_unseen(x):  # all matrices at once: half the time
            parts = tuple(part.reshape(-1, part.shape[-1]) for part in parts)
        rows = [part.split_with_sizes(deep.sizes, -1) for part in parts]
        columns = [part.split_with_sizes(deep.sizes, -2) for part in y.split_with_sizes(wide.sizes, -1)]
        blocks = computed(
            [partial(self.block, row, column) for row in rows for column in columns],
            is_large=prod(x.shape[:-2]) * high.sizes[0] * deep.sizes[0] * wide.sizes[0] >= LARGE,
        )
        width = len(columns)
        stacked = [joined(blocks[at : at + width], -1) for at in range(0, len(blocks), width)]
        if parts[0].dim() < x.dim():
            stacked = [each.reshape(*stack, -1, each.shape[-1]) for each in stacked]
        result = joined(stacked, -2)
        return result[..., :m, :n] if high.zeros or wide.zeros else result

    def block(self, row: Tensors, column: Tensors) -> torch.Tensor:
        """One tile of outputs: the sum of its products."""
        total = torch.matmul(row[0], column[0])
        in_place = adds_in_place(total)
        for x, y in zip(row[1:], column[1:], strict=True):
            if in_place and total.dim() == 2:
                total.addmm_(x, y)
            else:
                total = total.add_(torch.matmul(x, y)) if in_place else total + torch.matmul(x, y)
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
        x, rank = F.pad(x, [each for p in reversed(padding) for each in (p, p)]), len(kernel)
        for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
            x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]  # the taps are an axis behind all others
        sizes = list(x.shape[2 : 2 + rank])
        patches = x.permute(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
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
    return [(..., *each) for each in every(*axes)]


FORMULAS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten::linear": linear,
    **dict.fromkeys(("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot"), product_of),
    **dict.fromkeys(("aten::addmm", "aten::addmv", "aten::baddbmm"), added),
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), convolution),
}


def tiled_model(
    model: TorchModel, rewrite: TileRewrite, key: str, operation: str, may_stay: Sequence[str] = (LEFT_OUT,)
) -> Changed:
    """The model under a rewrite; raises TransformError where an operation stayed whole but for a reason that it may."""

    def check(changed: Changed) -> None:
        must_name_layers(rewrite.layers, changed)
        noted = with_shares(changed, model.rules) if key == "tile" else changed
        must_be_complete(noted.changes, key, operation, may_stay=may_stay)

    return change_operations(model, rewrite, check)


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model with its products tiled; raises TransformError where one stayed whole."""
    rewrite = TileProducts(tile_of(settings), cast("tuple[str, ...]", settings["layers"]))
    return with_shares(tiled_model(model, rewrite, "tile", "product"), model.rules)
