"""Values of types that numpy has not, at the border of a run in ONNX Runtime: it neither takes nor hands out any.

They cross as float32, which has each of their values, and a Cast on the other side makes them what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

LACKED = {"tensor(bfloat16)": TensorProto.BFLOAT16}  # as ONNX Runtime calls them
CROSSING = "{}::as_float32"


def as_numbers(values: Any) -> Any:
    """An array as it is, and as float64 where its type is one that numpy has not."""
    return values.astype(np.float64) if values.dtype.kind == "V" else values


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
    entering = [helper.make_node("Cast", [CROSSING.format(name)], [name], to=code) for name, code in inputs.items()]
    leaving = [helper.make_node("Cast", [name], [CROSSING.format(name)], to=TensorProto.FLOAT) for name in outputs]
    nodes = [*entering, *model.graph.node, *leaving]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


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
