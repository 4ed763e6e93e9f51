"""The layer that is named is the one that was damaged, or the one that it was fused into."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.judgement import Equivalence
from tests.builders.damaged_files import FILE_REWRITES, convolutions, damaged_file, file_cases
from tests.builders.damaged_rewrites import DAMAGES, REWRITES, cases, chain, damaged, rewritten, seeded

pytestmark = pytest.mark.needs_torch


def named(found: Equivalence) -> str | None:
    return getattr(found.first_divergence, "scope", None)


@pytest.mark.parametrize(("name", "weight", "damage"), list(cases()))
def test_a_damaged_rewrite_of_a_module_names_the_layer(name: str, weight: str, damage: str) -> None:
    """Batch norms folded, chains multiplied, adapters merged, projections packed, graphs exported."""
    rewrite = REWRITES[name]
    first, second = damaged(rewrite, weight, DAMAGES[damage])
    found = check_equivalence(first, second, f"float32 {'x'.join(map(str, rewrite.shape))}", seeds=(0,))
    assert found.outcome == "over"
    assert named(found) in rewrite.layers[weight]


@pytest.mark.parametrize(("name", "tensor"), list(file_cases()))
def test_a_damaged_rewrite_of_a_file_names_the_layer(name: str, tensor: str, tmp_path: Path) -> None:
    """Renamed, folded, fused to Gemm, optimised by ONNX Runtime; an Identity of a stored tensor is never named."""
    rewrite = FILE_REWRITES[name]
    files = [tmp_path / "first.onnx", tmp_path / "second.onnx"]
    for proto, file in zip(damaged_file(rewrite, tensor), files, strict=True):
        onnx.save(proto, file)
    found = check_equivalence(*map(str, files), seeds=(0,))
    assert found.outcome == "over"
    assert named(found) in rewrite.layers[tensor]


@pytest.mark.parametrize("name", REWRITES)
def test_right_rewrites_stay_within(name: str) -> None:
    """What the damaged ones are made of is judged by step 2, and nothing is named."""
    rewrite = REWRITES[name]
    model, made = rewritten(rewrite)
    found = check_equivalence(model, made, f"float32 {'x'.join(map(str, rewrite.shape))}", seeds=(0,))
    assert (found.outcome, found.first_divergence) == ("within", None)


def quantised(model: nn.Module, doubled: str = "") -> nn.Module:
    """Weights on 255 steps, one of them with twice its scale."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for path, layer in made.named_modules():
            if isinstance(layer, nn.Linear):
                scale = layer.weight.abs().max() / 127
                layer.weight.copy_((layer.weight / scale).round() * scale * (1 + (path == doubled)))
    return made


@pytest.mark.parametrize("layer", ["0", "1", "3", "4", "6", "8"])
def test_a_lossy_claim_names_the_layer_that_loses_most(layer: str) -> None:
    """Every layer loses something; one has a scale doubled by mistake."""
    model = seeded(chain)
    found = check_equivalence(model, quantised(model, layer), "float32 3x12", kind="lossy", bounds={"sqnr": 30})
    assert found.outcome == "over"
    assert named(found) == layer
    assert found.first_divergence is not None
    assert found.first_divergence.reservation == ""


SCORES = (
    '<ir_version: 10, opset_import: ["": 20]> g (float[6, 8] x) => (float[6, 3] y)'
    " { s = MatMul(x, q) m = Add(s, mask) p = Softmax(m) y = MatMul(p, v) }"
)


def test_a_layer_of_minus_infinity_is_compared_by_its_numbers(tmp_path: Path) -> None:
    """A causal mask: the layers of a lossy claim are neither endlessly wrong where it stands, nor raise a warning."""
    draws = np.random.default_rng(0)
    q, v = (draws.standard_normal((rows, columns)).astype("f4") for rows, columns in ((8, 6), (6, 3)))
    for name, factor in (("a", 1.0), ("b", 1.01)):
        made = onnx.parser.parse_model(SCORES)
        stored = {"q": q * np.float32(factor), "v": v, "mask": np.triu(np.full((6, 6), -np.inf, "f4"), 1)}
        made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in stored.items())
        onnx.save(made, tmp_path / f"{name}.onnx")
    bounds = {"sqnr": 20}
    found = check_equivalence(
        tmp_path / "a.onnx", tmp_path / "b.onnx", kind="lossy", bounds=bounds, families=["normal"]
    )  # fmt: skip
    assert found.outcome == "within"
    off = {layer.scope: layer.of_its_size for layer in found.layers}
    assert (off["s"], off["m"]) == (pytest.approx(0.01, rel=1e-4), pytest.approx(0.01, rel=1e-4))


def test_where_no_layer_stands_out_that_is_said() -> None:
    """All layers lose alike: 16 steps a weight."""
    model = seeded(chain)
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        for weight in wrong.parameters():
            weight.copy_((weight * 8).round() / 8)
    found = check_equivalence(model, wrong, "float32 3x12", kind="lossy", bounds={"sqnr": 60})
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.reservation == "no layer differs clearly, this one adds most"


def test_a_lossy_claim_that_holds_has_its_errors_by_layer() -> None:
    """Nine layers in order; what an error is of its size, in dB and at most agree."""
    model = seeded(chain)
    found = check_equivalence(model, quantised(model), "float32 3x12", kind="lossy", bounds={"sqnr": 20})
    assert found.outcome == "within"
    assert found.first_divergence is None
    assert [layer.scope for layer in found.layers] == [str(at) for at in range(9)]
    for layer in found.layers:
        assert layer.sqnr == pytest.approx(-20 * torch.tensor(layer.of_its_size).log10().item(), abs=1e-4)
        assert layer.max_abs is not None
        assert layer.max_abs > 0


def test_a_claim_without_layers_says_that_none_can_be_named() -> None:
    """A lone operation has no layer below it."""

    class Scaled(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    found = check_equivalence(Scaled(2.0), Scaled(3.0), "float32 3x12")
    assert (found.outcome, found.first_divergence) == ("over", None)
    assert found.notes[-1] == "which layer is wrong is not known: no layer of it can be looked into"


def test_a_file_without_float64_kernels_has_its_layer_named(tmp_path: Path) -> None:
    """Runtimes that run float32 alone are compared in float32, beyond what rounding explains."""
    right = convolutions()
    for node in right.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.domain = "QuickGelu", "com.microsoft"
    right.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    wrong = copy.deepcopy(right)
    bias = next(each for each in wrong.graph.initializer if each.name == "b3")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, "b3"))
    files = [tmp_path / "first.onnx", tmp_path / "second.onnx"]
    for proto, file in zip((right, wrong), files, strict=True):
        onnx.save(proto, file)
    found = check_equivalence(*map(str, files), seeds=(0,))
    assert found.outcome != "within"
    assert found.outcome == "unknown" or named(found) == "conv3"


class InNumpy(nn.Module):
    """Three layers, of which those between two are computed outside of torch; one weight of the second is wrong."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.layers, self.first, self.last = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), first, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            if self.first <= at <= self.last:
                weight, bias = (each.detach().numpy().copy() for each in (layer.weight, layer.bias))
                weight[0, 0] += at == 1
                x = torch.from_numpy(x.numpy() @ weight.T + bias)
            else:
                x = layer(x)
        return x


@pytest.mark.parametrize(
    ("first", "last", "layer", "end"),
    [(0, 2, "layers.0", "the output"), (1, 1, "layers.1", "'layers.2'"), (0, 1, "layers.0", "'layers.2'")],
)
def test_where_no_values_of_a_layer_are_seen_that_is_said(first: int, last: int, layer: str, end: str) -> None:
    """The lab's loops in numpy: the first layer that is not there is named, and up to where the error may lie."""
    model, other = seeded(lambda: InNumpy(3, 3)), seeded(lambda: InNumpy(first, last))
    found = check_equivalence(model, other, "float32 3x6", seeds=(0,))
    assert (found.outcome, named(found)) == ("over", layer)
    assert found.first_divergence is not None
    assert found.first_divergence.reservation.endswith(f"any layer from it to {end} may be the wrong one")
