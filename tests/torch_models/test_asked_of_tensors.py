"""A model that asks its tensors, catches what they raise or computes elsewhere is measured as it runs, or refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.devices import asks_for_a_branch

pytestmark = pytest.mark.needs_torch

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Asks(nn.Module):
    """A layer of 8 that runs where an answer is that of a run."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.l, self.frozen, self._forward = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False), forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def where(asked: Callable[[nn.Module, torch.Tensor], bool]) -> Forward:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.l(x) if asked(m, x) else x * 1

    return forward


def is_cpu_by_name(m: Any, x: torch.Tensor) -> bool:
    name = str(x.device)
    return name in ("cpu", "cpu:0")


ASKED: dict[str, Callable[[Any, torch.Tensor], bool]] = {
    "the device of the input": lambda m, x: x.device.type == "cpu",
    "the device of a weight": lambda m, x: m.l.weight.device == torch.device("cpu"),
    "the name of a device": is_cpu_by_name,
    "a device that is not meta": lambda m, x: x.device.type != "meta",
    "two devices": lambda m, x: x.new_zeros(2).device == torch.zeros(1).device,
    "is_cpu": lambda m, x: x.is_cpu,
    "a parameter": lambda m, x: isinstance(m.l.weight, nn.Parameter),
    "a parameter that learns": lambda m, x: m.l.weight.requires_grad,
    "a parameter that does not": lambda m, x: not m.frozen.weight.requires_grad,
    "what is no parameter": lambda m, x: not isinstance(m.l.weight.detach(), nn.Parameter),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_answers_are_those_of_a_run(asked: Callable[[Any, torch.Tensor], bool]) -> None:
    model = Asks(where(asked))
    assert asked(model, torch.zeros(3, 8))
    measured = measure(model, "float32 3x8")["macs"]
    assert (measured.value, measured.complete) == (ONE, True)


def test_asking_for_another_device_costs_no_second_way() -> None:
    """Neither a run on the CPU nor a pass without memory is on it."""
    measured = measure(Asks(lambda m, x: x * 1 if x.device.type == "cuda" else m.l(x)), "float32 3x8")  # type: ignore[operator]
    assert (measured.traced, measured["macs"].value) == ("meta", ONE)


@pytest.mark.parametrize(("package", "followed"), [("torch", False), ("torchvision", True), ("torch_geometric", True)])
def test_only_torch_itself_may_ask(package: str, followed: bool) -> None:
    """Packages beside it whose names begin alike are the model's."""
    file = Path(torch.__file__).parent.parent / package / "ops.py"
    assert asks_for_a_branch(compile('x.device.type == "cpu"', str(file), "exec")) is followed


def looks_first(m: Any, x: torch.Tensor) -> torch.Tensor:
    """As a debugging aid does."""
    try:
        assert not torch.isnan(x).any()
        return m.l(x)
    except Exception:  # noqa: BLE001  # as people write it
        return x * 1


def suppressed(asked: Callable[[torch.Tensor], Any]) -> Forward:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(Exception):
            asked(x)
            x = m.l(x)
        return x * 1

    return forward


CAUGHT: dict[str, Forward] = {
    "a check": looks_first,
    "a number": suppressed(lambda x: float(x.sum())),
    "a branch": suppressed(lambda x: bool(x.isfinite().all())),
    "a place": suppressed(lambda x: int(x.argmax())),
    "a list": suppressed(lambda x: x[0, 0].tolist()),
    "a size": suppressed(lambda x: x.nonzero().unique()),
}


@pytest.mark.parametrize("forward", CAUGHT.values(), ids=CAUGHT)
def test_what_fails_without_values_alone_is_run(forward: Forward) -> None:
    """A pass that catches it and goes on is not the model's."""
    assert measure(Asks(forward), "float32 3x8")["macs"].value == ONE


def test_what_fails_in_a_run_too_is_the_models_own_way() -> None:
    """Shapes that do not fit are caught, and the layer is called after that."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return m.l(x.reshape(5, 5))
        except RuntimeError:
            return m.l(x)

    assert measure(Asks(forward), "float32 3x8")["macs"].value == ONE


def by_a_pool(m: Any, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(2) as pool:
        return torch.cat([each.result() for each in (pool.submit(m.l, x), pool.submit(m.frozen, x))])


def by_a_thread(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Which writes into what the pass gave it."""
    out = torch.zeros(3, 8)
    thread = threading.Thread(target=lambda: out.copy_(torch.nn.functional.linear(x, m.l.weight)))
    thread.start()
    thread.join()
    return out + x


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


def by_a_pool_of_before(m: Any, x: torch.Tensor) -> torch.Tensor:
    return POOL.submit(torch.matmul, x, m.l.weight).result() + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # without values it cannot copy
@pytest.mark.parametrize("forward", [by_a_pool, by_a_thread, by_a_pool_of_before])
@pytest.mark.parametrize("time", range(3))
def test_operators_of_other_threads_are_never_missed(forward: Forward, time: int) -> None:
    """The same each time: a recorder sees its own thread alone."""
    with pytest.raises(TraceError, match="computes in another thread, where its operators are not seen"):
        measure(Asks(forward), "float32 3x8")


def test_threads_without_operators_are_let_be() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        seen: list[int] = []
        thread = threading.Thread(target=seen.append, args=(1,))
        thread.start()
        thread.join()
        return m.l(x)

    assert measure(Asks(forward), "float32 3x8")["macs"].value == ONE


def through_an_array(m: Any, x: torch.Tensor) -> torch.Tensor:
    """numpy multiplies what torch copies into its memory."""
    held = np.zeros((3, 8), np.float32)
    torch.from_numpy(held).copy_(x)
    return torch.from_numpy(held @ np.ones((8, 8), np.float32))


def through_a_view(m: Any, x: torch.Tensor) -> torch.Tensor:
    held = np.zeros((1, 3, 8), np.float32)
    torch.from_numpy(held)[0].add_(x)
    return torch.from_numpy(held[0] @ np.ones((8, 8), np.float32))


def through_bytes(m: Any, x: torch.Tensor) -> torch.Tensor:
    held = np.frombuffer(bytes(x.contiguous().untyped_storage()), np.float32).reshape(3, 8)
    return torch.from_numpy(held @ np.ones((8, 8), np.float32))


@pytest.mark.parametrize("forward", [through_an_array, through_a_view, through_bytes])
def test_values_that_leave_by_memory_are_not_zero_macs(forward: Forward) -> None:
    macs = measure(Asks(forward), "float32 3x8")["macs"]
    assert any("values leave torch" in each.why for each in macs.unmeasured)


def test_an_array_that_is_only_read_is_a_constant() -> None:
    table = torch.from_numpy(np.ones((8, 8), np.float32))
    measured = measure(Asks(lambda m, x: x @ table), "float32 3x8")["macs"]
    assert (measured.value, measured.complete) == (ONE, True)
