"""Torch tensors as values of the graph: which memory they live on, and under which name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_modelbudget.ir.tensor import DType, Storage, StorageKind, Tensor

PACKED_BITS = {"quint4x2": 4, "quint2x4": 2, "bits1x8": 1, "bits2x4": 2, "bits4x2": 4}


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """The element type, named as torch names it ("float32")."""
    name = str(dtype).removeprefix("torch.")
    return DType(name, PACKED_BITS.get(name, dtype.itemsize * 8))


class TorchValues:
    """The tensors of one trace as graph tensors; equal storage stays equal storage.

    Storages are told apart by the address of their C++ object, which a weak reference keeps from
    being used again; the memory itself is not kept.
    """

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._references: list[StorageWeakRef] = []
        self._twins: dict[int, torch.Tensor] = {}
        self._tensors: dict[tuple[object, ...], Tensor] = {}
        self._names = 0

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor's memory was seen before."""
        return tensor.untyped_storage()._cdata in self._storages

    def weight_name(self, tensor: torch.Tensor) -> str:
        """The stored tensor whose memory this one is on ("fc.weight"); "" for any other."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        is_weight = storage is not None and storage.kind in (
            StorageKind.PARAMETER,
            StorageKind.BUFFER,
        )
        return storage.name if storage is not None and is_weight else ""

    def value(
        self,
        tensor: torch.Tensor,
        kind: StorageKind = StorageKind.ACTIVATION,
        name: Callable[[], str] | None = None,
    ) -> Tensor:
        """The graph tensor of a torch tensor; new memory gets this kind and name."""
        storage = self.storage(tensor, kind, name)
        shape, strides = tuple(tensor.shape), tensor.stride()
        offset, dtype = int(tensor.storage_offset()), tensor.dtype
        called = name() if name else storage.name
        key = (called, storage, offset, shape, strides, dtype)
        known = self._tensors.get(key)
        if known is None:
            known = Tensor(called, shape, dtype_of(dtype), storage, offset, strides)
            self._tensors[key] = known
        return known

    def storage(
        self, tensor: torch.Tensor, kind: StorageKind, name: Callable[[], str] | None
    ) -> Storage:
        """The memory of a torch tensor."""
        untyped = tensor.untyped_storage()
        known = self._storages.get(untyped._cdata)
        if known is None:
            self._names += 1
            called = name() if name else f"{kind.value}.{self._names}"
            known = Storage(called, untyped.nbytes(), kind)
            self._references.append(_weak(untyped))
            self._storages[untyped._cdata] = known
        return known

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A meta tensor on the same memory of the graph, for one that holds values."""
        storage = tensor.untyped_storage()
        base = self._twins.get(storage._cdata)
        if base is None:
            elements = storage.nbytes() // tensor.dtype.itemsize
            base = torch.empty(elements, dtype=tensor.dtype, device="meta")
            self._twins[storage._cdata] = base
            self._adopt(base, self.storage(tensor, StorageKind.CONSTANT, None))
        if base.dtype != tensor.dtype:
            base = base.view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _adopt(self, tensor: torch.Tensor, storage: Storage) -> None:
        """Let a torch tensor's memory stand for a storage that exists already."""
        untyped = tensor.untyped_storage()
        self._references.append(_weak(untyped))
        self._storages[untyped._cdata] = storage


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch gives no types
