"""Write a keyword spotter in int8 as a TFLite file: budgets/models/keyword_spotter.tflite.

DS-CNN of MLPerf Tiny: 49x10 features, four depthwise separable blocks of 64 channels, twelve words. The values of its
weights do not matter to any budget: they are drawn from a seed.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite

MODELS = Path(__file__).resolve().parents[2] / "budgets" / "models"
SCALE = 0.05  # of all tensors but biases, whose scale is that of input and weight together
OPTIONS = {
    "CONV_2D": ("Conv2DOptions", {"StrideW": 1, "StrideH": 1}),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", {"StrideW": 1, "StrideH": 1, "DepthMultiplier": 1}),
    "MEAN": ("ReducerOptions", {}),
    "FULLY_CONNECTED": ("FullyConnectedOptions", {}),
    "SOFTMAX": ("SoftmaxOptions", {"Beta": 1.0}),
}


class Net:
    """Layers in int8, each with a bias in int32; the last tensor is what the next layer reads."""

    def __init__(self, *shape: int) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.buffers, self.tensors, self.shapes, self.operators = [self.table("Buffer")], [], [], []
        self.codes: list[str] = []
        self.x = self.tensor("input", shape)

    def table(self, kind: str, **fields: Any) -> int:
        """A table of the schema, with these fields."""
        getattr(tflite, f"{kind}Start")(self.builder)
        for name, value in fields.items():
            getattr(tflite, f"{kind}Add{name}")(self.builder, value)
        return getattr(tflite, f"{kind}End")(self.builder)

    def numbers(self, values: Any, dtype: Any = np.int32) -> int:
        """A vector of numbers."""
        return self.builder.CreateNumpyVector(np.array(values, dtype))

    def tables(self, offsets: list[int]) -> int:
        """A vector of tables."""
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str = "INT8", *, stored: Any = None, scales: int = 1,
        axis: int = 0, scale: float = SCALE, zero: int = 0,
    ) -> int:  # fmt: skip
        """One tensor, by its number; where it is stored, with these values, and scales along an axis."""
        buffer = 0
        if stored is not None:
            self.buffers.append(self.table("Buffer", Data=self.builder.CreateByteVector(stored.tobytes())))
            buffer = len(self.buffers) - 1
        steps, zeros = self.numbers([scale] * scales, np.float32), self.numbers([zero] * scales, np.int64)
        grid = self.table("QuantizationParameters", Scale=steps, ZeroPoint=zeros, QuantizedDimension=axis)
        sizes, text, kind = self.numbers(shape), self.builder.CreateString(name), getattr(tflite.TensorType, dtype)
        fields = {"Shape": sizes, "Type": kind, "Buffer": buffer, "Name": text, "Quantization": grid}
        self.tensors.append(self.table("Tensor", **fields))
        self.shapes.append(shape)
        return len(self.tensors) - 1

    def layer(
        self, name: str, operator: str, shape: tuple[int, ...], weight: tuple[int, ...] = (), **more: int
    ) -> None:
        """One operator, with a weight and a bias where it has them; channels are last, also of a depthwise weight."""
        inputs, draw = [self.x], np.random.default_rng(len(self.tensors))
        if weight:
            values, biases = (
                draw.integers(-127, 128, prod(weight), np.int8),
                draw.integers(-999, 999, shape[-1], np.int32),
            )
            axis = 3 if weight[0] == 1 else 0
            inputs.append(self.tensor(f"{name}/weight", weight, scales=shape[-1], stored=values, axis=axis))
            count = {"stored": biases, "scales": shape[-1], "scale": SCALE**2}
            inputs.append(self.tensor(f"{name}/bias", shape[-1:], "INT32", **count))
        elif operator == "MEAN":
            inputs.append(self.tensor(f"{name}/axes", (2,), "INT32", stored=np.array([1, 2], np.int32)))
        if operator not in self.codes:
            self.codes.append(operator)
        share = {"scale": 1 / 256, "zero": -128} if operator == "SOFTMAX" else {}
        self.x = self.tensor(name, shape, **share)
        read, written, (kind, settings) = self.numbers(inputs), self.numbers([self.x]), OPTIONS[operator]
        options = self.table(kind, **{**settings, **more})
        fields = {"BuiltinOptionsType": getattr(tflite.BuiltinOptions, kind), "BuiltinOptions": options}
        code = self.codes.index(operator)
        self.operators.append(self.table("Operator", OpcodeIndex=code, Inputs=read, Outputs=written, **fields))

    def content(self) -> bytes:
        """The file."""
        numbers = [getattr(tflite.BuiltinOperator, code) for code in self.codes]
        codes = [self.table("OperatorCode", DeprecatedBuiltinCode=code, BuiltinCode=code) for code in numbers]
        inputs, outputs = self.numbers([0]), self.numbers([self.x])
        tensors, operators = self.tables(self.tensors), self.tables(self.operators)
        graph = self.table("SubGraph", Tensors=tensors, Inputs=inputs, Outputs=outputs, Operators=operators)
        parts = {"OperatorCodes": self.tables(codes), "Subgraphs": self.tables([graph])}
        self.builder.Finish(self.table("Model", Version=3, **parts, Buffers=self.tables(self.buffers)), b"TFL3")
        return bytes(self.builder.Output())


def keyword_spotter() -> Net:
    """The network: 22,604 parameters, 2,656,768 MACs."""
    net = Net(1, 49, 10, 1)
    net.layer("stem", "CONV_2D", (1, 25, 5, 64), (64, 10, 4, 1), StrideW=2, StrideH=2)
    for block in range(4):
        net.layer(f"block{block}/depthwise", "DEPTHWISE_CONV_2D", (1, 25, 5, 64), (1, 3, 3, 64))
        net.layer(f"block{block}/pointwise", "CONV_2D", (1, 25, 5, 64), (64, 1, 1, 64))
    net.layer("mean", "MEAN", (1, 64))
    net.layer("words", "FULLY_CONNECTED", (1, 12), (12, 64))
    net.layer("softmax", "SOFTMAX", (1, 12))
    return net


def write_device_files(folder: Path) -> Path:
    """Write the file into a folder, and say where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "keyword_spotter.tflite"
    path.write_bytes(keyword_spotter().content())
    print(f"wrote {path}")
    return path


if __name__ == "__main__":
    write_device_files(Path(sys.argv[1]) if len(sys.argv) > 1 else MODELS)
