"""What each operator takes by itself, in which module, and how many bytes: in torch and in ONNX Runtime."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from pytest_modelbudget.formats.benchmark import Plan, Timing
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.gate.measuring import time_model
from pytest_modelbudget.registry import tables

pytestmark = pytest.mark.needs_torch
BATCH = "float32 5x3x224x224"
# Elements of one result of each convolution and pool of AlexNet, and of each linear layer.
CONVOLUTIONS = {
    "features.0": 64 * 55 * 55, "features.3": 192 * 27 * 27, "features.6": 384 * 13 * 13,
    "features.8": 256 * 13 * 13, "features.10": 256 * 13 * 13,
}  # fmt: skip
POOLS = {"features.2": 64 * 27 * 27, "features.5": 192 * 13 * 13, "features.12": 256 * 6 * 6}
LINEAR = {"classifier.1": 4096, "classifier.4": 4096, "classifier.6": 1000}


def timing(source: object, inputs: str | None) -> Timing:
    """One counted call, and one whose operators are seen."""
    read = model_source(source, inputs, registry=tables(), base=Path.cwd())
    seen = time_model(read, Plan(repeats=1, warmup=1), tables(), root=Path.cwd())
    assert seen.value is not None, seen.failure
    return seen.value


def nbytes(timing: Timing, name: str) -> dict[str, int]:
    return {row.module: row.nbytes for row in timing.operators if row.name == name}


def test_operators_of_alexnet_name_their_modules_and_bytes() -> None:
    """Lab 002, batch 5: empty 9.25 MiB, pools with their int64 indices 5.05 MiB, addmm 179.53 KiB; as torch says."""
    seen = timing(torchvision.models.alexnet().eval(), BATCH)
    assert nbytes(seen, "aten::empty").items() >= {at: 5 * 4 * size for at, size in CONVOLUTIONS.items()}.items()
    assert sum(nbytes(seen, "aten::empty").values()) == 9_699_840
    assert nbytes(seen, "aten::max_pool2d_with_indices") == {at: 5 * (4 + 8) * size for at, size in POOLS.items()}
    assert sum(nbytes(seen, "aten::max_pool2d_with_indices").values()) == 5_299_200
    assert nbytes(seen, "aten::addmm") == {at: 5 * 4 * size for at, size in LINEAR.items()}
    assert sum(nbytes(seen, "aten::addmm").values()) == 183_840
    calls = Counter[str]()
    for row in seen.operators:
        calls[row.name] += row.calls
    assert (calls["aten::conv2d"], calls["aten::linear"], calls["aten::relu_"]) == (5, 3, 7)
    assert calls["between operators"] == 0
    times = [row.ns for row in seen.operators]
    assert times == sorted(times, reverse=True)
    assert min(times) >= 0


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_nodes_of_onnx_runtime_belong_to_their_modules(tmp_path: Path) -> None:
    """A ReLU is fused into each layer before it, and counts for that; 5 rows of 32 and of 4 floats."""
    layers = {"conv": nn.Conv2d(3, 16, 3), "relu": nn.ReLU(), "flat": nn.Flatten(), "fc1": nn.Linear(16 * 36, 32),
              "relu1": nn.ReLU(), "fc2": nn.Linear(32, 4)}  # fmt: skip
    model, file = nn.Sequential(OrderedDict(layers)).eval(), str(tmp_path / "net.onnx")
    torch.onnx.export(model, (torch.zeros(5, 3, 8, 8),), file, dynamo=False)
    seen = timing(file, None)
    assert {row.module for row in seen.operators if row.name in ("Conv", "FusedConv")} == {"conv"}
    linear = {row.module: row.nbytes for row in seen.operators if row.name.endswith("Gemm")}
    assert linear == {"fc1": 5 * 32 * 4, "fc2": 5 * 4 * 4}
