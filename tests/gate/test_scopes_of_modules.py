"""A part of a model that is there and has nothing of a number has none of it; one that is not there is unknown."""

from __future__ import annotations

import pytest

from tests.builders.project import Project

pytestmark = pytest.mark.needs_torch

NETS = """
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 3), nn.Identity(), nn.Flatten())
"""


@pytest.mark.parametrize("metric", ["params", "macs", "weight_memory", "total_activation"])
def test_a_module_without_any_of_it_is_within_zero(project: Project, metric: str) -> None:
    """An identity stores and computes nothing, and hands on what it is given."""
    project.write("nets.py", NETS)
    model = "torch: 'nets:net', inputs: float32 1x4"
    project.budget(
        f"  net: {{{model}, limits: {{params: 15}}, scopes: {{'1': {{{metric}: 0}}, '7': {{{metric}: 0}}}}}}\n"
    )
    output = project.run().stdout.str()
    assert "3 limits: 0 over, 0 warn, 2 within, 1 unknown" in output
    assert "no module of the model matches '7': known are" in output
