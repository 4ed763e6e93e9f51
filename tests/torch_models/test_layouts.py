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


# What writes a part into a copy of rows (4, 6)
INTO_COPIES: dict[str, Pass] = {
    "slice": lambda rows: torch.slice_scatter(rows, rows[:2], 0, 1, 3),
    "select": lambda rows: torch.select_scatter(rows, rows[0], 0, 3),
    "diagonal": lambda rows: torch.diagonal_scatter(rows, rows[0, :4]),
    "as_strided": lambda rows: torch.as_strided_scatter(rows, rows[0], (6,), (1,), rows.storage_offset()),
}
LARGER, ROWS_ALONE = 100 * 6 * 4, 4 * 6 * 4


@pytest.mark.parametrize("write", INTO_COPIES.values(), ids=[*INTO_COPIES])
@pytest.mark.parametrize("way", WAYS)
def test_copies_that_are_written_are_of_all_memory(write: Pass, way: str) -> None:
    """Of rows in the middle of 100 x 6 floats all 100 x 6 are copied; of one row that is repeated, what is written."""
    x = TensorSpec("float32", (100, 6))
    parts = rows(Apply(lambda x: write(x[40:44])), x, way=way)
    repeated = rows(Apply(lambda x: write(x[:1].expand(4, 6))), x, way=way)
    assert parts["peak_activation"] == LARGER + LARGER
    assert repeated["peak_activation"] == LARGER + ROWS_ALONE
    assert parts["total_activation"] == repeated["total_activation"] == ROWS_ALONE
