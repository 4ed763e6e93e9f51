"""The gate of one model as a whole process, beside a plain test that imports what the model is made of.

Sessions take turns, each in a process of its own with bytecode written. Python's start, pytest's and the imports of
torch are in both, and of torchvision where the model is its own; what is left is the budget, the measuring, the judging
and the report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ASKED = 1.15
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
BUDGET = """model_budget: 1
models:
  model:
    torch: {target}
    inputs: ["{inputs}"]
    limits: {{params: 1 G, macs: 1 T, flops: 1 T, peak_activation: 1 GB, bandwidth: 1 TB}}
"""
# Blocks of a language model in plain torch: torchvision loads torch's compiler, and whoever needs it then has it.
OWN = """import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.projected = heads, Norm(width), nn.Linear(width, 3 * width)
        self.result = nn.Linear(width, width)
        self.mlp = nn.Sequential(Norm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.projected(self.norm(x)).chunk(3, -1)
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.result(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def network():
    return nn.Sequential(*(Block(256, 4) for _ in range(8)))
"""


class Model(NamedTuple):
    """What a budget names, what a plain test imports for it, and files of its own."""

    target: str
    inputs: str
    imports: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()

    def write(self, folder: Path) -> None:
        """A budget and a plain test."""
        test = "".join(f"import {name}\n" for name in self.imports) + "\n\ndef test_nothing():\n    pass\n"
        budget = BUDGET.format(target=self.target, inputs=self.inputs)
        for name, text in (("budget.yaml", budget), ("test_plain.py", test), *self.files):
            (folder / name).write_text(text, encoding="utf-8")


MODELS = {
    "mobilenet_v2": Model("torchvision.models:mobilenet_v2", "float32 1x3x224x224", ("torch", "torchvision")),
    "a language model of one's own": Model("own:network", "float32 1x128x256", ("torch",), (("own.py", OWN),)),
}


class Took(NamedTuple):
    """Seconds of one process: of the clock, and of processors."""

    wall: float
    processor: float


def session(folder: Path, *words: str) -> Took:
    """One pytest session in a folder; raises SystemExit with its output where it is not green."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    before, began = os.times(), time.perf_counter()
    ran = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, os.times()
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(wall, spent)


def compared(model: Model, rounds: int) -> dict[str, list[Took]]:
    """What both sessions of a model take, in turn."""
    sessions = {"a test that imports as much": ("test_plain.py",), "the gate": ("--model-budget", "budget.yaml")}
    taken: dict[str, list[Took]] = {name: [] for name in sessions}
    with tempfile.TemporaryDirectory() as scratch:
        model.write(Path(scratch))
        for words in sessions.values():
            session(Path(scratch), *words)  # writes the bytecode
        for _ in range(rounds):
            for name, words in sessions.items():
                taken[name].append(session(Path(scratch), *words))
    return taken


def main() -> None:
    """Print medians of both sessions, and their ratio, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="sessions of each (9)")
    options = parser.parse_args()
    print("| model | session | wall (s) | processor (s) | of the test | target |")
    print("|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        taken = compared(model, options.rounds)
        first = median(took.processor for took in next(iter(taken.values())))
        for what, each in taken.items():
            wall, processor = median(took.wall for took in each), median(took.processor for took in each)
            asked = ASKED if what == "the gate" else ""
            print(f"| {name} | {what} | {wall:.2f} | {processor:.2f} | {processor / first:.2f} | {asked} |")


if __name__ == "__main__":
    main()
