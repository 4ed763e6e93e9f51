"""Operators of a script run in the module that calls them, as those of the module that was scripted do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import Measurements, measure
from pytest_modelbudget.cli.command import main

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


class InALoop(InTurn):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([self.a, self.b])
        del self.a, self.b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for turn in range(2):
            for part in self.parts:
                x = part(x)
            if turn == 1 and x.device.type == "cpu":
                x = x * 2
        return x


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


class WithAName(InTurn):
    """An attribute of a part that is set has the name of a module; only an interface may stand for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.b.a = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.a += 1
        return torch.exp(self.b(torch.sin(self.a(x))))


class Tied(nn.Module):
    """The head has the table's weight, and its own products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.first(x)))


class WithoutWeights(nn.Module):
    """Products of activations belong to the module that makes them, and not to the layer before."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        return y @ x.t()


PART = {"a.layer": LAYER, "a": EACH, "b.layer": LAYER, "b": EACH}
MODELS: dict[Any, tuple[dict[str, int], dict[str, int]]] = {
    InTurn: ({"a.layer": ONE, "b.layer": ONE}, {**PART, "": 2 * EACH}),
    InALoop: (
        {"parts.0.layer": 2 * ONE, "parts.1.layer": 2 * ONE},
        {"parts.0.layer": 2 * LAYER, "parts.0": 2 * EACH, "parts.1.layer": 2 * LAYER, "parts.1": 2 * EACH, "": EACH},
    ),
    ByAnotherMethod: ({"a.layer": ONE, "b.layer": ONE}, {"a.layer": LAYER, "b.layer": LAYER, "b": EACH, "": 2 * EACH}),
    ByAnInterface: ({"a.layer": ONE, "b.layer": ONE}, {**PART, "": 2 * EACH}),
    WithAName: ({"a.layer": ONE, "b.layer": ONE}, {**PART, "": 2 * EACH}),
    Tied: ({"first": ONE, "head": ONE}, {"first": 2 * ONE, "head": 2 * ONE, "": EACH}),
    WithoutWeights: ({"a.layer": ONE, "": 4 * 4 * 8}, {"a.layer": LAYER, "a": EACH, "": 2 * 4 * 4 * 8}),
}


def of_file(model: nn.Module, path: Path) -> Measurements:
    torch.jit.save(model, path / "model.pt")
    return measure(str(path / "model.pt"), "float32 4x8")


def traced(model: nn.Module, path: Path) -> Measurements:
    return of_file(torch.jit.trace(model.eval(), torch.ones(4, 8)), path)


FORMS: dict[str, Callable[[nn.Module, Path], Measurements]] = {
    "module": lambda model, path: measure(model, "float32 4x8"),
    "script": lambda model, path: measure(torch.jit.script(model), "float32 4x8"),
    "file": lambda model, path: of_file(torch.jit.script(model), path),
    "trace": traced,
}


def scopes(measured: Measurements, metric: str, below: str = "") -> dict[str, int]:
    shares = {share.scope: share.value for share in measured[metric].shares if share.value}
    return {scope.removeprefix(below).removeprefix("."): value for scope, value in shares.items()}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("made", MODELS)
def test_operators_run_where_they_are_called(
    made: Callable[[], nn.Module], form: Callable[..., Measurements], tmp_path: Path
) -> None:
    measured = form(made(), tmp_path)
    assert (scopes(measured, "macs"), scopes(measured, "flops")) == MODELS[made]


@pytest.mark.parametrize("made", MODELS)
def test_so_do_those_of_a_scripted_part(made: Callable[[], nn.Module]) -> None:
    """They were all its own, so that a limit on a scope within it held nothing."""
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
        "script.a.layer": LAYER, "script.b.layer": LAYER, "script.b": EACH, "": 3 * EACH,
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


@pytest.mark.parametrize("saved", [of_script, of_program])
def test_values_are_called_by_the_module_that_makes_them(
    saved: Callable[[nn.Module, Path], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stood in no module was called by the one before."""
    assert main(["activations", *saved(InTurn().eval(), tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert names == ["a.layer.linear", "a.relu", "sin", "b.layer.linear", "b.relu", "exp"]


def test_torchscript_forgets_the_addresses_of_marks() -> None:
    """Else it takes whatever lies there later for an operator, and scripts a model no more."""
    known: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[attr-defined, no-untyped-call]
    measure(torch.jit.script(Part()), "float32 4x8")
    before = dict(known)
    measure(torch.jit.script(Part()), "float32 4x8")
    assert known == before
    assert not [name for name in known.values() if name.startswith("modelbudget::")]
