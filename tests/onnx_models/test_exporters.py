"""torch models by both exporters, folded or not: the same MACs, and every parameter explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from pytest_modelbudget import measure
from tests.builders.exported_models import EXPORTED, built, folded_away
from tests.builders.marks import one_of_many
from tests.builders.model_files import export

pytestmark = pytest.mark.needs_torch

WAYS: Mapping[str, Mapping[str, Any]] = {
    "old, folded": {"dynamo": False},
    "old, unfolded": {"dynamo": False, "do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE},
    "new, folded": {"dynamo": True, "external_data": False, "verbose": False},
    "new, unfolded": {"dynamo": True, "optimize": False, "external_data": False, "verbose": False},
}
SWIN_TABLES = 2 * 2 * (4 * 4 * 4 * 4 - 7 * 7) + 2 * 4 * (4 * 4 * 4 * 4 - 7 * 7)
# (model, way) → parameters that the exporter adds, by what it writes.
ADDED = {
    # the factor 1/√d of an attention, as a tensor of one element
    ("attention", "old, folded"): 1,
    ("attention", "old, unfolded"): 1,
    ("vit", "old, folded"): 2,
    ("vit", "old, unfolded"): 2,
    # tables of relative positions, (2·4 - 1)² rows a head, gathered into 16 x 16 scores a head
    ("swin", "old, folded"): SWIN_TABLES,
    ("swin", "new, folded"): SWIN_TABLES,
}


class Positions(nn.Module):
    """x + cos(0, 1, 2 …): in no state dict."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cos(torch.arange(x.shape[1], dtype=x.dtype))


@cache
def torch_figures(name: str) -> tuple[int, int]:
    measured = measure(built(name), EXPORTED[name][1])
    assert measured["macs"].complete
    return int(measured["params"].value), int(measured["macs"].value)


# The new exporter takes seconds for a network of many layers, whichever it is.
SMALL = (
    "mlp", "convolutions", "language", "attention", "encoder", "lstm", "gru", "vit", "swin", "squeezenet",
)  # fmt: skip
UNFOLDED = ("mlp", "convolutions", "attention", "lstm", "swin")
USUAL = {"new, folded": SMALL, "new, unfolded": UNFOLDED}
EXPORTS = [
    pytest.param(name, way, marks=one_of_many(name, USUAL.get(way, tuple(EXPORTED))))
    for name in EXPORTED
    for way in WAYS
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), EXPORTS)
def test_figures_equal_torch(name: str, way: str, tmp_path: Path) -> None:
    """MACs are equal, and params but for what folding removes and what the exporter writes."""
    model, path = built(name), tmp_path / "model.onnx"
    export(model, EXPORTED[name][1], path, **WAYS[way])
    found = measure(path)
    params, macs = torch_figures(name)
    removed = 0 if "unfolded" in way else folded_away(model)
    assert (found["macs"].value, found["macs"].complete) == (macs, True)
    assert found["params"].value == params - removed + ADDED.get((name, way), 0)


# Norms without a scale or a shift of their own, or with one of eight: (norm, size of x, parameters)
NORMS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "layer norm": (lambda: nn.LayerNorm(8, elementwise_affine=False), (2, 3, 8), 0),
    "layer norm, scaled": (lambda: nn.LayerNorm(8, bias=False), (2, 3, 8), 8),
    "layer norm, fresh": (lambda: nn.LayerNorm(8), (2, 3, 8), 8 + 8),
    "large layer norm": (lambda: nn.LayerNorm(300, elementwise_affine=False), (2, 300), 0),
    "instance norm": (lambda: nn.InstanceNorm2d(8), (2, 8, 4, 4), 0),
    "instance norm, fresh": (lambda: nn.InstanceNorm1d(8, affine=True), (2, 8, 4), 8 + 8),
    "batch norm": (lambda: nn.BatchNorm2d(8, affine=False), (2, 8, 4, 4), 0),
    "group norm": (lambda: nn.GroupNorm(2, 8), (2, 8, 4, 4), 8 + 8),
    "group norm, scaled": (lambda: nn.GroupNorm(2, 8, bias=False), (2, 8, 4, 4), 8),
    "positions added": (Positions, (2, 8), 0),
}

# The old exporter does not say of what it made a tensor: the zero that it adds for a shift looks like a fresh bias.
OF_OLD = {("group norm, scaled", "old, unfolded"): 1}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NORMS)
def test_what_the_exporter_writes_itself_is_no_parameter(name: str, way: str, tmp_path: Path) -> None:
    """Ones and zeros of a norm that learns none, and in new files whatever comes from no tensor of the module."""
    made, sizes, expected = NORMS[name]
    expected += OF_OLD.get((name, way), 0)
    export(made().eval(), torch.rand(sizes), tmp_path / "model.onnx", **WAYS[way])
    assert measure(tmp_path / "model.onnx")["params"].value == expected


class Outer(nn.Module):
    """x + u · vᵀ: torch multiplies element by element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addr(x, x[:, 0], x[0])


class OneNumber(nn.Module):
    """The sum of x[i, j] · x[j, i]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensordot(x[:, :, None], x[:, None], dims=([0, 1], [2, 0]))


@pytest.mark.parametrize(
    ("made", "sizes", "way", "macs"),
    [(Outer, (3, 5), "new, folded", 3 * 5 * 1), (OneNumber, (2, 2), "old, folded", 2 * 2)],
)
def test_products_that_torch_writes_element_by_element(
    made: Callable[[], nn.Module], sizes: tuple[int, ...], way: str, macs: int, tmp_path: Path
) -> None:
    """No MACs in a module, and those of the product of matrices that an exporter writes for it."""
    export(made(), torch.rand(sizes), tmp_path / "model.onnx", **WAYS[way])
    assert measure(made(), sizes)["macs"].value == 0
    assert measure(tmp_path / "model.onnx")["macs"].value == macs


def test_there_are_fifteen() -> None:
    """Models of every family are exported."""
    assert len(EXPORTED) >= 15


@pytest.mark.slow
def test_mobilenet_as_laboratories_count_it(tmp_path: Path) -> None:
    """MobileNetV2, batch norm folded: the figures of the labs' scripts, but for the Flatten."""
    torch.manual_seed(0)
    model = models.mobilenet_v2().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    path = tmp_path / "mobilenet_v2.onnx"
    export(model, torch.zeros(1, 3, 224, 224), path, dynamo=False)
    found = measure(path)
    assert found["params"].value == 3_487_816
    assert found["bandwidth"].value == 119_445_696 - 2 * 1280 * 4
    gemm = next(share for share in found["bandwidth"].shares if share.scope == "classifier.1")
    assert gemm.value == (1280 + 1280 * 1000 + 1000) * 4 + 1000 * 4 == 5_129_120 + 4_000
    torch_macs = measure(model, "float32 1x3x224x224")["macs"].value
    assert found["macs"].value == torch_macs


class CalledTwice(nn.Module):
    """An attention without bias, and a list with one of its own, both called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.both = Scores(), nn.Sequential(nn.Linear(8, 8), Scores())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (1, 4, 8), four times mixed."""
        return self.both(self.both(self.attention(self.attention(x))))  # type: ignore[no-any-return]


class Scores(nn.Module):
    """x (1, 4, 8) · w (8, 8), by xᵀ, by x."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One mixture."""
        return (self.queries(x) @ x.transpose(-1, -2)) @ x


@pytest.mark.parametrize("way", [way for way in WAYS if "old" in way])
def test_a_module_that_is_called_twice_is_one_scope(way: str, tmp_path: Path) -> None:
    """4·8·8 of each linear layer, 4·8·4 + 4·4·8 of each mixture, twice; what the exporter folds has no path."""
    path = tmp_path / "twice.onnx"
    export(CalledTwice().eval(), torch.zeros(1, 4, 8), path, **WAYS[way])
    macs = {share.scope: share.value for share in measure(path)["macs"].shares}
    layer, mixture = 2 * 4 * 8 * 8, 2 * (4 * 8 * 4 + 4 * 4 * 8)
    assert macs == {
        "attention.queries": layer, "attention": mixture,
        "both.0": layer, "both.1.queries": layer, "both.1": mixture,
    }  # fmt: skip
