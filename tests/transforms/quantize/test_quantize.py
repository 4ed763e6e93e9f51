"""quantize: programs on integers, the same in every format, and what their outputs lose."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import numpy_helper, version_converter
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.quantize import grid as grids
from pytest_modelbudget.transforms.quantize.grid import floor_of
from tests.builders.module_transforms import EXACT, LOSSY, applied, numbers, quantised, sources, table
from tests.builders.onnx_graphs import model as graph_model
from tests.builders.onnx_graphs import node, value
from tests.builders.onnx_linears import written

pytestmark = pytest.mark.needs_torch
KEEP = "keep"
AT_ALL = Claim(Kind.LOSSY, {Bound.SQNR: Fraction(3)}, seeds=(0,))
PLAIN = ("params", "weight_memory", "macs", "bops")


def test_alexnet_on_int8_weights() -> None:
    """61,090,496 weights of a byte, 10,344 biases and scales of four; activations move and live as in float32."""
    done = applied("quantize", "torchvision.models:alexnet", (1, 3, 224, 224))
    found = numbers(done)
    weights, outputs, moved = 61_090_496, 10_344, 4_937_728 + 4_339_616
    assert found["weight_memory"] == weights + 2 * 4 * outputs
    assert found["bandwidth"] == weights + 2 * 4 * outputs + moved == 70_450_592
    assert found["bops"] == 714_188_480 * 32 * 8
    assert found["peak_activation"] == 1_376_512
    assert done.changed.model._built is None, "what is asked for costs needs no weights"  # type: ignore[attr-defined]


def net() -> nn.Module:
    """Convolutions, plain and grouped, and linear layers, for images of 16x16."""
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(),
        nn.Linear(128, 16), nn.Linear(16, 5),
    ).eval()  # fmt: skip
    redraw(made)
    return made


LAYERS = ((8, 27), (8, 18), (16, 128), (5, 16))  # of the net: outputs, weights of each
PRODUCTS = (14 * 14 * 8 * 27, 12 * 12 * 8 * 18, 16 * 128, 5 * 16)


@pytest.fixture(scope="module")
def every_format(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSource]:
    """The net in every format, exported once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return sources(net(), (1, 3, 16, 16), tmp_path_factory.mktemp("net"))


@pytest.mark.parametrize(
    ("given", "weight_bits", "scales"),
    [
        pytest.param({}, (8, 8, 8, 8), (8, 8, 16, 5), id="a scale for each channel"),
        pytest.param({"weights": {"bits": 4}}, (4, 4, 4, 4), (8, 8, 16, 5), id="4 bits"),
        pytest.param({"granularity": {"group": 16}}, (8, 8, 8, 8), (8 * 2, 8 * 2, 16 * 8, 5), id="groups"),
        pytest.param({"granularity": "tensor"}, (8, 8, 8, 8), (1, 1, 1, 1), id="one scale"),
        pytest.param({"weights": {"bits": 5, "frac": 3}, "form": "fixed"}, (5, 5, 5, 5), (0, 0, 0, 0), id="fixed"),
        pytest.param(
            {"layers": {"[06]": {"weights": {"bits": 3}}, "7": KEEP}}, (3, 8, 3, 32), (8, 8, 16, 0), id="layers"
        ),
    ],
)
def test_costs_are_alike_in_every_format(
    given: dict[str, Any], weight_bits: tuple[int, ...], scales: tuple[int, ...], every_format: dict[str, ModelSource]
) -> None:
    """Weights of their bits, biases and scales of 32, and products of 32 bits by those of the weight."""
    sizes = [outputs * fan_in * bits // 8 for (outputs, fan_in), bits in zip(LAYERS, weight_bits, strict=True)]
    memory = sum(sizes) + 4 * (sum(scales) + 8 + 8 + 16 + 5)
    bops = sum(count * 32 * bits for count, bits in zip(PRODUCTS, weight_bits, strict=True))
    params = sum(outputs * (fan_in + 1) for outputs, fan_in in LAYERS)
    for name, source in every_format.items():
        done = quantised(source, **given)
        found = numbers(done)
        assert [found[key] for key in PLAIN] == [params, memory, sum(PRODUCTS), bops], name
        assert done.verify(AT_ALL).outcome == "within", name


def llama() -> nn.Module:
    """Four layers of a small Llama, whose table and head are two weights."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return cast("nn.Module", transformers.LlamaForCausalLM(config))


MULTIPLYING = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)
IMAGE = TensorSpec("float32", (1, 3, 224, 224))


@pytest.mark.parametrize(
    ("factory", "spec"),
    [
        pytest.param(torchvision.models.resnet18, IMAGE, id="resnet18"),
        pytest.param(torchvision.models.vit_b_16, IMAGE, id="vit_b_16"),
        pytest.param(llama, TensorSpec("int64", (1, 16), high=512), id="llama"),
    ],
)
def test_four_bits_in_groups(factory: Callable[[], nn.Module], spec: TensorSpec) -> None:
    """Half a byte for each matrix's element, four for a scale of 32 of a row, and for everything else."""
    done = quantised(ModelSource("torch", factory, InputSpecs((spec,))), weights={"bits": 4}, granularity={"group": 32})
    with torch.device("meta"):
        owners = dict(factory().named_modules())
    memory = 0
    for name, weight in owners[""].named_parameters():
        owner = owners[name.rpartition(".")[0]]
        if isinstance(owner, MULTIPLYING) and weight.dim() > 1:
            memory += weight.numel() // 2 + 4 * len(weight) * -(-weight[0].numel() // 32)
        else:
            memory += 4 * weight.numel()
    assert numbers(done)["weight_memory"] == memory


def test_integer_linears_of_the_lab_net() -> None:
    """3 of 9 layers change; 1,765 weights of a byte, 70 float biases, 162 norm parameters."""
    done = applied("quantize", "examples.lab.nets:jsc_tiny", (10, 16))
    assert table(done) == {"Linear": "3 of 3", "BatchNorm1d": "0 of 3", "ReLU": "0 of 3"}
    found = numbers(done)
    weights, biases, norms, scales = 16 * 40 + 40 * 25 + 25 * 5, 70, 162, 40 + 25 + 5
    assert found["params"] == weights + biases + norms
    assert found["weight_memory"] == weights + 4 * (biases + norms + scales)
    assert found["macs"] == 10 * weights
    assert done.verify(LOSSY).outcome == "within"


class Tied(nn.Module):
    """Two linear layers of one weight, and a table that is it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 16)
        self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.first.weight = self.second.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.second(self.first(x)) + self.table.weight[0])


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "stored"), [(8, 256), (4, 128)])
def test_tied_weights_stay_tied(bits: int, stored: int, symmetric: bool) -> None:
    """256 weights of two layers are stored once, with 16 scales, and as many zero points of their bits."""
    done = applied("quantize", Tied(), (2, 16), weights={"bits": bits, "symmetric": symmetric})
    found = numbers(done)
    assert found["params"] == 256
    assert found["weight_memory"] == stored + 16 * 4 + (0 if symmetric else 16 * bits // 8)
    assert done.verify(LOSSY).outcome == "within"


def test_readers_of_one_weight_agree() -> None:
    """A weight that one layer keeps and another has as integers is refused, with both."""
    with pytest.raises(TransformError, match=r"'table.weight' is read by second too, and 'layers' asks for two grids"):
        applied("quantize", Tied(), (2, 16), layers={"second": KEEP})


def test_attention_is_quantised() -> None:
    """nn.MultiheadAttention's packed projection is a weight of its own; nothing is replaced."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    redraw(layer)
    done = applied("quantize", layer, (2, 5, 16))
    changed = {change.scope for change in done.changed.changes if change.became}
    assert changed == {"self_attn", "self_attn.out_proj", "linear1", "linear2"}
    assert numbers(done)["weight_memory"] == 48 * 16 + 16 * 16 + 2 * 32 * 16 + 4 * (2 * (48 + 16 + 32 + 16) + 4 * 16)
    assert done.verify(LOSSY).outcome == "within"


def test_layers_that_stay_say_why() -> None:
    """Two tables and a norm multiply nothing; a weight that is computed is stored nowhere; one is kept."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(5, 8), nn.LayerNorm(8)
            self.lstm, self.head, self.tail = nn.LSTM(8, 8), nn.Linear(8, 4), nn.Linear(4, 2)
            self.g = nn.Parameter(torch.ones(4, 1))

        def forward(self, x: torch.Tensor) -> Any:
            x = self.lstm(self.norm(self.table.weight + x))[0]
            return self.tail(nn.functional.linear(x, self.g * self.head.weight))

    done = applied("quantize", Words(), (2, 5, 8), layers={"tail": KEEP})
    assert {change.scope: change.became or change.why for change in done.changed.changes} == {
        "norm": "it has no weight that is multiplied",
        "lstm": "int8, a scale per channel",
        "": "its weight is computed, or quantised already",
        "tail": "layers: leaves it out",
    }
    assert done.verify(LOSSY).outcome == "within"


def test_too_few_bits_are_over() -> None:
    """Four bits do not reach 30 dB, and the floor of eight does not hold for four."""
    target = "examples.lab.nets:jsc_tiny"
    few, enough = (applied("quantize", target, (10, 16), weights={"bits": bits}) for bits in (4, 8))
    declared = replace(LOSSY, bounds={Bound.SQNR: Fraction(30)})
    of_eight = floor_of(8, 3).bound(LOSSY)  # 48.16 - 12 - 4.77
    for claim, outcome in ((LOSSY, "within"), (declared, "over"), (of_eight, "over")):
        assert few.verify(claim).outcome == outcome
        assert enough.verify(claim).outcome == "within"
    assert few.verify(EXACT).outcome == "over"


@pytest.mark.parametrize(
    ("bits", "outcome", "reason"),
    [
        pytest.param(8, "over", "sqnr 0 < 23.61", id="48.16 - 12 - 12.55"),
        pytest.param(4, "unknown", "= -0.47 dB is no floor: declare one", id="24.08 - 12 - 12.55"),
    ],
)
def test_a_quantiser_that_stores_zeros(bits: int, outcome: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen layers of zeros are within no floor: 0 dB is what an output of zeros has."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh()) for _ in range(18)])
    redraw(layers)
    done = applied("quantize", layers, (2, 16), weights={"bits": bits})
    monkeypatch.setattr(grids.OnGrid, "values", lambda self, axes, dtype: 0 * self.integers.astype(dtype))
    found = done.verify(LOSSY)
    assert found.outcome == outcome
    assert reason in found.reason


class Runs(nn.Module):
    """A layer that runs so often, one that never does, and one tied to the first that runs once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.layer, self.unused = times, nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.layer(x).relu()
        return cast("torch.Tensor", self.tied(x))


@pytest.mark.parametrize(
    ("model", "shape", "bits", "decibels"),
    [
        pytest.param(Runs(0), (2, 16), 8, 36.16, id="one product: 48.16 - 12"),
        pytest.param(Runs(2), (2, 16), 8, 31.39, id="three: 36.16 - 4.77"),
        pytest.param(Runs(2), (2, 16), 4, 7.31, id="of four bits: 12.08 - 4.77"),
        pytest.param(nn.Sequential(*[nn.Conv1d(4, 4, 1)] * 2), (1, 4, 5), 8, 33.15, id="a kernel twice: less 3.01"),
    ],
)
def test_each_run_of_a_weight_has_a_share_of_noise(
    model: nn.Module, shape: tuple[int, ...], bits: int, decibels: float
) -> None:
    """The errors of one weight meet as many inputs as it has products, however many modules hold it."""
    floor = applied("quantize", model, shape, weights={"bits": bits}).changed.floor
    assert floor is not None
    assert round(floor.decibels, 2) == decibels


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales_have_the_type_of_the_weight(dtype: str) -> None:
    """64 groups of 32 weights of four bits, each with a scale of two bytes."""
    model = nn.Sequential(nn.Linear(64, 32, bias=False)).to(getattr(torch, dtype))
    redraw(model)
    done = applied("quantize", model, (2, 64), dtype, weights={"bits": 4}, granularity={"group": 32})
    assert numbers(done)["weight_memory"] == 64 * 32 // 2 + 64 * 2
    assert done.verify(LOSSY).outcome == "within"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("granularity", ["channel", "tensor", {"group": 16}], ids=["channel", "tensor", "group"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_file_measures_as_its_program(bits: int, granularity: Any, tmp_path: Path) -> None:
    """The graph that runs has integers behind DequantizeLinear, and costs what the program on integers does."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    redraw(model)
    torch.onnx.export(model, (torch.randn(4, 64),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    proto = version_converter.convert_version(onnx.load(tmp_path / "net.onnx"), 21)
    onnx.save(proto, tmp_path / "net.onnx")
    source = ModelSource("onnx", "net.onnx", base=tmp_path)
    done = quantised(source, weights={"bits": bits, "symmetric": granularity != "tensor"}, granularity=granularity)
    onnx.save(done.changed.model.proto, tmp_path / "int.onnx")  # type: ignore[attr-defined]
    of_file, of_program = measure(tmp_path / "int.onnx"), numbers(done)
    for key in (*PLAIN, "bandwidth", "peak_activation"):
        assert of_file[key].value == of_program[key], key
    assert done.verify(AT_ALL).outcome == "within"


def test_a_weight_that_a_file_transposes(tmp_path: Path) -> None:
    """x·Wᵀ of a weight behind a Transpose: its rows are the channels, and its integers are what moves."""
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(16, 24)).astype("float32"), "fc.weight")
    nodes = [node("Transpose", "fc.weight", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    written(graph_model(nodes, [value("x", 3, 24)], [value("y", 3, 16)], [weight]), tmp_path, "net.onnx")
    done = quantised(ModelSource("onnx", "net.onnx", base=tmp_path))
    found = numbers(done)
    assert found["weight_memory"] == 16 * 24 + 4 * 16
    assert found["bops"] == 3 * 16 * 24 * 32 * 8
    assert found["bandwidth"] == 4 * (3 * 24 + 3 * 16) + 3 * 16 * 24 + 4 * 16
    assert done.verify(LOSSY).outcome == "within"


def test_a_layer_that_no_module_matches() -> None:
    with pytest.raises(TransformError, match=r"layers: no module of the model matches '5\.\*'"):
        applied("quantize", net(), (1, 3, 16, 16), layers={"5.*": KEEP, "55": KEEP, "0": {"weights": {"bits": 4}}})


def test_nothing_to_quantise_says_so() -> None:
    with pytest.raises(TransformError, match="quantize changed nothing: no operation multiplies by a stored weight"):
        applied("quantize", nn.Sequential(nn.ReLU()), (2, 16))
    with pytest.raises(TransformError, match=r"quantize changed nothing: 0 \(aten::linear: layers: leaves it out\)"):
        applied("quantize", nn.Sequential(nn.Linear(16, 16)), (2, 16), layers={"*": KEEP})
