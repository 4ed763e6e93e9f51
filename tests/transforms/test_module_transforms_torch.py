"""fold_batchnorm, export_onnx and comparisons on torch modules: cost, tables, outputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.fold_batchnorm_on_torch import folded
from tests.builders.module_transforms import EXACT, applied, numbers
from tests.builders.one_registry import share_registry

pytestmark = pytest.mark.needs_torch


@pytest.fixture(autouse=True)
def exports_share_a_registry() -> None:
    """Half of the time of each export is torch's own table."""
    share_registry()


class Block(nn.Module):
    """A convolution and a linear layer that can be folded into, and norms that cannot go."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)  # nothing before it
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.branch, self.branch_norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.turned, self.turned_norm = nn.ConvTranspose2d(8, 4, 2), nn.BatchNorm2d(4)
        self.fc, self.fc_norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(self.first(x))).relu_()
        y = self.branch(x)
        x = self.turned_norm(self.turned(self.branch_norm(y) + y))  # y has a second reader
        return self.fc_norm(self.fc(x.mean((2, 3))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_batch_norms_are_folded_where_one_layer_feeds_them(dtype: str) -> None:
    """Three of five go: convolution, transposed convolution, linear; the outputs stay."""
    done = applied("fold_batchnorm", Block, (2, 3, 8, 8), dtype)
    became = {change.scope: change.became for change in done.changed.changes}
    assert became == {
        "first": "",
        "norm": "folded into conv",
        "branch_norm": "",
        "turned_norm": "folded into turned",
        "fc_norm": "folded into fc",
    }
    found = done.verify(EXACT)
    assert found.outcome == "within", found.reason
    assert found.weights == "drawn, seed 0"


def test_folding_costs_what_is_left() -> None:
    """A convolution's bias takes the place of 2·8 norm parameters and 2·8 statistics."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    done = applied("fold_batchnorm", layers, (1, 3, 8, 8))
    found = numbers(done)
    assert found["params"] == 8 * 27 + 8
    assert found["model_size"] == 4 * (8 * 27 + 8)
    assert found["macs"] == (8 * 6 * 6) * 27


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_folding_into_a_linear_layer_is_its_formula(bias: bool, affine: bool) -> None:
    """w·γ/√(σ² + ε) and (b - μ)·γ/√(σ² + ε) + β; where there is none γ is 1, β is 0, b is 0."""
    layers = nn.Sequential(nn.Linear(3, 2, bias=bias), nn.BatchNorm1d(2, eps=1.0, affine=affine))
    values = {"running_mean": [5.0, -7.0], "running_var": [3.0, 15.0]}  # √(σ² + ε) is 2 and 4
    if affine:
        values |= {"weight": [4.0, 2.0], "bias": [0.5, 0.25]}
    layers[1].load_state_dict({k: torch.tensor(v) for k, v in values.items()}, strict=False)
    scale = torch.tensor([2.0, 0.5] if affine else [0.5, 0.25])
    before = {name: each.detach().clone() for name, each in layers[0].named_parameters()}
    moved = before.get("bias", torch.zeros(2)) - torch.tensor([5.0, -7.0])
    made = folded(layers.eval(), {"1": "0"})[0]
    assert torch.allclose(made.weight, before["weight"] * scale[:, None])
    shift = torch.tensor([0.5, 0.25] if affine else [0.0, 0.0])
    assert torch.allclose(made.bias, moved * scale + shift)


def test_a_batch_norm_without_affine_is_folded_into_a_linear_layer() -> None:
    """Nothing but its statistics moves, and the outputs stay."""
    layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, affine=False))
    done = applied("fold_batchnorm", layers, (2, 8))
    assert numbers(done)["params"] == 8 * 4 + 4
    found = done.verify(EXACT)
    assert found.outcome == "within", found.reason


def test_nothing_to_fold_is_told() -> None:
    """A model without batch norms is no folded one."""
    with pytest.raises(TransformError, match="changed nothing"):
        applied("fold_batchnorm", nn.Sequential(nn.Linear(4, 4)), (1, 4))


@pytest.mark.slow
def test_an_export_computes_the_same() -> None:
    """ONNX Runtime, optimisation off, against torch, batch norms folded by the exporter."""
    done = applied("export_onnx", "examples.lab.nets:jsc_tiny", (10, 16))
    found = done.verify(EXACT)
    assert found.outcome == "within", found.reason
    assert max(output.algebra or 1.0 for output in found.outputs) < 1e-10
    assert numbers(done)["macs"] == 10 * (16 * 40 + 40 * 25 + 25 * 5)


class OfDevice(nn.Module):
    """Names an accelerator that may not be there."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.device = nn.Linear(4, 3), torch.device("cuda")

    def forward(self, x: torch.Tensor) -> Any:
        return self.l(x.to(self.device)) + torch.ones(3, device=self.device)


@pytest.mark.slow
def test_a_model_that_names_an_accelerator_is_exported_on_the_cpu() -> None:
    """2 rows of 4 by 3, as ONNX Runtime gives them."""
    done = applied("export_onnx", OfDevice(), (2, 4))
    assert numbers(done)["macs"] == 2 * 4 * 3
    assert done.verify(EXACT).outcome == "within"


@pytest.mark.slow
def test_an_export_has_the_operator_set_that_is_asked_for() -> None:
    """21 is written, 13 by the older exporter; 99, for which it silently takes one that it knows, is refused."""
    net = nn.Sequential(nn.Linear(4, 3))
    for opset in (13, 21):
        done = applied("export_onnx", net, (2, 4), opset=opset)
        assert numbers(done)["macs"] == 2 * 4 * 3
        assert done.verify(EXACT).outcome == "within"
    with pytest.raises(TransformError, match=r"^opset is 99, and .* ask for \d+, or leave"):
        applied("export_onnx", net, (2, 4), opset=99)


class Branch(nn.Module):
    """Goes a way that its data decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Vectors(nn.Module):
    """An operator that ONNX has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "cause"),
    [(Branch(), r"data-dependent .* \(in forward, "), (Vectors(), "No ONNX function found for .*linalg_svd")],
    ids=["data decide", "no such operator"],
)
def test_an_export_that_fails_says_why(net: nn.Module, cause: str) -> None:
    """The cause, with its line, and not the step at which the exporter was."""
    with pytest.raises(TransformError, match=rf"^exporting to ONNX raised \w+: .*{cause}"):
        applied("export_onnx", net, (4, 4))


def exported(net: nn.Module, x: torch.Tensor) -> None:
    """Writes net.onnx."""
    program = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
    assert program is not None
    program.save("net.onnx")


@pytest.mark.slow
def test_a_file_is_compared_with_its_module(tmp_path: Path, monkeypatch: Any) -> None:
    """An ONNX file agrees with the module that it was exported from, and with no other."""
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    exported(net, torch.zeros(2, 8))
    assert check_equivalence(net, "net.onnx", "float32 2x8", seeds=(0,)).outcome == "within"
    weight = net[0].get_parameter("weight")
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.view(-1)[kept.abs().argmax()] *= 1 + 1e-4  # one of 128
    assert check_equivalence(net, "net.onnx", "float32 2x8", seeds=(0,)).outcome == "over"
    with torch.no_grad():
        weight.copy_(kept)
        net[2].get_parameter("bias")[0] += 0.01  # seen whichever channels ReLU shuts
    found = check_equivalence(net, "net.onnx", "float32 2x8", seeds=(0,))
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "2"


class FromOne(nn.Module):
    """An embedding whose rows are counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rows(ids - 1)
        return found


@pytest.mark.slow
def test_a_file_beside_a_module_that_takes_no_zero(tmp_path: Path, monkeypatch: Any) -> None:
    """Every run is on values in the range that the inputs name."""
    monkeypatch.chdir(tmp_path)
    net = FromOne().eval()
    exported(net, torch.ones(2, 3, dtype=torch.int64))
    spec = TensorSpec("int64", (2, 3), low=1, high=11)
    found = check_equivalence(net, "net.onnx", spec, seeds=(0,))
    assert found.outcome == "within", found.reason


def test_weights_rounded_on_another_way_are_judged_by_precision_alone() -> None:
    """A norm folded by hand in float32 differs from the float64 folding by what float32 rounds."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    redraw(layers)
    by_hand = nn.Sequential(nn.utils.fuse_conv_bn_eval(layers[0], layers[1]))
    found = check_equivalence(layers, by_hand, "float32 2x3x8x8", seeds=(0,))
    assert found.outcome == "within", found.reason
    assert found.basis == "precision only"
    with torch.no_grad():
        by_hand[0].get_parameter("weight")[0] *= 1.001
    assert check_equivalence(layers, by_hand, "float32 2x3x8x8", seeds=(0,)).outcome == "over"


@pytest.mark.parametrize("share", [1e-4, 1e-5, 1e-6])
def test_one_weight_that_is_off_was_not_rounded_on_another_way(share: float) -> None:
    """Among 4,096 that are the same, one is over with its layer, however little it is off."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    redraw(net)
    other = copy.deepcopy(net)
    weight = other[0].get_parameter("weight")
    with torch.no_grad():
        weight.view(-1)[weight.abs().argmax()] *= 1 + share
    found = check_equivalence(net, other, "float32 4x64", seeds=(0,))
    assert (found.outcome, found.basis) == ("over", "whole network")
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "0"


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        pytest.param("tile_conv", {"tile": (None, 2, 2)}, id="tile_conv"),
        pytest.param("tile_linear", {"tile": (None, 2, 2)}, id="tile_linear"),
    ],
)
def test_every_glob_names_a_module(key: str, settings: dict[str, Any]) -> None:
    """One that names none is a slip, whatever others select; one without such a layer is none."""
    applied(key, Block, (2, 3, 8, 8), layers=("conv", "fc", "first"), **settings)
    with pytest.raises(TransformError, match=r"matches 'turnd\.\*': did you mean 'turned'\?"):
        applied(key, Block, (2, 3, 8, 8), layers=("conv", "fc", "turnd.*"), **settings)


class Positive(nn.Module):
    """How many rows come out depends on values, so that only a real run tells it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x[x[:, 0] > -100])
        return result


def widened(model: nn.Module) -> nn.Module:
    """A transform that makes a wider layer of the copy."""
    model.set_submodule("fc", nn.Linear(8, 64))
    return model


def test_what_only_a_real_run_measures_is_the_transformed_model() -> None:
    """8·4 + 4 parameters and 3·8·4 MACs became 8·64 + 64 and 3·8·64."""
    net = Positive(4)
    before = applied("tile_linear", net, (3, 8), tile=(None, 64, 64))
    assert numbers(before)["params"] == 36
    after = numbers(applied("apply", net, (3, 8), apply=f"{__name__}:widened"))
    assert (after["params"], after["macs"]) == (576, 1536)


PATCHING = """import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4, bias=False)
    def forward(self, x):
        return product(x, self.layer)

def product(x, layer):
    return nn.functional.linear(x, layer.weight)

def twice(own):
    return lambda *given: own(*given) + own(*given)

def a_class(model):
    Net.forward = twice(Net.forward)
    return model

def a_function(model):
    global product
    product = twice(product)
    return model

def torchs_own(model):
    nn.functional.linear = twice(nn.functional.linear)
    return model
"""


@pytest.mark.parametrize("patched", ["a_class", "a_function", "torchs_own"])
def test_a_transform_that_replaces_code_of_the_original_proves_nothing(
    patched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Liger-Kernel replaces functions of transformers: both models run the new ones, 2 times 2·8·4 MACs."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nn.functional, "linear", nn.functional.linear)  # as before afterwards
    name = f"patching_{patched}"
    (tmp_path / f"{name}.py").write_text(PATCHING)
    done = applied("apply", f"{name}:Net", (2, 8), apply=f"{name}:{patched}")
    assert numbers(done)["macs"] == 2 * (2 * 8 * 4)
    found = done.verify(EXACT)
    assert found.outcome == "unknown"
    assert "replaces code which both run" in found.reason
