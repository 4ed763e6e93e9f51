"""Two ONNX files beside onnx-tool and beside reading and inferring shapes alone; time and MACs.

DenseNet-121 has many nodes (1,746) and no weights; AlexNet has few nodes and 244 MB of weights
inside. Tools take turns, and nothing counts imports: every tool has read a file before.
"""

from __future__ import annotations

import argparse
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
ASKED_MS = {"densenet121": 100, "alexnet": 500}  # of this project, in milliseconds
OURS = "this project, all metrics"


def our_count(path: Path) -> int | None:
    """MACs of a file that was measured by every metric."""
    model = measure_model(ModelSource("onnx", str(path)), TABLES, root=path.parent)
    if model.failure:
        raise model.failure
    macs = model.measurements["macs"]
    return int(macs.value) if macs.complete else None


def onnx_tool_count(path: Path) -> int | None:
    """onnx-tool's shape inference and profile, its one number."""
    from onnx_tool import Model

    graph = Model(str(path)).graph
    graph.shape_infer(None)
    graph.profile()
    return int(graph.macs[0])


def shapes_alone(path: Path) -> None:
    """What every counter must do first, as its documentation says: read, and infer shapes."""
    onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)


TOOLS: Mapping[str, Callable[[Path], int | None]] = {
    OURS: our_count,
    "onnx-tool, MACs": onnx_tool_count,
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


def scoreboard(rounds: int, folder: Path) -> list[str]:
    """Markdown: medians of every tool on both files, and the ratios to this project's."""
    lines = ["| file | tool | ms | times ours | MACs | asked |", "|---|---|---|---|---|---|"]
    for name, path in files(folder).items():
        seconds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
        macs: dict[str, int | None] = {}
        for turn in range(rounds + 1):
            for tool, count in TOOLS.items():
                began = time.perf_counter()
                macs[tool] = count(path)
                if turn:  # the first round imports and fills the page cache
                    seconds[tool].append(time.perf_counter() - began)
        for tool in TOOLS:
            typical = median(seconds[tool])
            asked = f"under {ASKED_MS[name]} ms" if tool == OURS else ""
            number = "" if macs[tool] is None else f"{macs[tool]:,}"
            ratio = typical / median(seconds[OURS])
            lines.append(f"| {name} | {tool} | {1000 * typical:.0f} | {ratio:.1f} | {number} | {asked} |")
    return lines


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="medians are over these (default 5)")
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(scoreboard(parser.parse_args().rounds, Path(folder))))


if __name__ == "__main__":
    main()
