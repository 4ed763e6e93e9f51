"""Operators of a script belong to the owner of the weight that they read, and to the script where they read none."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import Measurements, measure
from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.verdict import judge
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.equivalence.claim import Outcome

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 4 * 8 * 8  # MACs of x (4, 8) through a layer 8 → 8
LAYER = 2 * ONE + 4 * 8  # its FLOPs: two a MAC, and the bias
EACH = 4 * 8  # FLOPs of an elementwise operator on x


class Part(nn.Module):
    """A layer, and an activation of its own behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))

    @torch.jit.export
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


class InTurn(nn.Module):
    """What stands behind a part is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Part(), Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.b(torch.sin(self.a(x))))


class ByAnotherMethod(InTurn):
    """Another method than forward is what its caller does; what it calls is itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a.encode(x) + self.own(x)

    def own(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x)


@torch.jit.interface
class Layered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class ByAnInterface(InTurn):
    a: Layered


class Tied(nn.Module):
    """The head has the table's weight: its products are those of the first owner."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.first(x)))


MODELS: dict[Any, tuple[dict[str, int], dict[str, int]]] = {
    InTurn: ({"a.layer": ONE, "b.layer": ONE}, {"a.layer": LAYER, "b.layer": LAYER, "?": 4 * EACH}),
    ByAnotherMethod: ({"a.layer": ONE, "b.layer": ONE}, {"a.layer": LAYER, "b.layer": LAYER, "?": 3 * EACH}),
    ByAnInterface: ({"a.layer": ONE, "b.layer": ONE}, {"a.layer": LAYER, "b.layer": LAYER, "?": 4 * EACH}),
    Tied: ({"first": 2 * ONE}, {"first": 4 * ONE, "?": EACH}),
}


def of_file(model: nn.Module, path: Path) -> Measurements:
    torch.jit.save(model, path / "model.pt")
    return measure(str(path / "model.pt"), "float32 4x8")


def traced(model: nn.Module, path: Path) -> Measurements:
    return of_file(torch.jit.trace(model.eval(), torch.ones(4, 8)), path)


FORMS: dict[str, Callable[[nn.Module, Path], Measurements]] = {
    "script": lambda model, path: measure(torch.jit.script(model), "float32 4x8"),
    "file": lambda model, path: of_file(torch.jit.script(model), path),
    "trace": traced,
}


def scopes(measured: Measurements, metric: str, below: str = "") -> dict[str, int]:
    shares = {share.scope: share.value for share in measured[metric].shares if share.value}
    return {scope.removeprefix(below).removeprefix("."): value for scope, value in shares.items()}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("made", MODELS)
def test_operators_belong_to_the_owner_of_their_weight(
    made: Callable[[], nn.Module], form: Callable[..., Measurements], tmp_path: Path
) -> None:
    measured = form(made(), tmp_path)
    assert (scopes(measured, "macs"), scopes(measured, "flops")) == MODELS[made]


@pytest.mark.parametrize("made", MODELS)
def test_so_do_those_of_a_scripted_part(made: Callable[[], nn.Module]) -> None:
    """Those without a weight belong to some layer of the part."""
    measured = measure(nn.Sequential(torch.jit.script(made()), nn.Sigmoid()), "float32 4x8")
    flops = scopes(measured, "flops", "0")
    of_sigmoid = measured["flops"].value - sum(MODELS[made][1].values())
    assert scopes(measured, "macs", "0") == MODELS[made][0]
    assert flops == {**MODELS[made][1], "1": of_sigmoid}


class FromPython(nn.Module):
    """Calls a part of a script, and a method of it that is not forward, and goes on when one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.script = torch.jit.script(InTurn())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError):
            self.script(x[:, :3])
        return torch.exp(self.script.a.encode(x) + self.script.b(x))


def test_parts_that_python_calls_are_known_by_their_paths() -> None:
    measured = measure(FromPython(), "float32 4x8")
    assert scopes(measured, "macs") == {"script.a.layer": ONE, "script.b.layer": ONE}
    assert scopes(measured, "flops") == {
        "script.a.layer": LAYER, "script.b.layer": LAYER, "script.b.?": EACH, "": 3 * EACH,
    }  # fmt: skip


def test_a_frozen_script_has_no_calls_and_its_scopes_are_not_known() -> None:
    """It has no modules either, so that a limit on one is unknown."""
    frozen = torch.jit.freeze(torch.jit.script(InTurn().eval()))
    assert sum(scopes(measure(frozen, "float32 4x8"), "macs").values()) == 2 * ONE
    assert [name for name, _ in frozen.named_modules()] == [""]


def of_program(model: nn.Module, path: Path) -> list[str]:
    torch.export.save(torch.export.export(model, (torch.ones(4, 8),)), path / "model.pt2")
    return [str(path / "model.pt2")]


def of_script(model: nn.Module, path: Path) -> list[str]:
    torch.jit.save(torch.jit.script(model), path / "model.pt")
    return [str(path / "model.pt"), "--input", "float32 4x8"]


OF_PROGRAM = ["a.layer.linear", "a.relu", "sin", "b.layer.linear", "b.relu", "exp"]
OF_SCRIPT = ["a.layer.linear", "relu", "sin", "b.layer.linear", "relu", "exp"]


@pytest.mark.parametrize(("saved", "expected"), [(of_script, OF_SCRIPT), (of_program, OF_PROGRAM)])
def test_values_are_called_by_the_module_that_makes_them(
    saved: Callable[[nn.Module, Path], list[str]],
    expected: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What stood in no module was called by the one before."""
    assert main(["activations", *saved(InTurn().eval(), tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert names == expected


class Attention(nn.Module):
    """A product of two activations, of which a script does not say who asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attend(x)
        return y @ y.t()


@pytest.mark.parametrize(
    ("made", "metric", "within", "outcome"),
    [
        (InTurn, "macs", "a.layer", Outcome.WITHIN),
        (InTurn, "flops", "a.layer", Outcome.UNKNOWN),  # exp, sin and relu may be its own
        (InTurn, "flops", "*", Outcome.WITHIN),
        (Attention, "macs", "attend.*", Outcome.UNKNOWN),
        (Attention, "params", "attend.*", Outcome.WITHIN),
        (nn.GELU, "flops", "act", Outcome.UNKNOWN),
    ],
)
def test_a_part_of_a_script_may_have_more_than_what_reads_its_weights(
    made: Callable[[], nn.Module], metric: str, within: str, outcome: Outcome, tmp_path: Path
) -> None:
    model = made() if made is not nn.GELU else nn.Sequential(OrderedDict(a=Part(), act=nn.GELU()))
    measured = of_file(torch.jit.script(model), tmp_path)[metric]
    verdict = judge(Limit(metric, Place("b.yaml", 1), max=10**6, scope=within), measured)
    assert verdict.outcome is outcome
