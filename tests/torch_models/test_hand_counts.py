"""Figures that others counted by hand hold to the byte."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.table import format_table
from pytest_modelbudget.gate.from_python import Measurements
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.storage import weight_memory
from pytest_modelbudget.ops.table import builtin_ops

pytestmark = pytest.mark.needs_torch

IMAGE = "float32 1x3x224x224"


def figures(measured: Measurements, *keys: str) -> dict[str, object]:
    """Values by key; every one of them complete."""
    assert all(measured[key].complete for key in keys)
    return {key: measured[key].value for key in keys}


def test_alexnet() -> None:
    """Weights, MACs, peak (input 602,112 + first convolution 774,400) and traffic."""
    measured = measure("torchvision.models:alexnet", IMAGE)
    expected = {
        "params": 61_100_840,
        "weight_memory": 244_403_360,
        "macs": 714_188_480,
        "peak_activation": 602_112 + 774_400,
        "total_activation": 4_339_616,
        "bandwidth": 253_680_704,
    }
    assert figures(measured, *expected) == expected
    assert measured["bandwidth"].parts == {"read": 4_937_728, "weights": 244_403_360, "write": 4_339_616}


def test_resnet18() -> None:
    """Running statistics are stored and read, and are no parameters."""
    measured = measure("torchvision.models:resnet18", IMAGE)
    expected = {
        "params": 11_689_512,
        "weight_memory": 46_758_048,
        "model_size": 46_796_608,
        "macs": 1_814_073_344,
        "peak_activation": 6_422_528,
        "bandwidth": 116_950_592,
    }
    assert figures(measured, *expected) == expected
    assert measured["bandwidth"].parts == {"read": 37_232_640, "weights": 46_796_448, "write": 32_921_504}
    assert measured["arithmetic_intensity"].unreduced == (2 * 1_814_073_344, 116_950_592)


def test_googlenet() -> None:
    """Without its auxiliary heads."""
    measured = measure("torchvision.models:googlenet", IMAGE, kwargs={"aux_logits": False, "init_weights": False})
    expected = {"params": 6_624_904, "weight_memory": 26_499_616}
    assert figures(measured, *expected) == expected
    assert round(int(measured["macs"].value) / 1e9, 3) == 1.498


def test_vision_transformer() -> None:
    """12 layers of 197 tokens and width 768: projections, attention, MLP; patches and head.

    layer: 4·197·768² + 2·197²·768 + 2·197·768·3072; patches 196·768·3·16²; head 768·1000.
    """
    layer = 4 * 197 * 768**2 + 2 * 197**2 * 768 + 2 * 197 * 768 * 3072
    closed = 12 * layer + 196 * 768 * 3 * 16**2 + 768 * 1000
    assert closed == 17_563_828_224
    assert figures(measure("torchvision.models:vit_b_16", IMAGE), "macs") == {"macs": closed}


def test_mnist_net_of_the_lab() -> None:
    """103,812 weights, 338,112 MACs, and the intensity of each weighted layer without bias.

    conv1 28·28·4·25 = 78,400; conv2 14·14·8·100 = 156,800; 392·256 + 256·10 = 102,912.
    """
    net = nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(392, 256, bias=False), nn.ReLU(), nn.Linear(256, 10, bias=False),
    )  # fmt: skip
    measured = measure(net, "float32 1x1x28x28")
    assert measured["params"].value == 100 + 800 + 392 * 256 + 2560 == 103_812
    assert measured["macs"].value == 78_400 + 156_800 + 392 * 256 + 2560 == 338_112
    intensity = {s.scope: s.value for s in measured["arithmetic_intensity"].shares}
    assert intensity["0"] == Fraction(2 * 78_400, 4 * (28 * 28 + 100 + 28 * 28 * 4))
    figures = {scope: float(intensity[scope]) for scope in ("0", "3", "7", "9")}
    assert figures == pytest.approx({"0": 9.75125, "3": 24.8731, "7": 0.49679, "9": 0.452935}, rel=1e-5)
    macs_per_value = {scope: value * 4 / 2 for scope, value in figures.items()}  # 4 B a value, 2 FLOP a MAC
    lab = {"0": 19.5025, "3": 49.7462, "7": 0.99358, "9": 0.90587}
    assert macs_per_value == pytest.approx(lab, rel=5e-6)


def test_census_of_jsc_tiny() -> None:
    """Three of each kind, nine in all."""
    net = nn.Sequential(
        nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 40), nn.BatchNorm1d(40), nn.ReLU(),
        nn.Linear(40, 25), nn.BatchNorm1d(25), nn.ReLU(), nn.Linear(25, 5),
    )  # fmt: skip
    assert measure(net, "float32 10x16")["ops"].parts == {"batch_norm": 3, "relu": 3, "linear": 3}


def test_flops_convention_on_one_block() -> None:
    """Conv with bias 2·MAC + 1, batch norm 2, ReLU 1 and 2x2 pool 4 per output, on 8x8x4.

    MACs 4·64·3·9 = 6,912; outputs 256; pooled outputs 64.
    """
    block = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    measured = measure(block, "float32 1x3x8x8")["flops"]
    assert measured.value == 2 * 6912 + 256 + 2 * 256 + 256 + 4 * 64
    assert measured.convention == "flops/1"


def test_flops_of_recurrent_layers() -> None:
    """An LSTM step costs 9 per unit, a GRU step 10, and both biases of every gate."""
    lstm, gru = nn.LSTM(4, 8), nn.GRU(4, 8)
    steps = 5 * 2
    assert measure(lstm, "float32 5x2x4")["flops"].value == steps * (2 * 32 * 12 + 9 * 8 + 2 * 32)
    assert measure(gru, "float32 5x2x4")["flops"].value == steps * (2 * 24 * 12 + 10 * 8 + 2 * 24)


def test_dtype_converts_the_model() -> None:
    """In bfloat16 AlexNet's weights take half the bytes; params and MACs stay."""
    spec = TensorSpec("bfloat16", (1, 3, 224, 224))
    source = ModelSource("torch", "torchvision.models:alexnet", InputSpecs((spec,)), dtype="bfloat16")
    model = format_table()["torch"].load(source, builtin_ops())
    graph = CostedGraph(model.graph, builtin_ops())
    assert weight_memory(graph).value == 244_403_360 // 2
    assert macs(graph).value == 714_188_480


def test_measuring_twice_gives_the_same() -> None:
    """Numbers, shares and names are the same in every run."""
    model = torch.nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    first, second = (measure(model, "float32 1x3x8x8") for _ in range(2))
    assert dict(first) == dict(second)
