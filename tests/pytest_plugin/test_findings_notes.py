"""What a reader must know of a model's numbers stands below its row."""

from __future__ import annotations

import pytest

from tests.builders.project import Project

pytestmark = pytest.mark.needs_torch

NETS = """
from torch import nn
class Net(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
    def forward(self, x):
        y = super().forward(x)
        return super().forward(y) if y.mean() > 0 else y
class Plain(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
"""
BUDGET = """\
  branch: {torch: "nets:Net", inputs: float32 4x16, limits: {macs: 3 kMAC}}
  plain: {torch: "nets:Plain", inputs: float32 4x16, limits: {macs: 3 kMAC}}
"""


def test_n4_a_path_that_data_decided_is_never_green_and_silent(project: Project) -> None:
    """N4: the terminal names what decided, below the row that is within."""
    project.write("nets.py", NETS)
    project.budget(BUDGET)
    result = project.run("budgets/a.yaml")
    result.assert_outcomes(passed=2)
    text = " ".join(result.stdout.str().split())
    assert text.count("data decide the path of this model (aten::_local_scalar_dense)") == 1
    assert "counted on one drawn input, seed 0; another may cost more" in text
