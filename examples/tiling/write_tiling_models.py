"""Write AlexNet and one linear layer as ONNX files, with their twins in 64x64 tiles; no torch.

AlexNet is built node by node (61,100,840 parameters), its weights drawn: conv 3→64, 11x11, stride
4; 64→192, 5x5; 192→384; 384→256; 256→256, all 3x3; linear 9216→4096→4096→1000.
Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014.

The twin's three linear layers are 9,216 + 4,096 + 1,024 products, in 28,554 nodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget.cli.command import main as modelbudget

FOLDER = Path(__file__).resolve().parents[2] / "budgets" / "models"
# Module path, (outputs, inputs, kernel), stride, padding, and whether a 3x3 max-pool follows.
CONVOLUTIONS = (
    ("features.0", (64, 3, 11), 4, 2, True),
    ("features.3", (192, 64, 5), 1, 2, True),
    ("features.6", (384, 192, 3), 1, 1, False),
    ("features.8", (256, 384, 3), 1, 1, False),
    ("features.10", (256, 256, 3), 1, 1, True),
)
LINEARS = (("classifier.1", (4096, 9216)), ("classifier.4", (4096, 4096)), ("classifier.6", (1000, 4096)))
OPSET, IR_VERSION = 18, 8


class Network:
    """Nodes and weights, one after the other; x is the last result."""

    def __init__(self, *, drawn: bool) -> None:
        self.x = "input"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self._generator = np.random.default_rng(0) if drawn else None

    def node(self, operator: str, scope: str, *weights: str, **attributes: object) -> None:
        """One node in a module's path."""
        name = f"/{scope.replace('.', '/')}/{operator}"
        result = f"{name}_output"
        self.nodes.append(helper.make_node(operator, [self.x, *weights], [result], name, **attributes))
        self.x = result

    def layer(self, operator: str, scope: str, shape: tuple[int, ...], **attributes: object) -> None:
        """A node with a weight of that shape, and a bias for each of its first axis."""
        names = f"{scope}.weight", f"{scope}.bias"
        for name, sizes in zip(names, (shape, shape[:1]), strict=True):
            self.weights.append(self._weight(name, sizes))
        self.node(operator, scope, *names, **attributes)

    def _weight(self, name: str, shape: tuple[int, ...]) -> TensorProto:
        """Values from N(0, 1/√fan_in) or N(0, 0.1), or none: as if they lay in a file beside."""
        if self._generator is None:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights.bin")
            return tensor
        values = self._generator.standard_normal(shape, np.float32)
        scale = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1
        return numpy_helper.from_array(values * np.float32(scale), name)


def alexnet(*, drawn: bool) -> onnx.ModelProto:
    """AlexNet for any batch of 3x224x224, with drawn weights or with none in the file."""
    net = Network(drawn=drawn)
    for scope, (outputs, inputs, kernel), stride, padding, pooled in CONVOLUTIONS:
        window = {"strides": [stride] * 2, "pads": [padding] * 4}
        net.layer("Conv", scope, (outputs, inputs, kernel, kernel), **window)
        net.node("Relu", _next(scope, 1))
        if pooled:
            net.node("MaxPool", _next(scope, 2), kernel_shape=[3, 3], strides=[2, 2])
    net.node("AveragePool", "avgpool", kernel_shape=[1, 1])
    net.node("Flatten", "flatten")
    for scope, shape in LINEARS:
        net.layer("Gemm", scope, shape, transB=1)
        if shape[0] > 1000:
            net.node("Relu", _next(scope, 1))
    graph = helper.make_graph(net.nodes, "alexnet", [_value("input", 3, 224, 224)], [], net.weights)
    net.nodes[-1].output[0] = "output"
    del graph.node[:]
    graph.node.extend(net.nodes)
    graph.output.append(_value("output", 1000))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = IR_VERSION
    return made


def _next(scope: str, steps: int) -> str:
    """The module some places behind one: features.0 → features.2."""
    parent, _, position = scope.rpartition(".")
    return f"{parent}.{int(position) + steps}"


def _value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def write_tiling_models(folder: Path, *, drawn: bool) -> Mapping[str, Path]:
    """Write alexnet.onnx and linear.onnx, and the twins of what has weights."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.onnx" for name in ("alexnet", "linear")}
    paths["alexnet"].write_bytes(alexnet(drawn=drawn).SerializeToString())
    sizes = ["--m", "128", "--k", "128", "--n", "128"]
    run("lab", "linear", *sizes, "--out", str(paths["linear"]))
    for name in ("alexnet", "linear") if drawn else ("linear",):
        paths[f"{name}_tiled"] = folder / f"{name}_tiled.onnx"
        run("lab", "tile", str(paths[name]), "--out", str(paths[f"{name}_tiled"]))
    return paths


def run(*words: str) -> None:
    """One modelbudget command, which must succeed."""
    code = modelbudget(words)
    if code:
        raise SystemExit(code)


def main() -> None:
    """Write the files into budgets/models, or into the folder that is given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--drawn", action="store_true", help="AlexNet with drawn weights, and its twin (500 MB)")
    options = parser.parse_args()
    for path in write_tiling_models(options.folder, drawn=options.drawn).values():
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
