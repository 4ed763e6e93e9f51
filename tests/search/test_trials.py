"""A search on real models: against every assignment, quantised and judged by the tests' own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import inf, log10
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples.lab.nets import jsc_tiny, mnist_net
from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind
from pytest_modelbudget.equivalence.inputs import SCALES, Row, drawn
from pytest_modelbudget.formats.source import Evaluation, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables
from pytest_modelbudget.search.asked import Asked
from pytest_modelbudget.search.plan import uniform
from pytest_modelbudget.search.trials import Bench, Found, search
from tests.builders.marks import ALL_MODELS
from tests.builders.module_transforms import quantisation
from tests.builders.onnx_linears import linear, written

pytestmark = pytest.mark.needs_torch
FAMILIES = ("normal", "uniform")
SEEDS = (0, 1)


def asked(source: ModelSource, least_sqnr: float, bits: tuple[int, ...] = (8, 4, 3), **settings: Any) -> Asked:
    bounds = {Bound.SQNR: Fraction(least_sqnr)}
    claim = Claim(Kind.LOSSY, bounds, families=FAMILIES, seeds=SEEDS)
    return Asked(source, quantisation(**settings), bits, claim, f"sqnr {least_sqnr:g}", "weight_memory")


def found(source: ModelSource, least_sqnr: float, bits: tuple[int, ...] = (8, 4, 3)) -> Found:
    return search(asked(source, least_sqnr, bits), tables(), lambda done, of, what: None, root=Path())


def source_of(model: nn.Module, *shape: int) -> ModelSource:
    return ModelSource("torch", model.eval(), InputSpecs((TensorSpec("float32", shape),)))


def lab_net(seed: int) -> nn.Module:
    """The lab's three linear layers behind norms that have seen something."""
    torch.manual_seed(seed)
    net = jsc_tiny().eval()
    for norm in (each for each in net if isinstance(each, nn.BatchNorm1d)):
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return net


# By the tests' own arithmetic.


def on_grid(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Symmetric integers, a scale for each output channel."""
    rows, most = weight.flatten(1), 2 ** (bits - 1) - 1
    step = rows.abs().amax(1, keepdim=True) / most
    return ((rows / step).round() * step).reshape(weight.shape)


def least_sqnr(reference: dict[str, Any], values: dict[str, Any]) -> float:
    ratios = ((float((y * y).sum()), float(((values[name] - y) ** 2).sum())) for name, y in reference.items())
    return min(10 * log10(signal / noise) if noise else inf for signal, noise in ratios)


@torch.no_grad()
def every_assignment(net: nn.Module, shape: tuple[int, ...], bits: tuple[int, ...]) -> dict[tuple[int, ...], Any]:
    """Bytes saved and SQNR of each."""
    spec = {"0": TensorSpec("float32", shape)}
    inputs: dict[str, list[Any]] = {}
    for family, seed in product(FAMILIES, SEEDS):
        inputs.setdefault(family, []).append(torch.from_numpy(drawn(spec, Row(family, seed), SCALES[0])["0"]))
    layers = [each for each in net.modules() if isinstance(each, (nn.Linear, nn.Conv2d))]
    weights = [each.weight.detach().clone() for each in layers]

    def outputs() -> dict[str, Any]:
        return {name: torch.cat([net(x) for x in given]).double() for name, given in inputs.items()}

    reference, seen = outputs(), {}
    for plan in product(bits, repeat=len(layers)):
        saved = 0
        for layer, weight, width in zip(layers, weights, plan, strict=True):
            layer.weight.data = on_grid(weight, width)
            saved += 4 * weight.numel() - -(-width * weight.numel() // 8) - 4 * len(weight)  # a scale for each channel
        seen[plan] = saved, least_sqnr(reference, outputs())
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.data = weight
    return seen


BOUNDS = tuple(product(range(8), (14, 17, 20, 23))) if ALL_MODELS else ((0, 20), (1, 15))  # of nets by seed


@pytest.mark.parametrize(("seed", "bound"), BOUNDS)
def test_the_optimum_of_27_in_12_evaluations(seed: int, bound: int) -> None:
    """The lab's net: 9 trials of a layer, and three plans as a whole at most."""
    net = lab_net(seed)
    every = every_assignment(net, (10, 16), (8, 4, 3))
    result = found(source_of(net, 10, 16), bound)
    assert result.best is not None
    plan = result.best.plan
    assert result.evaluations <= 12
    assert result.runs[plan].sqnr == pytest.approx(every[plan][1], abs=0.01)
    most = max(saved for saved, sqnr in every.values() if sqnr >= bound)
    assert -result.best.cost == every[plan][0] == most


class Attention(nn.Module):
    """A module with a weight of its own around one that has another."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attend(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0])  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[Path], ModelSource]] = {
    "lab": lambda folder: source_of(lab_net(0), 10, 16),
    "convolutions": lambda folder: source_of(mnist_net(), 2, 1, 28, 28),
    "attention": lambda folder: source_of(Attention(), 2, 5, 16),
    "recurrent": lambda folder: source_of(Recurrent(), 2, 5, 8),
    "onnx": lambda folder: ModelSource("onnx", str(written(linear(20, 12, leading=(2,)), folder)), base=folder),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_layer_alone_is_that_of_the_public_transform(name: str, tmp_path: Path) -> None:
    """Each layer quantised by a budget's own words and compared as the gate does: the same figure and bytes."""
    torch.manual_seed(0)
    question = asked(NETWORKS[name](tmp_path), 1, (4, 3))
    bench = Bench(question, tables())
    layers = bench.alone(lambda done, of, what: None)
    assert layers
    for layer in layers:
        entries = {f"{each.scope}": "keep" for each in layers if each is not layer}
        entries[layer.scope] = {"weights": {"bits": 3}}  # type: ignore[assignment]
        if name == "attention" and layer.scope == "attend":
            entries["attend.out_proj"] = entries.pop("attend.out_proj")  # the last that matches counts
        done = apply_transform(question.source, Transformation("quantize", quantisation(layers=entries)), tables())
        figures = [each.figures.sqnr for each in done.verify(question.claim).outputs]
        assert layer.trials[1].sqnr == pytest.approx(min(figures), abs=1e-6)
        assert layer.trials[1].sqnr < layer.trials[0].sqnr


def skewed(seed: int) -> nn.Module:
    """Four linear layers of drawn widths, some with outliers, which need more bits."""
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    widths = [16, *(2 ** generator.integers(3, 8, 3)).tolist(), 10]
    layers = [nn.Linear(k, n) for k, n in pairwise(widths)]
    for layer in layers[:: int(generator.integers(1, 3))]:
        layer.weight.data *= torch.distributions.StudentT(3).sample(layer.weight.shape)
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


@pytest.mark.parametrize("seed", range(20 if ALL_MODELS else 2))
def test_never_worse_than_uniform(seed: int) -> None:
    """With the SQNR of 4 bits for all as the bound, no more bytes."""
    net = skewed(seed)
    every = every_assignment(net, (4, 16), (6, 4, 3))
    saved, sqnr = every[(4,) * 4]
    result = found(source_of(net, 4, 16), sqnr - 1e-3, (6, 4, 3))
    assert result.best is not None
    assert -result.best.cost >= saved
    assert {point.plan for point in uniform(result.layers)} == {(bits,) * 4 for bits in (6, 4, 3)}


def test_the_same_search_finds_the_same() -> None:
    """Inputs are drawn by seeds, and nothing else is."""
    first, second = (found(source_of(lab_net(3), 10, 16), 20) for _ in range(2))
    assert first.runs == second.runs
    assert first.points == second.points


def test_other_settings_of_the_transform_stay() -> None:
    """A layer that the transform keeps is not searched, and activations are on their grid in each trial."""
    keeps = {"activations": {"bits": 8}, "layers": {"8": "keep"}}
    bench = Bench(asked(source_of(lab_net(0), 10, 16), 10, **keeps), tables())
    assert list(bench.layers) == ["2", "5"]
    assert dict(bench.settings({"2": 4})["layers"]) == {"8": "keep", "2": {"weights": {"bits": 4}}, "5": "keep"}  # type: ignore[call-overload]


def test_a_drop_of_labelled_data_is_kept(tmp_path: Path) -> None:
    """The labels are the net's own answers, so that what it loses is what it answers otherwise, counted here."""
    net = lab_net(0)
    inputs = torch.randn(400, 16)
    with torch.no_grad():
        labels = net(inputs).argmax(1)
    np.savez(tmp_path / "test.npz", inputs=inputs.numpy(), labels=labels.numpy())
    source = replace(source_of(net, 10, 16), evaluate=Evaluation("test.npz", "top1", base=tmp_path))
    question = replace(asked(source, 20), drop=Fraction(8, 100), keep="top1 drop 8 %")
    result = search(question, tables(), lambda done, of, what: None, root=tmp_path)
    assert result.best is not None
    layers = [each for each in net if isinstance(each, nn.Linear)]
    for plan, run in result.runs.items():
        kept = [layer.weight.detach().clone() for layer in layers]
        with torch.no_grad():
            for layer, width in zip(layers, plan, strict=True):
                layer.weight.copy_(on_grid(layer.weight, width))
            lost = float((net(inputs).argmax(1) != labels).double().mean())
            for layer, weight in zip(layers, kept, strict=True):
                layer.weight.copy_(weight)
        assert lost <= float(run.figure.rpartition(" to ")[2].removesuffix("%")) / 100  # the end of an interval
        assert lost <= 0.08 or not run.is_kept
    assert result.runs[result.best.plan].is_kept
