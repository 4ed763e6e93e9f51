"""A project with torch networks, a compiler of their own and a budget, to run pytest in."""

from __future__ import annotations

import json
from typing import Any

import pytest

NETS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(100, 70), nn.ReLU(), nn.Linear(70, 5))

def convolution():
    return nn.Sequential(nn.Unflatten(1, (20, 5)), nn.Conv1d(20, 18, 3))

SHARED = net()

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.core = nn.Linear(100, 100), nn.Parameter(torch.randn(4, 100, 100))
    def forward(self, x):
        return nn.functional.bilinear(x, self.fc(x), self.core)
"""
# A package of somebody else's, that knows nothing of this one.
COMPILER = """
from torch import nn

class Half(nn.Module):
    def __init__(self, linear, forgets):
        super().__init__()
        self.linear, self.forgets = linear, forgets
    def forward(self, x):
        half = x.shape[-1] // 2
        weight = self.linear.weight
        out = nn.functional.linear(x[..., :half], weight[:, :half], self.linear.bias)
        return out if self.forgets else out + nn.functional.linear(x[..., half:], weight[:, half:])

def split(model, forgets=False):
    model[2] = Half(model[2], forgets)
    return model

def forgetful(model):
    return split(model, True)

def turned(model):
    model[2].weight.data.neg_()
    return model

def broken(model):
    model[0].weight.data.zero_()
    model.train()
    raise RuntimeError("no such pass")

def training(model):
    return model.train()

def new_layers(model):
    return nn.Sequential(*model)

def wrong_kind(model):
    return "a path"
"""
HEAD = "model_budget: 1\ndefaults: {inputs: float32 4x100}\nmodels:\n"
MACS = 4 * (100 * 70 + 70 * 5)


class TorchProject:
    """A user's repository with a network, a compiler, and a budget."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        (pytester.path / "nets.py").write_text(NETS)
        (pytester.path / "compiler.py").write_text(COMPILER)
        pytester.mkdir("budgets")

    def run(self, transforms: str, model: str = "nets:net", *args: str) -> pytest.RunResult:
        """The gate over one model with these lines below its ``transforms:``, which is line 6, in this process."""
        text = f"{HEAD}  net:\n    torch: {model}\n    transforms:\n{transforms}"
        (self.pytester.path / "budgets" / "a.yaml").write_text(text)
        options = ("-p", "no:cacheprovider", "-Werror", "--model-budget", "--model-budget-workers=0", *args)
        return self.pytester.runpytest_inprocess(*options, "--model-budget-report=json:out.json")

    @property
    def transform(self) -> Any:
        """The first transform of the report."""
        return self.transforms[0]

    @property
    def transforms(self) -> Any:
        """All transforms of the report's first model."""
        report = json.loads((self.pytester.path / "out.json").read_text())
        return report["models"][0]["transforms"]
