"""Right rewrites of small torch networks, damaged in one weight: what each was, and which layers may be named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.optimization import fuse

from pytest_modelbudget.torch_models.weights import redraw

Damage = Callable[[torch.Tensor], None]


def one_weight(weight: torch.Tensor) -> None:
    weight.view(-1)[weight.numel() // 2] += 1.0


def one_row(weight: torch.Tensor) -> None:
    weight[0] = 0


def doubled(weight: torch.Tensor) -> None:
    weight[len(weight) // 2 :] *= 2


def negated(weight: torch.Tensor) -> None:
    weight[1:2] *= -1


DAMAGES: dict[str, Damage] = {
    "one weight": one_weight, "a row of zeros": one_row, "half doubled": doubled, "a row negated": negated,
}  # fmt: skip


class Residual(nn.Module):
    """Two blocks whose activations and sums are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(y)) + x)
        x = x + F.hardswish(self.bn3(self.conv3(x)))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Four projections of their own, between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(12, 16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.mlp1, self.mlp2 = nn.Linear(16, 32), nn.Linear(32, 16)

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.projected(self.norm(x)))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp2(F.gelu(self.mlp1(x)))


class Packed(Attention):
    """The same with one projection for three."""

    def __init__(self, first: Attention) -> None:
        super().__init__()
        self.load_state_dict(first.state_dict())
        self.qkv = nn.Linear(16, 48)
        three = (first.q, first.k, first.v)
        self.qkv.weight.data = torch.cat([each.weight for each in three])
        self.qkv.bias.data = torch.cat([each.bias for each in three])
        del self.q, self.k, self.v

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.qkv(x).chunk(3, -1)


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.a, self.b = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 0.5 * self.b(self.a(x))

    def merged(self) -> nn.Linear:
        made = copy.deepcopy(self.base)
        made.weight.data += 0.5 * self.b.weight @ self.a.weight
        return made


def convolutions() -> nn.Sequential:
    blocks = [(nn.Conv2d(3 if not i else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(3)]
    return nn.Sequential(*(each for block in blocks for each in block), nn.Flatten(), nn.Linear(8 * 36, 5))


def folded(model: nn.Module) -> nn.Module:
    made: Any = copy.deepcopy(model)
    for at in (0, 3, 6):
        made[at], made[at + 1] = nn.utils.fusion.fuse_conv_bn_eval(made[at], made[at + 1]), nn.Identity()
    return made


def chain() -> nn.Sequential:
    sizes = [(12, 16), (16, 16), (16, 16), (16, 16), (16, 16), (16, 4)]
    parts = [nn.Linear(*each) for each in sizes]
    return nn.Sequential(parts[0], parts[1], nn.GELU(), parts[2], parts[3], nn.GELU(), parts[4], nn.Tanh(), parts[5])


def multiplied(model: nn.Module) -> nn.Module:
    """Linear layers that follow each other as one."""
    made: Any = copy.deepcopy(model)
    for at in (0, 3):
        first, second = made[at], made[at + 1]
        both = nn.Linear(first.in_features, second.out_features)
        both.weight.data = second.weight @ first.weight
        both.bias.data = second.weight @ first.bias + second.bias
        made[at], made[at + 1] = both, nn.Identity()
    return made


def adapters() -> nn.Sequential:
    return nn.Sequential(Adapted(12, 16), nn.GELU(), Adapted(16, 16), nn.GELU(), nn.Linear(16, 4))


def merged(model: nn.Module) -> nn.Module:
    made: Any = copy.deepcopy(model)
    for at in (0, 2):
        made[at] = made[at].merged()
    return made


def exported(model: nn.Module) -> nn.Module:
    return torch.export.export(model, (torch.ones(2, 3, 6, 6),)).run_decompositions().module()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A network, what makes another one of it, and by weight of that the layers that it stands for."""

    model: Callable[[], nn.Module]
    rewritten: Callable[[nn.Module], nn.Module]
    shape: tuple[int, ...]
    layers: dict[str, set[str]]


FOLDED = {f"{at}.weight": {f"{at}", f"{at + 1}"} for at in (0, 3, 6)} | {"10.weight": {"10"}}
FUSED = {f"conv{at}.weight": {f"conv{at}", f"bn{at}"} for at in (1, 2, 3)} | {
    "stem.weight": {"stem"}, "head.weight": {"head"},
}  # fmt: skip
REWRITES = {
    "batch norms folded": Rewrite(convolutions, folded, (2, 3, 6, 6), FOLDED),
    "batch norms fused by fx": Rewrite(convolutions, fuse, (2, 3, 6, 6), FOLDED),
    "residuals fused by fx": Rewrite(Residual, fuse, (2, 3, 6, 6), FUSED),
    "residuals exported": Rewrite(Residual, exported, (2, 3, 6, 6), FUSED),
    "chains multiplied": Rewrite(chain, multiplied, (3, 12), {
        "0.weight": {"0", "1"}, "3.weight": {"3", "4"}, "6.weight": {"6"}, "8.weight": {"8"}}),
    "projections packed": Rewrite(Attention, Packed, (2, 7, 12), {
        "up.weight": {"up"}, "qkv.weight": {"q", "k", "v"}, "o.weight": {"o"},
        "mlp1.weight": {"mlp1"}, "mlp2.weight": {"mlp2"}}),
    "adapters merged": Rewrite(adapters, merged, (3, 12), {
        "0.weight": {"0", "0.base", "0.a", "0.b"}, "2.weight": {"2", "2.base", "2.a", "2.b"}, "4.weight": {"4"}}),
}  # fmt: skip


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    model = make().eval()
    redraw(model)
    return model


@cache
def rewritten_once(make: Callable[[], nn.Module], rewrite: Callable[[nn.Module], nn.Module]) -> nn.ModuleList:
    """A network, and rewritten; to be copied before anything is done to it."""
    model = seeded(make)
    with torch.no_grad():
        return nn.ModuleList([model, rewrite(copy.deepcopy(model))])


def rewritten(rewrite: Rewrite) -> tuple[nn.Module, nn.Module]:
    """The network as it was, and rewritten."""
    model, made = copy.deepcopy(rewritten_once(rewrite.model, rewrite.rewritten))
    return model, made


def damaged(rewrite: Rewrite, weight: str, damage: Damage) -> tuple[nn.Module, nn.Module]:
    """The network as it was, and rewritten and damaged."""
    model, made = rewritten(rewrite)
    with torch.no_grad():
        damage(made.get_parameter(weight).data)
    return model, made


def cases() -> Iterator[tuple[str, str, str]]:
    """Rewrite, weight and damage, each damage at a fourth of the places."""
    places = [(name, weight) for name, rewrite in REWRITES.items() for weight in rewrite.layers]
    for at, (name, weight) in enumerate(places):
        for step in (0, 2):
            yield name, weight, list(DAMAGES)[(at + step + at // 4) % len(DAMAGES)]
