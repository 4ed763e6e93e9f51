"""What a deployment adds to measuring MobileNetV2, and how long arenas and orders of large programs take.

Both sides of a pair run in turns, in one process: measuring as it is written, then lowered, placed in an arena and
counted on an array of multipliers. Nothing counts imports, and what else the machine does counts nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from pytest_modelbudget.deployment.arena import Buffer, buffers_of, planned
from pytest_modelbudget.deployment.array import Array, counts
from pytest_modelbudget.deployment.order import best_order
from pytest_modelbudget.deployment.products import products
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.measuring import CostedModel, costed_model
from pytest_modelbudget.graph.graph import Graph, Lifetime
from pytest_modelbudget.lowering.lowered import Lowering, lowered
from pytest_modelbudget.registry import tables

TABLES, HERE = tables(), Path.cwd()
BUFFERS, LONGEST = 100_000, 40
ARRAY = Array(64, 64)
BRANCHED = ("googlenet", "densenet121", "inception_v3", "squeezenet1_1")


def seconds(act: Callable[[], object]) -> float:
    """Seconds of the processor that one call takes: others share the machine."""
    began = time.process_time()
    act()
    return time.process_time() - began


def measured(name: str) -> CostedModel:
    """A classifier of torchvision, with every metric."""
    size = 299 if name == "inception_v3" else 224
    inputs = InputSpecs((TensorSpec("float32", (1, 3, size, size)),))
    return costed_model(ModelSource("torch", f"torchvision.models:{name}", inputs), TABLES, root=HERE)


def on_a_device(model: CostedModel) -> Graph:
    """Lower to int8, place the activations, count the array."""
    graph = lowered(model.costed.graph, model.costed.rules, Lowering(dtype="int8")).graph
    planned(buffers_of(graph))
    counts([product for op in graph.ops for product in products(op, model.costed.rules)], ARRAY)
    return graph


def many_buffers() -> list[Buffer]:
    """As a long program has them: each lives for a few of its operations."""
    random = Random(0)
    lives = (Lifetime(first, first + random.randint(1, LONGEST)) for first in range(BUFFERS))
    return [Buffer(str(life.first), 16 * random.randint(1, 1000), life) for life in lives]


def scoreboard(rounds: int) -> list[str]:
    """Markdown: medians, with a verdict that must be "within"."""
    model = measured("mobilenet_v2")  # imports and first calls are not counted
    on_a_device(model)
    plain, added = [], []
    for _ in range(rounds):
        plain.append(seconds(lambda: measured("mobilenet_v2")))
        added.append(seconds(lambda: on_a_device(model)))
    share, buffers = median(added) / median(plain), many_buffers()
    placing = seconds(lambda: planned(buffers))
    lines = [
        "| what | seconds | target | |",
        "|---|---|---|---|",
        f"| MobileNetV2, measured | {median(plain):.3f} | | |",
        f"| lowered, arena and array beside it | {median(added):.3f} | {share:.0%} < 50% | {verdict(share < 0.5)} |",
        f"| an arena of {BUFFERS:,} buffers | {placing:.1f} | < 10 | {verdict(placing < 10)} |",
    ]
    for name in BRANCHED:
        graph = on_a_device(measured(name))
        took = seconds(lambda graph=graph: best_order(graph))  # type: ignore[misc]  # bound now
        lines.append(f"| best order of {name} | {took:.2f} | < 10 | {verdict(took < 10)} |")
    return lines


def verdict(within: bool) -> str:
    """The word of the last column."""
    return "within" if within else "**over**"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    print("\n".join(scoreboard(parser.parse_args().rounds)))
