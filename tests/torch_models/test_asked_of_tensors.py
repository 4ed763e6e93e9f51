"""A model that asks its tensors, catches what they raise or computes elsewhere is measured as it runs, or refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError

pytestmark = pytest.mark.needs_torch

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Own(nn.Parameter):
    """With an attribute, as libraries of parallel layers have."""

    parts: int


class Asks(nn.Module):
    """A layer of 8 that runs where an answer is that of a run."""

    def __init__(self, forward: Forward, own: Any = Own) -> None:
        super().__init__()
        self.home = torch.device("cpu")
        self.own, self.kept = own(torch.zeros(2)), nn.Buffer(torch.zeros(2))
        self.own.parts = 2
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


CPU_NAME = "cpu"


def is_the_cpu(device: torch.device) -> bool:
    return device.type == CPU_NAME


class Passes(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


def within_modes(m: Any, x: torch.Tensor) -> bool:
    """Which are left in their order."""
    with torch.device("cpu"), Passes():
        inside = x.device.type == "cpu"
        with Passes():
            made = torch.zeros(2, device=x.device) + x[0, :2]
    return inside and (made + 1).device.type == "cpu"


ASKED: dict[str, Callable[[Any, torch.Tensor], bool]] = {
    "the device of the input": lambda m, x: x.device.type == "cpu",
    "the device of a weight": lambda m, x: m.l.weight.device == torch.device("cpu"),
    "the name of a device": is_cpu_by_name,
    "a device that is not meta": lambda m, x: x.device.type != "meta",
    "two devices": lambda m, x: x.new_zeros(2).device == torch.zeros(1).device,
    "is_cpu": lambda m, x: x.is_cpu,
    "is_meta": lambda m, x: not x.is_meta,
    "a helper": lambda m, x: is_the_cpu(x.device),
    "a helper of a helper": lambda m, x: any(map(is_the_cpu, (each.device for each in (x, m.l.weight)))),
    "a table": lambda m, x: {"cpu": True}.get(x.device.type, False),
    "a name of the file": lambda m, x: x.device.type == CPU_NAME,
    "the device of before": lambda m, x: x.device == m.home,
    "a word of the name": lambda m, x: f"{x.device}".startswith("cp"),
    "the name of a type": lambda m, x: x.type() == "torch.FloatTensor",
    "an attribute by its name": lambda m, x: getattr(x, "dev" + "ice").type == "cpu",
    "within a mode": within_modes,
    "a tensor made there": lambda m, x: torch.zeros(2, device=x.device).device.type == "cpu",
    "a parameter": lambda m, x: isinstance(m.l.weight, nn.Parameter),
    "an attribute of a weight": lambda m, x: getattr(m.own, "parts", 1) == 2,
    "a buffer": lambda m, x: isinstance(m.kept, nn.Buffer) and not isinstance(m.kept, nn.Parameter),
    "a parameter that learns": lambda m, x: m.l.weight.requires_grad,
    "a parameter that does not": lambda m, x: not m.frozen.weight.requires_grad,
    "what is no parameter": lambda m, x: not isinstance(m.l.weight.detach(), nn.Parameter),
}

CLASSES: dict[str, Callable[[Any, torch.Tensor], bool]] = {
    "of a weight": lambda m, x: type(m.l.weight) is nn.Parameter,
    "of every weight": lambda m, x: {each.__class__ for each in m.parameters()} == {nn.Parameter, Own},
    "of a weight by its name": lambda m, x: type(m.l.weight).__name__ == "Parameter",
    "of the model's own": lambda m, x: type(m.own) is Own,
    "of the input": lambda m, x: type(x) is torch.Tensor and type(x + 1) is torch.Tensor,
    "of a buffer": lambda m, x: type(m.kept) is torch.Tensor,
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("asked", {**ASKED, **CLASSES}.values(), ids={**ASKED, **CLASSES})
def test_answers_are_those_of_a_run(asked: Callable[[Any, torch.Tensor], bool]) -> None:
    model = Asks(where(asked))
    assert asked(model, torch.zeros(3, 8))
    measured = measure(model, "float32 3x8")["macs"]
    assert (measured.value, measured.complete) == (ONE, True)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_answers_to_fake_tensors_are_those_of_a_run(asked: Callable[[Any, torch.Tensor], bool]) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):  # which tensors on meta do not see
            return m.l(x) if asked(m, x) else x * 1

    measured = measure(Asks(forward, nn.Parameter), "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["macs"].complete) == ("fake", ONE, True)


def test_what_is_made_on_the_device_of_a_tensor_has_no_memory() -> None:
    """A cache of 4 TiB beside the layer, in each spelling."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros(1 << 40, device=x.device) + x.new_zeros(1, device=str(x.device))
        return m.l(x.to(x.device)) + cache[:8] + torch.empty(1 << 40, 8, device=m.l.weight.device)[0]

    measured = measure(Asks(forward), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("meta", ONE)


def test_kernels_for_tensors_without_memory_are_told_the_truth() -> None:
    """Else the model would read what was never computed."""

    @torch.library.custom_op("asked_of_tensors::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @doubled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape, device=x.device)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "cpu"
        return m.l(x) if bool((doubled(x) == 2 * x).all()) else x * 1

    measured = measure(Asks(forward), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("real", ONE)


def test_a_pass_leaves_no_mode() -> None:
    before = torch.overrides._get_current_function_mode_stack()  # type: ignore[attr-defined]  # private
    measure(Asks(where(lambda m, x: x.is_cpu)), "float32 3x8")
    assert torch.overrides._get_current_function_mode_stack() == before  # type: ignore[attr-defined]
    assert torch.zeros(1, device="meta").device.type == "meta"


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


def learns(x: torch.Tensor) -> None:
    with torch.enable_grad():
        y = x.detach().clone().requires_grad_()
        (y * 2).sum().backward()


CAUGHT: dict[str, Forward] = {
    "a check": looks_first,
    "a number": suppressed(lambda x: float(x.sum())),
    "a branch": suppressed(lambda x: bool(x.isfinite().all())),
    "a place": suppressed(lambda x: int(x.argmax())),
    "a list": suppressed(lambda x: x[0, 0].tolist()),
    "a text": suppressed(lambda x: f"{x.sum():.3f}"),
    "shared memory": suppressed(lambda x: x.detach().clone().untyped_storage().share_memory_()),
    "an element of a memory": suppressed(lambda x: x.storage()[0]),
    "a gradient": suppressed(learns),
    "a size": suppressed(lambda x: x.nonzero().unique()),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("forward", CAUGHT.values(), ids=CAUGHT)
def test_what_fails_without_values_alone_is_run(forward: Forward) -> None:
    """A pass that catches it and goes on is not the model's."""
    assert measure(Asks(forward), "float32 3x8")["macs"].value == ONE


def test_a_text_of_a_number_is_no_failure_of_the_model() -> None:
    """Tensors without memory, of both kinds, cannot be written so; a run goes on."""
    said: list[str] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        said.append(f"{x.sum():.3f}")
        return m.l(x)

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
    with pytest.raises(TraceError, match="in another thread"):
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
