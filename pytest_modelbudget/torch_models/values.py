"""Torch tensors as values of the graph: which memory they live on, and under which name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.containers import named_parts, with_parts
from pytest_modelbudget.formats.source import InputSpecs, TensorSpec
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, distinct_nbytes, unsized
from pytest_modelbudget.torch_models.versions import address_of, functorch, is_traceable_wrapper_subclass, memory_of

STORED = (StorageKind.PARAMETER, StorageKind.BUFFER)
PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter})
# Asked of torch itself: a pass is told otherwise.
is_on_meta: Callable[[torch.Tensor], bool] = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
META = torch.device("meta")
BYTE = DType("uint8", 8)
PACKED_BITS = {"quint4x2": 4, "quint2x4": 2}  # of types whose elements share bytes
VALUES = {"float4_e2m1fn_x2": 2, "bits4x2": 2, "bits2x4": 4, "bits1x8": 8}  # in each element, which is a byte


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """The element type, named as torch names it ("float32")."""
    name = str(dtype).removeprefix("torch.")
    return DType(name, PACKED_BITS.get(name, dtype.itemsize * 8), VALUES.get(name, 1))


class SeenStorage:
    """One memory of a trace, and the tensors of the graph that were met on it."""

    __slots__ = ("_stored", "_tensors", "storage")

    def __init__(self, storage: Storage, stored: DType | None = None) -> None:
        self.storage = storage
        self._stored = stored  # the type of its elements, where a wrapper shows another one
        self._tensors: dict[tuple[object, ...], Tensor] = {}

    def tensor(self, tensor: torch.Tensor, called: str) -> Tensor:
        """The graph tensor of a torch tensor on this memory."""
        key = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, called)
        known = self._tensors.get(key)
        if known is None:
            offset, shape, strides, dtype, _ = key
            known = Tensor(called, tuple(shape), self._stored or dtype_of(dtype), self.storage, int(offset), strides)
            self._tensors[key] = known
        return known

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether all of a tensor lies in what was met on this memory."""
        met = tuple(self._tensors.values())
        place = int(tensor.storage_offset()), tuple(tensor.stride())
        part = Tensor("", tuple(tensor.shape), dtype_of(tensor.dtype), self.storage, *place)
        return distinct_nbytes((*met, part)) == distinct_nbytes(met)


class TorchValues:
    """The tensors of one trace as graph tensors; equal storage stays equal storage.

    Storages are told apart by the address of their C++ object, which a weak reference keeps from
    being used again; the memory itself is not kept. Plain tensors on meta, which have none, are kept
    themselves, and known again by identity until something gives them another shape or memory.
    """

    def __init__(self) -> None:
        self.kept: dict[int, tuple[torch.Tensor, Tensor]] = {}  # by id; asked for every operand of every operator
        self._seen: dict[int, SeenStorage] = {}  # by address
        self._references: list[StorageWeakRef] = []
        self._unswappable: list[ref[torch.Tensor]] = []  # torch swaps no tensor that has one: it is known by identity
        self._twins: dict[int, torch.Tensor] = {}
        self._shapeless: dict[int, tuple[torch.Tensor, Tensor]] = {}  # the torch tensor stays alive
        self._names = 0
        self._lent: Callable[[], Mapping[int, torch.Tensor]] = dict

    def known(self, tensor: torch.Tensor) -> Tensor | None:
        """The graph tensor of a torch tensor whose memory was seen before; of others None."""
        kept = self.kept.get(id(tensor))
        if kept is not None:
            return kept[1]
        try:
            seen = self._seen.get(memory_of(tensor))
            value = seen.tensor(tensor, seen.storage.name) if seen else None
        except RuntimeError:  # it has no storage, or no shape
            return self._known_shapeless(tensor)
        if value is not None and _is_kept(tensor):
            self._keep(tensor, value)
        return value

    def stand_in(self, twin: torch.Tensor, kind: StorageKind, name: str) -> Tensor:
        """The graph tensor of a weight's twin, known by identity where the memory has this name."""
        stays = type(twin) in PLAIN_TENSORS and is_on_meta(twin)
        try:
            seen = self._seen_storage(twin, kind, name, stays=stays)
            value = seen.tensor(twin, name)
        except RuntimeError:  # it has no storage, or no shape
            return self._shapeless_value(twin, kind, name)
        if stays and seen.storage.name == name:
            self._keep(twin, value)
        return value

    def _keep(self, tensor: torch.Tensor, value: Tensor) -> None:
        self.kept[id(tensor)] = tensor, value
        self._unswappable.append(ref(tensor))

    def loosen(self, tensor: torch.Tensor) -> None:
        """Know a tensor by its memory again, which may change now: called before it does."""
        if self.kept.pop(id(tensor), None) is not None:
            self._references.append(_weak(tensor.untyped_storage()))

    def resized(self, tensor: torch.Tensor) -> None:
        """Register a tensor's memory again where an operator has given it another size: its elements moved."""
        untyped = tensor.untyped_storage()
        seen = self._seen.get(address_of(untyped))
        if seen is None or seen.storage.nbytes == untyped.nbytes():
            return
        for kept, value in [*self.kept.values()]:
            if value.storage == seen.storage:
                self.loosen(kept)
        del self._seen[address_of(untyped)]

    def _known_shapeless(self, tensor: torch.Tensor) -> Tensor | None:
        """The graph tensor of a sparse or nested one, or of what a functorch wrapper holds."""
        if functorch.is_functorch_wrapped_tensor(tensor):
            return self.known(functorch.get_unwrapped(tensor))
        _, known = self._shapeless.get(address_of(tensor), (tensor, None))
        return known

    def alias(self, tensor: torch.Tensor, value: Tensor, stored: DType) -> None:
        """Let a tensor's memory stand for that of a value whose elements are stored as this type.

        For wrappers, which show another type, and for what stands in their place.
        """
        self._adopt(tensor.untyped_storage(), SeenStorage(value.storage, stored))

    def adopt(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """Let a tensor's memory stand for that of its twin, which was met before."""
        self._adopt(tensor.untyped_storage(), self._seen[memory_of(twin)])

    def lend(self, twins: Callable[[], Mapping[int, torch.Tensor]]) -> None:
        """Let twins stand for memories, by their addresses, that a pass may meet as they are: in a plain attribute."""
        self._lent = cache(twins)

    def met_as_lent(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a part of what lies in such memory; what lies beside that is not."""
        if tensor.layout is not torch.strided or tensor.is_nested or is_traceable_wrapper_subclass(tensor):
            return False
        untyped = tensor.untyped_storage()
        twin = self._lent().get(address_of(untyped))
        seen = None if twin is None else self._seen[memory_of(twin)]
        if seen is None or not seen.holds(tensor):
            return False
        self._adopt(untyped, seen)
        return True

    def weight_name(self, tensor: torch.Tensor) -> str:
        """The stored tensor whose memory this one is on ("fc.weight"); "" for any other."""
        seen = self._seen.get(memory_of(tensor))
        return seen.storage.name if seen is not None and seen.storage.kind in STORED else ""

    def value(
        self, tensor: torch.Tensor, kind: StorageKind = StorageKind.ACTIVATION, name: str = "", *, is_made: bool = False
    ) -> Tensor:
        """The graph tensor of a torch tensor; new memory gets this kind and name.

        is_made says that a factory is about to return it: one that somebody holds by then is copied.
        """
        kept = self.kept.get(id(tensor))
        if kept is not None and not name:
            return kept[1]
        stays = not name and not is_made and _is_kept(tensor)
        try:
            seen = self._seen_storage(tensor, kind, name, stays=stays)
            value = seen.tensor(tensor, name or seen.storage.name)
        except RuntimeError:  # it has no storage, or no shape
            return self._shapeless_value(tensor, kind, name)
        if stays:
            self._keep(tensor, value)
        return value

    def _shapeless_value(self, tensor: torch.Tensor, kind: StorageKind, name: str) -> Tensor:
        """One whose shape does not tell its elements: what reads or writes it is unmeasured."""
        known = self._known_shapeless(tensor)
        if known is not None:
            return known
        if functorch.is_functorch_wrapped_tensor(tensor):
            return self.value(functorch.get_unwrapped(tensor), kind, name)
        self._names += 1
        called = name or f"{kind.value}.{self._names}"
        why = f"a {layout_of(tensor)} tensor: its shape does not tell what it stores"
        value = unsized(called, dtype_of(tensor.dtype), Storage(called, 0, kind, why), why)
        self._shapeless[address_of(tensor)] = (tensor, value)
        return value

    def _seen_storage(
        self, tensor: torch.Tensor, kind: StorageKind, name: str = "", *, stays: bool = False
    ) -> SeenStorage:
        """The memory of a torch tensor; stays says that the tensor keeps it from being freed."""
        untyped = tensor.untyped_storage()
        address = address_of(untyped)
        seen = self._seen.get(address)
        if seen is None:
            self._names += 1
            called = name or f"{kind.value}.{self._names}"
            seen = self._seen[address] = SeenStorage(Storage(called, untyped.nbytes(), kind))
            if not stays:
                self._references.append(_weak(untyped))
        return seen

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A meta tensor on the same memory of the graph, for one that holds values."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            # Sparse and nested memory has no offsets and strides: torch's word for a missing kernel names the operator.
            raise NotImplementedError(f"a {layout_of(tensor)} tensor has no twin without memory")
        storage = tensor.untyped_storage()
        base = self._twins.get(address_of(storage))
        if base is None:
            elements = storage.nbytes() // tensor.dtype.itemsize
            with torch.inference_mode(tensor.is_inference()):  # which a view of it has to be, too, or else torch fails
                base = torch.empty(elements, dtype=tensor.dtype, device="meta")
            self._twins[address_of(storage)] = base
            seen = self._seen_storage(tensor, StorageKind.CONSTANT)
            self._adopt(base.untyped_storage(), seen)
        if base.dtype != tensor.dtype:
            base = base.view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _adopt(self, untyped: torch.UntypedStorage, seen: SeenStorage) -> None:
        """Let a torch memory stand for this one."""
        self._references.append(_weak(untyped))
        self._seen[address_of(untyped)] = seen


def _is_kept(tensor: torch.Tensor) -> bool:
    """Whether a tensor is kept itself: a parameter that forward makes is looked at each time.

    Autograd may not have its tensors kept, as it copies gradients that somebody else holds, too.
    """
    return type(tensor) is torch.Tensor and is_on_meta(tensor) and tensor.is_inference()


def bytes_of(storage: Storage) -> Tensor:
    """A whole memory, as the bytes that it is."""
    return dense(storage.name, (storage.nbytes,), BYTE, storage)


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch gives no types


def layout_of(tensor: torch.Tensor) -> str:
    """How a tensor without a storage of its own is laid out: "sparse_coo", "nested"."""
    if tensor.is_nested:
        return "nested"
    return str(tensor.layout).removeprefix("torch.").lstrip("_")


Maker = Callable[[TensorSpec], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Arguments of one forward call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of every input, containers flattened: "0", "1.0", "mask"."""
        for position, value in enumerate(self.args):
            yield from _flat(str(position), value)
        for name, value in self.kwargs.items():
            yield from _flat(name, value)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> CallInputs:
        """The same arguments, every tensor changed, in containers too."""
        named = {name: _changed(value, change) for name, value in self.kwargs.items()}
        return CallInputs(tuple(_changed(value, change) for value in self.args), named)


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    parts = named_parts(value)
    return value if parts is None else with_parts(value, [_changed(part, change) for part in parts.values()])


def _flat(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    else:
        for key, part in (named_parts(value) or {}).items():
            yield from _flat(f"{name}.{key}", part)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Tensors of an operator's arguments or result: one, several, or lists of them."""
    if isinstance(result, torch.Tensor):
        return [result]
    found: list[torch.Tensor] = []
    if isinstance(result, (list, tuple)):
        for element in result:
            if isinstance(element, torch.Tensor):
                found.append(element)
            elif isinstance(element, (list, tuple)):
                found.extend(tensors_in(element))
    return found


def call_inputs(specs: InputSpecs, make: Maker) -> CallInputs:
    """The arguments that specs describe; a nested spec becomes a list or dict of tensors."""
    return CallInputs(*specs.filled(make))


def empty(spec: TensorSpec, device: str) -> torch.Tensor:
    """A tensor of this type and shape whose values are not read; one with values, where the spec has them."""
    if spec.values is not None:
        return _of_values(spec)
    return torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device=device)


def drawn(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Seeded values: N(0, 1) for floating types, uniform in [low, high) for integers without values of their own."""
    if spec.values is not None:
        return _of_values(spec)
    dtype = dtype_named(spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(spec.shape, generator=generator, device=generator.device).to(dtype)
    low, high = spec.low or 0, spec.high if spec.high is not None else 2
    return torch.randint(low, high, spec.shape, generator=generator, device=generator.device).to(dtype)


def _of_values(spec: TensorSpec) -> torch.Tensor:
    return torch.tensor(spec.values, dtype=dtype_named(spec.dtype), device="cpu").reshape(spec.shape)


def dtype_named(name: str) -> torch.dtype:
    """torch's element type of this name; raises InputError where there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"'{name}' is no element type of torch: write float32, int64, bool, …")
    return found
