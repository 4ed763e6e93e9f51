"""Params and MACs of small models are exact, whatever mode the caller is in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from pytest_modelbudget import measure
from tests.builders.micro_models import MICRO_MODELS
from tests.builders.micro_modules import Micro
from tests.builders.programs import assert_same_macs, costed

pytestmark = pytest.mark.needs_torch

CALLERS: dict[str, tuple[bool, Callable[[], AbstractContextManager[Any]]]] = {
    "eval": (False, nullcontext),
    "train": (True, nullcontext),
    "no_grad": (True, torch.no_grad),
    "inference_mode": (True, torch.inference_mode),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("micro", MICRO_MODELS, ids=lambda micro: micro.id)
def test_closed_forms_hold_in_every_mode(micro: Micro, caller: str) -> None:
    """The figures are the arithmetic written beside the model, with nothing unmeasured."""
    training, context = CALLERS[caller]
    model = micro.build().train(training)
    with context():
        measured = measure(model, dict(micro.kwargs) or list(micro.args))
    assert (measured["params"].value, measured["macs"].value) == (micro.params, micro.macs)
    assert measured["macs"].complete
    assert measured["bandwidth"].complete
    assert model.training is training


@pytest.mark.parametrize("micro", MICRO_MODELS, ids=lambda micro: micro.id)
def test_products_have_the_macs_of_their_operations(micro: Micro) -> None:
    assert_same_macs(costed(micro.build().eval(), dict(micro.kwargs) or list(micro.args)))


def test_there_are_enough_closed_forms() -> None:
    """The table covers every row of the scoreboard and more: at least 40 models."""
    assert len({micro.id for micro in MICRO_MODELS}) >= 40
