"""A step of training, by hand: what is computed forward and backward, and what is held between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError

pytestmark = pytest.mark.needs_torch


def mlp() -> nn.Module:
    """Linear 8 → 16, ReLU, Linear 16 → 4: 212 parameters."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    """Conv 3 → 4, 3x3, padded; ReLU; and depthwise on 4 channels."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.ReLU(),
                         nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False))  # fmt: skip


def in_place() -> nn.Module:
    """The same first convolution, its ReLU in place, and no second one."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.ReLU(inplace=True))


def dropped() -> nn.Module:
    """Linear, dropout: on a CPU a product with noise of the input's type, which is saved."""
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Dropout(0.5))


def frozen_backbone() -> nn.Module:
    """The first layer is not trained: nothing of it is met in the backward pass."""
    model = mlp()
    for weight in model[0].parameters():  # type: ignore[index]  # a Sequential
        weight.requires_grad_(False)
    return model


class Tied(nn.Module):
    """One matrix both ways: y = (x·Wᵀ)·W."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.there(x))  # type: ignore[no-any-return]


class Unused(nn.Module):
    """A layer that the pass does not call, and one that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.idle = nn.Linear(8, 16, bias=False), nn.Linear(100, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.called(x)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """Two linear layers with a ReLU each, of which nothing is saved but what enters."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, 4)
        self.first = nn.Linear(8, 8)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))  # type: ignore[no-any-return]


class Mixed(nn.Module):
    """float32 weights, multiplied in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.fc(x)  # type: ignore[no-any-return]


class Normed(nn.Module):
    """Batch norm of 4 channels alone: statistics of the batch, in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


class Halved(nn.Module):
    """Saves halves of what autograd gives it (trl#2954, torchtitan#467), in the types that pack says."""

    def __init__(self, pack: Callable[[torch.Tensor], Any] = lambda tensor: (tensor.half(), tensor.dtype)) -> None:
        super().__init__()
        self.layers, self.pack = mlp(), pack

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda kept: kept[0].to(kept[1])):
            return self.layers(x)  # type: ignore[no-any-return]


class OnCPU(Halved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return self.layers(x)  # type: ignore[no-any-return]


class Doubled(torch.autograd.Function):
    """Keeps its input as an attribute of ctx, and a tensor of its own in a list."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.others = x, [x + 1]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + ctx.x * 0 + ctx.others[0]  # type: ignore[no-any-return]


class OnCtx(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(self.layer(x))  # type: ignore[no-any-return, no-untyped-call]


FC1, FC2 = 3 * 8 * 16, 3 * 16 * 4  # MACs of the two layers of the MLP, on 3 rows
CONV, DEPTHWISE = 2 * 4 * 25 * 27, 2 * 4 * 25 * 9  # on 2 images of 5x5
X = 3 * 8 * 4  # bytes of the rows that enter
IMAGE, MAPS = 2 * 3 * 25 * 4, 2 * 4 * 25 * 4  # bytes of an input, and of four channels
# builder, inputs, MACs of forward and backward, elements with a gradient, bytes of all parameters, bytes saved
CASES: dict[str, tuple[Callable[[], nn.Module], str, int, int, int, int]] = {
    # the input needs no gradient: the first layer's backward is one product, the second's two
    "mlp": (mlp, "float32 3x8", (FC1 + FC2) + FC1 + 2 * FC2, 212, 212 * 4, X + 3 * 16 * 4),
    # ReLU's output is saved by it and by the convolution behind it: once
    "convolutions": (
        convolutions, "float32 2x3x5x5", (CONV + DEPTHWISE) + CONV + 2 * DEPTHWISE, 108 + 36, 144 * 4, IMAGE + MAPS,
    ),
    "relu in place": (in_place, "float32 2x3x5x5", 2 * CONV, 108, 108 * 4, IMAGE + MAPS),
    "dropout": (dropped, "float32 3x8", 2 * FC1, 128, 128 * 4, X + 3 * 16 * 4),
    # its backbone is no part of the backward pass; the second layer's input needs no gradient
    "frozen backbone": (frozen_backbone, "float32 3x8", (FC1 + FC2) + FC2, 68, 212 * 4, 3 * 16 * 4),
    # two products in the first use (weight, none for x), two in the second; one gradient
    "tied": (Tied, "float32 3x8", 2 * 192 + 192 + 2 * 192, 64, 64 * 4, X + X),
    "unused": (Unused, "float32 3x8", 2 * FC1, 128, (128 + 10_100) * 4, X),
    # the block runs forward once more; the first layer's input needs no gradient. Saved is what enters the model,
    # the block and the head
    "checkpointed": (
        lambda: Checkpointed(reentrant=False), "float32 3x8",
        (192 + 2 * 384 + 96) + 2 * 384 + (192 + 4 * 384 + 2 * 96), 72 + 144 + 136 + 36, 388 * 4, X + X + X,
    ),
    "checkpointed, the old way": (
        lambda: Checkpointed(reentrant=True), "float32 3x8",
        (192 + 2 * 384 + 96) + 2 * 384 + (192 + 4 * 384 + 2 * 96), 72 + 144 + 136 + 36, 388 * 4, X + X + X,
    ),
    # the input in bfloat16, for the weight's gradient; the weight in bfloat16 needs none, as x does not
    "autocast": (Mixed, "float32 3x8", 2 * FC1, 128, 128 * 4, 3 * 8 * 2),
    # input, mean and deviation of the batch; and the running statistics, which are 2 · 4 floats
    "batch norm": (Normed, "float32 2x4x5x5", 0, 8, 8 * 4, MAPS + 2 * 16 + 2 * 16),
    # statistics of 24 rows in the type of the weights (pytorch#100985, pytorch#139923), as those of groups and batches
    "layer norm, mixed": (lambda: nn.LayerNorm(4), "bfloat16 6x4x4", 0, 8, 8 * 4, 192 + 2 * 24 * 4),
    "group norm, mixed": (lambda: nn.GroupNorm(2, 8), "bfloat16 6x8x5", 0, 16, 16 * 4, 480 + 2 * 12 * 4),
    "batch norm, mixed": (lambda: nn.BatchNorm1d(8), "bfloat16 6x8x5", 0, 16, 16 * 4, 480 + 2 * 32 + 2 * 32),
    # halves of x, of what ReLU and the layer behind it save, each of its own, and of that layer's weight
    "own hooks": (
        Halved, "float32 3x8", (FC1 + FC2) + FC1 + 2 * FC2, 212, 212 * 4, (24 + 2 * 48 + 64) * 2,
    ),
    "saved on the CPU": (
        OnCPU, "float32 3x8", (FC1 + FC2) + FC1 + 2 * FC2, 212, 212 * 4, X + 3 * 16 * 4,
    ),
    "kept on ctx": (OnCtx, "float32 3x8", 2 * FC1, 128, 128 * 4, X + 2 * 3 * 16 * 4),
}  # fmt: skip


@pytest.mark.parametrize(("build", "inputs", "macs", "trained", "stored", "saved"), CASES.values(), ids=list(CASES))
def test_a_step_by_hand(
    build: Callable[[], nn.Module], inputs: str, macs: int, trained: int, stored: int, saved: int
) -> None:
    """MACs of both passes; parameters, a gradient and the two moments of Adam for those reached, and what is saved."""
    measured = measure(build, inputs, training="adam")
    assert measured["training_macs"].value == macs
    assert measured["training_macs"].complete
    number = measured["training_memory"]
    parts = {"parameters": stored, "gradients": 4 * trained, "optimizer": 2 * 4 * trained, "saved": saved}
    assert (number.parts, number.complete) == (parts, True)
    assert number.value == sum(parts.values())


def test_what_own_hooks_put_elsewhere_is_not_seen() -> None:
    """A pack hook that gives a place of its own list keeps what nobody sees: a lower bound."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        kept.append(tensor)
        return len(kept) - 1

    class Elsewhere(Halved):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
                return self.layers(x)  # type: ignore[no-any-return]

    number = measure(Elsewhere, "float32 3x8", training="sgd")["training_memory"]
    assert number.value == 2 * 212 * 4
    assert "saved_tensors_hooks" in number.unmeasured[0].why


def test_shares_stand_under_the_module_of_the_forward_operator() -> None:
    """Of the MLP: the first layer two products of 384, the second three of 192; saved where it is saved first."""
    measured = measure(mlp, "float32 3x8", training="sgd")
    assert {share.scope: share.value for share in measured["training_macs"].shares} == {"0": 2 * FC1, "2": 3 * FC2}
    assert {share.scope: share.value for share in measured["training_memory"].shares} == {
        "0": 2 * 4 * 144 + X, "1": 3 * 16 * 4, "2": 2 * 4 * 68,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)])
def test_optimizers_keep_what_those_of_torch_keep(name: str, states: int) -> None:
    """Bytes of the tensors in the optimizer after one real step; counts of steps are single values, and free."""
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "momentum": lambda weights: torch.optim.SGD(weights, momentum=0.9),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    model = frozen_backbone()
    optimizer = makers[name](model.parameters())
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    kept = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim()
    )
    number = measure(frozen_backbone, "float32 3x8", training=name)["training_memory"]
    assert number.parts["optimizer"] == kept == states * 68 * 4


def test_weights_in_bfloat16_have_gradients_and_states_in_it() -> None:
    """Two bytes each: parameters, gradients, two moments; and the input, and ReLU's output."""
    measured = measure(mlp().to(torch.bfloat16), "bfloat16 3x8", training="adamw")
    assert measured["training_memory"].parts == {
        "parameters": 424, "gradients": 424, "optimizer": 848, "saved": (X + 3 * 16 * 4) // 2,
    }  # fmt: skip


def test_nothing_is_measured_that_nobody_asks_for() -> None:
    """A plain measurement has neither number, and the user's module is as it was after the other one."""
    model = mlp().eval()
    assert not {"training_macs", "training_memory"} & set(measure(model, "float32 3x8"))
    measure(model, "float32 3x8", training="adam")
    assert not any(module.training for module in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())


def test_gradients_of_a_trained_module_are_not_counted_twice() -> None:
    """A module that has gradients already has the same numbers, and keeps them."""
    model = mlp()
    model(torch.ones(3, 8)).sum().backward()
    before = [weight.grad for weight in model.parameters()]
    assert measure(model, "float32 3x8", training="sgd")["training_memory"].parts["gradients"] == 212 * 4
    assert all(weight.grad is kept for weight, kept in zip(model.parameters(), before, strict=True))


def test_a_sparse_gradient_is_unmeasured() -> None:
    """How many rows it has is in the data: the number is a lower bound that names it."""
    number = measure(nn.Embedding(100, 8, sparse=True), "int64 1x3", training="sgd")["training_memory"]
    assert [(op.op, op.scope) for op in number.unmeasured] == [("gradient of weight", "")]
    assert "sparse" in number.unmeasured[0].why


class Frozen(nn.Linear):
    """A layer that nothing trains."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "nothing to train": (Frozen, "float32 3x8", "nothing would be trained"),
    "one value a channel": (lambda: nn.BatchNorm1d(4), "float32 1x4", "more than 1 value per channel"),
    "a script": (lambda: torch.jit.script(mlp()), "float32 3x8", "name the module itself"),
    "an integer alone": (lambda: Argmax(), "float32 3x8", "nothing would be trained"),
}


class Argmax(nn.Linear):
    """A layer whose result no gradient flows through."""

    def __init__(self) -> None:
        super().__init__(8, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).argmax(-1)


@pytest.mark.parametrize(("build", "inputs", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_trained_says_why(build: Callable[[], nn.Module], inputs: str, words: str) -> None:
    """In one sentence; a measurement without a training step goes on as before."""
    assert measure(build, inputs)["params"].value > 0
    with pytest.raises(TraceError, match=words):
        measure(build, inputs, training="adam")
