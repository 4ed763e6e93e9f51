"""Layers that ``layers:`` leaves out, and layers that a user's own transform quantised."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.on_torch import layer_changes
from pytest_modelbudget.transforms.transform import is_chosen
from tests.builders.module_transforms import applied
from tests.builders.wrapper_tensors import Int8Rows

pytestmark = pytest.mark.needs_torch

SCOPES = ("", "head", "body.0", "body.1")


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        (("*",), SCOPES),
        (("body",), ("body.0", "body.1")),
        (("body.*",), ("body.0", "body.1")),
        (("body.1",), ("body.1",)),
        (("bod", "other.*"), ()),
        (("!head",), ("", "body.0", "body.1")),
        (("!(model)",), ("head", "body.0", "body.1")),
        (("(model)",), ("",)),
        (("body", "!body.1"), ("body.0",)),
        (("!body", "!(model)"), ("head",)),
    ],
)
def test_a_glob_behind_an_exclamation_mark_leaves_out(layers: Sequence[str], chosen: Sequence[str]) -> None:
    """As in scopes, it chooses a module and what is within; "(model)" is what stands in no module, and has no path."""
    assert tuple(scope for scope in SCOPES if is_chosen(scope, layers)) == tuple(chosen)


class Products(nn.Module):
    """A layer, and batched products in the model itself that no tiling is known for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.stack = nn.Linear(16, 16), nn.Parameter(torch.randn(2, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(x)
        return torch.bmm(y.expand(2, *y.shape), self.stack)


def test_the_way_out_of_an_operation_of_the_model_itself_can_be_followed() -> None:
    """The message gives the setting, and with it the rest is tiled."""
    with pytest.raises(TransformError, match=r'as in layers: \["!\(model\)"\]') as raised:
        applied("tile_linear", Products, (4, 16), tile=(None, 8, 8))
    assert "aten::bmm" in str(raised.value)
    done = applied("tile_linear", Products, (4, 16), tile=(None, 8, 8), layers=("!(model)",))
    assert {change.scope: bool(change.became) for change in done.changed.changes} == {"fc": True, "": False}


def test_layers_in_wrapper_tensors_are_compared_by_what_those_are_kept_in() -> None:
    """The same codes and scales are the same weights; others are not."""

    def wrapped(model: nn.Linear) -> nn.Linear:
        model.weight = nn.Parameter(Int8Rows.of(model.weight.data), requires_grad=False)
        return model

    model = nn.Sequential(nn.Linear(4, 4))
    plain = copy.deepcopy(model)
    wrapped(model[0])
    again, other = copy.deepcopy(model), copy.deepcopy(model)
    other[0].weight.codes[0] = 0
    whys = [layer_changes(model, each)[0].became for each in (again, other, plain)]
    assert whys == ["", "Linear with other weights", "Linear with other weights"]
