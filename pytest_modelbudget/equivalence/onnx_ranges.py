"""Which integers an ONNX model takes: the file says no range, but what they index does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import NodeProto

from pytest_modelbudget.equivalence.onnx_stored import (
    StoredTensors,
    attribute,
    names_read,
    stored_tensors,
)
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.frontends.onnx_types import dtype_of

HAND_ON = frozenset({"onnx::Cast", "onnx::Identity"})
SEE_NO_VALUE = frozenset({"onnx::Shape", "onnx::Size"})


def index_ranges(model: onnx.ModelProto) -> Mapping[str, int]:
    """Below what integer inputs stay: the size of the smallest stored table that each indexes.

    Inputs that are read in any other way than by Gather, or by nothing, are left out.
    """
    stored = stored_tensors(model)
    found = {}
    for value in model.graph.input:
        dtype = dtype_of(value.type.tensor_type.elem_type)
        if "int" not in dtype.name:
            continue
        sizes = list(_sizes(value.name, model, stored))
        if sizes and all(sizes):
            signs = 0 if dtype.name.startswith("u") else 1
            found[value.name] = min(*sizes, 2 ** (dtype.bits - signs))
    return found


def _sizes(name: str, model: onnx.ModelProto, stored: StoredTensors) -> Iterator[int]:
    """The size of every table that a value indexes; 0 for a reader of another kind."""
    for node in model.graph.node:
        if name not in names_read((node,)) or op_name(node) in SEE_NO_VALUE:
            continue
        if op_name(node) in HAND_ON:
            yield from _sizes(node.output[0], model, stored)
        else:
            yield _table_size(name, node, stored)


def _table_size(name: str, node: NodeProto, stored: StoredTensors) -> int:
    if op_name(node) != "onnx::Gather" or node.input[0] == name:
        return 0
    table = stored.origin(node.input[0])
    return stored.shape(table)[attribute(node, "axis", 0)] if table in stored else 0
