"""fold_batchnorm, quantize_weights and export_onnx on torch modules: cost, tables, outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.metrics.costed_graph import CostedGraph
from pytest_modelbudget.metrics.metric_table import metric_table
from pytest_modelbudget.ops.op_table import builtin_ops
from pytest_modelbudget.transforms.fold_batchnorm_torch import folded
from pytest_modelbudget.transforms.quantize_weights_torch import on_grid
from pytest_modelbudget.transforms.transform import Job, Transformed
from pytest_modelbudget.transforms.transform_table import transform_table
from pytest_modelbudget.transforms.weight_grid import Grid

LOSSY = Claim(Kind.LOSSY, seeds=(0,))
EXACT = Claim(seeds=(0,))


def applied(
    key: str, target: object, shape: tuple[int, ...], dtype: str = "float32", **settings: Any
) -> Transformed:
    transform = transform_table()[key]
    given = {each.key: each.default for each in transform.settings} | settings
    specs = InputSpecs((TensorSpec(dtype, shape),))
    source = ModelSource("torch", target, specs, dtype=None if dtype == "float32" else dtype)
    return transform.applied(Job(source, given, builtin_ops()))


def numbers(done: Transformed) -> dict[str, Any]:
    costed = CostedGraph(done.loaded.graph, builtin_ops())
    return {key: metric.measure(costed).value for key, metric in metric_table().items()}


def table(done: Transformed) -> dict[str, str]:
    """Layers changed of those seen, by type."""
    seen = Counter(change.operation for change in done.changes)
    changed = Counter(change.operation for change in done.changes if change.became)
    return {kind: f"{changed[kind]} of {count}" for kind, count in seen.items()}


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
    became = {change.scope: change.became for change in done.changes}
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


@pytest.mark.parametrize("per", ["channel", "tensor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_integers_lie_on_their_grid(bits: int, symmetric: bool, per: str) -> None:
    """Every weight is within half a step of s·(q - z), in integers of so many bits."""
    weight = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(bits)) + 0.3
    grid = Grid(bits, per == "channel", symmetric, ("*",))
    q, scale, zero = on_grid(weight, grid, 0)
    assert scale.numel() == (6 if per == "channel" else 1)
    assert -(2 ** (bits - 1)) <= int(q.min()) <= int(q.max()) < 2 ** (bits - 1)
    step = scale.double()
    error = (step * (q.double() - zero.double()) - weight.double()).abs()
    # Half a step of rounding, and another half where the zero point was rounded too.
    assert bool((error <= step * (0.5 if symmetric else 1.0) + 1e-6).all())
    if symmetric:
        assert not bool(zero.any())


def test_integer_linears_of_the_lab_net() -> None:
    """3 of 9 layers change; 1,765 weights of a byte, 70 float biases, 162 norm parameters."""
    done = applied("quantize_weights", "examples.lab.nets:jsc_tiny", (10, 16), layers=("*",))
    assert table(done) == {"BatchNorm1d": "0 of 3", "ReLU": "0 of 3", "Linear": "3 of 3"}
    found = numbers(done)
    weights, biases, norms, scales = 16 * 40 + 40 * 25 + 25 * 5, 70, 162, 40 + 25 + 5
    assert found["params"] == weights + biases + norms
    assert found["weight_memory"] == weights + 4 * (biases + norms + scales)
    assert found["macs"] == 10 * weights
    assert done.verify(LOSSY).outcome == "within"


def test_four_bits_take_half_a_byte() -> None:
    """128 weights of four bits are 64 bytes, with one scale for the tensor."""
    net = nn.Sequential(nn.Linear(16, 8, bias=False))
    done = applied("quantize_weights", net, (1, 16), bits=4, per="tensor")
    assert (numbers(done)["params"], numbers(done)["weight_memory"]) == (128, 64 + 4)


def test_attention_and_modules_that_read_weights_are_quantised() -> None:
    """nn.MultiheadAttention's packed projection is a weight of its own; nothing is replaced."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    redraw(layer)
    done = applied("quantize_weights", layer, (2, 5, 16))
    changed = {change.scope for change in done.changes if change.became}
    assert changed == {"self_attn", "self_attn.out_proj", "linear1", "linear2"}
    assert done.verify(LOSSY).outcome == "within"


def test_too_few_bits_are_over() -> None:
    """Four bits do not reach 30 dB, and the floor of eight does not hold for four."""
    done = applied("quantize_weights", "examples.lab.nets:jsc_tiny", (10, 16), bits=4)
    assert done.verify(LOSSY).outcome == "within"
    strict = Claim(Kind.EXACT_ALGEBRA, seeds=(0,))
    assert done.verify(strict).outcome == "over"


@pytest.mark.slow
def test_an_export_computes_the_same() -> None:
    """ONNX Runtime, optimisation off, against torch, batch norms folded by the exporter."""
    done = applied("export_onnx", "examples.lab.nets:jsc_tiny", (10, 16))
    found = done.verify(EXACT)
    assert found.outcome == "within", found.reason
    assert max(output.algebra or 1.0 for output in found.outputs) < 1e-10
    assert numbers(done)["macs"] == 10 * (16 * 40 + 40 * 25 + 25 * 5)


@pytest.mark.slow
def test_an_export_has_the_operator_set_that_is_asked_for() -> None:
    """21 is written; 99, for which the exporter silently takes one that it knows, is refused."""
    net = nn.Sequential(nn.Linear(4, 3))
    assert numbers(applied("export_onnx", net, (2, 4), opset=21))["macs"] == 2 * 4 * 3
    with pytest.raises(TransformError, match=r"^opset is 99, and .* ask for \d+, or leave"):
        applied("export_onnx", net, (2, 4), opset=99)


@pytest.mark.slow
def test_a_file_is_compared_with_its_module(tmp_path: Path, monkeypatch: Any) -> None:
    """An ONNX file agrees with the module that it was exported from, and with no other."""
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    program = torch.onnx.export(net, (torch.zeros(2, 8),), dynamo=True, verbose=False)
    assert program is not None
    program.save("net.onnx")
    assert check_equivalence(net, "net.onnx", "float32 2x8", seeds=(0,)).outcome == "within"
    with torch.no_grad():
        net[2].get_parameter("bias")[0] += 0.01  # seen whichever channels ReLU shuts
    found = check_equivalence(net, "net.onnx", "float32 2x8", seeds=(0,))
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "2"


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
