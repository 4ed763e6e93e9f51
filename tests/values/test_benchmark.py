"""What calls take: the bytes by hand, the median by hand, and no time, which differs from machine to machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget.formats.benchmark import Plan, Processor, Timing
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.gate.measuring import time_model
from pytest_modelbudget.registry import tables
from tests.builders.micro_modules import OfDevice
from tests.builders.torch_roads import IMAGE, exported, scripted

pytestmark = pytest.mark.needs_torch
PLAN = Plan(repeats=3, warmup=1, memory=True)


def run(source: object, inputs: object, plan: Plan = PLAN) -> Timing:
    seen = time_model(model_source(source, inputs, registry=tables(), base=Path.cwd()), plan, tables(), root=Path.cwd())
    assert seen.value is not None, seen.failure
    return seen.value


def test_median_and_spread() -> None:
    """Of 1 to 5: the third, and the fourth less the second."""
    timing = Timing((5.0, 1.0, 4.0, 2.0, 3.0), "the CPU")
    assert (timing.median, timing.spread) == (3.0, 2.0)
    assert Timing((7.0,), "the CPU").spread == 0.0


def elementwise() -> nn.Module:
    """No operation with working memory, of two rows of 192 floats and a parameter of 192."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = x + self.weight
            b = a.exp()
            c = torch.cat([a, b])
            return c + c

    return Net().eval()


X, W = 4 * 2 * 192, 4 * 192  # bytes of x, a and b, and of the weight; c and the sum have 2 X each
ROADS = {
    # Python holds a and b to the end of the call; what runs a graph drops them after the concatenation.
    "module": (lambda model, folder: (model, IMAGE), X + W + 2 * X + 2 * X + 2 * X),
    "torchscript": (lambda model, folder: (scripted(model, folder), IMAGE), X + W + 2 * X + 2 * X),
    "exported": (lambda model, folder: (exported(model, folder), None), X + W + 2 * X + 2 * X),
}


@pytest.mark.parametrize(("road", "nbytes"), ROADS.values(), ids=ROADS)
@pytest.mark.filterwarnings("ignore")  # of exporters
def test_peak_memory_by_hand(road: Any, nbytes: int, tmp_path: Path) -> None:
    """x and the weight, and what is alive beside them at the worst place."""
    assert run(*road(elementwise(), tmp_path)).peak_memory == nbytes


def test_calls_are_counted_apart_from_the_first() -> None:
    """Three of those that follow one warm-up; the caller's module stays where and as it was.

    As many more tell what operators take.
    """
    calls = []

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((torch.get_num_threads(), self.training, torch.is_inference_mode_enabled()))
            return x * 2

    model, threads = Counting(), torch.get_num_threads()
    timing = run(model, IMAGE, Plan(repeats=3, warmup=1, threads=2))
    assert (len(timing.seconds), timing.peak_memory, timing.machine[:8]) == (3, None, "the CPU ")
    assert calls[-7:] == [(2, False, True)] * 7
    assert len(calls) == 1 + 1 + 3 + 3  # the first puts it into eval mode
    assert (model.training, torch.get_num_threads()) == (True, threads)


class OfBatch(nn.Module):
    """The same sum of tensors in containers, and a number."""

    def forward(self, batch: dict[str, list[torch.Tensor]], scale: float) -> torch.Tensor:
        return batch["x"][0] + batch["x"][1] * scale


def test_a_model_of_a_batch_on_the_clock() -> None:
    """Its two inputs of 4 floats, the product and the sum."""
    inputs = {"batch": {"x": ["float32 1x4", "float32 1x4"]}, "scale": 2.0}
    timing = run(OfBatch(), inputs)
    assert (len(timing.seconds), timing.peak_memory) == (3, 4 * 4 * 4)


def test_a_chrome_trace(tmp_path: Path) -> None:
    """The operators of one call, in the format that Chrome reads."""
    path = tmp_path / "trace.json"
    run(elementwise(), IMAGE, Plan(repeats=1, warmup=0, trace=path))
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"aten::exp", "aten::cat"} <= names


def test_onnx_on_the_clock(tmp_path: Path) -> None:
    """Its calls and its own profiler's trace; memory, which it does not tell, is refused with a way out."""
    from pytest_modelbudget.cli.command import main

    file, trace = tmp_path / "linear.onnx", tmp_path / "trace.json"
    assert main(["lab", "linear", "--m", "2", "--k", "4", "--n", "3", "--out", str(file)]) == 0
    timing = run(file, None, Plan(repeats=4, trace=trace))
    assert (len(timing.seconds), timing.peak_memory) == (4, None)
    assert "model_run" in {event.get("name") for event in json.loads(trace.read_text())}
    source = model_source(file, None, registry=tables(), base=Path.cwd())
    assert "limit peak_activation" in time_model(source, PLAN, tables(), root=Path.cwd()).failure


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there() -> None:
    seen = time_model(
        model_source(elementwise(), IMAGE, registry=tables(), base=Path.cwd()), Plan(Processor.CUDA), tables(),
        root=Path.cwd(),
    )  # fmt: skip
    assert (seen.value, seen.lacks_device, seen.failure) == (None, True, "torch sees no CUDA device here")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_peak_memory_on_cuda() -> None:
    """CUDA's allocator gives out whole blocks of 512 B: x 1,536, weight 1,024, then as by hand."""
    timing = run(elementwise(), IMAGE, Plan(Processor.CUDA, repeats=3, warmup=1, memory=True))
    assert timing.peak_memory == X + 1024 + 2 * X + 2 * X + 2 * X
    assert len(timing.seconds) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("is_factory", [True, False], ids=["factory", "instance"])
def test_a_model_of_cuda_is_timed_there_with_all_that_it_keeps(is_factory: bool) -> None:
    """Also where it lies there already; its own tensors stay where they are."""

    def build() -> OfDevice:
        return OfDevice("cuda")

    model = build()
    timing = run(build if is_factory else model, "float32 4x16", Plan(Processor.CUDA, repeats=3, warmup=1, memory=True))
    assert len(timing.seconds) == 3
    assert timing.peak_memory is not None
    assert timing.peak_memory >= 4 * 16 * 16  # its weight, at the least
    assert model.scale[0].is_cuda
