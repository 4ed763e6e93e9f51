"""Small float networks, and what ONNX Runtime's own quantiser and optimiser make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

OPSET, IR = 17, 9


class Layers:
    """A network that grows layer by layer, its weights drawn; every layer has a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def weight(self, name: str, *shape: int) -> str:
        """A stored tensor of drawn values."""
        values = self._random.standard_normal(shape).astype(np.float32) / 4
        self.stored.append(numpy_helper.from_array(values, name))
        return name

    def sizes(self, name: str, *entries: int) -> str:
        """A stored list of sizes."""
        self.stored.append(numpy_helper.from_array(np.array(entries, np.int64), name))
        return name

    def add(self, operator: str, *operands: str, **attributes: Any) -> str:
        """One node; its result is called like it."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [name], name=name, **attributes))
        return name

    def conv(self, x: str, channels: int, filters: int, kernel: int, groups: int = 1) -> str:
        """A convolution with bias that keeps height and width."""
        place = len(self.nodes)
        weight = self.weight(f"w{place}", filters, channels // groups, kernel, kernel)
        pads, shape = [kernel // 2] * 4, [kernel] * 2
        return self.add(
            "Conv", x, weight, self.weight(f"b{place}", filters), kernel_shape=shape, pads=pads, group=groups
        )

    def model(self, output: str, *shape: int) -> onnx.ModelProto:
        """The model from x to an output, whose shape is worked out."""
        ends = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [onnx.ValueInfoProto(name=output)]]
        graph = helper.make_graph(self.nodes, "net", *ends, self.stored)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        return onnx.shape_inference.infer_shapes(made)


def conv_relu_conv() -> onnx.ModelProto:
    """Conv, Relu, Conv at 1x16x48x48."""
    net = Layers()
    x = net.add("Relu", net.conv("x", 16, 16, 3))
    return net.model(net.conv(x, 16, 16, 3), 1, 16, 48, 48)


def residual() -> onnx.ModelProto:
    """Two convolutions around which a sum goes, a maximum of windows, and a last convolution."""
    net = Layers()
    x = net.add("Relu", net.conv("x", 3, 8, 3))
    inside = net.conv(net.add("Relu", net.conv(x, 8, 8, 3)), 8, 8, 3)
    x = net.add("Relu", net.add("Add", x, inside))
    x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.conv(x, 8, 4, 1), 1, 3, 16, 16)


def depthwise() -> onnx.ModelProto:
    """A depthwise separable convolution, a global mean, and a Gemm."""
    net = Layers()
    x = net.add("Clip", net.conv("x", 8, 8, 3, groups=8), *six(net))
    x = net.add("GlobalAveragePool", net.add("Relu", net.conv(x, 8, 16, 1)))
    x = net.add("Flatten", x)
    return net.model(net.add("Gemm", x, net.weight("w", 10, 16), net.weight("b", 10), transB=1), 1, 8, 12, 12)


def six(net: Layers) -> tuple[str, str]:
    """The bounds of a ReLU6, of rank 0."""
    for name, value in (("zero", 0.0), ("six", 6.0)):
        net.stored.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return "zero", "six"


def branches() -> onnx.ModelProto:
    """Three branches that are put together again, one of them windows' means; a sigmoid at the end."""
    net = Layers()
    means = net.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1] * 4)
    parts = [net.add("Relu", net.conv("x", 4, 6, kernel)) for kernel in (1, 3)]
    x = net.conv(net.add("Concat", *parts, means, axis=1), 16, 4, 1)
    return net.model(net.add("Sigmoid", x), 1, 4, 10, 10)


def attention() -> onnx.ModelProto:
    """One head of attention with biases that are added, its residual, and a product behind them."""
    net = Layers()

    def linear(x: str, name: str, width: int) -> str:
        return net.add("Add", net.add("MatMul", x, net.weight(name, 16, width)), net.weight(f"{name}b", width))

    query, key, value = (linear("x", name, 16) for name in "qkv")
    scores = net.add("Softmax", net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1])), axis=-1)
    mixed = net.add("Reshape", net.add("MatMul", scores, value), net.sizes("sizes", 1, 8, 16))
    return net.model(linear(net.add("Add", linear(mixed, "o", 16), "x"), "f", 32), 1, 8, 16)


NETS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    made.__name__: made for made in (conv_relu_conv, residual, depthwise, branches, attention)
}


class Drawn(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Two drawn inputs, from whose ranges scales are made."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        self._values = iter([{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(2)])

    def get_next(self) -> Any:
        return next(self._values, None)


def quantised_files(
    name: str, folder: Path, *, per_channel: bool = False, extra: Mapping[str, bool] | None = None
) -> Mapping[str, Path]:
    """One network three times: as QDQ, as QOperator, and what ONNX Runtime makes of the QDQ file when it loads it.

    extra are options of the quantiser, such as {"ActivationSymmetric": True}.
    """
    model = NETS[name]()
    files = {form: folder / f"{form}.onnx" for form in ("float", "QDQ", "QOperator", "optimised")}
    onnx.save(model, files["float"])
    shape = tuple(size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim)
    for form in ("QDQ", "QOperator"):
        quantize_static(
            files["float"], files[form], Drawn(shape), quant_format=QuantFormat[form], per_channel=per_channel,
            extra_options=dict(extra or {}),
        )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(files["optimised"])
    options.log_severity_level = 3  # it warns that such a file is for this machine
    onnxruntime.InferenceSession(str(files["QDQ"]), options, providers=["CPUExecutionProvider"])
    return files


def operators(path: Path) -> Iterator[str]:
    """The operators of a file's nodes."""
    return (node.op_type for node in onnx.load(path).graph.node)
