"""Forks of scripts cost what their module's do: each runs where it is called, as in Python."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import TraceError

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8
X = "float32 3x8"
COMPARED = ("params", "macs", "flops", "bandwidth", "peak_activation")


class Twice(nn.Module):
    """Calls its layer twice on the same operand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.layer(x)


class Forked(nn.Module):
    """Two forks of such a part, both on their way before one is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Twice()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = torch.jit.fork(self.part, x), torch.jit.fork(self.part, x + 1)
        return torch.jit.wait(one) + torch.jit.wait(other)


class Listed(Forked):
    """The same in a list of futures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        futures = [torch.jit.fork(self.part, x + each) for each in range(2)]
        total = torch.zeros(3, 8)
        for future in futures:
            total = total + torch.jit.wait(future)
        return total


class Nested(Forked):
    """A fork in a fork, of several arguments and a default."""

    def within(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return torch.jit.wait(torch.jit.fork(self.part, x)) * factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = torch.jit.fork(self.within, x), torch.jit.fork(self.within, x, 3.0)
        return torch.jit.wait(one) + torch.jit.wait(other)


class InBranches(Forked):
    """Waits behind a branch for what was forked in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(self.part, x) if x.shape[0] > 2 else torch.jit.fork(self.part, x * 2)
        return torch.jit.wait(future) + self.part(x)


class Kept(Forked):
    """Forks in a tuple, a dict and under a branch that may leave none, in a region without gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            pair = (torch.jit.fork(self.part, x), 1)
            named = {"other": torch.jit.fork(self.part, x + 1)}
        perhaps: torch.jit.Future[torch.Tensor] | None = None
        if x.shape[0] > 2:
            perhaps = pair[0]
        total = torch.jit.wait(named["other"])
        if perhaps is not None:
            total = total + torch.jit.wait(perhaps)
        return total


MODELS = [Forked, Listed, Nested, InBranches, Kept]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("calls", [0, 4])
@pytest.mark.parametrize("kept", [lambda script: script, nn.Sequential], ids=["itself", "a part"])
def test_forks_cost_what_their_module_does(
    model: Callable[[], nn.Module], calls: int, kept: Callable[..., nn.Module]
) -> None:
    module = model().eval()
    expected = {key: measure(module, X)[key].value for key in COMPARED}
    assert expected["macs"] == 4 * ONE
    script = torch.jit.script(copy.deepcopy(module))
    for _ in range(calls):
        script(torch.ones(3, 8))
    found = measure(kept(script), X)
    assert {key: found[key].value for key in COMPARED} == expected


class Casting(Forked):
    """TorchScript casts the graph that a region stands in, and no fork of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            future = torch.jit.fork(self.part.layer, x)
            return torch.jit.wait(future) + self.part.layer(x)


def test_a_fork_is_cast_as_in_a_call() -> None:
    """One product in float32, as the sum of both results is, and one in bfloat16."""
    script = torch.jit.script(Casting().eval())
    assert script(torch.ones(3, 8)).dtype == torch.float32
    assert measure(script, X)["bops"].value == ONE * 32 * 32 + ONE * 16 * 16


class BesideCasting(Forked):
    """A region of autocast around one layer, and a fork of two calls outside of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.part.layer(x)
        return torch.jit.wait(torch.jit.fork(self.part, x)) + y.float()


def test_a_fork_beside_a_region_of_autocast_runs_where_it_is_called() -> None:
    """Two products in float32 and one in bfloat16, as in the module."""
    module = BesideCasting().eval()
    for model in (module, torch.jit.script(copy.deepcopy(module))):
        measured = measure(model, X)
        assert measured["macs"].value == 3 * ONE
        assert measured["bops"].value == 2 * ONE * 32 * 32 + ONE * 16 * 16


@pytest.mark.parametrize("model", MODELS)
def test_forks_are_compared(model: Callable[[], nn.Module]) -> None:
    """A script of the module is the same."""
    module = model().eval()
    assert check_equivalence(module, torch.jit.script(module), X).outcome is Outcome.WITHIN


class Later(Forked):
    def forward(self, x: torch.Tensor) -> torch.jit.Future[torch.Tensor]:
        return torch.jit.fork(self.part, x)


@pytest.mark.parametrize("made", [lambda model: model, torch.jit.script], ids=["module", "script"])
def test_what_is_computed_later_is_refused(made: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(TraceError, match="returns a Future"):
        measure(made(Later()), X)


@torch.jit.script
class Holder:
    """Keeps a future."""

    def __init__(self, future: torch.jit.Future[torch.Tensor]) -> None:
        self.future = future


class InAnObject(Forked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(Holder(torch.jit.fork(self.part, x)).future)


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


class WaitsOutside(nn.Module):
    """Python code that waits for what a script forks."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(self.part(x))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        pytest.param(lambda: torch.jit.script(InAnObject()), "keeps a Future in an object", id="object"),
        pytest.param(lambda: torch.jit.script(ByInterface()), "calls by an interface what forks", id="interface"),
        pytest.param(lambda: WaitsOutside(torch.jit.script(Later())), "takes or returns a Future", id="Python"),
    ],
)
def test_a_fork_that_stays_in_its_thread_is_refused(made: Callable[[], nn.Module], why: str) -> None:
    """There the optimiser makes one call of two alike, half of the MACs, and nothing would say so."""
    with pytest.raises(TraceError, match=f"forward {why}: TorchScript runs such a fork in a thread of its own"):
        measure(made(), X)
