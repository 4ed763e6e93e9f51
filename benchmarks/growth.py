"""Deep networks of 1,000, 10,000 and 100,000 operators: time and memory of metrics, reports and a page's content.

Every depth is a process of its own, which counts its processor's seconds and its memory at its peak, less what its
imports took. Prints Markdown, and draws the seconds and the memory. Linux only: memory is read in /proc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.verdict import judge
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.gate.process_state import collection_paused
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports import build, junit, markdown, record
from pytest_modelbudget.reports.html import page
from pytest_modelbudget.reports.html.profile import profile

WIDTH = 16
DEPTHS = (1_000, 10_000, 100_000)
ASKED = 11  # times as much for ten times the depth
LIMITS = ("params", "macs", "peak_activation", "bandwidth")
RENDERERS = {"JSON": record.report_text, "JUnit": junit.render, "Markdown": markdown.render, "page": page.render}
STAGES = ("metrics", "page content", "record", *RENDERERS)


def torch_layers(depth: int) -> Any:
    """Linear and ReLU by turns."""
    from torch import nn

    return nn.Sequential(*(nn.ReLU() if at % 2 else nn.Linear(WIDTH, WIDTH, device="meta") for at in range(depth)))


def torch_source(depth: int, folder: Path) -> ModelSource:
    """Layers of neurons as a module."""
    return ModelSource("torch", torch_layers, InputSpecs((TensorSpec("float32", (1, WIDTH)),)), kwargs={"depth": depth})


def onnx_layers(depth: int) -> tuple[list[Any], list[Any]]:
    """Gemm and Relu by turns: nodes and weights."""
    from onnx import TensorProto, helper

    nodes, weights = [], []
    for at in range(depth):
        if at % 2:
            nodes.append(helper.make_node("Relu", [f"v{at}"], [f"v{at + 1}"], f"/{at}/Relu"))
            continue
        weight = TensorProto(name=f"{at}.weight", dims=(WIDTH, WIDTH), data_type=TensorProto.FLOAT)
        weight.raw_data = bytes(4 * WIDTH * WIDTH)
        weights.append(weight)
        nodes.append(helper.make_node("Gemm", [f"v{at}", weight.name], [f"v{at + 1}"], f"/{at}/Gemm"))
    return nodes, weights


def onnx_sizes(depth: int) -> tuple[list[Any], list[Any]]:
    """Blocks of Shape, Gather, Unsqueeze, Concat, Reshape and Relu, whose shapes the file does not say."""
    from onnx import helper

    constants = {"zero": 0, "axis": [0], "rest": [-1]}
    stored = [
        helper.make_tensor(
            name, 7, (1,) if isinstance(value, list) else (), value if isinstance(value, list) else [value]
        )
        for name, value in constants.items()
    ]
    nodes = []
    for at in range(depth // 6):
        x, y = f"v{at}", f"v{at + 1}"
        parts = (
            ("Shape", [x], "a"), ("Gather", ["a", "zero"], "b"), ("Unsqueeze", ["b", "axis"], "c"),
            ("Concat", ["c", "rest"], "d"), ("Reshape", [x, "d"], "e"), ("Relu", ["e"], y),
        )  # fmt: skip
        for operator, read, made in parts:
            names = [f"{name}{at}" if name in "abcde" else name for name in (*read, made)]
            more = {"axis": 0} if operator == "Concat" else {}
            nodes.append(helper.make_node(operator, names[:-1], names[-1:], f"/{at}/{operator}", **more))
    return nodes, stored


def onnx_source(depth: int, folder: Path, made: Callable[[int], tuple[list[Any], list[Any]]]) -> ModelSource:
    """A file of these nodes."""
    from onnx import helper

    nodes, stored = made(depth)
    x, y = (
        helper.make_tensor_value_info("v0", 1, [1, WIDTH]),
        helper.make_tensor_value_info(nodes[-1].output[0], 1, None),
    )
    model = helper.make_model(
        helper.make_graph(nodes, "deep", [x], [y], stored), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 8
    path = folder / "deep.onnx"
    path.write_bytes(model.SerializeToString())
    return ModelSource("onnx", str(path))


NETWORKS: Mapping[str, tuple[str, Callable[[int, Path], ModelSource]]] = {
    "torch, layers": ("torch", torch_source),
    "ONNX, layers": ("onnx", lambda depth, folder: onnx_source(depth, folder, onnx_layers)),
    "ONNX, shape arithmetic": ("onnx", lambda depth, folder: onnx_source(depth, folder, onnx_sizes)),
}


class Stopwatch:
    """Seconds of the processor, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add what the block takes to a stage."""
        began = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - began


def held_mb(what: str) -> float:
    """Memory of this process: VmRSS as it is now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024


def grown(network: str, depth: int) -> dict[str, float]:
    """Seconds of each stage of a network, and its memory in MB."""
    framework, source_of = NETWORKS[network]
    import_module(framework)
    registry, watch = tables(), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(depth, Path(folder))
        before = held_mb("VmRSS")

        def page_content(*parts: Any) -> str:
            with watch.time("page content"):
                return profile(*parts)

        with watch.time("metrics"):
            model = measure_model(source, registry, root=Path(folder), profile=page_content)
    if model.failure:
        raise model.failure
    watch.seconds["metrics"] -= watch.seconds["page content"]
    with watch.time("record"), collection_paused():
        report = recorded(model, registry.metrics)
    for stage, render in RENDERERS.items():
        with watch.time(stage), collection_paused():
            render(report)
    return {**watch.seconds, "MB": held_mb("VmHWM") - before}


def recorded(model: Any, metrics: Mapping[str, Metric]) -> record.Report:
    """The record of a run with limits on this model alone."""
    name, place = "model-budget.yaml::deep", Place("model-budget.yaml", 1)
    whole, measured = build.Assembly(), build.model_report(name, place, model)
    for metric in LIMITS:
        verdict = judge(Limit(metric, place, max=1), model.measurements[metric])
        check = build.check_report(f"{name}::{metric}", verdict, metrics)
        whole.add(build.Statement(check=check, model=measured))
    return whole.report(build.session_report())


def in_process(network: str, depth: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", network, str(depth)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def scoreboard(depths: Sequence[int]) -> tuple[list[str], dict[str, list[dict[str, float]]]]:
    """Markdown: seconds of each stage, all together, and memory; each beside its growth; and the figures."""
    columns = (*STAGES, "all", "MB")
    lines = [f"| network | operators | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    figures: dict[str, list[dict[str, float]]] = {}
    for network in NETWORKS:
        figures[network] = [in_process(network, depth) for depth in depths]
        for depth, seen in zip(depths, figures[network], strict=True):
            seen["all"] = sum(seen[stage] for stage in STAGES)
            lines.append(f"| {network} | {depth:,} | " + " | ".join(f"{seen[each]:.2f}" for each in columns) + " |")
        for (small, large), (less, more) in zip(pairwise(depths), pairwise(figures[network]), strict=True):
            allowed = ASKED * large / (10 * small)
            ratios = {each: more[each] / max(less[each], 0.005) for each in columns}
            cells = (f"**{ratio:.1f}**" if ratio > allowed else f"{ratio:.1f}" for ratio in ratios.values())
            lines.append(f"| {network} | {small:,} → {large:,} | " + " | ".join(cells) + " |")
    return lines, figures


# The picture.

SIDE, MARGIN = 300, 50
COLOURS = ("#1b6ca8", "#c8553d", "#588157")


def plot(depths: Sequence[int], figures: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Seconds and MB by depth as SVG, both axes logarithmic, with lines of what grows as the depth does."""
    panels = [
        panel(
            depths,
            {name: [seen[each] for seen in rows] for name, rows in figures.items()},
            title,
            at * (SIDE + 2 * MARGIN),
        )
        for at, (each, title) in enumerate((("all", "seconds"), ("MB", "MB")))
    ]
    width, height = 2 * (SIDE + 2 * MARGIN), SIDE + 2 * MARGIN
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *panels, "</svg>", ""])


def panel(depths: Sequence[int], rows: Mapping[str, Sequence[float]], title: str, left: int) -> str:
    """One quantity of every network by depth."""
    values = [value for series in rows.values() for value in series]
    low, high = int(log10(min(values)) // 1), -int(-log10(max(values)) // 1)
    first, last = log10(min(depths)), log10(max(depths))

    def place(depth: float, value: float) -> str:
        x = left + MARGIN + SIDE * (log10(depth) - first) / (last - first)
        return f"{x:.1f},{MARGIN + SIDE * (high - log10(value)) / (high - low):.1f}"

    def text(at: str, words: str, anchor: str = "middle", colour: str = "black") -> str:
        x, y = at.split(",")
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    drawn = [text(f"{left + MARGIN + SIDE / 2},{MARGIN / 2}", f"{title} by number of operators")]
    for power in range(low, high + 1):
        x, y = place(depths[0], 10.0**power).split(",")
        drawn.append(f'<path d="M{x},{y} h{SIDE}" stroke="#ddd"/>')
        drawn.append(text(f"{float(x) - 5:.1f},{y}", f"{10.0**power:g}", "end"))
    for depth in depths:
        x = place(depth, 1).split(",")[0]
        drawn.append(text(f"{x},{MARGIN + SIDE + 18}", f"{depth:,}"))
    for (name, series), colour in zip(rows.items(), COLOURS, strict=True):
        points = [place(depth, value) for depth, value in zip(depths, series, strict=True)]
        linear = [place(depth, series[0] * depth / depths[0]) for depth in (depths[0], depths[-1])]
        drawn.append(f'<polyline points="{" ".join(linear)}" fill="none" stroke="{colour}" stroke-dasharray="2 4"/>')
        drawn.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(text(f"{left + MARGIN + 10},{MARGIN + 15 + 15 * COLOURS.index(colour)}", name, "start", colour))
    return "\n".join(drawn)


def main() -> None:
    """Print the table as Markdown, and draw it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="numbers of operators")
    parser.add_argument("--plot", type=Path, help="where the picture goes, an SVG file")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "DEPTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(grown(options.one[0], int(options.one[1]))))
        return
    lines, figures = scoreboard(options.depths)
    print("\n".join(lines))
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(plot(options.depths, figures), encoding="utf-8")


if __name__ == "__main__":
    main()
