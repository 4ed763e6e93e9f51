"""Small modules, and the record of what a model must measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


class Apply(nn.Module):
    """A module whose forward pass is one function."""

    def __init__(self, function: Callable[..., Any], **weights: nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, weight in weights.items():
            setattr(self, name, weight)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, with the module before its arguments where it has weights."""
        owners = (self,) if self._parameters else ()
        return self.function(*owners, *args, **kwargs)


class Layer(nn.Module):
    """A linear layer 16 → 16, and a forward pass that a test writes over it and the input."""

    def __init__(self, forward: Callable[[Layer, torch.Tensor], Any]) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)
        self.passes = forward

    def forward(self, x: torch.Tensor) -> Any:
        """What the test wrote."""
        return self.passes(self, x)


class OfDevice(nn.Module):
    """A linear layer 16 → 16 on a device that it remembers, where it keeps a scale that nothing registers."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()
        self.l, self.device = nn.Linear(16, 16), torch.device(device)
        self.to(self.device)
        self.scale = [torch.ones(16, device=self.device)]

    def forward(self, x: torch.Tensor) -> Any:
        """The scaled results of what is moved there."""
        return self.l(x.to(self.device)) * self.scale[0]


def row_by_row(m: Any, x: torch.Tensor) -> Any:
    """A forward pass of a Layer: a recurrence over the rows of x."""

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        state = torch.tanh(m.l(row) + carry)
        return state, state.clone()

    return scan(step, torch.zeros(16), x)


def in_three_rounds(m: Any, x: torch.Tensor) -> Any:
    """A forward pass of a Layer: three rounds of it."""
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, m.l(y)), (torch.tensor(0), x))[1]


def weight(*shape: int) -> nn.Parameter:
    """A parameter of this shape."""
    return nn.Parameter(torch.randn(shape))


@dataclass(frozen=True)
class Micro:
    """One model: how to build it, what to run it on, and what it must measure."""

    id: str
    build: Callable[[], nn.Module]
    args: tuple[Any, ...]
    params: int
    macs: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def spec(*shape: int, dtype: str = "float32") -> str:
    """An input as a budget spells it."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


class SharedUnderTwoParents(nn.Module):
    """One Linear, reachable under two parents and called twice."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(8, 8, bias=False)
        self.left, self.right = nn.Sequential(shared), nn.Sequential(shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.right(self.left(x))


class TiedWeights(nn.Module):
    """An embedding whose table is also the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


class ViewedWeights(nn.Module):
    """Two parameters that overlap on one storage of 6 rows: rows 0-3 and rows 2-5."""

    def __init__(self) -> None:
        super().__init__()
        rows = torch.randn(6, 4)
        self.first, self.second = nn.Parameter(rows[:4]), nn.Parameter(rows[2:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, self.first), self.second)


class NeverCalled(nn.Module):
    """A head that no forward pass reaches still belongs to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class DictOutputs(nn.Module):
    """Inputs by name, outputs in a dict that holds a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(6, 8)

    def forward(self, *, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
        return {"a": self.left(a), "pair": (self.right(b), a)}


def grouped_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def einsum(equation: str) -> Callable[..., torch.Tensor]:
    return lambda *parts: torch.einsum(equation, *parts)


def decoder_layer() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, dim_feedforward=32, batch_first=True)
