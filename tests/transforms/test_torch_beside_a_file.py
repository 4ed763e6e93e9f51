"""A torch model beside its own ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.formats.source import TensorSpec

pytestmark = pytest.mark.needs_torch


class FromOne(nn.Module):
    """An embedding whose rows are counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rows(ids - 1)
        return found


@pytest.mark.slow
def test_a_file_beside_a_module_that_takes_no_zero(tmp_path: Path, monkeypatch: Any) -> None:
    """Every run is on values in the range that the inputs name."""
    monkeypatch.chdir(tmp_path)
    net = FromOne().eval()
    ids = torch.ones(2, 3, dtype=torch.int64)
    program = torch.onnx.export(net, (ids,), dynamo=True, verbose=False)
    assert program is not None
    program.save("net.onnx")
    spec = TensorSpec("int64", (2, 3), low=1, high=11)
    found = check_equivalence(net, "net.onnx", spec, seeds=(0,))
    assert found.outcome == "within", found.reason
