"""Values of an ONNX graph as tensors: fresh ones, views, shapes, and those of unknown size."""

from __future__ import annotations

from math import prod

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from pytest_modelbudget.frontends.onnx_types import ValueType, dtype_of
from pytest_modelbudget.ir.tensor import (
    Storage,
    StorageKind,
    Tensor,
    dense,
    nbytes_of,
    unsized,
)


def fresh(name: str, known: ValueType, why: str = "", storage: Storage | None = None) -> Tensor:
    """A result on memory of its own, or on the memory given; why says what hides its shape."""
    dtype = dtype_of(known.code)
    sizes = known.sizes
    if sizes is None or known.container or not dtype.bits:
        hidden = sizes is None or bool(known.container)
        reason = why if hidden else f"{name} holds {dtype.name}s, which have no fixed size"
        home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
        return unsized(name, dtype, home, reason)
    home = storage or Storage(name, nbytes_of(prod(sizes), dtype), StorageKind.ACTIVATION)
    return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype = dtype_of(known.code) if known.code else base.dtype
    if known.sizes is None or base.storage.unsized:
        return unsized(name, dtype, base.storage, why or base.unsized)
    strides = base.strides
    if known.sizes != base.shape:
        strides = dense(name, known.sizes, dtype, base.storage).strides
    return Tensor(name, known.sizes, dtype, base.storage, base.offset, strides, sweeps=base.sweeps)


def shape_tensor(name: str, known: ValueType) -> Tensor:
    """A value that only leads to shapes: it takes no memory, known or not."""
    storage = Storage(name, 0, StorageKind.SHAPE)
    return dense(name, known.sizes or (), dtype_of(known.code), storage)


def constant_tensor(node: NodeProto) -> TensorProto:
    """The value of a Constant node, whichever of its attributes holds it."""
    attribute = node.attribute[0]
    held: TensorProto | None = {
        AttributeProto.TENSOR: attribute.t,
        AttributeProto.SPARSE_TENSOR: attribute.sparse_tensor.values,
    }.get(attribute.type)
    if held is not None:
        return held
    code, entries = {
        AttributeProto.INT: (TensorProto.INT64, [attribute.i]),
        AttributeProto.INTS: (TensorProto.INT64, attribute.ints),
        AttributeProto.FLOAT: (TensorProto.FLOAT, [attribute.f]),
        AttributeProto.FLOATS: (TensorProto.FLOAT, attribute.floats),
        AttributeProto.STRING: (TensorProto.STRING, [attribute.s]),
        AttributeProto.STRINGS: (TensorProto.STRING, attribute.strings),
    }[attribute.type]
    listed = attribute.type in {AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS}
    shape = (len(entries),) if listed else ()
    return onnx.helper.make_tensor(node.output[0], code, shape, entries)
