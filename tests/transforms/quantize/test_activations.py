"""quantize with activations: integers as ONNX Runtime stores them, and a program as a device lowers it."""

from __future__ import annotations

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torchvision.models as torchvision_models
from onnx import numpy_helper
from torch import nn

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind
from pytest_modelbudget.equivalence.user_inputs import GivenInputs
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.lowering.lowered import Lowering, lowered
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from pytest_modelbudget.torch_models.weights import redraw
from tests.builders.marks import each_in_turn
from tests.builders.module_transforms import applied, quantised, sources

pytestmark = pytest.mark.needs_torch
NORMAL = Claim(Kind.LOSSY, {Bound.SQNR: Fraction(20)}, families=("normal", "uniform"), seeds=(0,))


def bits(width: int = 8, *, calibrate: Any = "drawn", **given: Any) -> dict[str, Any]:
    return {"bits": width, "symmetric": False, "calibrate": calibrate, **given}


PASSES: dict[str, dict[str, Any]] = {"as written": {"fold_batchnorm": False, "fuse_activations": ()}, "fused": {}}
NETWORKS = [("alexnet",), ("resnet18",), ("mobilenet_v2",), ("swin_t",)]


@pytest.mark.parametrize(("name", "how"), each_in_turn(NETWORKS, [*PASSES]))
def test_costs_are_those_of_a_lowered_model(name: str, how: str) -> None:
    """Eight bits for all, quantised or lowered: every metric of the program is the same."""
    passes = PASSES[how]
    source = ModelSource(
        "torch", getattr(torchvision_models, name), InputSpecs((TensorSpec("float32", (1, 3, 224, 224)),))
    )
    done, rules = quantised(source, activations=bits()), builtin_ops()
    graph = tables().formats["torch"].load(source, rules).graph
    programs = (
        lowered(graph, rules, Lowering(dtype="int8", **passes)).graph,
        lowered(done.changed.model.graph, rules, Lowering(**passes)).graph,
    )
    wanted, found = (
        {
            key: metric.measure(CostedGraph(program, rules)).value
            for key, metric in metric_table().items()
            if metric.stage is Stage.WRITTEN and key != "trainable_params"  # integers learn nothing
        }
        for program in programs
    )
    assert len(wanted) > 10
    assert found == wanted


def mixed() -> nn.Module:
    """Activations that rounding clamps to, and some that it cannot, a pool, and a sum of two branches."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
            self.pool, self.fc, self.head = nn.MaxPool2d(2), nn.Linear(8 * 8 * 8, 16), nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.pool(torch.relu(self.first(x)).add_(self.second(x)))
            return self.head(nn.functional.gelu(self.fc(y.flatten(1))))

    made = Branches().eval()
    redraw(made)
    return made


@pytest.fixture(scope="module")
def every_format(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSource]:
    """The net in every format, exported once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return sources(mixed(), (1, 3, 16, 16), tmp_path_factory.mktemp("mixed"))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"activations": bits()}, id="int8"),
        pytest.param({"activations": bits(6), "weights": {"bits": 6}}, id="6 bits"),
        pytest.param({"activations": bits(8), "granularity": {"group": 8}}, id="groups"),
        pytest.param(
            {
                "form": "fixed", "weights": {"bits": 12, "frac": 10}, "bias": {"bits": 12, "frac": 8},
                "activations": bits(8, frac=4),
            },
            id="fixed",
        ),
    ],
)  # fmt: skip
def test_outputs_of_rounded_runs(given: dict[str, Any], every_format: dict[str, ModelSource]) -> None:
    """Every format rounds at the same places: all lose something, and within 6 dB the same."""
    noise = []
    for name, source in every_format.items():
        found = quantised(source, **given).verify(Claim(Kind.LOSSY, {Bound.SQNR: Fraction(12)}, families=("normal",)))
        assert found.outcome == "within", (name, found.reason)
        noise.append(found.outputs[0].figures.sqnr)
    assert max(noise) < min(noise) + 6
    assert max(noise) < 60


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_integers_are_those_of_onnx_runtime(per_channel: bool, tmp_path: Path) -> None:
    """quantize_static on the same calibration stores the same weights, biases and zero points."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    source = sources(mixed(), (1, 3, 16, 16), tmp_path)["onnx"]
    data = np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype("float32")
    name = onnx.load(tmp_path / "net.onnx").graph.input[0].name
    np.savez(tmp_path / "data.npz", **{name: data})

    class Rows(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.rows = iter(data[:, None])

        def get_next(self) -> Any:
            row = next(self.rows, None)
            return None if row is None else {name: row}

    int8 = quantization.QuantType.QInt8
    quantization.quantize_static(
        tmp_path / "net.onnx", tmp_path / "theirs.onnx", Rows(), per_channel=per_channel, weight_type=int8,
        activation_type=int8, quant_format=quantization.QuantFormat.QDQ,
    )  # fmt: skip
    given = GivenInputs("data.npz", tmp_path)
    granularity = "channel" if per_channel else "tensor"
    done = quantised(source, granularity=granularity, activations=bits(calibrate=given))
    theirs, mine = (
        {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
        for proto in (onnx.load(tmp_path / "theirs.onnx"), done.changed.model.proto)  # type: ignore[attr-defined]
    )
    words = {"_quantized": ".quantized", "_zero_point": ".rounded.zero"}
    pairs = [
        (mine[name.removesuffix(end) + word].reshape(-1), values.reshape(-1))
        for name, values in theirs.items()
        for end, word in words.items()
        if name.endswith(end) and name.removesuffix(end) + word in mine
    ]
    stored, others = (np.concatenate(each) for each in zip(*pairs, strict=True))
    assert stored.size > 8 * 27 + 8 * 3 + 512 * 16 + 16 * 5 + 8 + 8 + 16 + 5
    assert (stored == others).mean() >= 0.999
    assert np.abs(stored.astype("int64") - others).max() <= 1  # halves, and scales that are rounded up
    assert done.verify(NORMAL).outcome == "within"


class Attention(nn.Module):
    """Causal attention whose mask adds a number to scores."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.masked = masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), self.masked).triu(1)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 32**0.5 + mask
        result: torch.Tensor = self.out(scores.softmax(-1) @ self.value(x))
        return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("masked", [torch.finfo(torch.float32).min, float("-inf")], ids=["least", "-inf"])
def test_masked_scores_take_no_part_of_a_grid(masked: float, tmp_path: Path) -> None:
    """What masks add is e^-16 to a softmax: noise is that of -16 itself, within 3 dB, in torch and ONNX."""

    def noise(added: float) -> list[float]:
        model = Attention(added).eval()
        redraw(model)
        done = sources(model, (1, 16, 32), tmp_path)
        found = [quantised(done[name], activations=bits()).verify(NORMAL) for name in ("torch", "onnx")]
        return [each.outputs[0].figures.sqnr or 0.0 for each in found]

    assert min(noise(masked)) > min(noise(-16.0)) - 3


def test_layers_that_are_kept_keep_their_results() -> None:
    """The weights, the bias and the results of a layer stay floats; it reads integers."""
    net = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 4))
    redraw(net)
    done = applied("quantize", net, (2, 16), activations=bits(), layers={"2": "keep"})
    types = {
        op.scope: [each.dtype.name for each in (*op.operands, *op.outputs) if isinstance(each, Tensor)]
        for op in done.changed.model.graph.ops
    }
    assert types["0"] == ["int8", "int8", "int32", "int8"]
    assert types["2"] == ["int8", "float32", "float32", "float32"]
    assert done.verify(NORMAL).outcome == "within"


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"0": np.ones((2, 8), "float32")}, "'0' of data.npz is 2x8, and the model takes 1x16"),
        ({"0": np.full((2, 16), np.nan, "float32")}, "'0' of data.npz holds NaN or Inf"),
        ({"0": np.ones((0, 16), "float32")}, "data.npz holds no inputs"),
        ({"x": np.ones((2, 16), "float32")}, "has 'x', which is no input: the model takes '0'"),
        ({}, "data.npz does not exist"),
    ],
    ids=["shape", "NaN", "empty", "name", "missing"],
)
def test_calibration_inputs_that_are_not_the_model_s(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """The claim is unknown, and says what is wrong with which array."""
    if arrays:
        np.savez(tmp_path / "data.npz", **arrays)
    net = nn.Sequential(nn.Linear(16, 4))
    redraw(net)
    done = applied("quantize", net, (1, 16), activations=bits(calibrate=GivenInputs("data.npz", tmp_path)))
    found = done.verify(NORMAL)
    assert found.outcome == "unknown"
    assert "quantize: activations: calibrate: " in found.reason
    assert sentence in found.reason


def test_a_claim_on_activations_needs_a_bound() -> None:
    net = nn.Sequential(nn.Linear(16, 4))
    redraw(net)
    found = applied("quantize", net, (1, 16), activations=bits()).verify(Claim(Kind.LOSSY, seeds=(0,)))
    assert found.outcome == "unknown"
    assert found.reason.endswith("is no floor: declare one, such as sqnr: 10")
