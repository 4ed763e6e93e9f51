"""What the record of a torch model leaves out stands in one table, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.dlpack import to_dlpack

from pytest_modelbudget import measure
from pytest_modelbudget.torch_models.recording import QUERIES
from tests.builders.marks import is_older_torch
from tests.builders.micro_modules import Layer
from tests.builders.omissions import omissions

pytestmark = pytest.mark.needs_torch


def test_only_torchs_own_queries_are_dropped() -> None:
    """These namespaces and no other, and each is in the table."""
    assert {"aten", "prim", "prims", "profiler"} == QUERIES
    assert all(f"`{name}`" in omissions("Torch models")[0].what for name in QUERIES)


PRODUCT = 4 * 16 * 16
LAYER = 16 * 16 + 16


def numbers(forward: Callable[[Any, torch.Tensor], Any]) -> dict[str, Any]:
    """The figures of one layer and this pass; those that are unmeasured name their operators."""
    measured = measure(Layer(forward), "float32 4x16")
    keys = ("params", "weight_memory", "model_size", "macs", "flops", "peak_activation", "bandwidth")
    return {k: tuple(u.op for u in measured[k].unmeasured) or measured[k].value for k in keys}


PLAIN = {"params": LAYER, "weight_memory": 4 * LAYER, "macs": PRODUCT}


def asks_torch() -> None:
    """Questions to torch add nothing to the layer."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = m.l(x)
        assert torch.ops.aten.is_same_size(x, y)
        with torch.profiler.record_function("range"):
            return y

    assert numbers(forward) == numbers(lambda m, x: m.l(x))


def takes_apart() -> None:
    """A Kronecker product has no rule: its one multiplication of (4·2)·(16·2) elements is counted."""
    measured = measure(Layer(lambda m, x: torch.kron(m.l(x), x[:2, :2])), "float32 4x16")
    assert measured["flops"].unmeasured == ()
    assert measured["flops"].value == 2 * PRODUCT + 4 * 16 + 8 * 32


def hands_to_a_class() -> None:
    """A layer over a jagged tensor runs once over all of its rows."""
    if is_older_torch("2.15"):
        pytest.skip("no operator tells of what torch.tensor makes without memory before torch 2.15")
    jagged = numbers(lambda m, x: m.l(torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)))
    assert {key: jagged[key] for key in PLAIN} == PLAIN


def takes_a_branch() -> None:
    """Of two branches, the one with a product; the note says so."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y * 1.0, lambda y: m.l(y), (x,))

    measured = measure(Layer(forward), "float32 4x16")
    assert measured["macs"].value == PRODUCT
    assert measured.notes == ("torch.cond is counted as its dearer branch, false",)


def asks_for_values() -> None:
    """One value, counts and text are no work; a second floating element is named."""
    assert numbers(lambda m, x: (y := m.l(x), y[0, 0].item())[0])["macs"] == PRODUCT
    assert numbers(lambda m, x: (y := m.l(x), y.argmax(1).tolist())[0])["macs"] == PRODUCT
    assert numbers(lambda m, x: (y := m.l(x), str(y))[0])["macs"] == PRODUCT
    both = numbers(lambda m, x: (y := m.l(x), y[0, 0].item(), y[1, 0].item())[0])
    assert both["macs"] == ("torch::item",)


class Capsule:
    """Hands a capsule to NumPy."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def leaves_by_a_function_of_c() -> None:
    """NumPy's product is not seen behind a branch on values, which a run alone takes; else the function is named."""

    def through(asks: Callable[[torch.Tensor], bool]) -> Any:
        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            y = m.l(x).detach()
            if not asks(y):
                return y
            z = np.from_dlpack(Capsule(to_dlpack(y)))
            return torch.from_numpy(z @ z.T)

        return numbers(forward)["macs"]

    assert through(lambda y: bool(y.sum() < 1e9)) == PRODUCT
    assert through(lambda y: True) == ("torch::to_dlpack",)


def computes_a_parameter() -> None:
    """A parameter that is twice another one is stored nowhere."""
    computed = numbers(lambda m, x: nn.functional.linear(x, nn.Parameter(m.l.weight * 2), m.l.bias))
    assert {key: computed[key] for key in PLAIN} == PLAIN


class Makes(nn.Module):
    """A product, and a layer that the pass makes, by which it is called or not."""

    def __init__(self, make: Callable[[], nn.Module], *, is_called: bool) -> None:
        super().__init__()
        self.net, self.make, self.is_called = nn.Linear(16, 16), make, is_called

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer, y = self.make(), self.net(x)
        return layer(y) if self.is_called else y  # type: ignore[no-any-return]  # torch gives no types


def throws_a_layer_away() -> None:
    """Nothing of what filled it counts, also where it stood in the place of another, as BigBird's attention does."""

    class Replaces(Makes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept, self.net = self.net, self.make()
            self.net = kept
            return self.net(x)  # type: ignore[no-any-return]  # torch gives no types

    there = measure(nn.Linear(16, 16), "float32 4x16")
    for kind in (Makes, Replaces):
        made = measure(kind(lambda: nn.Linear(16, 16), is_called=False), "float32 4x16")
        assert {key: n.value for key, n in made.items()} == {key: n.value for key, n in there.items()}


def makes_buffers() -> None:
    """Mean and variance of 16 live beside two results of 4 x 16."""
    made = measure(Makes(lambda: nn.BatchNorm1d(16, affine=False).eval(), is_called=True), "float32 4x16")
    assert made["model_size"].value == 4 * (16 * 16 + 16)
    assert made["peak_activation"].value == 4 * (2 * 4 * 16 + 2 * 16)


class Sparse(nn.Module):
    """A product by a sparse parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(16).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w @ x.t()


def stores_few_elements() -> None:
    """16 of 256 elements in float32, each with two int64 indices."""
    measured = measure(Sparse(), "float32 4x16")
    assert (measured["params"].value, measured["weight_memory"].value) == (16, 16 * 4 + 2 * 16 * 8)


def has_literals() -> None:
    """A scalar and a row of ones in a script are no weights; the file stores the row."""

    def traced(forward: Callable[[Any, torch.Tensor], Any]) -> Any:
        return measure(torch.jit.trace(Layer(forward), torch.rand(4, 16), check_trace=False), "float32 4x16")

    scalar, row = traced(lambda m, x: m.l(x) + torch.tensor(2.0)), traced(lambda m, x: m.l(x) + torch.ones(16))
    assert [n["params"].value for n in (scalar, row)] == [LAYER, LAYER]
    assert scalar["model_size"].value == 4 * LAYER


class Takes(nn.Module):
    """A layer that takes a tensor which no operation has made or reads."""

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1


def shows_what_is_known() -> None:
    """The table of layers lists such an argument nowhere, and numbers are those without it."""
    table = torch.ones(1000)
    model = nn.ModuleDict({"l": nn.Linear(16, 16), "t": Takes()})

    class Net(nn.Module):
        def __init__(self, *more: torch.Tensor) -> None:
            super().__init__()
            self.l, self.t, self.more = model["l"], model["t"], more

        def forward(self, x: torch.Tensor) -> Any:
            return self.t(self.l(x), *self.more)

    without, with_it = (measure(net, "float32 4x16") for net in (Net(), Net(table)))
    assert {key: n.value for key, n in with_it.items()} == {key: n.value for key, n in without.items()}


TRIALS = (
    asks_torch, takes_apart, hands_to_a_class, takes_a_branch, asks_for_values, leaves_by_a_function_of_c,
    computes_a_parameter, throws_a_layer_away, makes_buffers, stores_few_elements, has_literals, shows_what_is_known,
)  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore:`torch.jit",
    "ignore:Converting a tensor",
    "ignore:torch.tensor results are",
    "ignore:The PyTorch API of nested",
)
@pytest.mark.parametrize(
    ("row", "trial"), list(zip(omissions("Torch models"), TRIALS, strict=True)), ids=[t.__name__ for t in TRIALS]
)
def test_each_row_is_what_it_says(row: Any, trial: Callable[[], None]) -> None:
    """A small model that comes to the place; a row without a trial fails when collected."""
    trial()
