"""Values of types that numpy has not, at the border of a run in ONNX Runtime: it does not both take and hand out any.

They cross as float32, which has each of their values, and a Cast on the other side makes them what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

EIGHTS = {
    "tensor(float8e4m3fn)": TensorProto.FLOAT8E4M3FN,
    "tensor(float8e4m3fnuz)": TensorProto.FLOAT8E4M3FNUZ,
    "tensor(float8e5m2)": TensorProto.FLOAT8E5M2,
    "tensor(float8e5m2fnuz)": TensorProto.FLOAT8E5M2FNUZ,
}
LACKED = {  # as ONNX Runtime calls them
    "tensor(bfloat16)": TensorProto.BFLOAT16,
    "tensor(int4)": TensorProto.INT4,
    "tensor(uint4)": TensorProto.UINT4,
    **EIGHTS,
}
CROSSING = "{}::as_float32"
OF_A_PACKAGE = 2  # what dtype.isbuiltin is of types that a package registers with numpy


def as_numbers(values: Any) -> Any:
    """An array as it is, and in 64 bits where its type is one that numpy has not."""
    if values.dtype.isbuiltin != OF_A_PACKAGE:
        return values
    return values.astype(np.int64 if "int" in values.dtype.name else np.float64)


class Engine(Protocol):
    """What runs a graph."""

    def run(self, outputs: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs."""


def lacked(values: Any) -> Mapping[str, int]:
    """Element types, by name, of those inputs or outputs of a session that numpy has not."""
    return {value.name: LACKED[value.type] for value in values if value.type in LACKED}


def with_casts(model: onnx.ModelProto, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> onnx.ModelProto:
    """The model, these of whose inputs and outputs are float32 under a name of their own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for values, names in ((made.graph.input, inputs), (made.graph.output, outputs)):
        for value in values:
            if value.name in names:
                value.name = CROSSING.format(value.name)
                value.type.tensor_type.elem_type = TensorProto.FLOAT
    entering = [_cast(CROSSING.format(name), name, code) for name, code in inputs.items()]
    leaving = [_cast(name, CROSSING.format(name), TensorProto.FLOAT) for name in outputs]
    nodes = [*entering, *model.graph.node, *leaving]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _cast(value: str, name: str, code: int) -> onnx.NodeProto:
    """A Cast, which in eight bits keeps infinities."""
    node = helper.make_node("Cast", [value], [name], to=code)
    if code in EIGHTS.values():
        node.attribute.append(helper.make_attribute("saturate", 0))
    return node


@dataclass(frozen=True, slots=True)
class Crossed:
    """An engine of a model with such casts, called with the values and names of the model without them."""

    engine: Engine
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def run(self, outputs: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, each in its own type."""
        own = dict(feeds)
        own.update({CROSSING.format(name): own.pop(name).astype(np.float32) for name in self.inputs})
        names = [CROSSING.format(name) if name in self.outputs else name for name in outputs]
        results = dict(zip(outputs, self.engine.run(names, own), strict=True))
        for name, code in self.outputs.items():
            results[name] = results[name].astype(helper.tensor_dtype_to_np_dtype(code))
        return [results[name] for name in outputs]
