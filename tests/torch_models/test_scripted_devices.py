"""TorchScript that branches on a device goes where a run goes, live, from a file, as a part, and as a function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8


def is_the_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


class Layer(nn.Module):
    """Its layer runs on the CPU alone."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) if x.device.type == "cpu" else x * 1


class Helped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) if is_the_cpu(x.device) else x * 1


class Table(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        devices = {"x": x.device}
        y = x + torch.arange(8, device=x.device)
        return self.l(y) if devices["x"] == torch.device("cpu") else y * 1


class Flags(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            return x * 1
        return self.l(x) if x.is_cpu else x * 1


class InALoop(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        for i in range(3):
            if i == 1 and y.device == torch.device("cpu"):
                y = self.l(y)
        return y


class InAPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Helped()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


SCRIPTED = [Layer, Helped, Table, Flags, InALoop, InAPart]


@pytest.mark.parametrize("made", SCRIPTED)
@pytest.mark.parametrize("kept", ["live", "in a file"])
def test_a_branch_on_a_device_is_that_of_a_run(made: Callable[[], nn.Module], kept: str, tmp_path: Path) -> None:
    script: Any = torch.jit.script(made())
    torch.jit.save(script, tmp_path / "layer.pt")
    measured = measure(script if kept == "live" else torch.jit.load(tmp_path / "layer.pt"), "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["macs"].complete) == ("meta", ONE, True)


class Chooses(Layer):
    def forward(self, x: torch.Tensor, times: int = 2, y: torch.Tensor | None = None) -> torch.Tensor:
        if y is not None:
            x = x + y
        for _ in range(times):
            x = self.l(x) if x.device.type == "cpu" else x * 1
        return x


class Owner(nn.Module):
    def __init__(self, call: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.part, self.call = torch.jit.script(Chooses()), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.part, x)


@pytest.mark.parametrize(
    ("call", "times"),
    [
        (lambda part, x: part(x), 2),
        (lambda part, x: part(x, 3), 3),
        (lambda part, x: part(x, y=x), 2),
        (lambda part, x: part(times=1, x=x), 1),
        (lambda part, x: part(part(x), 1, x), 3),
    ],
)
def test_parts_of_a_module_are_called_with_their_arguments(call: Callable[[Any, Any], Any], times: int) -> None:
    """A part has names and defaults for them."""
    assert measure(Owner(call), "float32 3x8")["macs"].value == times * ONE


@torch.jit.interface
class Chooser(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class ByAnInterface(nn.Module):
    part: Chooser

    def __init__(self) -> None:
        super().__init__()
        self.part = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


PLACES: dict[str, Callable[[Any], nn.Module]] = {"itself": lambda script: script, "a part": nn.Sequential}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("made", [ByAnInterface])
def test_what_is_not_known_before_it_runs_is_run(
    made: Callable[[], nn.Module], place: Callable[..., nn.Module]
) -> None:
    measured = measure(place(torch.jit.script(made())), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("real", ONE)


class Alone(nn.Module):
    """Asks nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) + self.l(x + 1)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_script_that_asks_nothing_needs_no_run(place: Callable[..., nn.Module]) -> None:
    measured = measure(place(torch.jit.script(Alone())), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("meta", 2 * ONE)


@pytest.mark.parametrize(
    "call", [lambda part, x: part(), lambda part, x: part(x, 1, x, 2), lambda part, x: part(x, z=2)]
)
def test_wrong_arguments_of_a_part_are_refused(call: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(TraceError, match=r"missing value for argument|expected at most|Unknown keyword"):
        measure(Owner(call), "float32 3x8")


def test_functions_too() -> None:
    @torch.jit.script
    def on_the_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return nn.functional.linear(x, weight, bias) if x.device.type == "cpu" else x * 1

    class Calls(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return on_the_cpu(x, weight=self.l.weight)

    assert measure(Calls(), "float32 3x8")["macs"].value == ONE


class Cache(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros(1 << 40, device=x.device)
        return (self.l(x) if x.device.type == "cpu" else x * 1) + cache[:8].to(x.device)


def test_what_is_made_on_the_device_of_a_tensor_has_no_memory() -> None:
    """A cache of 4 TiB beside the layer."""
    measured = measure(torch.jit.script(Cache()), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("meta", ONE)


def test_a_script_is_not_changed() -> None:
    script: Any = torch.jit.script(Helped())
    before, call = str(script.graph), torch._C.ScriptMethod.__call__
    measure(nn.Sequential(script), "float32 3x8")
    assert (str(script.graph), torch._C.ScriptMethod.__call__) == (before, call)


class Listed(Layer):
    """A layer's result times a sum of which no operator tells."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: list[float] = x.sum(0).tolist()
        return self.l(x) * (values[0] + values[1])


class Places(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places: list[int] = x.argmax(1).tolist()
        return self.l(x).narrow(1, places[0] * 0, 8)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("made", [Listed, Places])
def test_a_list_of_values_is_made_in_a_run_and_is_said(
    made: Callable[[], nn.Module], place: Callable[..., nn.Module]
) -> None:
    """Without memory TorchScript would read address 0, and end the process; of floats it computes out of sight."""
    measured = measure(place(torch.jit.script(made())), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("real", ONE)
    said = {missing.op for missing in measured["macs"].unmeasured}
    assert said == (set() if made is Places else {"torch::tolist"})
