"""``tile_linear`` on torch models: each linear operation as its tile products.

x (..., K) · W (N, K) + b (N,) with tiles of k by n::

    out[..., j-th n] = b_j + Σ_i x[..., i-th k] · W[j-th n, i-th k]ᵀ        ⌈K/k⌉ · ⌈N/n⌉ products

Operations are rewritten and not modules: nn.MultiheadAttention calls linear on parameters that no
nn.Linear owns, and Swin reads the weights of the modules that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.layer_choice import LEFT_OUT, is_chosen
from pytest_modelbudget.transforms.torch_operations import transformed_operations
from pytest_modelbudget.transforms.torch_rewriting import Call
from pytest_modelbudget.transforms.transform import Change, Job, Transformed

# Kinds that multiply by a weight; those of them that tiles cannot replace are told.
LINEAR = frozenset({"linear", "matmul", "einsum", "bilinear"})


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear operation: x (..., K), weight (N, K), bias (N,) or None."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of a tile: rows (None takes all), contracted elements, outputs."""

    m: int | None
    k: int
    n: int


class TileLinear:
    """Replaces the linear operations that globs on scopes select."""

    def __init__(self, tile: Tile, *, pad: bool, layers: tuple[str, ...]) -> None:
        self.tile = tile
        self.pad = pad
        self.layers = layers
        self.changes: list[Change] = []
        self.partial_sums = 1

    def result(self, call: Call) -> Any:
        """The tile products in place of a linear operation."""
        if call.kind not in LINEAR:
            return NotImplemented
        weight = next(_weights(call), None)
        if weight is None and call.kind != "linear":
            return NotImplemented  # both operands are activations: attention and its like
        scope = call.scope_now() if weight is None else call.owner(weight)
        if not is_chosen(scope, self.layers):
            self.changes.append(Change(scope, call.name, why=LEFT_OUT))
            return NotImplemented
        linear = linear_of(call)
        if linear is None:
            self.changes.append(Change(scope, call.name, why=f"{WHOLE} {call.name}"))
            return NotImplemented
        return self._tiled(scope, call.name, linear)

    def _tiled(self, scope: str, name: str, linear: Linear) -> torch.Tensor:
        (n, k), (rows, tile) = linear.weight.shape, (linear.x[..., 0].numel(), self.tile)
        sums = -(-k // tile.k)
        products = sums * -(-n // tile.n) * (-(-rows // tile.m) if tile.m else 1)
        self.partial_sums = max(self.partial_sums, sums)
        sizes = "x".join(str(size) for size in (tile.m, tile.k, tile.n) if size)
        self.changes.append(Change(scope, name, f"{products:,} products of {sizes}"))
        with one_thread():
            if tile.m is None or linear.x.dim() == 1:
                return self.columns(linear)
            flat = linear.x.reshape(-1, k)
            parts = [
                self.columns(Linear(part, linear.weight, linear.bias))
                for part in flat.split_with_sizes(_pieces(rows, tile.m))
            ]
            return torch.cat(parts).view(*linear.x.shape[:-1], n)

    def columns(self, linear: Linear) -> torch.Tensor:
        """All outputs, one column of tiles after the other."""
        n = linear.weight.shape[0]
        if self.pad:
            linear = padded(linear, self.tile)
        outputs, contracted = linear.weight.shape
        rows = linear.x.split_with_sizes(_pieces(contracted, self.tile.k), -1)
        widths = _pieces(outputs, self.tile.n)
        weights = linear.weight.split_with_sizes(widths)
        biases: Sequence[torch.Tensor | None] = [None] * len(weights)
        if linear.bias is not None:
            biases = linear.bias.split_with_sizes(widths)
        columns = [
            self.column(rows, weight, bias) for weight, bias in zip(weights, biases, strict=True)
        ]
        out = torch.cat(columns, -1) if len(columns) > 1 else columns[0]
        return out.narrow(-1, 0, n) if self.pad and out.shape[-1] != n else out

    def column(
        self, rows: Sequence[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """One tile's width of outputs: the sum of its products, on top of the bias."""
        total: torch.Tensor | None = None
        tiles = weight.split_with_sizes(_pieces(weight.shape[1], self.tile.k), 1)
        for x, tile in zip(rows, tiles, strict=True):
            product = F.linear(x, tile, bias if total is None else None)
            total = product if total is None else total + product
        assert total is not None, "a weight has at least one column of tiles"
        return total


def _pieces(size: int, tile: int) -> list[int]:
    """Sizes of the tiles of one dimension; the last one is what is left."""
    whole, left = divmod(size, tile)
    return [tile] * whole + ([left] if left else [])


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: for products this small, waking a second one takes longer than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


WHOLE = "no tiling is known for"


def padded(linear: Linear, tile: Tile) -> Linear:
    """The same operation with K and N filled up with zeros to whole tiles."""
    n, k = linear.weight.shape
    more_k, more_n = -k % tile.k, -n % tile.n
    if not more_k and not more_n:
        return linear
    bias = linear.bias
    return Linear(
        F.pad(linear.x, (0, more_k)) if more_k else linear.x,
        F.pad(linear.weight, (0, more_k, 0, more_n)),
        F.pad(bias, (0, more_n)) if bias is not None and more_n else bias,
    )


def linear_of(call: Call) -> Linear | None:
    """A call as a linear operation with a weight matrix; None where it is no such thing."""
    first, second, third = (call.argument(i, n) for i, n in enumerate(_NAMES.get(call.name, "   ")))
    if call.name == "aten::linear":
        return Linear(first, second, third) if second.dim() == 2 else None
    if call.name == "aten::addmm":
        scaled = any(call.kwargs.get(name, 1) != 1 for name in ("alpha", "beta"))
        fits = not scaled and first.dim() == 1 and first.shape[0] == third.shape[1]
        return Linear(second, third.t(), first) if fits and call.weight_name(third) else None
    if call.name in ("aten::mm", "aten::matmul") and second.dim() == 2 and first.dim() > 0:
        return Linear(first, second.t(), None) if call.weight_name(second) else None
    return None


_NAMES = {
    "aten::linear": ("input", "weight", "bias"),
    "aten::addmm": ("self", "mat1", "mat2"),
    "aten::mm": ("self", "mat2", ""),
    "aten::matmul": ("self", "other", ""),
}


def _weights(call: Call) -> Iterator[torch.Tensor]:
    """Operands that are a stored weight, or a view of one."""
    for value in (*call.args, *call.kwargs.values()):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, torch.Tensor) and each.dim() > 1 and call.weight_name(each):
                yield each


def transformed(job: Job) -> Transformed:
    """The model with its linear operations tiled; raises TransformError where one stayed whole."""
    if job.settings.get("form", "unrolled") != "unrolled":
        raise TransformError("form: batched is a form of ONNX graphs: leave it out")
    m, k, n = cast("tuple[int | None, int, int]", job.settings["tile"])
    layers = cast("tuple[str, ...]", job.settings["layers"])
    rewrite = TileLinear(Tile(m, k, n), pad=job.settings["edge"] == "pad", layers=layers)
    return transformed_operations(job, rewrite, must_be_complete=_must_be_complete)


def _must_be_complete(rewrite: TileLinear) -> None:
    whole = [change for change in rewrite.changes if change.why.startswith(WHOLE)]
    if whole:
        named = "; ".join(f"{each.why} in '{each.scope}'" for each in whole[:3])
        raise TransformError(f"tile_linear left {len(whole)} linear operations whole: {named}: "
                             "leave them out with 'layers:'")  # fmt: skip
    if not any(change.became for change in rewrite.changes):
        seen = f"has {len(rewrite.changes)} linear operations, none of which" if (
            rewrite.changes) else "has no linear operation that"  # fmt: skip
        raise TransformError(f"tile_linear changed nothing: the model {seen} layers: selects")
