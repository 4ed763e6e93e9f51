"""``tile_linear`` on torch models: each linear operation as its tile products.

x (..., K) · W (N, K) + b (N,) with tiles of k by n::

    out[..., j-th n] = b_j + Σ_i x[..., i-th k] · W[j-th n, i-th k]ᵀ        ⌈K/k⌉ · ⌈N/n⌉ products

Operations are rewritten and not modules: nn.MultiheadAttention calls linear on parameters that no
nn.Linear owns, and Swin reads the weights of the modules that it has.
"""

from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.torch_models.rewriting import Call
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.transforms.tile import products_on_torch as products
from pytest_modelbudget.transforms.tile.grid import cut, tile_of
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings, is_chosen


class TileLinear(products.TileRewrite):
    """Replaces the linear operations that globs on scopes select."""

    def result(self, call: Call) -> Any:
        """The tile products in place of a linear operation."""
        operands = call.multiplied(Over.FEATURES)
        operands.sort(key=lambda each: not each[0].weight)
        tensors = (each for _, each in operands if isinstance(each, torch.Tensor))
        weight = next(filter(call.weight_name, tensors), None)
        if weight is None:
            weight = computed_weight(call, operands)
        if weight is None and not any(role.weight for role, _ in operands):
            return NotImplemented  # all operands are activations: attention and its like
        scope = call.scope_now() if weight is None else call.owner(weight)
        if not is_chosen(scope, self.layers):
            return self.leave(scope, call, LEFT_OUT)
        linear = None if call.writes else linear_of(call)
        if linear is None:
            return self.leave(scope, call, products.WHOLE)
        rows = prod(linear.x.shape[:-1])
        self.note(scope, call, linear, rows=rows)
        return self._tiled(linear, rows)

    def _tiled(self, linear: products.Linear, rows: int) -> torch.Tensor:
        """All rows at once, or one tile of them after the other; leading axes are then one axis."""
        (n, k), m = linear.weight.shape, self.tile.m
        if m is None:
            return self.columns(linear)
        edges = cut(rows, m, pads=self.tile.pads)
        x = linear.x.reshape(rows, k)
        if edges.zeros:
            x = F.pad(x, (0, 0, 0, edges.zeros))
        parts = [
            self.columns(products.Linear(part, linear.weight, linear.bias)) for part in x.split_with_sizes(edges.sizes)
        ]
        result = products.joined(parts, 0)
        if edges.zeros:
            result = result.narrow(0, 0, rows)
        return result.view(*linear.x.shape[:-1], n)

    def columns(self, linear: products.Linear) -> torch.Tensor:
        """All outputs, one column of tiles after the other."""
        return products.joined(products.columns(linear, self.tile, self.column), linear.axis)

    def column(self, rows: products.Tensors, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """One tile's width of outputs: the sum of its products, on top of the bias."""
        return products.summed(rows, weight, bias, self.tile, F.linear)


def computed_weight(call: Call, operands: list[tuple[Role, Any]]) -> torch.Tensor | None:
    """The last operand, where stored tensors alone gave it: x @ (w · g).

    One before it is what a weight is multiplied with (learnt queries), and attention has no weight.
    """
    tensors = [each for role, each in operands if isinstance(each, torch.Tensor) and role.word != "query"]
    is_attention = len(tensors) < len(operands)
    return tensors[-1] if tensors and not is_attention and call.is_computed(tensors[-1]) else None


def linear_of(call: Call) -> products.Linear | None:
    """A call as a linear operation with a weight matrix; None where it is no such thing."""
    if call.name not in _ARGUMENTS:
        return None
    arguments = [call.argument(at, name) for at, name in enumerate(_ARGUMENTS[call.name])]
    if call.name == "aten::linear":
        x, weight, bias = arguments
        return products.Linear(x, weight, bias) if weight.dim() == 2 else None
    if call.name == "aten::addmm":
        bias, x, weight = arguments
        scaled = any(call.kwargs.get(name, 1) != 1 for name in ("alpha", "beta"))
        fits = not scaled and bias.dim() == 1 and bias.shape[0] == weight.shape[1]
        return products.Linear(x, weight.t(), bias) if fits and call.is_weight(weight) else None
    x, weight = arguments
    fits = weight.dim() == 2 and x.dim() > 0
    return products.Linear(x, weight.t(), None) if fits and call.is_weight(weight) else None


_ARGUMENTS = {
    "aten::linear": ("input", "weight", "bias"),
    "aten::addmm": ("self", "mat1", "mat2"),
    "aten::mm": ("self", "mat2"),
    "aten::matmul": ("self", "other"),
}


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The model with its linear operations tiled; raises TransformError where one stayed whole."""
    if settings.get("form", "unrolled") != "unrolled":
        raise TransformError("form: batched is a form of ONNX graphs: leave it out")
    rewrite = TileLinear(tile_of(settings), cast("tuple[str, ...]", settings["layers"]))
    return products.tiled_model(model, rewrite, "tile_linear", "linear operation")
