"""What holds for every model: shares add up, and the floor lies below the traffic."""

from __future__ import annotations

import pytest

from pytest_modelbudget import measure
from tests.builders.micro_models import MICRO_MODELS
from tests.builders.micro_modules import Micro

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("micro", MICRO_MODELS, ids=lambda micro: micro.id)
def test_laws_of_all_metrics(micro: Micro) -> None:
    """Shares sum to the value; floor ≤ bandwidth; one op ≤ peak ≤ inputs and all results."""
    measured = measure(micro.build(), dict(micro.kwargs) or list(micro.args))
    for key, metric in measured.items():
        if isinstance(metric.value, int):
            assert sum(share.value for share in metric.shares) == metric.value, key
        if metric.parts:
            assert sum(metric.parts.values()) == metric.value, key
    assert measured["bandwidth_floor"].value <= measured["bandwidth"].value
    assert measured["total_activation"].value == measured["bandwidth"].parts["write"]
    assert measured["trainable_params"].value <= measured["params"].value
    assert measured["weight_memory"].value <= measured["model_size"].value
