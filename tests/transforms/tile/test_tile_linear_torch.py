"""Tiling torch models: what is rewritten, what it costs, and that right tilings are never over."""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.module import load
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.on_torch import change_operations
from tests.builders.marks import ALL_MODELS
from tests.builders.module_transforms import numbers, tiled
from tests.builders.mutants import right, verified

pytestmark = pytest.mark.needs_torch

IMAGE = InputSpecs((TensorSpec("float32", (1, 3, 224, 224)),))
SIZES = (1, 63, 64, 65, 200, 4096)
TYPES = ("float32", "bfloat16", "float16")
SIDE = 64 if ALL_MODELS else 256  # of the tiles of networks, of which 64 make thousands
LARGE_TILES = (None, SIDE, SIDE)


def linear(k: int, n: int, rows: int = 2) -> ModelSource:
    specs = InputSpecs((TensorSpec("float32", (rows, k)),))
    return ModelSource("torch", nn.Sequential(nn.Linear(k, n)), specs)


@pytest.mark.parametrize(
    ("k", "n", "tile", "products"),
    [
        pytest.param(64, 64, (None, 64, 64), 1, id="one tile"),
        pytest.param(65, 64, (None, 64, 64), 2, id="one more input"),
        pytest.param(63, 65, (None, 64, 64), 2, id="one more output"),
        pytest.param(200, 130, (None, 64, 64), 4 * 3, id="remainders"),
        pytest.param(200, 130, (1, 64, 32), 2 * 4 * 5, id="two rows of tiles"),
        pytest.param(1, 1, (None, 64, 64), 1, id="smaller than a tile"),
    ],
)
def test_products_are_counted(k: int, n: int, tile: Any, products: int) -> None:
    """⌈m⌉ · ⌈K/k⌉ · ⌈N/n⌉ products, and one addition less than there are, per column."""
    done = tiled(linear(k, n), tile)
    word = "product" if products == 1 else "products"
    assert done.changed.changes[0].became.startswith(f"{products} {word} of ")
    ops = [op.name for op in done.changed.model.graph.ops]
    assert ops.count("aten::linear") == products
    columns = products // -(-k // tile[1])
    assert ops.count("aten::add") == products - columns


def test_ragged_tiles_multiply_as_much_and_padded_ones_more() -> None:
    """2 rows of 200 to 130: 52,000 MACs; filled up to 256 and 192: 98,304."""
    ragged, padded = tiled(linear(200, 130)), tiled(linear(200, 130), edge="pad")
    assert numbers(ragged)["macs"] == 2 * 200 * 130
    assert numbers(padded)["macs"] == 2 * 256 * 192
    for each in (ragged, padded):
        assert numbers(each)["params"] == 200 * 130 + 130


def test_the_graph_has_nothing_that_only_counts() -> None:
    """x, W and b are cut, then each of 2 columns, which is a sum of 2 products; then one join."""
    done = tiled(linear(128, 128))
    assert Counter(op.name for op in done.changed.model.graph.ops) == {
        "aten::split_with_sizes": 3 + 2, "aten::linear": 4, "aten::add": 2, "aten::cat": 1
    }  # fmt: skip


@pytest.mark.parametrize("n", [5, 70], ids=["one column", "two columns"])
def test_padded_outputs_can_be_viewed(n: int) -> None:
    """What is left of a padded column lies in memory as the layer's own output does."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(70, n)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.fc(x)
            return out.view(-1)

    source = ModelSource("torch", Viewed(), InputSpecs((TensorSpec("float32", (3, 70)),)))
    assert tiled(source, edge="pad").verify(Claim(seeds=(0,))).outcome == "within"


def test_partial_sums_are_the_tiles_of_a_column() -> None:
    """The most of any layer: ⌈200/64⌉ = 4 and ⌈65/64⌉ = 2, and one before any is seen."""
    model = nn.Sequential(nn.Linear(200, 65), nn.Linear(65, 1))
    source = ModelSource("torch", model, InputSpecs((TensorSpec("float32", (2, 200)),)))
    rewrite = right()
    assert rewrite.partial_sums == 1
    changed = change_operations(load(source, builtin_ops()), rewrite, lambda made: None)
    assert changed.partial_sums == rewrite.partial_sums == 4


def test_traffic_of_tiles_is_the_closed_form() -> None:
    """x once for each column, weights and bias once, partial sums written and read by each add."""
    rows, k, n, tile = 2, 128, 192, 64
    in_tiles, out_tiles = k // tile, n // tile
    weights = k * n + n
    products = in_tiles * out_tiles
    read = out_tiles * rows * k + 2 * (products - out_tiles) * rows * tile + rows * n
    written = products * rows * tile + (products - out_tiles) * rows * tile + rows * n
    assert numbers(tiled(linear(k, n, rows)))["bandwidth"] == 4 * (weights + read + written)


def test_linear_operations_of_any_spelling_are_tiled() -> None:
    """mm, matmul and addmm by a parameter, and F.linear on one that no nn.Linear owns."""

    class Spelt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(70, 80)), nn.Parameter(torch.randn(80, 90))
            self.c, self.d = nn.Parameter(torch.randn(90, 10)), nn.Parameter(torch.randn(5, 10))
            self.bias = nn.Parameter(torch.randn(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.mm(x, self.a) @ self.b
            return nn.functional.linear(torch.addmm(self.bias, x, self.c), self.d)

    source = ModelSource("torch", Spelt(), InputSpecs((TensorSpec("float32", (3, 70)),)))
    done = tiled(source)
    assert [change.operation for change in done.changed.changes] == [
        "aten::mm", "aten::matmul", "aten::addmm", "aten::linear"
    ]  # fmt: skip
    assert all(change.became for change in done.changed.changes)
    assert done.verify(Claim(seeds=(0,))).outcome == "within"


@pytest.mark.parametrize("operation", ["aten::mm", "aten::addmm_"])
def test_what_writes_into_its_arguments_is_told(operation: str) -> None:
    """Tiles would leave the tensor that it fills as it was."""

    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(70, 80))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            filled = torch.zeros(3, 80, dtype=x.dtype)
            if operation == "aten::mm":
                torch.mm(x, self.weight, out=filled)
            else:
                filled.addmm_(x, self.weight)
            return filled

    source = ModelSource("torch", Filling(), InputSpecs((TensorSpec("float32", (3, 70)),)))
    with pytest.raises(TransformError, match=f"left 1 linear operation whole: .*{operation}"):
        tiled(source)


Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
VECTOR_PRODUCTS: dict[str, Use] = {
    "aten::matmul": lambda x, vector: x @ vector,
    "aten::mv": torch.mv,
    "aten::dot": lambda x, vector: torch.dot(x[0], vector),
    "aten::vdot": lambda x, vector: torch.vdot(x[0], vector),
    "aten::inner": torch.inner,
    "aten::linalg_matmul": torch.linalg.matmul,
    "aten::addmv": lambda x, vector: torch.addmv(x[:, 0], x, vector),
    "aten::linear": nn.functional.linear,
}


class WithVector(nn.Module):
    """A layer and a norm, then what is done with a stored vector."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(70, 70), nn.LayerNorm(70)
        self.vector = nn.Parameter(torch.randn(70))
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.norm(self.fc(x)), self.vector)


def with_vector(use: Use) -> ModelSource:
    return ModelSource("torch", WithVector(use), InputSpecs((TensorSpec("float32", (3, 70)),)))


@pytest.mark.parametrize("operation", VECTOR_PRODUCTS)
def test_a_product_with_a_stored_vector_is_told(operation: str) -> None:
    """As in ONNX files: a weight of rank 1 is no matrix to cut."""
    with pytest.raises(TransformError, match=rf"left 1 linear operation whole: .*\({operation}: "):
        tiled(with_vector(VECTOR_PRODUCTS[operation]))


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(torch.mul, id="a scale"),
        pytest.param(torch.add, id="a shift"),
        pytest.param(lambda x, vector: torch.outer(x[0], vector), id="frequencies"),
        pytest.param(lambda x, vector: torch.baddbmm(vector[:3], x[None], x.t()[None]), id="a bias of scores"),
    ],
)
def test_other_stored_vectors_are_no_weights(use: Use) -> None:
    """Nor is a norm's: only the layer is listed."""
    assert [change.scope for change in tiled(with_vector(use)).changed.changes] == ["fc"]


@pytest.mark.parametrize(
    ("build", "count"),
    [
        pytest.param("torchvision.models:vit_b_16", 49, id="vit_b_16"),
        pytest.param("torchvision.models:swin_t", 52, id="swin_t"),
    ],
)
@pytest.mark.slow
def test_transformers_are_tiled_whole(build: str, count: int) -> None:
    """Packed projections of attention and layers whose weight is read by others, too."""
    done = tiled(ModelSource("torch", build, IMAGE), LARGE_TILES)
    assert len({change.scope for change in done.changed.changes}) == count
    assert all(change.became for change in done.changed.changes)


@pytest.mark.parametrize("format", ["torchscript", "exported"])
def test_files_are_tiled_whole(format: str, tmp_path: Path) -> None:
    """A scripted and an exported network: 4 · 3 and 3 · 1 products of 64x64, and the same outputs."""
    model = nn.Sequential(nn.Linear(200, 130), nn.ReLU(), nn.Linear(130, 10)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if format == "torchscript":
            torch.jit.script(model).save(str(tmp_path / "a.pt"))
            rows = InputSpecs((TensorSpec("float32", (2, 200)),))
            source = ModelSource(format, "a.pt", rows, base=tmp_path)
        else:
            program = torch.export.export(model, (torch.zeros(2, 200),))
            torch.export.save(program, tmp_path / "a.pt2")
            source = ModelSource(format, "a.pt2", base=tmp_path)
    done = tiled(source)
    assert [change.became for change in done.changed.changes] == ["12 products of 64x64", "3 products of 64x64"]
    found = done.verify(Claim(seeds=(0,)))
    assert (found.outcome, found.weights) == ("within", "as loaded")


@pytest.mark.slow
def test_alexnet_in_tiles() -> None:
    """Parameters, bytes and MACs as before; every tile is read once; MSE below 1e-12 on N(0, 1).

    Untrained, its own outputs would prove nothing: it is judged on weights that are drawn.
    """
    source = ModelSource("torch", "torchvision.models:alexnet", IMAGE)
    done = tiled(source, LARGE_TILES)
    found = numbers(done)
    assert found["params"] == 61_100_840
    assert found["weight_memory"] == 244_403_360
    assert found["macs"] == 714_188_480
    assert sum(op.name == "aten::linear" for op in done.changed.model.graph.ops) == sum(
        -(-k // SIDE) * -(-n // SIDE) for k, n in ((9216, 4096), (4096, 4096), (4096, 1000))
    )
    # Outputs of the last layer show it; MODELBUDGET_MODELS=all runs the products of all three.
    equivalence = (done if ALL_MODELS else tiled(source, layers=("classifier.6",))).verify(Claim(seeds=(0,)))
    assert equivalence.outcome == "within"
    assert equivalence.weights == "drawn, seed 0"
    (normal,) = [each for each in equivalence.outputs if each.family == "normal"]
    assert normal.figures.mse < 1e-12
    assert max(each.algebra or 1.0 for each in equivalence.outputs) < 1e-13


def cases() -> list[tuple[int, int, bool, int, str]]:
    """Each pair of sizes in every type, in any order; with biases and ranks as they are drawn.

    Unless on request, a pair with the largest size, which takes most of the time, is in one type, by turns.
    """
    chance = random.Random(0)
    drawn = [
        (k, n, chance.choice((True, False)), chance.choice((2, 3)), dtype)
        for number, (k, n) in enumerate(itertools.product(SIZES, SIZES))
        for turn, dtype in enumerate(TYPES)
        if ALL_MODELS or max(k, n) < SIZES[-1] or (number + number // 6) % 3 == turn
    ]
    chance.shuffle(drawn)
    return drawn


def test_each_pair_of_sizes_is_tried_in_every_type() -> None:
    """5 x 5 pairs in 3 types, and 6 + 5 pairs with the largest size in one; each size in each of them."""
    tried = {(k, n, dtype) for k, n, _, _, dtype in cases()}
    assert len(tried) == len(cases()) == (6 * 6 * 3 if ALL_MODELS else 5 * 5 * 3 + 6 + 5)
    assert len({(k, n) for k, n, _ in tried}) == 6 * 6
    assert len({(k, dtype) for k, _, dtype in tried}) == len({(n, dtype) for _, n, dtype in tried}) == 6 * 3


@pytest.mark.slow
@pytest.mark.parametrize("of", TYPES)
def test_right_tilings_are_never_over(of: str) -> None:
    """The cases above that are of this type, of 3 seeds each, output scales 1e-3 to 1e4, one to three layers deep."""
    chance = random.Random(1)
    wrong = []
    for number, (k, n, bias, rank, dtype) in enumerate(cases()):
        scale = 10 ** chance.uniform(-3, 4)
        if dtype != of:
            continue
        layers = [nn.Linear(k, n, bias=bias)]
        if max(k, n) <= 200 and number % 2:
            layers += [nn.Linear(n, k, bias=bias), nn.Linear(k, n, bias=bias)]
        model = nn.Sequential(*layers)
        redraw(model, number)
        with torch.no_grad():
            for weight in model[-1].parameters():
                weight.mul_(scale)
        shape = (4, k) if rank == 2 else (2, 3, k)
        seeds = (3 * number, 3 * number + 1, 3 * number + 2)
        found = verified(model, shape, right(pad=number % 3 == 0), dtype, seeds=seeds)
        if found.outcome != "within":
            wrong.append((k, n, bias, rank, dtype, scale, found.reason))
    assert not wrong


def test_the_original_is_bit_identical_afterwards() -> None:
    """Weights, statistics, flags and hooks of a module that is given, in train mode."""
    model = nn.Sequential(nn.Linear(70, 70), nn.BatchNorm1d(70), nn.Dropout(), nn.Linear(70, 3))
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    source = ModelSource("torch", model, InputSpecs((TensorSpec("float32", (4, 70)),)))
    assert tiled(source).verify(Claim(seeds=(0,))).outcome == "within"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.get_default_dtype() == torch.float32
