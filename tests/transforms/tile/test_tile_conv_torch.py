"""Tiling convolutions of torch models: what is rewritten, what it costs, and that it is right."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torchvision
from torch import nn
from torchvision.ops import DeformConv2d

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.registry import tables
from pytest_modelbudget.torch_models.weights import redraw
from tests.builders.marks import ALL_MODELS, one_of_many
from tests.builders.module_transforms import numbers

pytestmark = pytest.mark.needs_torch

CHANNELS = (1, 3, 63, 64, 65, 130)
TYPES = ("float32", "bfloat16", "float16")
ONCE = Claim(seeds=(0,))


def tiled(source: ModelSource, tile: Any = (None, 64, 64), **settings: Any) -> Applied:
    given = {"tile": tile, "edge": "ragged", "layers": ("*",)} | settings
    return apply_transform(source, Transformation("tile_conv", given), tables())


def source_of(model: nn.Module, *shape: int, dtype: str = "float32") -> ModelSource:
    specs = InputSpecs((TensorSpec(dtype, shape),))
    return ModelSource("torch", model, specs, dtype=None if dtype == "float32" else dtype)


@pytest.mark.parametrize(
    ("k", "n", "groups", "tile", "sums", "columns"),
    [
        pytest.param(64, 64, 1, (None, 64, 64), 1, 1, id="one tile"),
        pytest.param(65, 64, 1, (None, 64, 64), 2, 1, id="one more input"),
        pytest.param(3, 130, 1, (None, 64, 64), 1, 3, id="an image"),
        pytest.param(200, 130, 1, (None, 64, 32), 4, 5, id="remainders"),
        pytest.param(8, 12, 4, (None, 64, 64), 1, 4, id="groups smaller than a tile"),
        pytest.param(40, 60, 2, (None, 8, 16), 3, 2 * 2, id="tiles in groups"),
    ],
)
def test_products_are_counted(k: int, n: int, groups: int, tile: Any, sums: int, columns: int) -> None:
    """groups · ⌈K/k⌉ · ⌈N/n⌉ products, K and N of one group; a column adds up all but its first."""
    done = tiled(source_of(nn.Sequential(nn.Conv2d(k, n, 3, groups=groups)), 2, k, 5, 5), tile)
    count = f"{sums * columns} {'product' if sums * columns == 1 else 'products'}"
    assert done.changed.changes[0].became == f"{count} of {tile[1]}x{tile[2]}"
    ops = [op.name for op in done.changed.model.graph.ops]
    assert ops.count("aten::conv2d") == sums * columns
    assert ops.count("aten::add") == (sums - 1) * columns


def test_ragged_tiles_multiply_as_much_and_padded_ones_more() -> None:
    """2 images of 5x5 to 3x3: 9 taps each of 65 to 70 channels; filled up to 128 and 128."""
    model = nn.Sequential(nn.Conv2d(65, 70, 3))
    ragged, padded = (tiled(source_of(model, 2, 65, 5, 5), edge=edge) for edge in ("ragged", "pad"))
    assert numbers(ragged)["macs"] == 2 * 3 * 3 * 9 * 65 * 70
    assert numbers(padded)["macs"] == 2 * 3 * 3 * 9 * 128 * 128
    for each in (ragged, padded):
        assert numbers(each)["params"] == 65 * 70 * 9 + 70


def test_traffic_of_tiles_is_the_closed_form() -> None:
    """x once for each column, weights and bias once, partial sums written and read by each add."""
    k, n, tile, positions, results = 128, 192, 64, 5 * 5, 3 * 3
    model = nn.Sequential(nn.Conv2d(k, n, 3))
    products, columns = 2 * 3, 3
    weights = k * n * 9 + n
    read = columns * k * positions + 2 * (products - columns) * tile * results + n * results
    written = products * tile * results + (products - columns) * tile * results + n * results
    found = numbers(tiled(source_of(model, 1, k, 5, 5)))["bandwidth"]
    assert found == 4 * (weights + read + written)


OPTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3},
    {"kernel_size": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "dilation": 2, "padding": "same"},
    {"kernel_size": 3, "padding": "valid"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
)


class Case(NamedTuple):
    """A convolution from k to n channels, by the places of what is chosen in their tables."""

    k: int
    n: int
    options: int
    dtype: int
    pads: bool
    has_bias: bool


def cases() -> list[Case]:
    """36 pairs of channels, with options, types, edges and biases by turns; on request with every option."""
    every = range(len(OPTIONS)) if ALL_MODELS else (0,)
    return [
        Case(k, n, (k + n + more) % 6, (k + n // 2 + more) % 3, (k // 3 + n) % 2 == 0, (k // 2 + n) % 3 > 0)
        for k, n, more in itertools.product(range(6), range(6), every)
    ]


def test_every_two_of_what_is_chosen_meet() -> None:
    """Each pair of channels, and each channel with each option, type, edge and bias, and these with one another."""
    tried = [set(pair) for pair in zip(*(itertools.combinations(case, 2) for case in cases()), strict=True)]
    sizes = [len(values) for values in map(set, zip(*cases(), strict=True))]
    assert sizes == [len(CHANNELS), len(CHANNELS), len(OPTIONS), len(TYPES), 2, 2]
    assert [len(pairs) for pairs in tried] == [a * b for a, b in itertools.combinations(sizes, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", range(3), ids=TYPES)
def test_right_tilings_are_never_over(dtype: int) -> None:
    """Each of the convolutions above that is of this type."""
    wrong = []
    for number, case in enumerate(cases()):
        if case.dtype != dtype:
            continue
        k, n = CHANNELS[case.k], CHANNELS[case.n]
        model = nn.Sequential(nn.Conv2d(k, n, bias=case.has_bias, **OPTIONS[case.options]))
        redraw(model, number)
        source = source_of(model, 2, k, 5, 6, dtype=TYPES[dtype])
        found = tiled(source, edge="pad" if case.pads else "ragged").verify(ONCE)
        if found.outcome != "within":
            wrong.append((k, n, case, found.reason))
    assert not wrong


LAYERS = {
    "1-D": (nn.Conv1d(20, 18, 3, stride=2), (2, 20, 9)),
    "3-D": (nn.Conv3d(20, 18, (3, 1, 2), padding="same"), (1, 20, 4, 3, 5)),
    "without a batch": (nn.Conv2d(20, 18, 3), (20, 5, 5)),
    "groups": (nn.Conv2d(40, 36, 3, groups=2, dilation=2), (2, 40, 6, 7)),
    "two inputs a group": (nn.Conv1d(40, 20, 3, groups=20), (2, 40, 6)),
    "transposed": (nn.ConvTranspose2d(20, 18, 3, stride=2, output_padding=1), (2, 20, 3, 4)),
    "transposed groups": (nn.ConvTranspose1d(40, 36, 3, groups=2, bias=False), (2, 40, 5)),
    "transposed 3-D": (nn.ConvTranspose3d(20, 18, 2), (1, 20, 2, 3, 2)),
}


@pytest.mark.parametrize("edge", ["ragged", "pad"])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_of_every_kind(name: str, edge: str) -> None:
    """As many weights as before; and as many MACs, where tiles are not filled up."""
    layer, shape = LAYERS[name]
    source = source_of(nn.Sequential(layer), *shape)
    done = tiled(source, (None, 8, 8), edge=edge)
    assert done.verify(ONCE).outcome == "within"
    whole = numbers(tiled(source, (None, 64, 64)))
    assert numbers(done)["params"] == sum(each.numel() for each in layer.parameters())
    assert (numbers(done)["macs"] == whole["macs"]) == (edge == "ragged")


class Computed(nn.Module):
    """A convolution by what is computed from a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(20, 18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv.weight - self.conv.weight.mean()
        return nn.functional.conv2d(x, weight, self.conv.bias)


def test_a_computed_weight_is_tiled() -> None:
    """Weight standardisation: the operation is split, whatever its operand is."""
    done = tiled(source_of(Computed(), 2, 20, 5, 5), (None, 8, 8))
    assert [change.became for change in done.changed.changes] == ["9 products of 8x8"]
    assert done.verify(ONCE).outcome == "within"


@pytest.mark.parametrize("way", ["script", "trace", "export", "decomposed"])
def test_files_are_tiled(way: str, tmp_path: Path) -> None:
    """Convolutions under each name that they have in files: conv2d, _convolution, convolution."""
    model = nn.Sequential(nn.Conv2d(20, 18, 3), nn.ReLU(), nn.ConvTranspose2d(18, 6, 2, groups=2))
    x = torch.zeros(1, 20, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way in ("script", "trace"):
            made = torch.jit.script(model) if way == "script" else torch.jit.trace(model, x)
            made.eval().save(str(tmp_path / "a.pt"))
            shapes = InputSpecs((TensorSpec("float32", (1, 20, 6, 6)),))
            source = ModelSource("torchscript", "a.pt", shapes, base=tmp_path)
        else:
            program = torch.export.export(model.eval(), (x,))
            program = program.run_decompositions() if way == "decomposed" else program
            torch.export.save(program, tmp_path / "a.pt2")
            source = ModelSource("exported", "a.pt2", base=tmp_path)
    done = tiled(source, (None, 8, 8))
    assert [each.became for each in done.changed.changes] == ["9 products of 8x8", "4 products of 8x8"]
    found = done.verify(ONCE)
    assert (found.outcome, found.weights) == ("within", "as loaded")


def test_depthwise_convolutions_stay_as_they_are() -> None:
    """A group of one input channel has nothing to split, and that is no failure."""
    pair = nn.Sequential(nn.Conv2d(20, 20, 3, groups=20), nn.Conv2d(20, 18, 1))
    done = tiled(source_of(pair, 2, 20, 5, 5), (None, 8, 8))
    assert [(each.became, each.why) for each in done.changed.changes] == [
        ("", "one input channel a group"), ("9 products of 8x8", "")
    ]  # fmt: skip
    assert done.verify(ONCE).outcome == "within"
    with pytest.raises(TransformError, match=r"stays as it is \(one input channel"):
        tiled(source_of(pair[:1], 2, 20, 5, 5))


class Deformable(nn.Module):
    """A convolution over sampled positions, which no tiling is known for, and one more."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.deformable = nn.Conv2d(20, 18, 3), DeformConv2d(20, 20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.deformable(x, self.offset(x))
        return found


def test_what_stays_whole_is_never_green() -> None:
    """It is named, and tiled around where ``layers`` leaves it out."""
    source = source_of(Deformable(), 2, 20, 5, 5)
    with pytest.raises(TransformError, match=r"left 1 convolution whole: 'deformable' \(torchvis"):
        tiled(source)
    done = tiled(source, layers=("offset",))
    assert [each.why for each in done.changed.changes] == ["", "layers: leaves it out"]


@pytest.mark.parametrize(
    ("build", "macs", "head", "depthwise"),
    [
        pytest.param("resnet18", 1_814_073_344, 512_000, 0, marks=one_of_many("resnet18", ["mobilenet_v2"])),
        pytest.param("mobilenet_v2", 300_774_272, 1_280_000, 17),
    ],
    ids=["resnet18", "mobilenet_v2"],
)
def test_networks_are_tiled_whole(build: str, macs: int, head: int, depthwise: int) -> None:
    """Every convolution with more than one input channel a group; MACs and outputs stay.

    The images have 32 x 32 pixels, 1/49 of the 224 x 224 that the published MACs are of, and so have all but the head.
    """
    model = torchvision.models.get_model(build)
    layers = [each for each in model.modules() if isinstance(each, nn.Conv2d)]
    products = sum(
        1 if each.groups > 1 else -(-each.in_channels // 64) * -(-each.out_channels // 64) for each in layers
    )
    done = tiled(source_of(model, 1, 3, 32, 32))
    assert len(done.changed.changes) == len(layers)
    assert sum(not each.became for each in done.changed.changes) == depthwise
    assert sum(op.name == "aten::conv2d" for op in done.changed.model.graph.ops) == products
    assert numbers(done)["macs"] == (macs - head) // 49 + head
    assert done.verify(ONCE).outcome == "within"
