"""torchvision's own table of parameters and operations, for every model it has."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import detection, optical_flow, quantization, segmentation, video

from pytest_modelbudget import Measurements, measure
from pytest_modelbudget.formats.source import InputSpec, TensorSpec
from tests.builders.marks import one_of_many

pytestmark = pytest.mark.needs_torch

CLASSIFIERS = torchvision.models.list_models(module=torchvision.models)


def floats(*shape: int) -> TensorSpec:
    """A float32 input."""
    return TensorSpec("float32", shape)


def metadata(builder: Any) -> dict[str, Any]:
    """The published figures of a builder's first weights, which are not downloaded."""
    weights = torchvision.models.get_model_weights(builder)
    first: dict[str, Any] = next(iter(weights)).meta
    return first


def measured(build: Any, *inputs: InputSpec, **kwargs: Any) -> tuple[str, Measurements]:
    """How a model was traced, and all its metrics."""
    found = measure(build, inputs, kwargs=kwargs)
    return found.traced, found


def shaped(build: Any, **options: Any) -> nn.Module:
    """A model whose weights are shapes alone: none is drawn."""
    with torch.device("meta"):
        model: nn.Module = build(**options)
    return model


def published(measurements: Measurements) -> tuple[int, float]:
    """Params and rounded GMACs, as torchvision publishes them; both complete."""
    assert measurements["macs"].complete
    gmacs = round(int(measurements["macs"].value) / 1e9, 3)
    return int(measurements["params"].value), gmacs


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str) -> None:
    """All 80: without weights, without computing, every metric complete but for none."""
    builder = torchvision.models.get_model_builder(name)
    weights = next(iter(torchvision.models.get_model_weights(name)))
    size = weights.transforms.keywords["crop_size"]
    kwargs: dict[str, Any] = {"aux_logits": False} if name == "googlenet" else {}
    if name.startswith("vit"):
        size, _ = weights.meta["min_size"]
        kwargs = {"image_size": size}
    traced, metrics = measured(builder, floats(1, 3, size, size), **kwargs)
    assert published(metrics) == (weights.meta["num_params"], weights.meta["_ops"])
    assert traced == "meta"
    assert [key for key, metric in metrics.items() if not metric.complete] == []


def test_no_classifier_is_left_out() -> None:
    """The installed torchvision has 80 of them."""
    assert len(CLASSIFIERS) == 80


@pytest.mark.parametrize("name", torchvision.models.list_models(module=segmentation))
def test_segmentation(name: str) -> None:
    """At 520x520, with the auxiliary head that the published weights have."""
    options = {} if name.startswith("lraspp") else {"aux_loss": True}
    builder = getattr(segmentation, name)
    traced, metrics = measured(builder, floats(1, 3, 520, 520), weights_backbone=None, **options)
    figures = metadata(builder)
    assert (traced, *published(metrics)) == ("meta", figures["num_params"], figures["_ops"])


@pytest.mark.parametrize("name", torchvision.models.list_models(module=video))
def test_video(name: str) -> None:
    """16 frames, 112 pixels for ResNets and 224 for the others."""
    size = 112 if name in {"mc3_18", "r2plus1d_18", "r3d_18"} else 224
    builder = getattr(video, name)
    traced, metrics = measured(builder, floats(1, 3, 16, size, size))
    figures = metadata(builder)
    assert (traced, *published(metrics)) == ("meta", figures["num_params"], figures["_ops"])


@pytest.mark.parametrize("name", torchvision.models.list_models(module=optical_flow))
def test_optical_flow(name: str) -> None:
    """RAFT, twelve refinements, on the smallest image it takes; MACs complete."""
    builder = getattr(optical_flow, name)
    traced, metrics = measured(builder, floats(1, 3, 128, 128), floats(1, 3, 128, 128))
    assert (traced, published(metrics)[0]) == ("meta", metadata(builder)["num_params"])


FROZEN_STATISTICS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn",
    "fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn",
}  # fmt: skip


def trained_scales(model: nn.Module) -> int:
    """Scales and shifts of the backbone's batch norms, which published detectors have frozen."""
    norms = (m for m in model.backbone.modules() if isinstance(m, nn.BatchNorm2d))  # type: ignore[union-attr]
    return sum(parameter.numel() for norm in norms for parameter in norm.parameters())


DETECTORS = ("fasterrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=one_of_many(name, DETECTORS))
        for name in torchvision.models.list_models(module=detection)
    ],
)
def test_detection(name: str) -> None:
    """Data decides how many boxes there are, so a detector is run; MACs and params complete.

    Untrained, the older ones train the batch norms that their published weights have frozen. Those that enlarge an
    image to 800 pixels leave it as small as it is.
    """
    size = {} if name.startswith("ssd") else {"min_size": 128, "max_size": 128}
    builder = partial(getattr(detection, name), weights=None, weights_backbone=None, **size)
    traced, metrics = measured(builder, (floats(3, 128, 128),))
    frozen = trained_scales(shaped(builder)) if name in FROZEN_STATISTICS else 0
    expected = metadata(getattr(detection, name))["num_params"] + frozen
    assert (traced, published(metrics)[0]) == ("real", expected)


QUANTISED = [name.removeprefix("quantized_") for name in torchvision.models.list_models(module=quantization)]

PACKED = ("googlenet", "mobilenet_v2", "mobilenet_v3_large", "resnet18", "shufflenet_v2_x0_5")


def unfolded(model: nn.Module) -> int:
    """Parameters of the float network after folding: convolutions and linears, biases added.

    Folding a batch norm removes its scale and shift, and gives its convolution a bias.
    """
    return sum(layer.weight.numel() + layer.weight.shape[0] for layer in weighted(model))


def weighted(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Layers that quantising packs."""
    return [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=one_of_many(name, PACKED)) for name in QUANTISED])
def test_quantised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights count as the folded float network's; a real run, the float network's MACs."""
    engine = torch.backends.quantized.engine  # which the builders of MobileNets set
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    options: dict[str, Any] = {}
    if name in {"googlenet", "inception_v3"}:
        options = {"aux_logits": False}
    builder = getattr(quantization, name)
    size = 299 if name == "inception_v3" else 224
    traced, metrics = measured(builder, floats(1, 3, size, size), quantize=True, **options)
    folded = unfolded(shaped(builder, quantize=False, **options))
    assert (traced, *published(metrics)) == ("real", folded, metadata(builder)["_ops"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "elements", "per_channel"), [("resnet18", 11_684_712, True), ("mobilenet_v2", 3_487_816, False)]
)
def test_quantised_figures_counted_by_hand(name: str, elements: int, per_channel: bool) -> None:
    """int8 weights, float32 biases, and a float64 scale and int64 zero point for each grid."""
    builder = getattr(quantization, name)
    _, metrics = measured(builder, floats(1, 3, 224, 224), quantize=True)
    layers = weighted(shaped(builder, quantize=False))
    biases = sum(layer.weight.shape[0] for layer in layers)
    grids = biases if per_channel else len(layers)
    assert metrics["params"].value == elements
    assert metrics["weight_memory"].value == (elements - biases) + 4 * biases + (8 + 8) * grids
