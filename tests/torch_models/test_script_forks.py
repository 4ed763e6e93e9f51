"""torch.jit.fork in a script is refused by name; in a module Python runs it where it is called."""

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8
X = "float32 3x8"


class Forked(nn.Module):
    """Two forks of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = torch.jit.fork(self.part, x), torch.jit.fork(self.part, x + 1)
        return torch.jit.wait(one) + torch.jit.wait(other)


class Later(Forked):
    def forward(self, x: torch.Tensor) -> torch.jit.Future[torch.Tensor]:
        return torch.jit.fork(self.part, x)


@torch.jit.interface
class Called(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class ByInterface(nn.Module):
    """Calls by an interface what forks."""

    part: Called

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(Forked())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


def test_forks_of_a_module_run_where_they_are_called() -> None:
    """Each of them is a product of the layer."""
    assert measure(Forked(), X)["macs"].value == 2 * ONE


@pytest.mark.parametrize("model", [Forked, Later, ByInterface])
def test_forks_of_a_script_are_refused(model: type[nn.Module]) -> None:
    """Their threads run an optimised plan, which makes one call of two alike; the error names the operator."""
    with pytest.raises(TraceError, match=r"forward calls torch\.jit\.fork, which runs in a thread of its own"):
        measure(torch.jit.script(model()), X)


def test_a_future_is_no_output() -> None:
    """A module that returns one has not computed anything yet."""
    with pytest.raises(TraceError, match="is a Future, which cannot be looked into"):
        measure(Later(), X)
