"""Models of diffusers, peft, open_clip and torch_geometric, small ones from explicit configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.builders.marks import needs

from .holding import Entry, counted, floats, ints, measured

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
]


def diffuser(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A factory of a network of diffusers."""

    def made() -> Any:
        import diffusers

        return getattr(diffusers, name)(**settings)

    return made


WIDTHS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
CROSSED = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 24,
    "attention_head_dim": 8,
}
UNET = diffuser(
    "UNet2DModel",
    **WIDTHS,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
CONDITIONED = diffuser("UNet2DConditionModel", **WIDTHS, **CROSSED, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
CODER = diffuser(
    "AutoencoderKL", **WIDTHS, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2
)
FLUX = diffuser(
    "FluxTransformer2DModel",
    in_channels=16,
    num_layers=1,
    num_single_layers=1,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=24,
    pooled_projection_dim=32,
    axes_dims_rope=(4, 6, 6),
)
STABLE_3 = diffuser(
    "SD3Transformer2DModel",
    sample_size=8,
    in_channels=4,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    joint_attention_dim=24,
    caption_projection_dim=32,
    pooled_projection_dim=64,
    out_channels=4,
)
DIT = diffuser(
    "DiTTransformer2DModel", num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=8, norm_num_groups=4
)

DIFFUSERS = [
    pytest.param(Entry(UNET, {"sample": floats(1, 3, 16, 16), "timestep": ints(1)}), id="UNet2D"),
    pytest.param(
        Entry(
            CONDITIONED,
            {"sample": floats(1, 4, 16, 16), "timestep": ints(1), "encoder_hidden_states": floats(1, 7, 24)},
        ),
        id="UNet2DCondition",
    ),
    pytest.param(Entry(CODER, {"sample": floats(1, 3, 32, 32)}), id="AutoencoderKL"),
    pytest.param(
        Entry(
            FLUX,
            {
                "hidden_states": floats(1, 12, 16),
                "encoder_hidden_states": floats(1, 5, 24),
                "pooled_projections": floats(1, 32),
                "timestep": floats(1),
                "img_ids": floats(12, 3),
                "txt_ids": floats(5, 3),
            },
        ),
        id="Flux",
    ),
    pytest.param(
        Entry(
            STABLE_3,
            {
                "hidden_states": floats(1, 4, 8, 8),
                "encoder_hidden_states": floats(1, 5, 24),
                "pooled_projections": floats(1, 64),
                "timestep": ints(1),
            },
        ),
        id="SD3",
    ),
    pytest.param(
        Entry(DIT, {"hidden_states": floats(1, 4, 8, 8), "timestep": ints(1), "class_labels": ints(1)}), id="DiT"
    ),
]


@needs("diffusers")
@pytest.mark.parametrize("model", DIFFUSERS)
def test_diffusers(model: Entry) -> None:
    """Their configs are mappings that refuse to be changed; every metric is complete."""
    assert measured(model) == counted(model)


def adapted(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    """A factory of a network of three layers with an adapter of peft's."""

    def made() -> Any:
        import peft

        layers = [("first", nn.Linear(24, 40)), ("act", nn.ReLU()), ("second", nn.Linear(40, 8))]
        net = nn.Sequential()
        for name, layer in layers:
            net.add_module(name, layer)
        return peft.get_peft_model(net, getattr(peft, kind)(target_modules=["first", "second"], **settings))

    return made


ADAPTERS = [
    pytest.param(adapted("LoraConfig", r=4), id="LoRA"),
    pytest.param(adapted("LoraConfig", r=4, use_rslora=True), id="rsLoRA"),
    pytest.param(adapted("IA3Config", feedforward_modules=[]), id="IA3"),
    pytest.param(adapted("LoHaConfig", r=4), id="LoHa"),
    pytest.param(adapted("LoKrConfig", r=4), id="LoKr"),
    pytest.param(adapted("VeraConfig", r=4), id="VeRA"),
]


@needs("peft")
@pytest.mark.parametrize("build", ADAPTERS)
def test_peft(build: Callable[[], nn.Module]) -> None:
    """Adapters count, and those alone are trainable."""
    model = Entry(build, floats(5, 24), runs=True)
    assert measured(model) == counted(model)
    from pytest_modelbudget import measure

    trained = sum(weight.numel() for weight in build().parameters() if weight.requires_grad)
    assert int(measure(build, floats(5, 24))["trainable_params"].value) == trained > 0


def clip(name: str) -> Callable[[], nn.Module]:
    """A factory of one of open_clip's models by name, without weights."""

    def made() -> Any:
        import open_clip

        return open_clip.create_model(name, pretrained=None, device=torch.get_default_device())

    return made


@needs("open_clip")
@pytest.mark.parametrize("name", ["ViT-B-32", "RN50", "convnext_base"])
def test_open_clip(name: str) -> None:
    """Both towers of a named model at its own size."""
    model = Entry(clip(name), {"image": floats(1, 3, 224, 224), "text": ints(1, 77)})
    assert measured(model) == counted(model)


def convolved(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A factory of two layers of one of torch_geometric's convolutions, on a graph of its own."""

    def made() -> Any:
        import torch_geometric.nn

        kind = getattr(torch_geometric.nn, name)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = kind(16, 12, **settings)
                self.second = kind(12, 5, **settings)

            def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
                return self.second(self.first(x, edges).relu(), edges)

        return Net()

    return made


GRAPHS = ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "GraphConv", "TAGConv", "TransformerConv", "ChebConv"]


@needs("torch_geometric")
@pytest.mark.parametrize("name", GRAPHS)
def test_torch_geometric(name: str) -> None:
    """Messages along 30 edges between 10 nodes."""
    settings = {"K": 3} if name == "ChebConv" else {}
    model = Entry(convolved(name, **settings), {"x": floats(10, 16), "edges": ints(2, 30, high=10)}, runs=True)
    assert measured(model) == counted(model)
