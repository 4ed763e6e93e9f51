"""Random networks: every way of tracing gives the same numbers, and lays the result out as a CPU does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.formats.source import TensorSpec
from tests.builders.marks import TIMES
from tests.builders.micro_modules import Apply
from tests.builders.torch_ways import WAYS, recorded, rows

pytestmark = pytest.mark.needs_torch

ROWS, LAST = torch.contiguous_format, torch.channels_last
SHAPES = ((1, 1, 4, 4), (2, 1, 3, 5), (1, 3, 1, 1), (2, 4, 2, 2), (1, 4, 6, 1))
Step = Callable[[torch.Tensor], torch.Tensor]  # x (n, c, h, w) -> another of four dimensions


def convolved(weight: torch.memory_format, size: int) -> Step:
    """Into three channels."""

    def step(x: torch.Tensor) -> torch.Tensor:
        filters = torch.ones(3, x.shape[1], size, size, device=x.device).contiguous(memory_format=weight)
        return F.conv2d(x, filters, padding=size // 2)

    return step


def normalised(x: torch.Tensor) -> torch.Tensor:
    """A batch norm with fixed statistics."""
    ones = torch.ones(x.shape[1], device=x.device)
    return F.batch_norm(x, ones, ones)


# None that docs/conventions.md lays out in rows whatever a CPU does.
STEPS: dict[str, Step] = {
    "convolution": convolved(ROWS, 3),
    "convolution, channels last": convolved(LAST, 1),
    "batch norm": normalised,
    "group norm": lambda x: F.group_norm(x, 1),
    "relu": F.relu,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "relu in place": lambda x: F.relu(x + 1, inplace=True),
    "plus one": lambda x: x + 1,
    "minus itself turned over": lambda x: x - x.flip(1),
    "gated": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "softmax": lambda x: x.softmax(1),
    "pooled to one place": lambda x: F.adaptive_avg_pool2d(x, 1),
    "pooled": lambda x: F.max_pool2d(x, 3, 1, 1),
    "upsampled": lambda x: F.interpolate(x, scale_factor=2.0),
    "beside itself": lambda x: torch.cat([x, x], 1),
    "half of the channels": lambda x: x.chunk(2, 1)[0],
    "one row": lambda x: x[:, :, :1],
    "padded": lambda x: F.pad(x, (1, 1, 0, 1)),
    "channels last": lambda x: x.contiguous(memory_format=LAST),
    "rows": lambda x: x.contiguous(),
    "turned": lambda x: x.permute(0, 2, 3, 1),
    "turned back": lambda x: x.movedim(-1, 1),
    "transposed": lambda x: x.transpose(2, 3),
    "in one row and back": lambda x: x.flatten(1).reshape(x.shape),
}
ORDERS = ("channels last", "turned", "turned back", "transposed", "rows")  # in which a network begins


@settings(max_examples=30 * TIMES, derandomize=TIMES == 1)
@given(st.sampled_from(SHAPES), st.sampled_from(ORDERS), st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=5))
def test_every_way_of_tracing_sees_the_same_network(shape: tuple[int, ...], order: str, steps: list[str]) -> None:
    """The layout of its result, which shows in numbers where rows are made of it, is that of an unrecorded pass."""

    def passed(x: torch.Tensor) -> torch.Tensor:
        return reduce(lambda y, step: STEPS[step](y), (order, *steps), x)

    def in_rows(x: torch.Tensor) -> torch.Tensor:
        return passed(x).flatten(1)

    x = TensorSpec("float32", shape)
    meta, *others = (rows(Apply(in_rows), x, way=way) for way in WAYS)
    assert others == [meta, meta]
    with torch.inference_mode():
        result = passed(torch.ones(shape))
    outputs = [recorded(Apply(passed), x, way=way).graph.outputs[0] for way in WAYS]
    assert [steps_of(each.shape, each.strides) for each in outputs] == [steps_of(result.shape, result.stride())] * 3


def steps_of(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The strides of dimensions with more than one element: nobody steps along any other."""
    return [stride for size, stride in zip(shape, strides, strict=True) if size > 1]
