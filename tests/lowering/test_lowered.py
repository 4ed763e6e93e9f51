"""Programs as a device runs them: public figures, hand sums, and what stays as it is."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget.deployment.arena import buffers_of, planned
from pytest_modelbudget.errors import DeviceError
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.lowering.lowered import Lowered, Lowering, lowered
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.registry import tables
from tests.deployment.test_products import assert_same_macs

pytestmark = pytest.mark.needs_torch

IMAGE = "float32 1x3x224x224"


@dataclass(frozen=True)
class Program:
    """A lowered model, and its numbers by metric."""

    lowered: Lowered
    costed: CostedGraph

    def __getitem__(self, metric: str) -> int:
        measurement = tables().metrics[metric].of(self.costed)
        assert measurement.complete
        return int(measurement.value)


def program(model: object, inputs: str | None = None, **lowering: object) -> Program:
    here = Path.cwd()
    source = model_source(model, inputs, registry=tables(), base=here)
    costed = measuring.costed_model(source, tables(), root=here).costed
    result = lowered(costed.graph, costed.rules, Lowering(**lowering))  # type: ignore[arg-type]
    return Program(result, CostedGraph(result.graph, costed.rules))


@pytest.mark.parametrize(
    ("lowering", "peak"),
    [
        pytest.param({"fold_batchnorm": False, "fuse_activations": ()}, 2 * 4 * 96 * 112**2, id="as written"),
        pytest.param({}, 4 * 96 * (112**2 + 56**2), id="float32"),
        pytest.param({"dtype": "int8"}, 96 * (112**2 + 56**2), id="int8"),
        pytest.param({"dtype": "int8", "in_place": "depthwise"}, 112**2 * (16 + 96), id="depthwise in place"),
    ],
)
def test_mobilenet_v2_needs_what_devices_report(lowering: dict[str, object], peak: int) -> None:
    """The int8 figure is what an arena on a Cortex-M55 holds; pytorch/executorch#17651."""
    lowered = program("torchvision.models:mobilenet_v2", IMAGE, **lowering)
    assert lowered["peak_activation"] == peak
    assert lowered["macs"] == 300_774_272
    assert planned(buffers_of(lowered.lowered.graph), align=1).nbytes == peak
    assert not lowered.lowered.left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("densenet121", 2 * (58 + 3 + 1)),  # norms before 58 layers, 3 transitions and the head, each with its ReLU
        ("mobilenet_v3_small", 0),
        ("shufflenet_v2_x0_5", 0),
        ("squeezenet1_1", 0),
    ],
)
def test_lowering_changes_no_macs(name: str, left: int) -> None:
    """What is left unlowered is listed; the products of what remains have all MACs."""
    model = f"torchvision.models:{name}"
    as_written, made = program(model, IMAGE, fold_batchnorm=False, fuse_activations=()), program(model, IMAGE)
    assert made["macs"] == as_written["macs"]
    assert len(made.lowered.left) == left
    assert_same_macs(made.costed)


def test_resnet18_in_int8_weighs_a_hand_count() -> None:
    """int8 weights, a float32 scale and an int32 bias for each of the channels."""
    widths = [(3, 64, 7)]  # in, out, kernel of every convolution
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        widths += [(before, width, 3), (width, width, 3), (width, width, 3), (width, width, 3)]
        widths += [(before, width, 1)] if before != width else []
    weights = sum(i * o * k * k for i, o, k in widths) + 512 * 1000
    channels = sum(o for _, o, _ in widths) + 1000
    assert program("torchvision.models:resnet18", IMAGE, dtype="int8")["weight_memory"] == weights + 8 * channels


class Shared(nn.Module):
    """A convolution whose result a norm and a sum read; a norm before any convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.norm = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(self.first(x))
        return torch.relu(self.norm(y) + y)


def test_what_is_left_says_why() -> None:
    left = {step.scope: step.why for step in program(Shared().eval(), "float32 1x3x8x8").lowered.left}
    assert left["first"] == "not folded: no convolution, linear makes what it reads"
    assert left["norm"] == "not folded: others read what 'conv' makes"


def test_a_norm_in_training_mode_is_left() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    (step,) = program(net, "float32 2x3x8x8").lowered.left
    assert step.why == "not folded: its statistics are the batch's own"


def test_types_at_the_edges_are_their_own() -> None:
    """linear 8 → 4 → relu: int8 inside, float32 outside: 8 · 4 B in, 4 · 4 B out, and weights of 32 + 8 · 4 B."""
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    lowered = program(net, "float32 1x8", dtype="int8", io_dtype="float32")
    assert (lowered["peak_activation"], lowered["weight_memory"]) == (8 * 4 + 4 * 4, 32 + 4 * 4 + 4 * 4)


def test_integers_and_masks_stay() -> None:
    """A table of 10 x 4 in int8 with one scale; indices of int64 stay."""
    lowered = program(nn.Embedding(10, 4).eval(), "int64 1x3", dtype="int8")
    assert lowered["weight_memory"] == 10 * 4 + 4
    assert lowered["peak_activation"] == 3 * 8 + 3 * 4


@pytest.mark.parametrize("lowering", [{"dtype": "int7"}, {"io_dtype": "complex64"}, {"in_place": "always"}])
def test_what_no_device_does_is_refused(lowering: dict[str, str]) -> None:
    with pytest.raises(DeviceError):
        Lowering(**lowering)
