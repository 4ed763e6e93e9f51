"""Lazy modules: what has no shape yet is said, with a way out that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import ModelBudgetError, check_equivalence, measure

pytestmark = pytest.mark.needs_torch
X = (2, 3, 8, 8)
# A lazy layer, the parameters and the MACs of one that has run on X: 6 x 6 of 4 channels are left of 8 x 8.
LAYERS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "linear": (lambda: nn.LazyLinear(4), 8 * 4 + 4, 2 * 3 * 8 * 8 * 4),
    "convolution": (lambda: nn.LazyConv2d(4, 3), 4 * 3 * 9 + 4, 2 * 6 * 6 * 4 * 3 * 9),
    "norm": (nn.LazyBatchNorm2d, 2 * 3, 0),
    "norm of buffers alone": (lambda: nn.LazyBatchNorm2d(affine=False), 0, 0),
}
OF_LAYERS = pytest.mark.parametrize(("layer", "params", "macs"), LAYERS.values(), ids=LAYERS)


@OF_LAYERS
def test_a_lazy_module_that_ran_inside_its_factory_is_measured(
    layer: Callable[[], nn.Module], params: int, macs: int
) -> None:
    """As its message says, and compared."""

    def made() -> nn.Module:
        model = nn.Sequential(layer())
        model(torch.ones(X))
        return model

    measured = measure(made, "float32 2x3x8x8")
    assert (measured["params"].value, measured["macs"].value) == (params, macs)
    found = check_equivalence(made, made, "float32 2x3x8x8")
    assert found.outcome == "within", found.reason


class Held(nn.Module):
    """Layers that it keeps as it likes."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (layer,) = self.layers.values() if isinstance(self.layers, dict) else self.layers
        return layer(x)  # type: ignore[no-any-return]  # of a module


@OF_LAYERS
@pytest.mark.parametrize("keep", [lambda layer: [layer], lambda layer: (layer,), lambda layer: {"a": layer}])
def test_a_lazy_module_that_no_module_holds_is_told_with_both_ways_out(
    layer: Callable[[], nn.Module], params: int, macs: int, keep: Callable[[nn.Module], Any]
) -> None:
    """It has to be one of the model's, and to have run."""
    words = (
        "the model fills a lazy module that its modules() lack: "
        "keep layers in nn.ModuleList or nn.ModuleDict, and run the model once inside the factory"
    )
    with pytest.raises(ModelBudgetError) as caught:
        measure(lambda: Held(keep(layer())), "float32 2x3x8x8")
    assert str(caught.value) == words


@OF_LAYERS
def test_a_lazy_module_of_the_model_is_named(layer: Callable[[], nn.Module], params: int, macs: int) -> None:
    """By its first weight, or by its first buffer where it has no weights."""
    first = "running_mean" if params == 0 else "weight"
    words = rf"^layers\.0\.{first} has no shape yet \(a lazy module\): run the model once inside the factory$"
    for inputs in ("float32 2x3x8x8", None):
        with pytest.raises(ModelBudgetError, match=words):
            measure(Held(nn.ModuleList([layer()])), inputs)
