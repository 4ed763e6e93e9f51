"""Twins whose outputs are others, or not the same in two runs, or rounded too much."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from tests.builders.onnx_graphs import node
from tests.builders.onnx_linears import CODES, find
from tests.builders.onnx_mutants import insert, store

# As in mutants.NARROWER: sums rounded to bfloat16 in a float16 model are within what step 2 allows.
NARROWER = {"float32": TensorProto.FLOAT16, "float16": TensorProto.FLOAT8E5M2}


def narrow_sums(proto: onnx.ModelProto, layer: str, dtype: str) -> None:
    """Every product of a layer's tiles and every sum of them is rounded to a narrower type."""
    for each in list(proto.graph.node):
        result = each.output[0]
        if each.op_type in ("Add", "MatMul", "ReduceSum") and result.startswith(f"{layer}/tiles."):
            each.output[0] = f"{result}.wide"
            readers = [other for other in proto.graph.node if result in other.input]
            narrowed = node("Cast", f"{result}.wide", f"{result}.narrow", to=NARROWER[dtype])
            widened = node("Cast", f"{result}.narrow", result, to=CODES[dtype])
            insert(proto, readers[0], narrowed, widened)


def dropout_left_on(proto: onnx.ModelProto, value: str) -> None:
    """A value loses half of its elements, others in each run."""
    readers = [each for each in proto.graph.node if value in each.input]
    store(proto, ratio=np.float32(0.5), training=True)
    insert(proto, readers[0], node("Dropout", f"{value} ratio training", "dropped"))
    for each in readers:
        each.input[list(each.input).index(value)] = "dropped"


def swap_outputs(proto: onnx.ModelProto) -> None:
    first, second = (copied(each) for each in proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend([second, first])


def copied(declared: onnx.ValueInfoProto, name: str = "") -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto()
    made.CopyFrom(declared)
    made.name = name or declared.name
    return made


def add_output(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(node("Identity", "second", "third"))
    proto.graph.output.append(copied(proto.graph.output[1], "third"))


def change_type(proto: onnx.ModelProto) -> None:
    find(proto, "second").output[0] = "narrow"
    proto.graph.node.append(node("Cast", "narrow", "second", to=TensorProto.DOUBLE))
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.DOUBLE


def rename(proto: onnx.ModelProto) -> None:
    find(proto, "second").output[0] = "renamed"
    proto.graph.output[1].name = "renamed"


# Of a graph whose second output is called so, and what the reason must say.
DECLARED: Mapping[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "outputs swapped": (swap_outputs, "outputs are 'second', '{first}' and were '{first}', 'second'"),
    "output missing": (lambda proto: proto.graph.output.pop(), "outputs are '{first}' and were"),
    "output added": (add_output, "outputs are '{first}', 'second', 'third' and were"),
    "type changed": (change_type, "output 'second' is float64 and was {dtype}"),
    "output renamed": (rename, "outputs are '{first}', 'renamed' and were"),
}
