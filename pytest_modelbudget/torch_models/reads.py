"""Which elements of stored tensors a run of a torch model reads, and which rows its inputs may ask for.

A table is read by row: ``embedding(table, indices)`` leaves all other rows unread, and what is wrong
with those shows in no output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from pytest_modelbudget.equivalence.indicators import chosen_places, summed_axes
from pytest_modelbudget.formats.model import Coverage
from pytest_modelbudget.torch_models.bodies import ExecutedBranches, RunningMode
from pytest_modelbudget.torch_models.values import tensors_in
from pytest_modelbudget.torch_models.weights import NamedWeight, leaves

Array = Callable[[torch.Tensor], Any]  # the values of a tensor, as other models give theirs
Mark = Callable[..., Any]  # of a mask laid out as the table is, by the arguments behind the table


def _rows(mask: torch.Tensor, indices: torch.Tensor, *_: Any) -> None:
    mask[indices.reshape(-1).long()] = True


def _at(mask: torch.Tensor, indices: Iterable[torch.Tensor | None]) -> None:
    mask[tuple(slice(None) if index is None else index for index in indices)] = True


def _along(mask: torch.Tensor, index: torch.Tensor, dim: int | None = None) -> None:
    """``take_along_dim``, whose index is broadcast; without a dimension it counts through all."""
    if dim is None:
        mask.put_(index, torch.ones_like(index, dtype=torch.bool))
        return
    shape = list(mask.shape)
    shape[dim] = index.shape[dim]
    mask.scatter_(dim, index.expand(shape), True)


# Operators that read a part of their first tensor, and how they mark it.
PICKS: Mapping[str, Mark] = {
    "aten::embedding": _rows,
    "aten::embedding_bag": _rows,
    "aten::_embedding_bag": _rows,
    "aten::_embedding_bag_forward_only": _rows,
    "aten::index_select": lambda mask, dim, index: mask.index_fill_(dim, index.long(), True),
    "aten::index": _at,
    "aten::_unsafe_index": _at,
    "aten::gather": lambda mask, dim, index, **_: mask.scatter_(dim, index, True),
    "aten::take": lambda mask, index: mask.put_(index, torch.ones_like(index, dtype=torch.bool)),
    "aten::take_along_dim": _along,
    "aten::masked_select": lambda mask, chosen: mask.logical_or_(chosen),
}
LIFTS = frozenset({"aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy"})  # what forward makes of numbers
# Operators whose result has the values of their first tensor, and those that only compare them.
CARRIERS = frozenset({"aten::_to_copy", "aten::clone", "aten::to", "aten::contiguous", "aten::reshape", "aten::repeat"})
COMPARISONS = frozenset({"aten::eq", "aten::ne"})
# Operators that write into a copy of their first tensor, or with a "_" into itself; what they leave stays where it was.
WRITERS = frozenset(
    f"aten::{name}"
    for name in ("copy", "index_add", "index_copy", "index_fill", "index_put", "_unsafe_index_put", "index_reduce",
                 "masked_scatter", "put", "scatter", "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter")
)  # fmt: skip
# Products, by the places of their two factors, and the axis of each that they sum over.
PRODUCTS: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "aten::mm": ((0, -1), (1, -2)), "aten::bmm": ((0, -1), (1, -2)), "aten::matmul": ((0, -1), (1, -2)),
    "aten::addmm": ((1, -1), (2, -2)), "aten::baddbmm": ((1, -1), (2, -2)),
    "aten::linear": ((0, -1), (1, -1)), "aten::mv": ((0, -1), (1, -1)), "aten::addmv": ((1, -1), (2, -1)),
}  # fmt: skip
INDEXED: Mapping[str, int] = {  # where an operator takes indices of rows
    "aten::embedding": 1, "aten::embedding_bag": 1, "aten::_embedding_bag": 1,
    "aten::_embedding_bag_forward_only": 1, "aten::embedding_renorm_": 1, "aten::index_select": 2,
}  # fmt: skip


def _factors(name: str, args: tuple[Any, ...]) -> list[tuple[torch.Tensor, int]]:
    """Both factors of a product, each with the axis that it sums over; none of anything else."""
    if name == "aten::einsum":
        return list(zip(args[1], summed_axes(args[0]) or (), strict=False))
    return [(args[at], axis if args[at].dim() > 1 else 0) for at, axis in PRODUCTS.get(name, ())]


@dataclass(eq=False)
class _Memory:
    """What a run has read of one storage, which is a weight's or computed from weights alone.

    sources are the stored tensors that a computed one was made of. A table that is picked from has
    been read as far as that: an output layer that multiplies by all of it shows a row elsewhere. Of
    a mixed one, into which inputs went, element by element, all is read that anything reads.
    """

    tensor: torch.Tensor  # kept alive: another storage may not take its place
    sources: list[torch.Tensor] = field(default_factory=list)
    is_whole: bool = False
    is_picked: bool = False
    is_mixed: bool = False
    read: torch.Tensor | None = None  # a flag for each element

    def flags(self, tensor: torch.Tensor, of: torch.Tensor | None = None) -> torch.Tensor | None:
        """The flags of a view of it; None for one that lies on it otherwise."""
        if tensor.dtype != self.tensor.dtype:
            return None
        if self.read is None:
            extent = 1 + sum((s - 1) * t for s, t in zip(self.tensor.shape, self.tensor.stride(), strict=True))
            held = self.tensor.untyped_storage().nbytes() // self.tensor.dtype.itemsize
            with torch.inference_mode(False):  # set in a run, and after it
                self.read = torch.zeros(max(held, self.tensor.storage_offset() + extent), dtype=torch.bool)
        return (self.read if of is None else of).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    @property
    def part(self) -> torch.Tensor | None:
        """The flags of its tensor; None where all of it was read."""
        return None if self.is_whole and not self.is_picked else self.flags(self.tensor)

    def mark(self, tensor: torch.Tensor, mark: Callable[[torch.Tensor], object]) -> None:
        """Let flags be set in the shape of a view, of whose elements several may be one."""
        flags = self.flags(tensor)
        if flags is None or self.read is None:
            self.is_whole = True
        elif 0 not in tensor.stride():
            mark(flags)
        else:
            own = torch.zeros(tensor.shape, dtype=torch.bool)
            mark(own)
            places = self.flags(tensor, torch.arange(self.read.numel()))
            assert places is not None, "it has flags"
            self.read[places[own]] = True


class StoredReads(ExecutedBranches):
    """Notes what one run reads of each stored tensor.

    What is computed from stored tensors alone (a copy in another type, a table times a scale) is
    read where something else reads it: a row of it is a row of all that it was made of. Tensors that
    come of no input are such, too: a scale that forward makes, a table that is no module's. So is
    what an operator makes of one and of inputs, element by element or by writing into some rows. A
    product with an indicator (one_hot(indices) @ table) reads the rows that it is not zero for.
    """

    def __init__(
        self,
        weights: Iterable[NamedWeight],
        packed: Iterable[tuple[int, NamedWeight]] = (),
        inputs: Iterable[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self._moved = {_key(tensor) for tensor in inputs if _is_strided(tensor)}  # what comes of inputs
        self._counted: set[int] = set()  # of those, what comes of integers alone
        self._outside: list[torch.Tensor] = []  # tables that are in no module
        in_packs = tuple(packed)
        self._packs: dict[int, list[torch.Tensor]] = {}  # by the address of the object that holds them
        for address, weight in in_packs:
            self._packs.setdefault(address, []).append(weight.tensor)
        every = (*weights, *(weight for _, weight in in_packs))
        self._weights = tuple(weight for weight in every if _is_strided(weight.tensor))
        self._own = {_key(weight.tensor) for weight in self._weights}
        self._memory: dict[int, _Memory] = {}
        for weight in self._weights:
            self._memory.setdefault(_key(weight.tensor), _Memory(weight.tensor))
            if is_traceable_wrapper_subclass(weight.tensor):  # of which a run may see the inside alone
                for _, part in leaves(weight.tensor):
                    self._memory.setdefault(_key(part), _Memory(part, [weight.tensor]))

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and note what it read."""
        result = func(*args, **kwargs)
        tensors, results = [*tensors_in(args), *tensors_in(list(kwargs.values()))], tensors_in(result)
        name = func._schema.name
        self._unpack(name, args)
        stored = [tensor for tensor in tensors if self._is_stored(tensor, is_made=name in LIFTS)]
        known = [*stored, *filter(self._is_mixed, tensors)]
        if len(stored) < len(tensors):
            self._move(results)
            self._count(tensors, results)
        if not known:
            if not tensors:
                self._derive([], results)
        elif name in PICKS and known[0] is tensors[0]:
            self._pick(known[0], lambda flags: PICKS[name](flags, *args[1:], **kwargs))
            for tensor in known[1:]:
                self._mark_whole(tensor)
        elif len(stored) == len(tensors) and not func._schema.is_mutable:
            self._derive(stored, results)
        else:
            self._read(func, known, results, args)
        return result

    def _read(self, func: Any, known: list[torch.Tensor], results: list[torch.Tensor], args: tuple[Any, ...]) -> None:
        """Note what an operator reads of stored tensors beside inputs, or of what both went into.

        One that gives no element reads none: an expert that no row was sent to.
        """
        if results and not any(tensor.numel() for tensor in results):
            return
        goes_on = [any(self._goes_on(func, tensor, made, args) for made in results) for tensor in known]
        for tensor, stays in zip(known, goes_on, strict=True):
            if stays:
                self._mix(tensor, results[0])
                continue
            chosen = self._chosen_by_product(tensor, _factors(func._schema.name, args))
            if chosen is None:
                self._mark_whole(tensor)
            else:
                self._pick(tensor, lambda flags, chosen=chosen: flags.index_fill_(*chosen, True))  # type: ignore[misc]

    def _chosen_by_product(
        self, table: torch.Tensor, factors: list[tuple[torch.Tensor, int]]
    ) -> tuple[int, torch.Tensor] | None:
        """The axis that a product sums a factor over, and the places along it that it reads; None of all."""
        for (own, axis), (other, across) in permutations(factors, 2):
            if own is table:
                with _disable_current_modes():
                    if other.is_complex() or bool(other.movedim(across, -1).reshape(-1, other.shape[across])[0].all()):
                        return None  # as nearly every product does, which is not worth a look at all values
                    values = other.detach().double().numpy()
                    places = chosen_places(values, across, is_counted=self._is_counted(other))
                    return None if places is None else (axis, torch.from_numpy(places))
        return None

    def _is_counted(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is computed from integers alone."""
        return not (tensor.is_floating_point() or tensor.is_complex()) or _key(tensor) in self._counted

    def _goes_on(self, func: Any, tensor: torch.Tensor, made: torch.Tensor, args: tuple[Any, ...]) -> bool:
        """Whether a result is a view, or has each element of a tensor in its place; weights keep what is their own."""
        name, is_own_memory = func._schema.name, _key(made) == _key(tensor)
        if is_own_memory and not func._schema.is_mutable:
            return True
        if _key(made) in self._own or (not is_own_memory and _key(made) in self._memory):
            return False  # written into what was there before
        if name.rstrip("_") in WRITERS:
            return args[0] is tensor
        return tensor.shape == made.shape and (torch.Tag.pointwise in func.tags or name in CARRIERS)

    def _mix(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """Let a result be read where something else reads it, as a stored tensor that went into it is."""
        memory = self._memory.setdefault(_key(made), _Memory(made, []))
        memory.is_mixed = True
        if _key(made) != _key(tensor):
            memory.sources.append(tensor)

    def _unpack(self, name: str, args: tuple[Any, ...]) -> None:
        """Note what an operator reads of the packed objects that it takes: tables by row, layers whole."""
        for packed in args:
            held = self._packs.get(hash(packed), ()) if isinstance(packed, torch.ScriptObject) else ()
            for tensor in held:
                if name.startswith("quantized::embedding"):
                    self._pick(tensor, lambda flags: _rows(flags, args[1]))
                else:
                    self._mark_whole(tensor)

    def _is_stored(self, tensor: torch.Tensor, *, is_made: bool) -> bool:
        """Whether a tensor comes of no input; one that is seen for the first time is from outside."""
        if not _is_strided(tensor):
            return False
        key = _key(tensor)
        if is_made:
            self._moved.discard(key)  # of a storage that is gone
        if key not in self._memory and key not in self._moved:
            self._memory[key] = _Memory(tensor)
            if not is_made and tensor.numel() > 1:
                self._outside.append(tensor)
        return key in self._memory and key not in self._moved

    def _count(self, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Results that integers alone go into; a key may be of a storage that is gone."""
        made = {_key(result) for result in results if _is_strided(result)}
        if all(_is_strided(tensor) and self._is_counted(tensor) for tensor in tensors):
            self._counted |= made
        else:
            self._counted -= made

    def _is_mixed(self, tensor: torch.Tensor) -> bool:
        return _is_strided(tensor) and _key(tensor) in self._memory and self._memory[_key(tensor)].is_mixed

    def _move(self, results: list[torch.Tensor]) -> None:
        """Results that inputs go into; stored tensors stay such, whatever is written into them."""
        self._moved |= {_key(result) for result in results if _is_strided(result)} - self._own

    def mark_outputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """What the model returns is read whole."""
        for tensor in tensors:
            if _is_strided(tensor) and _key(tensor) in self._memory:
                self._mark_whole(tensor)

    def _pick(self, tensor: torch.Tensor, mark: Callable[[torch.Tensor], object]) -> None:
        memory = self._memory[_key(tensor)]
        memory.is_picked |= not memory.is_mixed
        self._mark(tensor, mark)

    def _mark(self, tensor: torch.Tensor, mark: Callable[[torch.Tensor], object]) -> None:
        with _disable_current_modes():
            self._memory[_key(tensor)].mark(tensor, mark)

    def _mark_whole(self, tensor: torch.Tensor) -> None:
        memory = self._memory[_key(tensor)]
        if tensor.numel() == memory.tensor.numel():
            memory.is_whole = True
        else:
            self._mark(tensor, lambda flags: flags.fill_(True))

    def _derive(self, sources: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Results of stored tensors alone; views are read where they lie."""
        for result in results:
            if _is_strided(result):
                self._moved.discard(_key(result))  # of a storage that is gone
                self._memory.setdefault(_key(result), _Memory(result, sources))

    @torch.inference_mode()
    def add_to(self, coverage: Coverage, array: Array) -> None:
        """Hand over what was read, after the run, under the mode that flags may have been made in."""
        for memory in reversed(self._memory.values()):  # a computed one comes after its sources
            for source in memory.sources:
                self._hand_down(memory, source)
        for weight in self._weights:
            memory = self._memory[_key(weight.tensor)]
            mask = torch.ones((), dtype=torch.bool)
            if memory.part is not None:
                own = memory.flags(weight.tensor)
                mask = mask if own is None else own
            coverage.read(weight.name, mask.numpy())
        self._add_outside(coverage, array)
        for call, branch in self.executed:
            coverage.execute(call, branch)

    def _add_outside(self, coverage: Coverage, array: Array) -> None:
        """Hand over tables of no module, by their sizes and their order, where they were read in part."""
        counts: Counter[str] = Counter()
        for tensor in self._outside:
            sizes = "x".join(map(str, tensor.shape))
            counts[sizes] += 1
            part = self._memory[_key(tensor)].part
            if part is None or not part.any() or part.all():
                continue
            name = f"table of no module, {sizes}" + (f" #{counts[sizes]}" if counts[sizes] > 1 else "")
            coverage.read(name, part.numpy())
            coverage.outside[name] = partial(array, tensor)

    def _hand_down(self, memory: _Memory, source: torch.Tensor) -> None:
        """Mark in a source what was read of the tensor that was made of it.

        Where that has other rows (two tables behind one another), nobody knows: nothing is marked.
        """
        made = memory.tensor
        flags = memory.part
        if flags is None or flags.all():
            self._mark_whole(source)
        elif not flags.any():
            return
        self._memory[_key(source)].is_picked |= memory.is_picked
        if flags is None:
            return
        if made.shape == source.shape:
            self._mark(source, lambda own: own.logical_or_(flags))
        elif made.dim() and source.dim() and made.shape[0] == source.shape[0] > 1:
            rows = flags.reshape(flags.shape[0], -1).any(1)
            self._mark(source, lambda own: own.__setitem__(rows, True))


class IndexRanges(RunningMode):
    """Below what integer inputs must stay: the rows of the smallest table that each of them asks for.

    An input that anything else reads than a table, or a comparison for equality, has no range.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {_key(tensor): name for name, tensor in inputs.items()}
        self._kept = list(inputs.values())
        self._sizes: dict[str, int] = {}
        self._barred: set[str] = set()

    @property
    def ranges(self) -> Mapping[str, int]:
        """The range of each input that has one."""
        return {name: size for name, size in self._sizes.items() if name not in self._barred}

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and note what it does with an input."""
        result = func(*args, **kwargs)
        name, made = func._schema.name, tensors_in(result)
        for tensor in [*tensors_in(args), *tensors_in(list(kwargs.values()))]:
            asked = self._names.get(_key(tensor)) if _is_strided(tensor) else None
            if asked is not None:
                self._note(asked, tensor, name, args, made)
        return result

    def _note(
        self, asked: str, tensor: torch.Tensor, name: str, args: tuple[Any, ...], made: list[torch.Tensor]
    ) -> None:
        at = INDEXED.get(name)
        if any(_is_strided(each) and _key(each) == _key(tensor) for each in made):
            return  # a view
        if at is not None and len(args) > at and args[at] is tensor:
            axis = args[1] if at > 1 else 0
            rows = args[0].shape[axis]
        elif name == "aten::index" and len(args[1]) == 1 and args[1][0] is tensor:
            rows = args[0].shape[0]
        elif name in CARRIERS and made and not made[0].is_floating_point():
            self._names[_key(made[0])] = asked
            self._kept.append(made[0])
            return
        elif name.partition(".")[0] in COMPARISONS:
            return
        else:
            self._barred.add(asked)
            return
        self._sizes[asked] = min(rows, self._sizes.get(asked, rows))


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and prod(tensor.shape) > 0
