"""Write the ONNX files that budgets/onnx.yaml measures, without torch and without weights.

Nine real architectures come with onnx itself, their weights made by ConstantOfShape nodes: these
become stored tensors whose data would lie in a file beside, which is not written and not missed.
MobileNetV2 and a small int8 network are built here, node by node.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parents[1] / "budgets" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
# MobileNetV2's inverted residuals: expansion, channels, repeats, first stride.
# Source: Sandler et al., MobileNetV2, 2018, table 2.
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
OPSET = 17


def weightless(name: str, *shape: int, code: int = TensorProto.FLOAT) -> TensorProto:
    """A stored tensor whose data would lie in another file."""
    tensor = TensorProto(name=name, data_type=code, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def with_stored_weights(light: onnx.ModelProto) -> onnx.ModelProto:
    """A light model whose ConstantOfShape nodes have become stored tensors."""
    shapes = {each.name: numpy_helper.to_array(each) for each in light.graph.initializer}
    made = [node for node in light.graph.node if node.op_type == "ConstantOfShape"]
    rest = [node for node in light.graph.node if node.op_type != "ConstantOfShape"]
    weights = [weightless(node.output[0], *map(int, shapes[node.input[0]])) for node in made]
    spent = {node.input[0] for node in made} - {name for node in rest for name in node.input}
    graph = light.graph
    stored = [each for each in graph.initializer if each.name not in spent]
    inputs = [value for value in graph.input if value.name not in spent]
    for field, kept in (("node", rest), ("initializer", [*stored, *weights]), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(kept)
    light.ir_version = max(light.ir_version, 4)  # from 4 on, stored tensors need not be inputs
    return light


class Network:
    """Nodes and stored tensors of a network that grows layer by layer."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def node(self, operator: str, scope: str, *inputs: str, **attributes: object) -> str:
        """One node in a module's path; its result."""
        result = f"{scope}/{operator}"
        path = scope.replace(".", "/")
        self.nodes.append(helper.make_node(operator, inputs, [result], f"/{path}/{operator}", **attributes))
        return result

    def convolution(self, x: str, scope: str, sizes: tuple[int, int, int], *, stride: int = 1, groups: int = 1) -> str:
        """A convolution with a bias; sizes are input channels, output channels and kernel."""
        channels, features, kernel = sizes
        weight, bias = f"{scope}.weight", f"{scope}.bias"
        self.weights.append(weightless(weight, features, channels // groups, kernel, kernel))
        self.weights.append(weightless(bias, features))
        window = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self.node("Conv", scope, x, weight, bias, group=groups, **window)

    def bounded(self, x: str, scope: str) -> str:
        """ReLU6."""
        return self.node("Clip", scope, x, "zero", "six")

    def model(self, result: str, shape: list[int], classes: int) -> onnx.ModelProto:
        """The network from "input" of that shape to one row of classes."""
        given = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
        out = helper.make_tensor_value_info(result, TensorProto.FLOAT, [shape[0], classes])
        graph = helper.make_graph(self.nodes, "network", [given], [out], self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        made.ir_version = 8
        return made


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNetV2 at 224 x 224 with batch norm folded: 3,487,816 parameters, 300,774,272 MACs."""
    net = Network()
    net.weights += [scalar("zero", 0.0), scalar("six", 6.0)]
    x = net.bounded(net.convolution("input", "features.0", (3, 32, 3), stride=2), "features.0")
    channels, position = 32, 0
    for expansion, features, repeats, first in BLOCKS:
        for repeat in range(repeats):
            position += 1
            stride = first if repeat == 0 else 1
            x = residual(net, x, f"features.{position}", (channels, features, expansion, stride))
            channels = features
    x = net.bounded(net.convolution(x, "features.18", (channels, 1280, 1)), "features.18")
    x = net.node("Flatten", "classifier", net.node("GlobalAveragePool", "classifier", x))
    net.weights += [weightless("classifier.weight", 1000, 1280), weightless("classifier.bias", 1000)]
    x = net.node("Gemm", "classifier", x, "classifier.weight", "classifier.bias", transB=1)
    return net.model(x, [1, 3, 224, 224], 1000)


def residual(net: Network, x: str, scope: str, sizes: tuple[int, int, int, int]) -> str:
    """An inverted residual; sizes are input and output channels, expansion and stride."""
    channels, features, expansion, stride = sizes
    hidden = channels * expansion
    inside = x
    if expansion > 1:
        inside = net.convolution(x, f"{scope}.expand", (channels, hidden, 1))
        inside = net.bounded(inside, f"{scope}.expand")
    inside = net.convolution(inside, f"{scope}.depthwise", (hidden, hidden, 3), stride=stride, groups=hidden)
    inside = net.bounded(inside, f"{scope}.depthwise")
    inside = net.convolution(inside, f"{scope}.project", (hidden, features, 1))
    skips = stride == 1 and channels == features
    return net.node("Add", scope, x, inside) if skips else inside


def scalar(name: str, value: float, dtype: str = "float32") -> TensorProto:
    """A stored tensor of rank 0, with its value."""
    import numpy as np

    return numpy_helper.from_array(np.array(value, dtype), name)


def quantised() -> onnx.ModelProto:
    """Three int8 layers 256→128→64→10 behind DequantizeLinear, a scale for each output."""
    net = Network()
    net.weights += [scalar("scale", 0.05), scalar("zero_point", 0, "int8")]
    x, width = "input", 256
    for position, features in enumerate((128, 64, 10)):
        scope = f"layers.{position}"
        names = [f"{scope}.{part}" for part in ("weight", "weight_scale", "bias")]
        net.weights += [
            weightless(names[0], features, width, code=TensorProto.INT8),
            weightless(names[1], features),
            weightless(names[2], features),
        ]
        x = net.node("QuantizeLinear", f"{scope}.input", x, "scale", "zero_point")
        x = net.node("DequantizeLinear", f"{scope}.input", x, "scale", "zero_point")
        weight = net.node("DequantizeLinear", scope, *names[:2], axis=0)
        x, width = net.node("Gemm", scope, x, weight, names[2], transB=1), features
        x = net.node("Relu", scope, x) if features > 10 else x
    return net.model(x, [1, 256], 10)


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """(file name, model) of all that is written."""
    for path in sorted(LIGHT.glob("*.onnx")):
        yield path.name.removeprefix("light_"), with_stored_weights(onnx.load(path))
    yield "mobilenet_v2.onnx", mobilenet_v2()
    yield "int8.onnx", quantised()


def write_onnx_models(folder: Path) -> list[Path]:
    """Write all files and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, model in models():
        paths.append(folder / name)
        paths[-1].write_bytes(model.SerializeToString())
    return paths


def main() -> None:
    """Write the files into budgets/models, or into the folder that is given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for path in write_onnx_models(parser.parse_args().folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
