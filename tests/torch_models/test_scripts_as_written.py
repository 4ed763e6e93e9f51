"""Scripts cost what they say: calls that are alike count each, and so does what nobody reads."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

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


class Inlined(nn.Module):
    """The same two calls inside a part inside a part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(Twice())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


class Unread(Twice):
    """One of two results goes nowhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _unread = self.layer(x)
        return self.layer(x.relu())


class Products(nn.Module):
    """One product as itself and with a bias, which the optimiser takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight) + torch.mm(x, self.weight)


def on_file(script: torch.jit.ScriptModule, folder: Path) -> Path:
    torch.jit.save(script, folder / "model.pt")  # type: ignore[no-untyped-call]
    return folder / "model.pt"


KEPT: dict[str, Callable[[torch.jit.ScriptModule, Path], object]] = {
    "in a file": on_file,
    "live": lambda script, _: script,
    "a part": lambda script, _: nn.Sequential(script),
}
MADE: dict[str, Callable[[nn.Module], torch.jit.ScriptModule]] = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, torch.ones(3, 8)),
}


CASES = [(made, model) for made in MADE for model in (Twice, Inlined, Products)]
CASES += [("scripted", Unread)]  # of a trace, torch itself drops what nobody reads


@pytest.mark.parametrize(("made", "model"), CASES)
@pytest.mark.parametrize("kept", KEPT)
def test_a_script_costs_what_its_module_does(
    model: Callable[[], nn.Module], made: str, kept: str, tmp_path: Path
) -> None:
    """Also after calls that let the interpreter plan the next ones."""
    module = model().eval()
    expected = {key: measure(module, X)[key].value for key in COMPARED}
    assert expected["macs"] == 2 * ONE
    script = MADE[made](copy.deepcopy(module))
    for _ in range(4):
        script(torch.ones(3, 8))
    found = measure(KEPT[kept](script, tmp_path), X)
    assert {key: found[key].value for key in COMPARED} == expected


@contextmanager
def executor(is_new: bool) -> Iterator[None]:
    """Another executor of TorchScript than its profiling one, as speechbrain chooses when it is imported."""
    before = torch._C._jit_set_profiling_executor(is_new), torch._C._jit_set_profiling_mode(False)
    yield
    after = torch._C._jit_set_profiling_executor(before[0]), torch._C._jit_set_profiling_mode(before[1])
    assert after == (is_new, False)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("calls", [0, 4])
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("model", [Twice, Inlined, Unread])
def test_a_script_costs_the_same_in_every_executor(
    model: Callable[[], nn.Module], kept: str, calls: int, is_new: bool, tmp_path: Path
) -> None:
    """Two layers of 3 · 8 · 8 MACs; the other executors leave out one that nobody reads."""
    with executor(is_new):
        script = torch.jit.script(model().eval())
        for _ in range(calls):
            script(torch.ones(3, 8))
        assert measure(KEPT[kept](script, tmp_path), X)["macs"].value == 2 * ONE
    assert measure(script, X)["macs"].value == 2 * ONE


@torch.jit.interface
class Layer(nn.Module):
    """What takes and gives a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Casting(Twice):
    """The same in bfloat16: TorchScript casts where it prepares a graph, before it plans."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x) + self.layer(x)


class ByInterface(nn.Module):
    """Calls a part by an interface, which is never inlined."""

    part: Layer

    def __init__(self) -> None:
        super().__init__()
        self.part = Casting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


@pytest.mark.parametrize("made", [Casting, ByInterface])
@pytest.mark.parametrize("calls", [0, 4])
def test_a_script_casts_as_its_module_does(made: Callable[[], nn.Module], calls: int) -> None:
    """In the measured pass, and in passes after it: two products of 3 · 8 values in bfloat16."""
    script, same, x = torch.jit.script(model := made().eval()), torch.jit.script(copy.deepcopy(model)), torch.ones(3, 8)
    expected = same(x)
    for _ in range(calls):
        script(x)
    assert measure(script, X)["bops"].value == 2 * ONE * 16 * 16
    assert measure(nn.Sequential(script), X)["bops"].value == 2 * ONE * 16 * 16
    casting = script.part if made is ByInterface else script
    assert torch.equal(script(x), expected)
    assert torch.equal(casting(x), expected)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_callers_switch_is_as_before(is_on: bool) -> None:
    """And changes no number."""
    script = torch.jit.script(Twice().eval())
    with torch.jit.optimized_execution(is_on):  # type: ignore[no-untyped-call]
        assert measure(script, X)["macs"].value == 2 * ONE
        assert torch._C._get_graph_executor_optimize() is is_on


def test_a_claim_runs_what_is_measured() -> None:
    """A script of the module is the same."""
    model = Twice().eval()
    assert check_equivalence(model, torch.jit.script(model), X).outcome is Outcome.WITHIN


@pytest.mark.parametrize("other", [False, True], ids=["profiling", "another"])
@pytest.mark.parametrize("calls", [0, 4])
def test_a_scripted_function_costs_the_same_in_every_executor(calls: int, other: bool) -> None:
    """Called from Python, as one of speechbrain's DiffWave is: two products of 3 · 8 · 8 MACs that are alike."""

    def squared(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, weight) * torch.mm(x, weight)

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.function = nn.Parameter(torch.ones(8, 8)), torch.jit.script(squared)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.function(x, self.weight)
            return y

    with executor(is_new=False) if other else nullcontext():
        model = Calling().eval()
        for _ in range(calls):
            model(torch.ones(3, 8))
        assert measure(model, X)["macs"].value == 2 * ONE


@pytest.mark.parametrize("calls", [0, 4])
def test_what_an_interface_hides_is_refused_where_another_executor_ran_it(calls: int) -> None:
    """As a part of a module: that executor leaves out what nobody reads, and no other can run it any more."""

    class Part(Unread):
        pass

    class Outer(ByInterface):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

    with executor(is_new=False):
        script = torch.jit.script(Outer().eval())
        for _ in range(calls):
            script(torch.ones(3, 8))
        assert measure(script, X)["macs"].value == 2 * ONE  # of a script of its own
        if calls:
            with pytest.raises(TraceError, match="give a model that has not run"):
                measure(nn.Sequential(script), X)
        else:
            assert measure(nn.Sequential(script), X)["macs"].value == 2 * ONE
