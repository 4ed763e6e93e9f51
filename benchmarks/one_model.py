"""The gate of one model as a whole process, beside a plain test that imports what the model is made of.

Sessions take turns, each in a process of its own with bytecode written. Python's start, pytest's and the imports of
torch and torchvision are in both; what is left is the budget, the measuring, the judging and the report.
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
  {name}:
    torch: torchvision.models:{name}
    inputs: ["float32 1x3x224x224"]
    limits: {{params: 1 G, macs: 1 T, flops: 1 T, peak_activation: 1 GB, bandwidth: 1 TB}}
"""
PLAIN_TEST = "import torch\nimport torchvision\n\n\ndef test_nothing():\n    pass\n"


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


def main() -> None:
    """Print medians of both sessions, and their ratio, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="sessions of each (9)")
    parser.add_argument("--model", default="mobilenet_v2", help="one of torchvision's (mobilenet_v2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "budget.yaml").write_text(BUDGET.format(name=options.model), encoding="utf-8")
        (folder / "test_plain.py").write_text(PLAIN_TEST, encoding="utf-8")
        sessions = {"a test that imports both": ("test_plain.py",), "the gate": ("--model-budget", "budget.yaml")}
        for words in sessions.values():
            session(folder, *words)  # writes the bytecode
        taken: dict[str, list[Took]] = {name: [] for name in sessions}
        for _ in range(options.rounds):
            for name, words in sessions.items():
                taken[name].append(session(folder, *words))
    print(f"| session, {options.model} | wall (s) | processor (s) | of the test | asked |")
    print("|---|---|---|---|---|")
    first = median(took.processor for took in taken["a test that imports both"])
    for name, each in taken.items():
        wall, processor = median(took.wall for took in each), median(took.processor for took in each)
        asked = ASKED if name == "the gate" else ""
        print(f"| {name} | {wall:.2f} | {processor:.2f} | {processor / first:.2f} | {asked} |")


if __name__ == "__main__":
    main()
