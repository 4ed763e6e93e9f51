"""What each operator takes by itself adds up to the call that they are of."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import torch
import torchvision

from pytest_modelbudget.formats.benchmark import OperatorTime, Timing
from pytest_modelbudget.torch_models.benchmark import _operators

pytestmark = pytest.mark.needs_torch


def test_self_times_of_alexnet_add_up_to_the_call() -> None:
    """Within 5 %, at batch 5; each convolution, linear layer, ReLU and pool is there as often as it runs."""
    model, x, walls = torchvision.models.alexnet().eval(), torch.zeros(5, 3, 224, 224), list[float]()

    def call() -> Any:
        began = perf_counter()
        with torch.inference_mode():
            model(x)
        walls.append(perf_counter() - began)

    call()
    operators = _operators(call)
    assert sum(each.seconds for each in operators) == pytest.approx(walls[-1], rel=0.05)
    calls = {each.name: each.calls for each in operators}
    assert calls["aten::addmm"] == 3
    assert calls["aten::max_pool2d_with_indices"] == 3
    assert [each.seconds for each in operators] == sorted((each.seconds for each in operators), reverse=True)


def test_the_table_shows_the_slowest_and_sums_up_the_others() -> None:
    """Ten operators of 1 ms and two of 20 ms: eight lines, and one of 4 calls and 4 ms of 50 ms."""
    slow = tuple(OperatorTime(f"slow{at}", 2, 0.02) for at in range(2))
    quick = tuple(OperatorTime(f"quick{at}", 1, 0.001) for at in range(10))
    table = Timing((0.05,), "here", operators=(*slow, *quick)).table
    assert table[0] == "  slow0: 2 calls, 20.0 ms of its own, 40.0%"
    assert table[-1] == "  others: 4 calls, 4.00 ms of its own, 8.0%"
    assert len(table) == 9
    assert Timing((0.05,), "here").table == ()
