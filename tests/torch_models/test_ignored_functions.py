"""What a Python function raises that TorchScript calls is told in its own words."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_modelbudget.errors import described

pytestmark = pytest.mark.needs_torch


def _value() -> None:
    raise ValueError("no such scale: 3")


def _key() -> None:
    raise KeyError("scale")


def _silent() -> None:
    raise RuntimeError


def _several_lines() -> None:
    raise ValueError("first\nAt: second")


RAISES: list[Callable[[], None]] = []  # a script leaves out what a module holds that it does not know


class Ignoring(nn.Module):
    """Calls a Python function from its script."""

    @torch.jit.ignore
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        RAISES[-1]()
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(x)


class Around(nn.Module):
    """A script whose ignored function calls a script of which that is true, too."""

    @torch.jit.ignore
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return torch.jit.script(Ignoring())(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(x)


@pytest.mark.parametrize(
    ("raising", "words"),
    [
        pytest.param(_value, "ValueError: no such scale: 3", id="a value"),
        pytest.param(_key, "KeyError: 'scale'", id="a key"),
        pytest.param(_silent, "RuntimeError: <EMPTY MESSAGE>", id="no words, as torch says it"),
        pytest.param(_several_lines, "ValueError: first", id="several lines"),
    ],
)
@pytest.mark.parametrize("script", [Ignoring, Around])
def test_the_words_are_those_of_the_function(
    script: type[nn.Module], raising: Callable[[], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch writes "RuntimeError: ValueError: ..." and lines below "At:", which is no type of exception."""
    monkeypatch.setattr(f"{__name__}.RAISES", [raising])
    with pytest.raises(RuntimeError) as caught:
        torch.jit.script(script())(torch.zeros(1))
    assert described(caught.value).partition(" (in ")[0] == words
