"""Torch's compiler takes as long to load as torch itself: no pass loads it that does not use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs_torch

# A network, and what it loads beside torch.
PROGRAM = """
import sys
import torch
from torch import nn
from pytest_modelbudget import measure

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x):
        y = self.layer(x)
        z = 1 - y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) + nn.functional.group_norm(y, 4)
        z = z * (y > 0).to(y.dtype) + nn.functional.normalize(y, dim=-1)
        return z + torch.where(y > 0, y, y.abs()) + y.std(-1, keepdim=True).sqrt()

assert measure(Net, "float32 4x16")["macs"].value == 4 * 16 * 16
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


def test_usual_operators_load_nothing() -> None:
    """Their shapes need neither the compiler nor its algebra."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("\n", "")
