"""The sum of products that a torch layer computes, taken apart into products of tiles.

x (..., K, positions ...), weight (N, K, kernel ...), bias (N,), with tiles of k by n::

    out[j-th n] = b_j + Σ_i x[i-th k] · W[j-th n, i-th k]        ⌈K/k⌉ · ⌈N/n⌉ products

A linear operation has neither positions nor a kernel; · is its product, or a convolution.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.torch_models.rewriting import Call
from pytest_modelbudget.transforms.tile.grid import Tile, became, cut, tiles_along

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


class TileRewrite:
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


def columns(linear: Linear, tile: Tile, column: Column, outputs: int) -> list[torch.Tensor]:
    """The first outputs of an operation, one tile's width after the other, which column computes.

    What comes after them are columns that only zeros made.
    """
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
    in_turn = not is_large or threads == 1 or _get_current_dispatch_mode() is not None
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
    """Columns beside each other, as one tensor."""
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


def adds_in_place(total: torch.Tensor) -> bool:
    """Whether nobody sees how a sum grows, and each product is rounded as it would be alone.

    Then it is added where it is made, which takes half the time. A narrow type would round the sum alone.
    """
    is_seen = total.requires_grad or _get_current_dispatch_mode() is not None
    return not is_seen and total.dtype in (torch.float32, torch.float64) and total.is_contiguous()


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
