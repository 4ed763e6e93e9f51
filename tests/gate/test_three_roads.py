"""A module, its TorchScript files and its exported program have the same figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torchvision
from torch import nn
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.models.vision_transformer import VisionTransformer

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.module import module_subject
from pytest_modelbudget.torch_models.tracing import traced
from tests.builders.marks import one_of_many
from tests.builders.model_files import SHAPE, exported, recorded, scripted

pytestmark = pytest.mark.needs_torch

MODELS = (
    "alexnet", "resnet18", "mobilenet_v2", "squeezenet1_1", "efficientnet_b0",
    "shufflenet_v2_x0_5", "a small vit", "a small shufflenet", "vit_b_16", "swin_t", "convnext_tiny", "regnet_y_400mf",
)  # fmt: skip
USUAL = ("squeezenet1_1", "resnet18", "a small shufflenet", "a small vit")  # a kind each
IMAGE = "float32 1x3x224x224"
EQUAL = ("params", "weight_memory", "macs")


def built(name: str) -> nn.Module:
    """A model of torchvision, or one with few layers of the same kinds."""
    if name == "a small vit":
        return VisionTransformer(224, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128)
    if name == "a small shufflenet":
        return ShuffleNetV2([2, 2, 2], [24, 16, 32, 64, 64])
    return torchvision.models.get_model(name)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=one_of_many(name, USUAL)) for name in MODELS])
def test_every_format_gives_the_same_params_bytes_and_macs(name: str, tmp_path: Path) -> None:
    """Whichever road a model takes into the gate, its budget is the same."""
    model = built(name).eval()
    roads: dict[str, Callable[[nn.Module, Path], Path]] = {
        "scripted": scripted,
        "traced": recorded,
        "exported": exported,
    }
    expected = {key: measure(model, IMAGE)[key].value for key in EQUAL}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file's writer warns, which is not our matter
        files = {road: write(model, tmp_path) for road, write in roads.items()}
    for road, path in files.items():
        measured = measure(path, None if road == "exported" else IMAGE)
        assert all(measured[key].complete for key in EQUAL)
        found[road] = {key: measured[key].value for key in EQUAL}
    assert found == dict.fromkeys(roads, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "swin_t", "vit_b_16"])
def test_every_way_of_tracing_gives_the_same_numbers(name: str) -> None:
    """Meta tensors, fake tensors and a real run agree in every metric, peak and traffic too."""
    model = torchvision.models.get_model(name)
    source = ModelSource("torch", model, InputSpecs((TensorSpec("float32", SHAPE),)))
    rows = {}
    for way in ("meta", "fake", "real"):
        loaded = traced(module_subject(model, source, None), source.inputs, builtin_ops(), ways=(way,))
        assert loaded.traced == way
        graph = CostedGraph(loaded.graph, builtin_ops())
        rows[way] = {metric.key: metric.measure(graph).value for metric in METRICS if metric.stage is Stage.WRITTEN}
    assert rows["meta"] == rows["fake"] == rows["real"]


def test_module_paths_survive_every_format(tmp_path: Path) -> None:
    """Shares name the same layers, whether hooks, nodes or weights told where an op runs."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 8, 3))).eval()
    spec = f"float32 {'x'.join(map(str, SHAPE))}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sources = [model, scripted(model, tmp_path), exported(model, tmp_path)]
    scopes = [[share.scope for share in measure(source, spec)["macs"].shares] for source in sources]
    assert scopes == [["0", "1.0"]] * 3
