"""Which stored tensors only mask scores: added or selected, and no parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, TensorProto

ADDED = frozenset({"Add", "Sub"})
_NUMPY_NAMES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
}


def masks(graphs: Sequence[onnx.GraphProto]) -> frozenset[str]:
    """Names of the tensors that are added and hold only 0 and −inf or the type's lowest value.

    At least one value must shut something out: a bias of zeros, as every fresh layer has, is a
    parameter. Only values inside the file are looked at.
    """
    added = {
        name
        for each in graphs
        for node in each.node
        if node.op_type in ADDED
        for name in node.input
    }
    if not added:
        return frozenset()
    return frozenset(
        name for name, tensor in _named_tensors(graphs) if name in added and _only_masks(tensor)
    )


def _named_tensors(graphs: Sequence[onnx.GraphProto]) -> Iterator[tuple[str, TensorProto]]:
    """(name of the value, tensor) of initialisers and constants."""
    for each in graphs:
        for tensor in each.initializer:
            yield tensor.name, tensor
        for node in each.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.TENSOR:
                        yield node.output[0], attribute.t


def _only_masks(tensor: TensorProto) -> bool:
    import numpy as np

    name = _NUMPY_NAMES.get(tensor.data_type)
    raw = tensor.raw_data
    if name is None or not (raw or tensor.float_data) or not tensor.dims:
        return False
    values = np.frombuffer(raw, name) if raw else np.array(tensor.float_data, name)
    shut = (values == -np.inf) | (values == np.finfo(name).min)
    return bool(shut.any() and (shut | (values == 0)).all())
