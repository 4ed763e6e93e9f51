"""In which order the elements of a result lie: one answer for every way of tracing, the CPU's where devices agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.torch_models.layouts import LAYOUTS
from tests.builders.micro_modules import Apply, weight
from tests.builders.torch_ways import WAYS, recorded, rows

pytestmark = pytest.mark.needs_torch

LAST, ROWS = torch.channels_last, torch.contiguous_format
Pass = Callable[[torch.Tensor], torch.Tensor]


class Convolution(nn.Module):
    """2-D, in the formats given: (4, 6 / groups, 3, 3), or transposed (6, 4 / groups, 3, 3)."""

    def __init__(
        self, of_x: torch.memory_format, of_weight: torch.memory_format, groups: int, transposed: bool
    ) -> None:
        super().__init__()
        self.of_x, self.groups = of_x, groups
        shape = (6, 4 // groups, 3, 3) if transposed else (4, 6 // groups, 3, 3)
        self.weight = nn.Parameter(torch.zeros(shape).contiguous(memory_format=of_weight))
        self.convolve = F.conv_transpose2d if transposed else F.conv2d

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (n, 6, h, w) → (n, 4, h', w')."""
        return self.convolve(x.contiguous(memory_format=self.of_x), self.weight, groups=self.groups)


@pytest.mark.parametrize(
    ("of_x", "of_weight", "groups", "transposed"), [*product((ROWS, LAST), (ROWS, LAST), (1, 2), (False, True))]
)
def test_convolutions_are_laid_out_as_on_a_cpu(
    of_x: torch.memory_format, of_weight: torch.memory_format, groups: int, transposed: bool
) -> None:
    """Channels last where x or the weight is: the strides are those of a real call."""
    model = Convolution(of_x, of_weight, groups, transposed)
    with torch.inference_mode():
        strides = model(torch.zeros(2, 6, 7, 5)).stride()
    x = TensorSpec("float32", (2, 6, 7, 5))
    assert [recorded(model, x, way=way).graph.outputs[0].strides for way in WAYS] == [strides] * 3


# operator, and a pass of it over x (2, 4, 6, 6), (2, 4, 6, 6, 6) or (2, 4, 6) whose channels are last
PASSES: list[tuple[str, Pass]] = [
    ("conv2d", lambda x: F.conv2d(x, torch.zeros(8, 4, 3, 3, device=x.device))),
    ("conv_transpose2d", lambda x: F.conv_transpose2d(x, torch.zeros(4, 8, 3, 3, device=x.device))),
    ("conv3d", lambda x: F.conv3d(x, torch.zeros(8, 4, 3, 3, 3, device=x.device))),
    ("conv_transpose3d", lambda x: F.conv_transpose3d(x, torch.zeros(4, 8, 3, 3, 3, device=x.device))),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2)),
    ("channel_shuffle", lambda x: F.channel_shuffle(x, 2)),
    ("roll", lambda x: x.roll(1, 2)),
    ("pad", lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    ("pad", lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate")),
    ("pad", lambda x: F.pad(x, (1, 1, 1, 1))),
    ("reflection_pad2d", lambda x: torch._C._nn.reflection_pad2d(x, (1, 1, 1, 1))),
    ("replication_pad3d", lambda x: torch._C._nn.replication_pad3d(x, (1, 1, 1, 1, 1, 1))),
    ("max_pool1d", lambda x: F.max_pool1d(x, 2)),
    ("batch_norm", lambda x: F.batch_norm(x, torch.zeros(4, device=x.device), torch.ones(4, device=x.device))),
    ("scaled_dot_product_attention", lambda x: F.scaled_dot_product_attention(x, x, x)),
    ("conv1d", lambda x: F.conv1d(x, torch.zeros(8, 3, 4, device=x.device).transpose(1, 2))),
    ("conv_transpose1d", lambda x: F.conv_transpose1d(x, torch.zeros(4, 3, 8, device=x.device).transpose(1, 2))),
    ("fft_rfftn", lambda x: torch.fft.rfftn(x, dim=(1, 0))),
    ("linalg_eig", lambda x: torch.linalg.eig(x).eigenvectors),
    ("linalg_svd", lambda x: torch.linalg.svd(x).Vh),
    ("mse_loss", lambda x: F.mse_loss(x, x).expand(2, 3)),
    ("instance_norm", lambda x: F.instance_norm(x)),
    ("log_sigmoid", F.logsigmoid),
    ("masked_fill", lambda x: x.masked_fill(x > 0, 1.0)),
    ("tril", torch.tril),
    ("renorm", lambda x: x.renorm(2, 0, 1.0)),
    ("one_hot", lambda x: F.one_hot((x > 0).long(), 2)),
]
RANK = {"max_pool1d": 3, "batch_norm": 3, "conv1d": 3, "conv_transpose1d": 3}


@pytest.mark.parametrize(("name", "apply"), PASSES, ids=[name for name, _ in PASSES])
def test_numbers_of_channels_last_are_the_same_in_every_way(name: str, apply: Pass) -> None:
    """What comes after each operator is row-major, which copies or is free as the layout has it."""
    rank = RANK.get(name, 5 if name.endswith("3d") else 4)
    shape = (2, *(6,) * (rank - 2), 4)  # channels 4
    model = Apply(lambda x: apply(x.permute(0, rank - 1, *range(1, rank - 1))).contiguous().flatten(1))
    meta, fake, real = (rows(model, TensorSpec("float32", shape), way=way) for way in WAYS)
    assert meta == fake == real
    assert f"aten::{name}" in LAYOUTS


# Images that are row-major and channels last at once, as x (n, h, w, c): pooled to one place, or of one channel.
BOTH = {"pooled": (2, 1, 1, 4), "of one channel": (2, 4, 5, 1)}
# What operators of each kind make of them.
KEPT: dict[str, Pass] = {
    "each element, by two bounds": F.relu6,
    "each element, by another kernel": F.hardtanh,
    "with a number": lambda x: 1 - x,
    "compared with a number": lambda x: x > 0.5,
    "with one that is repeated": lambda x: x + x[:1],
    "chosen": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
    "masked": lambda x: x.masked_fill(x > 0, 0.0),
    "softmax": lambda x: F.softmax(x, 1),
    "log softmax": lambda x: F.log_softmax(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "RMS norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "group norm": lambda x: F.group_norm(x, 1),
    "batch norm": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])),
    "in training": lambda x: F.batch_norm(x, None, None, training=True),
    "joined": lambda x: torch.cat([x, x], 1),
    "copied": torch.clone,
    "max pool": lambda x: F.max_pool2d(x, 1),
    "mean pool": lambda x: F.avg_pool2d(x, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 3),
    "nearest": lambda x: F.interpolate(x, size=(3, 3)),
    "bilinear": lambda x: F.interpolate(x, size=(3, 3), mode="bilinear"),
    "padded": lambda x: F.pad(x, (1, 1, 1, 1)),
    "convolution": lambda x: F.conv2d(x, torch.zeros(3, x.shape[1], 1, 1, device=x.device), padding=1),
    "transposed": lambda x: F.conv_transpose2d(x, torch.zeros(x.shape[1], 3, 2, 2, device=x.device)),
}


@pytest.mark.parametrize("shape", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("name", KEPT)
def test_images_in_both_layouts_stay_or_become_what_kernels_make_of_them(name: str, shape: tuple[int, ...]) -> None:
    """Strides of dimensions of size 1 decide what a convolution or an upsampling behind them writes: the CPU's."""
    model = Apply(lambda x: KEPT[name](x.permute(0, 3, 1, 2)))
    with torch.inference_mode():
        strides = model(torch.rand(shape)).stride()
    x = TensorSpec("float32", shape)
    assert [recorded(model, x, way=way).graph.outputs[0].strides for way in WAYS] == [strides] * 3


def test_tensors_without_strides_have_no_layout() -> None:
    """Sums of sparse tensors, one row of values each, and norms of nested ones are computed as they are."""

    def without_strides(x: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor([x, x[:1]])
        return (x.to_sparse() * 2).to_dense() + F.layer_norm(nested.relu(), (4,), x[0], x[0]).to_padded_tensor(0.0)[0]

    assert rows(Apply(without_strides), TensorSpec("float32", (3, 4)), way="real")["macs"] == 0


# What makes rows of x that is transposed, in new memory, so that flattening the result copies nothing
TO_ROWS: dict[str, Pass] = {
    "batch norm": nn.BatchNorm2d(3).eval(),
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "log sigmoid": F.logsigmoid,
    "renormalised": lambda x: x.renorm(2, 0, 1.0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("write", TO_ROWS.values(), ids=TO_ROWS)
def test_kernels_make_rows_of_what_is_transposed(write: Pass, way: str) -> None:
    """2 x 3 x 5 x 4 floats are 480 B, written once, as one result of each kernel has rows."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write = write

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.write(x.transpose(2, 3)).flatten(1)

    row = rows(Flat(), TensorSpec("float32", (2, 3, 4, 5)), way=way)
    assert (row["total_activation"], row["peak_activation"]) == (480, 2 * 480)


@pytest.mark.parametrize("way", WAYS)
def test_batch_norms_keep_channels_last(way: str) -> None:
    """Of images and of volumes, so that flattening copies: 2 x 3 x 20 floats are 480 B, written twice."""
    for shape in ((2, 4, 5, 3), (2, 2, 2, 5, 3)):
        norm = Apply(lambda x: F.batch_norm(x.movedim(-1, 1), x.new_zeros(3), x.new_ones(3)).flatten(1))
        row = rows(norm, TensorSpec("float32", shape), way=way)
        zeros_and_ones = 2 * 3 * 4
        assert row["total_activation"] == zeros_and_ones + 2 * 480


# In place, or a name of the same tensor
SAME: dict[str, Pass] = {
    "relu_": lambda x: x.relu_(),
    "silu_": lambda x: F.silu(x, inplace=True),
    "hardtanh_": lambda x: F.hardtanh(x, inplace=True),
    "mul_": lambda x: x.mul_(2),
    "clamp_": lambda x: x.clamp_(0),
    "positive": torch.positive,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAME)
def test_a_tensor_keeps_its_layout_where_it_is_overwritten(name: str, way: str) -> None:
    """A pooled image of 1x4x1x1 in channels last stays so, and grows so: 4 x 36 x 4 B of the upsampling are copied."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        pooled = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1)
        return F.interpolate(SAME[name](pooled), size=(6, 6)).flatten(1)

    row = rows(Apply(forward), TensorSpec("float32", (1, 6, 6, 4)), way=way)
    writes_pooled = 1 if name == "positive" else 2
    assert row["total_activation"] == writes_pooled * 16 + 2 * 576


@pytest.mark.parametrize(("of_weight", "written"), [(LAST, 2 * 144), (ROWS, 144)])
def test_an_image_without_a_batch_is_laid_out_by_the_weight(of_weight: torch.memory_format, written: int) -> None:
    """(6, 5, 4) by 3 filters of 2x2: 3 x 4 x 3 floats are 144 B, which flattening copies where channels are last."""
    model = Apply(
        lambda m, x: F.conv2d(x, m.w), w=nn.Parameter(torch.zeros(3, 6, 2, 2).contiguous(memory_format=of_weight))
    )
    flat, x = nn.Sequential(model, nn.Flatten(0)), TensorSpec("float32", (6, 5, 4))
    with torch.inference_mode():
        strides = model(torch.zeros(6, 5, 4)).stride()
    for way in WAYS:
        assert recorded(model, x, way=way).graph.outputs[0].strides == strides
        assert rows(flat, x, way=way)["total_activation"] == written


# What CPU and meta leave in memory of different sizes, x, and the bytes of its result
ALONE: dict[str, tuple[Pass, tuple[int, ...], int]] = {
    "8 channels of 4x4x1 into 1": (
        lambda x: F.conv_transpose3d(x, torch.zeros(8, 1, 1, 1, 1, device=x.device)), (1, 8, 4, 4, 1), 16 * 4
    ),
    "the same, as scripts call it": (
        lambda x: torch.convolution(
            x, torch.zeros(8, 1, 1, 1, 1, device=x.device), None, [1] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1
        ),
        (1, 8, 4, 4, 1),
        16 * 4,
    ),
    "2 channels in 2 groups": (lambda x: F.channel_shuffle(x, 2), (1, 2, 2, 6), 24 * 4),
    "4 channels in 1 group": (lambda x: F.channel_shuffle(x, 1), (1, 4, 2, 3), 24 * 4),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("apply", "shape", "nbytes"), ALONE.values(), ids=ALONE)
def test_results_lie_in_memory_of_their_own_size(apply: Pass, shape: tuple[int, ...], nbytes: int, way: str) -> None:
    """Neither in that of x, where a shuffle moves nothing, nor in that of the products which were summed."""
    graph = recorded(Apply(apply), TensorSpec("float32", shape), way=way).graph
    assert graph.outputs[0].storage.nbytes == nbytes
    assert graph.outputs[0].storage is not graph.inputs[0].storage


@pytest.mark.parametrize("way", WAYS)
def test_weights_in_channels_last_lay_out_what_is_made_of_one_channel(way: str) -> None:
    """8 filters of 3x3 over 28x28: 8 x 26 x 26 x 4 B are 21,632 B, and flattening them copies all."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten()).to(memory_format=LAST)
    row = rows(model, TensorSpec("float32", (1, 1, 28, 28)), way=way)
    assert (row["total_activation"], row["peak_activation"]) == (2 * 21_632, 2 * 21_632)


# Of x 1x8x8x4 and 6 filters 3x3: 36 positions x 6 channels x 4 B are 864 B; in two, of its copy.
@pytest.mark.parametrize(("then", "written"), [(LAST, 864), (ROWS, 2 * 864)])
def test_a_copy_into_the_layout_that_is_there_is_free(then: torch.memory_format, written: int) -> None:
    """A convolution over channels-last images gives such images."""

    def convolve(m: Apply, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.permute(0, 3, 1, 2), m.w).contiguous(memory_format=then)

    assert measure(Apply(convolve, w=weight(6, 4, 3, 3)), "float32 1x8x8x4")["total_activation"].value == written


def test_a_view_that_torch_refuses_is_not_measured() -> None:
    """Channels last cannot be laid flat without a copy."""

    def convolve(m: Apply, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.permute(0, 3, 1, 2), m.w).view(1, -1)

    with pytest.raises(TraceError, match="view size is not compatible"):
        measure(Apply(convolve, w=weight(6, 4, 3, 3)), "float32 1x8x8x4")
