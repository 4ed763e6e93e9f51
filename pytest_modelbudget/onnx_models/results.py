"""Tensors for the results of nodes: on memory of their own, or on an operand's."""

from math import prod

from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, nbytes_of, unsized
from pytest_modelbudget.onnx_models.value_types import ValueType


def fresh(name: str, known: ValueType, why: str = "", storage: Storage | None = None) -> Tensor:
    """A result on memory of its own, or on the memory given; why says what hides its shape."""
    dtype, sizes = known.dtype, known.sizes
    if known.is_plain and sizes is not None:
        home = storage or Storage(name, known.nbytes, StorageKind.ACTIVATION)
        return Tensor(name, sizes, dtype, home, 0, known.strides)
    if sizes is None or known.container or not dtype.bits:
        hidden = sizes is None or bool(known.container)
        reason = why if hidden else f"{name} holds {dtype.name}s, which have no fixed size"
        home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
        return unsized(name, dtype, home, reason, known.declared)
    home = storage or Storage(name, nbytes_of(prod(sizes), dtype), StorageKind.ACTIVATION)
    return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype = known.dtype if known.code else base.dtype
    if known.sizes is None or base.storage.unsized:
        return unsized(name, dtype, base.storage, why or base.unsized, known.declared)
    strides = base.strides
    if known.sizes != base.shape:
        strides = dense(name, known.sizes, dtype, base.storage).strides
    return Tensor(name, known.sizes, dtype, base.storage, base.offset, strides, sweeps=base.sweeps)
