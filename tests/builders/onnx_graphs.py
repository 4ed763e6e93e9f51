"""Small ONNX models built for tests, in one line each, and written to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget import measure

OPSET = min(23, onnx.defs.onnx_opset_version())
FLOAT = TensorProto.FLOAT


def value(name: str, *shape: int | str | None, code: int = FLOAT) -> onnx.ValueInfoProto:
    """A value with its declared type."""
    return helper.make_tensor_value_info(name, code, shape)


def stored(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    """A stored tensor of ones, which no mask and no shape looks like."""
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def integers(name: str, *entries: int) -> onnx.TensorProto:
    """A stored list of int64."""
    return numpy_helper.from_array(np.array(entries, np.int64), name)


def scalar(name: str, entry: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    """A stored tensor of rank 0."""
    return numpy_helper.from_array(np.array(entry, dtype), name)


def packed(name: str, code: int, *shape: int) -> onnx.TensorProto:
    """A stored tensor of a type that numpy does not have, such as INT4: its bytes are zeros."""
    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT: 32}.get(code, 8)
    nbytes = -(-int(np.prod(shape)) * bits // 8)
    return TensorProto(name=name, data_type=code, dims=shape, raw_data=bytes(nbytes))


def node(operator: str, inputs: str, outputs: str, *, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """A node whose operands and results are written as words; "-" is an absent one."""
    names = [["" if word == "-" else word for word in text.split()] for text in (inputs, outputs)]
    return helper.make_node(operator, *names, name=outputs.split()[0], domain=domain, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    """A graph, or a body of a node."""
    return helper.make_graph(nodes, "g", inputs, outputs, weights)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = OPSET,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A whole model."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    made = helper.make_model(graph(nodes, inputs, outputs, weights), opset_imports=opsets, functions=functions)
    made.ir_version = 10
    return made


def measured(proto: onnx.ModelProto, folder: Path, dims: Mapping[str, int] | None = None) -> Mapping[str, Any]:
    """The measurements of a model, through a file."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return measure(path, dims=dims or {})
