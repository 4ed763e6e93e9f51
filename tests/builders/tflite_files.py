"""TFLite files, written by the schema's own builders: from tensors and operators, or layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import flatbuffers
import numpy as np
import tflite

BITS = {"INT4": 4, "INT8": 8, "UINT8": 8, "INT16": 16, "INT32": 32, "INT64": 64, "FLOAT16": 16, "FLOAT32": 32}
AT_THE_END = 2**40  # where an external buffer begins, until that is known


@dataclass(frozen=True)
class T:
    """A tensor: stored where it has data, or is_stored, which fills it with zeros."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "INT8"
    data: bytes | None = None
    is_stored: bool = False
    scales: int = 0
    axis: int = 0  # of the scales
    scale: float = 0.5
    zero: int = 0
    variable: bool = False
    signature: tuple[int, ...] = ()
    external: bool = False
    scaled_by: int = -1  # the tensor of a scale for each block of 16

    @property
    def content(self) -> bytes:
        nbytes = -(-prod(self.shape) * BITS.get(self.dtype, 8) // 8)
        return self.data or (bytes(nbytes) if self.is_stored else b"")


@dataclass(frozen=True)
class O:  # noqa: E742  # an operator, beside T
    """An operator by its builtin name, or a custom one, or a number; options as the schema names them."""

    name: str | int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: tuple[str, Mapping[str, Any]] | None = None
    custom: str = ""


def _table(b: Any, kind: str, **fields: Any) -> int:
    getattr(tflite, f"{kind}Start")(b)
    for name, value in fields.items():
        if value is not None:
            getattr(tflite, f"{kind}Add{name}")(b, value)
    return int(getattr(tflite, f"{kind}End")(b))


def _ints(b: Any, values: Sequence[int]) -> int:
    return int(b.CreateNumpyVector(np.array(values, np.int32)))


def _offsets(b: Any, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _blocks(b: Any, scales: int) -> int:
    """A BlockwiseQuantization, which is newer than the package: scales, zero points, size of a block."""
    b.StartObject(3)
    for at, number in enumerate((scales, 0, 16)):
        b.PrependInt32Slot(at, number, 0)
    return int(b.EndObject())


@dataclass(frozen=True)
class Graph:
    """One subgraph."""

    tensors: Sequence[T]
    operators: Sequence[O]
    inputs: Sequence[int]
    outputs: Sequence[int]


def tflite_file(*graphs: Graph, metadata: Mapping[str, bytes] | None = None, version: int = 3) -> bytes:
    """The bytes of a file. Tensors of one name and content in several subgraphs share a buffer."""
    content = _written(graphs, metadata or {}, version, AT_THE_END)
    external = [each.content for graph in graphs for each in graph.tensors if each.external]
    if not external:
        return content
    start = -(-len(content) // 16) * 16
    content = _written(graphs, metadata or {}, version, start)
    return content + bytes(start - len(content)) + b"".join(external)


def _written(graphs: Sequence[Graph], metadata: Mapping[str, bytes], version: int, external: int) -> bytes:
    b = flatbuffers.Builder(1 << 16)
    codes: dict[tuple[str | int, str], int] = {}
    buffers, shared = [_table(b, "Buffer")], dict[tuple[str, bytes], int]()

    def buffer(content: bytes, is_external: bool = False) -> int:
        nonlocal external
        if is_external:
            buffers.append(_table(b, "Buffer", Offset=external, Size=len(content)))
            external += len(content)
        else:
            buffers.append(_table(b, "Buffer", Data=b.CreateByteVector(content)))
        return len(buffers) - 1

    subgraphs = []
    for graph in graphs:
        tensors = []
        for each in graph.tensors:
            name, shape, content, number = b.CreateString(each.name), _ints(b, each.shape), each.content, 0
            if content:
                key = (each.name, content)
                number = shared[key] if key in shared else buffer(content, each.external)
                shared[key] = number
            signature = _ints(b, each.signature) if each.signature else None
            scales = b.CreateNumpyVector(np.full(each.scales, each.scale, np.float32)) if each.scales else None
            zeros = b.CreateNumpyVector(np.full(each.scales, each.zero, np.int64)) if each.scales else None
            blocks = _blocks(b, each.scaled_by) if each.scaled_by >= 0 else None
            quantised = (
                _table(
                    b,
                    "QuantizationParameters",
                    Scale=scales,
                    ZeroPoint=zeros,
                    QuantizedDimension=each.axis,
                    DetailsType=2 if blocks else None,
                    Details=blocks,
                )
                if each.scales or blocks
                else None
            )
            tensors.append(
                _table(
                    b, "Tensor", Shape=shape, Type=getattr(tflite.TensorType, each.dtype), Buffer=number, Name=name,
                    Quantization=quantised, IsVariable=each.variable, ShapeSignature=signature,
                )
            )  # fmt: skip
        operators = []
        for op in graph.operators:
            code = codes.setdefault((op.name, op.custom), len(codes))
            inputs, outputs = _ints(b, op.inputs), _ints(b, op.outputs)
            options = _table(b, op.options[0], **op.options[1]) if op.options else None
            kind = getattr(tflite.BuiltinOptions, op.options[0]) if op.options else 0
            operators.append(
                _table(
                    b, "Operator", OpcodeIndex=code, Inputs=inputs, Outputs=outputs, BuiltinOptions=options,
                    BuiltinOptionsType=kind,
                )
            )  # fmt: skip
        parts = {
            "Tensors": _offsets(b, tensors), "Inputs": _ints(b, graph.inputs), "Outputs": _ints(b, graph.outputs),
            "Operators": _offsets(b, operators), "Name": b.CreateString("main"),
        }  # fmt: skip
        subgraphs.append(_table(b, "SubGraph", **parts))
    kept = []
    for word, content in metadata.items():
        name, number = b.CreateString(word), buffer(content)
        kept.append(_table(b, "Metadata", Name=name, Buffer=number))
    written = []
    for name, custom in codes:
        number = getattr(tflite.BuiltinOperator, name) if isinstance(name, str) else name
        text = b.CreateString(custom) if custom else None
        written.append(
            _table(b, "OperatorCode", DeprecatedBuiltinCode=min(number, 127), CustomCode=text, BuiltinCode=number)
        )
    parts = {
        "OperatorCodes": _offsets(b, written), "Subgraphs": _offsets(b, subgraphs), "Buffers": _offsets(b, buffers),
        "Metadata": _offsets(b, kept),
    }  # fmt: skip
    b.Finish(_table(b, "Model", Version=version, **parts), file_identifier=b"TFL3")
    return bytes(b.Output())


@dataclass
class Net:
    """A network in int8, layer by layer; ``x`` is the tensor that the next layer reads."""

    shape: tuple[int, ...]
    dtype: str = "INT8"
    tensors: list[T] = field(default_factory=list)
    operators: list[O] = field(default_factory=list)
    x: int = 0

    def __post_init__(self) -> None:
        self.tensors.append(T("input", self.shape, self.dtype, scales=1))

    def _add(self, name: str, shape: tuple[int, ...], inputs: tuple[int, ...], options: Any = None, **grid: Any) -> int:
        self.tensors.append(T(f"{name.lower()}_{len(self.operators)}", shape, self.dtype, scales=1, **grid))
        self.x = len(self.tensors) - 1
        self.operators.append(O(name, inputs, (self.x,), options))
        return self.x

    def _stored(self, word: str, shape: tuple[int, ...], scales: int, dtype: str = "", axis: int = 0) -> int:
        number = len(self.tensors)
        content = np.random.default_rng(number).integers(0, 255, prod(shape) * (4 if dtype else 1), np.uint8)
        grid = {"scales": scales, "axis": axis, "scale": 0.25 if dtype else 0.5}  # a bias has input's times weight's
        self.tensors.append(T(f"{word}{number}", shape, dtype or self.dtype, content.tobytes(), **grid))
        return number

    def conv(self, filters: int, kernel: int = 1, stride: int = 1) -> int:
        """A convolution with a bias, padded to the same size."""
        n, h, w, c = self.tensors[self.x].shape
        weight = self._stored("w", (filters, kernel, kernel, c), filters)
        inputs = (self.x, weight, self._stored("b", (filters,), filters, "INT32"))
        options = ("Conv2DOptions", {"StrideW": stride, "StrideH": stride})
        return self._add("CONV_2D", (n, -(-h // stride), -(-w // stride), filters), inputs, options)

    def depthwise(self, kernel: int = 3, stride: int = 1) -> int:
        """A depthwise convolution with a bias, padded to the same size."""
        n, h, w, c = self.tensors[self.x].shape
        weight = self._stored("w", (1, kernel, kernel, c), c, axis=3)
        inputs = (self.x, weight, self._stored("b", (c,), c, "INT32"))
        options = ("DepthwiseConv2DOptions", {"StrideW": stride, "StrideH": stride, "DepthMultiplier": 1})
        return self._add("DEPTHWISE_CONV_2D", (n, -(-h // stride), -(-w // stride), c), inputs, options)

    def add(self, other: int) -> int:
        return self._add("ADD", self.tensors[other].shape, (self.x, other), ("AddOptions", {}))

    def mean(self) -> int:
        """The mean of all positions."""
        n, *_, c = self.tensors[self.x].shape
        axes = len(self.tensors)
        self.tensors.append(T("axes", (2,), "INT32", np.array([1, 2], np.int32).tobytes()))
        return self._add("MEAN", (n, c), (self.x, axes), ("ReducerOptions", {}))

    def dense(self, units: int) -> int:
        """A fully connected layer with a bias."""
        n, *sizes = self.tensors[self.x].shape
        weight = self._stored("w", (units, prod(sizes)), 1)
        inputs = (self.x, weight, self._stored("b", (units,), 1, "INT32"))
        return self._add("FULLY_CONNECTED", (n, units), inputs, ("FullyConnectedOptions", {}))

    def softmax(self) -> int:
        grid, options = {"scale": 1 / 256, "zero": -128}, ("SoftmaxOptions", {"Beta": 1.0})
        return self._add("SOFTMAX", self.tensors[self.x].shape, (self.x,), options, **grid)

    def content(self, **more: Any) -> bytes:
        """The file, whose result is that of the last layer."""
        return tflite_file(Graph(self.tensors, self.operators, [0], [self.x]), **more)


def mobilenet_v2(size: int = 224) -> Net:
    """MobileNetV2 of width 1 in int8, batch norms folded: Sandler et al., 2018, table 2."""
    net = Net((1, size, size, 3))
    net.conv(32, 3, 2)
    channels = 32
    for expansion, width, repeats, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for at in range(repeats):
            before, steps = net.x, stride if at == 0 else 1
            if expansion > 1:
                net.conv(channels * expansion)
            net.depthwise(3, steps)
            net.conv(width)
            if steps == 1 and channels == width:
                net.add(before)
            channels = width
    net.conv(1280)
    net.mean()
    net.dense(1000)
    return net


def person_detect() -> Net:
    """MobileNet of width 0.25 on 96x96 grey pixels, two classes, as TFLM's person_detect: Howard et al., 2017."""
    net = Net((1, 96, 96, 1))
    net.conv(8, 3, 2)
    for filters, stride in (
        (16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1),
    ):  # fmt: skip
        net.depthwise(3, stride)
        net.conv(filters)
    net.mean()
    net.dense(2)
    net.softmax()
    return net


def keyword_spotting() -> Net:
    """DS-CNN of MLPerf Tiny: 49x10 features, four blocks of 64 channels, twelve words."""
    net = Net((1, 49, 10, 1))
    weight = net._stored("w", (64, 10, 4, 1), 64)
    bias = net._stored("b", (64,), 64, "INT32")
    net._add("CONV_2D", (1, 25, 5, 64), (0, weight, bias), ("Conv2DOptions", {"StrideW": 2, "StrideH": 2}))
    for _ in range(4):
        net.depthwise()
        net.conv(64)
    net.mean()
    net.dense(12)
    net.softmax()
    return net
