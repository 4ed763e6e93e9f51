"""Models of any size are built at once: nothing is filled, and what does not fit has no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.init import trunc_normal_, xavier_normal_

from pytest_modelbudget import measure
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.torch_models.building import initialisation_skipped

pytestmark = pytest.mark.needs_torch

TABLE = {name: getattr(nn.init, name) for name in ("xavier_uniform_", "trunc_normal_", "orthogonal_")}
FILLS: dict[str, Callable[[nn.Parameter], Any]] = {
    "data": lambda w: w.data.normal_(),
    "data, as a row": lambda w: w.data.view(-1).uniform_(),
    "data, some rows": lambda w: w.data[:2].normal_(),
    "data, in parts": lambda w: [part.mul_(2) for part in w.data.chunk(2)],
    "detached": lambda w: w.detach().t().fill_(2.0),
    "itself": lambda w: w.requires_grad_(False).normal_(),
    "initialiser": lambda w: nn.init.kaiming_normal_(w),
    "imported by name": lambda w: (trunc_normal_(w), xavier_normal_(tensor=w, gain=2.0)),
    "in a table": lambda w: TABLE["xavier_uniform_"](w),
    "in a table, of data": lambda w: TABLE["trunc_normal_"](w.data, std=0.02),
}


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Operators that draw or factorise, as they run."""
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(word in func.__name__ for word in ("normal_", "uniform_", "fill_", "mul_", "qr")):
                seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        yield seen


@pytest.mark.parametrize("fill", FILLS.values(), ids=list(FILLS))
def test_no_parameter_is_filled(fill: Callable[[nn.Parameter], Any], draws: list[str]) -> None:
    """Under whatever name the function or the memory is reached."""
    parameter = nn.Parameter(torch.empty(8, 8))
    with initialisation_skipped():
        fill(parameter)
    assert draws == []
    fill(parameter)
    assert draws != []


class Stages(nn.Sequential):
    """Initialised as timm's regnets are: fills of ``weight.data``, by module."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                module.weight.data.normal_(0, (2.0 / fan_out) ** 0.5)
                module.bias.data.zero_()  # type: ignore[union-attr]
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0.0, std=0.01)
                module.weight.data[:2].mul_(0.5)
                nn.init.zeros_(module.bias)


def test_a_network_is_built_without_drawing_a_weight(draws: list[str]) -> None:
    """Nothing is drawn from its class to its numbers."""
    assert measure(Stages, "float32 1x3x8x8")["params"].value == 8 * 27 + 8 + 16 + 8 * 36 * 10 + 10
    assert [name for name in draws if not name.startswith("fill_")] == []  # of a batch norm's statistics


def test_other_tensors_are_filled_inside_too() -> None:
    """What is no parameter may be looked at."""
    with initialisation_skipped():
        assert TABLE["trunc_normal_"](torch.zeros(100), std=0.5).std() > 0.1
        assert nn.init.constant_(tensor=torch.zeros(2), val=3.0).tolist() == [3, 3]
        square = TABLE["orthogonal_"](torch.zeros(4, 4))
    assert torch.allclose(square @ square.T, torch.eye(4), atol=1e-5)


class Experts(nn.Module):
    """One tensor of 2^47 bytes, larger than any address space, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(2**25, 2**10, 2**10))
        nn.init.normal_(self.w)
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) + (x[:, None, :] @ self.w[:, :16, :16].sum(0))[:, 0]


def test_a_tensor_larger_than_memory_is_measured() -> None:
    """It has no memory then, and its size and products all the same."""
    measured = measure(Experts, "float32 4x16")
    assert measured["params"].value == 2**45 + 16 * 16 + 16
    assert measured["weight_memory"].value == 4 * (2**45 + 16 * 16 + 16)
    assert measured["macs"].value == 2 * 4 * 16 * 16


def test_what_does_not_fit_is_not_built_again_with_values() -> None:
    """Where its builder needs values after all, that is its failure."""
    builds = []

    def build() -> nn.Module:
        builds.append(None)
        model = Experts()
        if model.l.weight.sum() > 0:
            return model
        return model

    with pytest.raises(ModelBudgetError):
        measure(build, "float32 4x16")
    assert len(builds) == 2


def test_scales_are_computed_from_weights_that_were_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from memory that nobody filled, which torch fills with NaN here: that ends a trace without values."""
    monkeypatch.syspath_prepend(tmp_path)
    engine = torch.backends.quantized.engine
    (tmp_path / "drawn_scales.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    torch.use_deterministic_algorithms(True)\n"
        "    layers = nn.Sequential(nn.Linear(64, 32))\n"
        "    torch.use_deterministic_algorithms(False)\n"
        "    torch.backends.quantized.engine = 'qnnpack'\n"
        "    return torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, torch.qint8)\n"
    )
    measured = measure("drawn_scales:net", "float32 2x64")
    assert (measured.traced, measured["macs"].value) == ("fake", 2 * 64 * 32)
    torch.backends.quantized.engine = engine
