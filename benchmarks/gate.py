"""The gate of 21 torchvision models as a whole process, compared with its imports and with a test that counts FLOPs.

Commands take turns, each in a process of its own with bytecode written; a figure is the median of all turns.

- The gate checks 105 limits: params, weight_memory, macs, peak_activation and bandwidth of each model. It may take 1.5
  times (better: 1.3 times) as long as `python -c "import torch, torchvision"` and `pytest --version` together.
- The test is the file that a user would write without this project: it builds each model with torch's initialisation,
  and counts a forward pass on a random image of the same size with FlopCounterMode. It should take at least 2.2 times
  as long as the gate.

Both ratios are of wall time: a forward pass runs on all cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from one_model import ENVIRONMENT, Took
from vs_peers import MODELS, published

GATE, TEST, IMPORTS = "the gate", "FlopCounterMode in a test", ("import torch, torchvision", "pytest --version")
MOST_OF_IMPORTS, LEAST_OF_TEST = 1.5, 2.2
LIMITS = "{params: 1 G, weight_memory: 4 GB, macs: 1 T, peak_activation: 1 GB, bandwidth: 1 TB}"
COUNTING = """import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode


@pytest.mark.parametrize(("name", "size"), {sizes})
def test_macs(name, size):
    with torch.no_grad():
        model = torchvision.models.get_model(name).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.rand(1, 3, size, size))
    assert counter.get_total_flops() / 2 <= 10**12
"""
COMMANDS: Mapping[str, Sequence[str]] = {
    IMPORTS[0]: ("-c", IMPORTS[0]),
    IMPORTS[1]: ("-m", "pytest", "--version"),
    GATE: ("-m", "pytest", "--model-budget", "budget.yaml"),
    TEST: ("-m", "pytest", "test_macs.py"),
}


def write_project(folder: Path, names: Sequence[str]) -> None:
    """Write a budget and a test over the same models, at the size of their published weights."""
    sizes = [(name, published(name).size) for name in names]
    models = (
        f'  {name}: {{torch: "torchvision.models:{name}", inputs: float32 1x3x{size}x{size}, limits: {LIMITS}}}'
        for name, size in sizes
    )
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "budget.yaml").write_text("\n".join(("model_budget: 1", "models:", *models, "")), encoding="utf-8")
    (folder / "test_macs.py").write_text(COUNTING.format(sizes=sizes), encoding="utf-8")


def took(folder: Path, words: Sequence[str]) -> Took:
    """Time one process in a folder. Raises SystemExit, with its output, where it fails."""
    before = os.times()
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    after = os.times()
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(after.elapsed - before.elapsed, spent)


def measured(names: Sequence[str], repeats: int) -> dict[str, Took]:
    """Run the commands in turns; the medians of each."""
    taken: dict[str, list[Took]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        write_project(Path(scratch), names)
        for turn in range(repeats + 1):
            for name, words in COMMANDS.items():
                each = took(Path(scratch), words)
                if turn:  # the first writes the bytecode
                    taken[name].append(each)
    return {
        name: Took(median(each.wall for each in turns), median(each.processor for each in turns))
        for name, turns in taken.items()
    }


def main() -> None:
    """Print medians, and both ratios next to their targets, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="turns of all commands (5)")
    parser.add_argument("--models", nargs="+", default=MODELS.split(), help="torchvision names")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: 1 or more")
    taken = measured(options.models, options.repeats)
    print(f"| whole process, {len(options.models)} models | wall (s) | processor (s) |\n|---|---|---|")
    for name, each in taken.items():
        print(f"| {name} | {each.wall:.2f} | {each.processor:.2f} |")
    gate = taken[GATE].wall
    of_imports, of_test = gate / sum(taken[name].wall for name in IMPORTS), taken[TEST].wall / gate
    print("\n| ratio of wall times | measured | target | |\n|---|---|---|---|")
    for what, ratio, asked, is_kept in (
        (
            "the gate ÷ imports and `pytest --version`",
            of_imports,
            f"≤ {MOST_OF_IMPORTS}",
            of_imports <= MOST_OF_IMPORTS,
        ),
        ("FlopCounterMode in a test ÷ the gate", of_test, f"≥ {LEAST_OF_TEST}", of_test >= LEAST_OF_TEST),
    ):
        print(f"| {what} | {ratio:.2f} | {asked} | {'met' if is_kept else '**missed**'} |")


if __name__ == "__main__":
    main()
