"""Torch's compiler takes as long to load as torch itself: no pass loads it that does not use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs_torch

# A network, and what it loads beside torch.
BEGIN = """
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
        return {result}

assert measure(Net, "float32 4x16")["macs"].value == 4 * 16 * 16
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
{rest}
"""
USUAL = """
1 - y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) + nn.functional.group_norm(y, 4) * (y > 0).to(y.dtype) \
+ nn.functional.normalize(y, dim=-1) + torch.where(y > 0, y, y.abs()) + y.std(-1, keepdim=True).sqrt()
""".strip()


def loaded(result: str, rest: str = "") -> list[str]:
    """The lines that a process of its own prints after it measured such a network."""
    program = BEGIN.format(result=result, rest=rest)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_usual_operators_load_nothing() -> None:
    """Their shapes need neither the compiler nor its algebra."""
    assert loaded(USUAL) == [""]


def test_guards_ask_for_the_compiler_again_after_a_pass() -> None:
    """An operator without a function for its shape loads it outside of a pass, as before, and it guards again."""
    rest = """
y = torch.empty(3, device="meta")
torch.logaddexp(y, y)
print("torch._dynamo" in sys.modules)
"""
    assert loaded("torch.logaddexp(y, y)", rest) == ["sympy", "True"]


def test_who_imports_the_compiler_has_it() -> None:
    """A model that asks it something is answered by it."""
    assert loaded("y if __import__('torch._dynamo')._dynamo.config.recompile_limit else x") == ["torch._dynamo sympy"]


def test_a_guarded_function_without_attributes_is_refused_as_torch_does() -> None:
    """What torch raises reaches the user, also where what the pass left is taken back."""
    rest = """
from torch._compile import _disable_dynamo
guarded = _disable_dynamo(torch.relu)

class Guarded(nn.Module):
    def forward(self, x):
        return guarded(x)

try:
    measure(Guarded, "float32 4x16")
except Exception as error:
    print("has no attribute '__dynamo_disable'" in str(error))
"""
    assert loaded("y", rest) == ["", "True"]
