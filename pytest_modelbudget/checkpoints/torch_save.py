"""Files that ``torch.save`` writes: state dicts, read by torch without running code and without values."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from pytest_modelbudget.checkpoints.stored import WRITE_AGAIN, StoredTensor, reading
from pytest_modelbudget.errors import MissingExtraError, SourceError
from pytest_modelbudget.formats.source import is_cut
from pytest_modelbudget.graph.tensor import DType
from pytest_modelbudget.units import some_of

# Where trainers keep the state dict of the model, next to optimizers and counters.
WITHIN = ("state_dict", "model_state_dict", "model", "module")
SAVE_AGAIN = "save the state dict alone: torch.save(model.state_dict(), path)"


def read(path: Path) -> tuple[tuple[StoredTensor, ...], Mapping[str, Any]]:
    """The tensors of a state dict, each memory under one name; raises SourceError for a file with anything else."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError(path.name, package="torch", extra="torch") from error
    try:
        with reading(path):
            if is_cut(path):
                raise SourceError(f"{path.name} is only a part of an archive: {WRITE_AGAIN}")
            loaded = _loaded(path)
    except pickle.UnpicklingError as error:
        reason = next((line.strip() for line in str(error).splitlines() if "global" in line.lower()), "")
        found = f" ({reason[:160]})" if reason else ""
        raise SourceError(f"{path.name} holds more than tensors{found}: {SAVE_AGAIN}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError) as error:
        said = " ".join(str(error).split()).partition(". ")[0]
        raise SourceError(f"{path.name} is nothing that torch.save writes today ({said}): {SAVE_AGAIN}") from error
    return tuple(_tensors(_state_dict(loaded, path), path, torch.Tensor)), {}


def _loaded(path: Path) -> Any:
    """The contents of a file, mapped, not read; an installed torchao declares its classes safe where one has some."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        if "torchao." not in str(error) or find_spec("torchao") is None:
            raise
        import_module("torchao")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _state_dict(loaded: Any, path: Path) -> Mapping[str, Any]:
    """The mapping of names to tensors in one of a trainer's usual places, else the whole file.

    The places come first: a trainer's file may have tensors of its own next to them, as a loss.
    """
    import torch

    def is_state(value: Any) -> bool:
        return isinstance(value, Mapping) and any(isinstance(each, torch.Tensor) for each in value.values())

    candidates = [*(loaded.get(key) for key in WITHIN if isinstance(loaded, Mapping)), loaded]
    found = next((each for each in candidates if is_state(each)), None)
    if found is None:
        held = some_of(map(repr, loaded)) if isinstance(loaded, Mapping) else type(loaded).__name__
        raise SourceError(f"{path.name} has no state dict, but {held}: {SAVE_AGAIN}")
    return found  # type: ignore[no-any-return]  # a mapping, as is_state says


def _tensors(state: Mapping[str, Any], path: Path, tensor: type) -> Iterator[StoredTensor]:
    from torch.multiprocessing import reductions

    memory: Any = reductions.StorageWeakRef  # torch gives no types
    storages: dict[Any, str] = {}  # by a reference, which keeps the address from being given again
    numbers = count()
    for name, value in state.items():
        if not isinstance(value, tensor):
            if _has_tensors(value, tensor):
                raise SourceError(f"{path.name} has tensors within '{name}': {SAVE_AGAIN}")
            continue
        for part, each, logical in _parts(str(name), value):
            known = storages.setdefault(memory(each.untyped_storage()), f"{path.name} {next(numbers)}")
            dtype = DType(str(each.dtype).removeprefix("torch."), each.element_size() * 8)
            yield StoredTensor(part, tuple(each.shape), dtype, path, each.storage_offset(), known, logical)


def _has_tensors(value: Any, tensor: type) -> bool:
    """Whether containers, which may contain themselves, have a tensor at any depth."""
    pending, visited = [value], set[int]()
    while pending:
        each = pending.pop()
        if isinstance(each, tensor):
            return True
        if isinstance(each, Mapping | list | tuple | set | frozenset) and id(each) not in visited:
            visited.add(id(each))
            pending.extend(each.values() if isinstance(each, Mapping) else each)
    return False


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any, int | None]]:
    """A tensor, or the tensors inside of a wrapper, of which the first stands for all of its values."""
    if not hasattr(value, "__tensor_flatten__"):
        yield name, value, None
        return
    inner, _ = value.__tensor_flatten__()
    for at, attribute in enumerate(inner):
        yield f"{name}.{attribute}", getattr(value, attribute), value.numel() if not at else 0
