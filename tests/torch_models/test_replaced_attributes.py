"""A forward pass finds torch as it is: few attributes of it are replaced meanwhile, and none is afterwards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from tests.builders.micro_modules import Layer

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.skipif(torch.cuda.is_available(), reason="where a device is there, it is said that there is none"),
]


# The call of a module, and those of a scripted method and function.
MOST = 3


def attributes() -> Mapping[tuple[str, str], Any]:
    """Everything in torch's modules and classes, and the code of its functions."""
    found: dict[tuple[str, str], Any] = {}
    files = [file for name, file in [*sys.modules.items()] if name.partition(".")[0] == "torch" and file is not None]
    classes = {each for file in files for each in tuple(vars(file).values()) if isinstance(each, type)}
    for owner in (*files, *(each for each in classes if each.__module__.partition(".")[0] == "torch")):
        name = owner.__name__ if not isinstance(owner, type) else f"{owner.__module__}.{owner.__qualname__}"
        for attribute, value in tuple(vars(owner).items()):
            code = value.__code__ if isinstance(value, FunctionType) else None
            found[name, attribute] = value, code
    return found


def functions(found: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Those that are called: settings and counters are no functions."""
    return {place: each for place, each in found.items() if callable(each[0]) or isinstance(each[0], property)}


@pytest.mark.filterwarnings("ignore")  # of attributes that warn when they are looked at
@pytest.mark.parametrize("way", ["meta", "real"])
def test_few_attributes_of_torch_are_replaced_in_a_pass(way: str) -> None:
    inside: list[Mapping[tuple[str, str], Any]] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = m.l(x)
        if way == "real" and bool(y.sum() > 0):
            y = y.clone()
        inside.append(attributes())
        return y

    model: nn.Module = Layer(forward)
    assert measure(model, "float32 4x16").traced == way  # what torch loads first is loaded
    inside.clear()
    before = functions(attributes())
    measure(Layer(forward), "float32 4x16")
    after = functions(attributes())
    replaced = {place for place, own in before.items() if inside[-1].get(place) != own}
    assert {place for place, own in before.items() if after.get(place) != own} == set()
    assert len(replaced) <= MOST, sorted(replaced)
