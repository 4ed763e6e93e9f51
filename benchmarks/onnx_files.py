"""Two ONNX files beside other tools, and beside reading and inferring shapes alone: time, and what each one gives.

DenseNet-121 has many nodes (1,746) and no weights; AlexNet has few nodes and 244 MB of weights
inside. Tools take turns, and nothing counts imports: every tool has read a file before. One that
is not installed, or that fails on a file, has no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import onnx
from onnx import numpy_helper

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.registry import tables

TABLES = tables()
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ASKED_MS = {"densenet121": 40, "alexnet": 500}  # of this project, in milliseconds
OURS = "this project, all metrics"


def our_count(path: Path) -> str:
    """What stands in the row of a file that was measured by every metric."""
    model = measure_model(ModelSource("onnx", str(path)), TABLES, root=path.parent)
    if model.failure:
        raise model.failure
    macs, peak = (model.measurements[key] for key in ("macs", "peak_activation"))
    if not macs.complete or not peak.complete:
        raise ValueError(f"{path.name} has operations that are not known")
    return f"{int(macs.value):,} MACs, {int(peak.value):,} B at the peak"


def onnx_tool_count(path: Path) -> str:
    """onnx-tool's shape inference and profile, its one number."""
    from onnx_tool import Model

    graph = Model(str(path)).graph
    graph.shape_infer(None)
    graph.profile()
    return f"{int(graph.macs[0]):,} MACs"


def mcufit_peak(path: Path) -> str:
    """mcufit's largest sum of live activations, by its own reading of ONNX; its runtime takes other files."""
    from mcufit.estimation.greedy import GreedyLifetimeEstimator
    from mcufit.parsing.onnx_parser import OnnxModelParser

    estimate = GreedyLifetimeEstimator().estimate(OnnxModelParser().parse(path))
    return f"{estimate.peak_activation_bytes:,} B at the peak"


def onnxsim_nodes(path: Path) -> str:
    """The nodes that onnxsim leaves: it folds constants and infers shapes, and counts nothing else."""
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.load(path))
    return f"{len(simplified.graph.node):,} nodes"


def shapes_alone(path: Path) -> str:
    """What every counter must do first, as its documentation says: read, and infer shapes."""
    onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    return ""


TOOLS: Mapping[str, Callable[[Path], str]] = {
    OURS: our_count,
    "onnx-tool, MACs": onnx_tool_count,
    "mcufit, peak memory": mcufit_peak,
    "onnxsim, simplifying": onnxsim_nodes,
    "onnx.load and infer_shapes": shapes_alone,
}


def with_weights_inside(light: onnx.ModelProto) -> onnx.ModelProto:
    """A light model whose ConstantOfShape nodes have become stored zeros."""
    shapes = {each.name: numpy_helper.to_array(each) for each in light.graph.initializer}
    nodes = list(light.graph.node)
    light.graph.ClearField("node")
    for node in nodes:
        if node.op_type != "ConstantOfShape":
            light.graph.node.append(node)
            continue
        sizes = [int(size) for size in shapes[node.input[0]]]
        stored = light.graph.initializer.add(name=node.output[0], data_type=1, dims=sizes)
        stored.raw_data = bytes(4 * int(shapes[node.input[0]].prod()))
    light.ir_version = max(light.ir_version, 4)  # from 4 on, stored tensors need not be inputs
    return light


def files(folder: Path) -> dict[str, Path]:
    """The two files, written or as the wheel of onnx ships them."""
    alexnet = folder / "alexnet.onnx"
    light = onnx.load(LIGHT / "light_bvlc_alexnet.onnx")
    alexnet.write_bytes(with_weights_inside(light).SerializeToString())
    return {"densenet121": LIGHT / "light_densenet121.onnx", "alexnet": alexnet}


def silently(count: Callable[[Path], str], path: Path) -> str | None:
    """What a tool gives; None where it is not installed or fails on a file."""
    if count is our_count:
        return our_count(path)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return count(path)
    except Exception:  # noqa: BLE001  # a peer may raise anything: a row without figures
        return None


def scoreboard(rounds: int, folder: Path) -> list[str]:
    """Markdown: medians of every tool on both files, and the ratios to this project's."""
    lines = ["| file | tool | ms | times ours | gives | target |", "|---|---|---|---|---|---|"]
    for name, path in files(folder).items():
        seconds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
        gives: dict[str, str | None] = {}
        for turn in range(rounds + 1):
            for tool, count in TOOLS.items():
                began = time.perf_counter()
                gives[tool] = silently(count, path)
                if turn:  # the first round imports and fills the page cache
                    seconds[tool].append(time.perf_counter() - began)
        for tool, given in gives.items():
            typical = median(seconds[tool])
            asked = f"under {ASKED_MS[name]} ms" if tool == OURS else ""
            figures = f"{1000 * typical:.0f} | {typical / median(seconds[OURS]):.1f} | {given}"
            lines.append(f"| {name} | {tool} | {'- | - | none' if given is None else figures} | {asked} |")
    return lines


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="medians are over these (default 5)")
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(scoreboard(parser.parse_args().rounds, Path(folder))))


if __name__ == "__main__":
    main()
