"""Linear layers of AlexNet and ViT-B/16 in 64x64 tiles: seconds to verify them, beside the networks' own runs.

Verifying is both steps over four families and three seeds, as a budget's ``exact_algebra`` does;
what it is compared with is the least that any verification must run: the original alone, in both
types, on as many rows. Applying and measuring stand apart. Nothing counts imports.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torchvision

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import SEEDS, Claim
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables

TABLES = tables()
FILE = Path(__file__).parents[1] / "budgets" / "models" / "alexnet.onnx"
FAMILIES, SHAPE = 4, (1, 3, 224, 224)
ONNX = ModelSource("onnx", str(FILE), dims={"batch": 1})


def torch_source(name: str) -> ModelSource:
    """A classifier of torchvision on one image."""
    return ModelSource("torch", f"torchvision.models:{name}", InputSpecs((TensorSpec("float32", SHAPE),)))


# (what is tiled, its source, its form, torchvision's name of it, seconds that are asked for)
CASES = (
    ("AlexNet, torch", torch_source("alexnet"), "unrolled", "alexnet", 3),
    ("AlexNet, ONNX, batched", ONNX, "batched", "alexnet", 2.5),
    ("AlexNet, ONNX, unrolled", ONNX, "unrolled", "alexnet", 10),
    ("ViT-B/16, torch", torch_source("vit_b_16"), "unrolled", "vit_b_16", 25),
)


def seconds(act: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def plain_runs(name: str) -> None:
    """A network on the rows of all families and seeds, in float32 and in float64."""
    model = torchvision.models.get_model(name).eval()
    rows = torch.randn(len(SEEDS), *SHAPE[1:])
    with torch.inference_mode():
        for _ in range(FAMILIES):
            model(rows)
        model.double()
        for _ in range(FAMILIES):
            model(rows.double())


def scoreboard(rounds: int) -> list[str]:
    """Markdown: medians, with a verdict that must be "within"."""
    lines = [
        "| tiled | apply, measure (s) | verify (s) | target (s) | times own runs | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for what, source, form, name, asked in CASES:
        settings = {"tile": (None, 64, 64), "edge": "ragged", "form": form, "layers": ("*",)}
        turns = [(timed(source, settings), seconds(partial(plain_runs, name))) for _ in range(rounds + 1)]
        applied, own = zip(*turns[1:], strict=True)  # the first turn imports
        first, second = (median(each[i] for each in applied) for i in (0, 1))
        times = second / median(own)
        lines.append(f"| {what} | {first:.1f} | {second:.1f} | {asked} | {times:.1f} | {applied[-1][2]} |")
    return lines


def timed(source: ModelSource, settings: dict[str, object]) -> tuple[float, float, str]:
    """Seconds to apply and measure, seconds to verify, and the outcome."""
    began = time.perf_counter()
    applied = apply_transform(source, Transformation("tile_linear", settings), TABLES)
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
