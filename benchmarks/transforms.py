"""AlexNet's linear layers in 64x64 tiles: seconds to verify them, beside AlexNet's own runs.

Verifying is both steps over four families and three seeds, as a budget's ``exact_algebra`` does;
what it is compared with is the least that any verification must run: the original alone, in both
types, on as many rows. Applying and measuring stand apart. Nothing counts imports.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torchvision

from pytest_modelbudget.equivalence.claim import SEEDS, Claim
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables

TABLES = tables()
FILE = Path(__file__).parents[1] / "budgets" / "models" / "alexnet.onnx"
FAMILIES, SHAPE = 4, (1, 3, 224, 224)
TORCH = ModelSource("torch", "torchvision.models:alexnet", InputSpecs((TensorSpec("float32", SHAPE),)))
ONNX = ModelSource("onnx", str(FILE), dims={"batch": 1})
# (what is tiled, its source, its form, seconds that are asked for)
CASES = (
    ("torch", TORCH, "unrolled", 6),
    ("ONNX, batched", ONNX, "batched", 10),
    ("ONNX, unrolled", ONNX, "unrolled", 10),
)


def seconds(act: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def plain_runs() -> None:
    """AlexNet on the rows of all families and seeds, in float32 and in float64."""
    model = torchvision.models.alexnet().eval()
    rows = torch.randn(len(SEEDS), *SHAPE[1:])
    with torch.inference_mode():
        for _ in range(FAMILIES):
            model(rows)
        model.double()
        for _ in range(FAMILIES):
            model(rows.double())


def scoreboard(rounds: int) -> list[str]:
    """Markdown: medians, with a verdict that must be "within"."""
    plain_runs()
    own = median(seconds(plain_runs) for _ in range(rounds))
    lines = [
        "| tiled | apply, measure (s) | verify (s) | asked (s) | times own runs | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, source, form, asked in CASES:
        settings = {"tile": (None, 64, 64), "edge": "ragged", "form": form, "layers": ("*",)}
        applied = [timed(source, settings) for _ in range(rounds + 1)][1:]
        first, second = (median(each[i] for each in applied) for i in (0, 1))
        lines.append(f"| {name} | {first:.1f} | {second:.1f} | {asked} | {second / own:.1f} | {applied[-1][2]} |")
    return lines


def timed(source: ModelSource, settings: dict[str, object]) -> tuple[float, float, str]:
    """Seconds to apply and measure, seconds to verify, and the outcome."""
    began = time.perf_counter()
    applied = apply_transform(source, "tile_linear", settings, TABLES)
    assert applied.changed.model.graph.ops
    middle = time.perf_counter()
    found = applied.verify(Claim())
    return middle - began, time.perf_counter() - middle, found.outcome.value


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these (default 3)")
    print("\n".join(scoreboard(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
