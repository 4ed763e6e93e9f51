"""Torch models changed: by another module in their place, or by other operations in their runs."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats.model import Change, LoadedModel
from pytest_modelbudget.formats.source import InputSpecs, TensorSpec, transform_named
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.torch_models.environment import reproducible
from pytest_modelbudget.torch_models.rewriting import Rewrite
from pytest_modelbudget.torch_models.running import TorchModel, telling_of_meta
from pytest_modelbudget.torch_models.tracing import Subject, traced
from pytest_modelbudget.torch_models.training import training_step
from pytest_modelbudget.torch_models.versions import UNCOMPILED, is_traceable_wrapper_subclass, memory_of, submodules_of
from pytest_modelbudget.torch_models.weights import copied, leaves, module_tree, named_weights
from pytest_modelbudget.transforms.transform import Settings

Changer = Callable[[nn.Module], nn.Module]


def change_module(
    model: TorchModel, changer: Changer, changes: Callable[[nn.Module, nn.Module], tuple[Change, ...]]
) -> Changed:
    """What a changer makes of a copy of a model; changes tells what is different in it.

    Copies of a model are changed alike, and not examined again.
    """
    changed = model.changed(ChangedModule(model, changer))
    if model.is_copy:
        return Changed(changed)
    return Changed(changed, changes(model.subject.model, changed.subject.model))


def change_operations(model: TorchModel, rewrite: Rewrite, check: Callable[[Changed], None]) -> Changed:
    """The model under a rewrite; check raises where that left out what it may not.

    Copies of a model are rewritten alike, and neither traced nor checked again.
    """
    changed = model.changed(model.source, rewrite)
    if model.is_copy:
        return Changed(changed, is_last=True)
    changed.measured  # noqa: B018  # the trace notes the changes
    made = Changed(changed, tuple(rewrite.changes), rewrite.partial_sums, is_last=True)
    check(made)
    return made


@dataclass(frozen=True, slots=True)
class ChangedModule:
    """What a changer makes of a copy of a model, as a source of models."""

    original: TorchModel
    changer: Changer

    def trace(self, model: TorchModel) -> LoadedModel:
        specs = model.specs.each(TensorSpec.in_float64) if model.is_exact else model.specs
        with self.surroundings():
            return traced(model.subject, specs, model.rules, rewriting=model.rewriting())

    def training_step(self, model: TorchModel, optimizer: str) -> Graph:
        return training_step(model.subject, model.specs, model.rules, None, optimizer)

    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        """The changed copy; the model stays as it is.

        Raises TransformError where the changer does, or writes into the model's own weights.
        """
        original = self.original
        subject = original.subject
        with reproducible(), user_code("copying the model", TransformError):
            same = copied(subject.model)
        with weights_untouched(original.source.reachable(original)):
            return subject.over(_changed(same, self.changer)), original.specs

    def is_factory(self) -> bool:
        return False

    def surroundings(self) -> AbstractContextManager[None]:
        return self.original.source.surroundings()

    def reachable(self, model: TorchModel) -> nn.Module:
        return model.subject.model


@contextmanager
def weights_untouched(model: nn.Module) -> Iterator[None]:
    """Refuse a transform that writes into these parameters or buffers, or exchanges them."""
    before = checksums(model)
    yield
    after = checksums(model)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise TransformError(
                f"the transform changed {name!r} of the original model: change only the copy "
                "that it is given, and return that"
            )


def checksums(model: nn.Module) -> dict[str, int]:
    """The CRC-32 of the memory under each parameter and buffer, by its full name.

    Tensors without plain memory (sparse ones, wrappers around others, those on meta) are left out.
    """
    of_memory: dict[int, int] = {}
    sums: dict[str, int] = {}
    for weight in named_weights(module_tree(model)):
        tensor = weight.tensor
        if tensor.layout is not torch.strided or tensor.is_meta or is_traceable_wrapper_subclass(tensor):
            continue
        address = memory_of(tensor)
        if address not in of_memory:
            of_memory[address] = _checksum(tensor.untyped_storage())
        sums[weight.name] = of_memory[address]
    return sums


def _checksum(memory: torch.UntypedStorage) -> int:
    here = memory.cpu()  # type: ignore[no-untyped-call]  # torch gives no types
    return zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(here).numpy().data)


def _changed(model: nn.Module, changer: Changer) -> nn.Module:
    model.eval()
    own = list(model.modules())
    with reproducible(), telling_of_meta(model):
        changed = changer(model)
    if not isinstance(changed, nn.Module):
        raise TransformError(f"the transform returned {type(changed).__name__}, not a torch.nn.Module")
    _still_in_eval_mode(changed, own)
    return changed


def _still_in_eval_mode(changed: nn.Module, own: list[nn.Module]) -> None:
    """Refuse a model whose own layers were switched to training: a dropout left on would hide.

    New layers are in training mode because nobody has switched them yet, and say nothing.
    """
    mine = set(map(id, own))
    for path, module in changed.named_modules():
        if module.training and id(module) in mine:
            raise TransformError(
                f"the transform left {f'layer {path!r}' if path else 'the model'} in training "
                "mode: it is given in eval mode; call eval() on what you return"
            )


# ``apply: package.module:callable``: the user's own transform, module → module.


def apply(model: TorchModel, settings: Settings) -> Changed:
    """What the user's callable makes of a copy of the model."""
    target = str(settings["apply"])
    call = transform_named(target)

    def changer(module: nn.Module) -> nn.Module:
        with user_code(f"calling {target}", TransformError):
            return call(module)  # type: ignore[no-any-return]  # checked by who called

    return change_module(model, changer, layer_changes)


def layer_changes(before: nn.Module, after: nn.Module) -> tuple[Change, ...]:
    """Every layer of the original, and its replacement: by path and type."""
    return tuple(_changes(before, after))


def _changes(before: nn.Module, after: nn.Module) -> Iterator[Change]:
    there = dict(_uncompiled(after))
    for path, module in _uncompiled(before):
        if submodules_of(module):
            continue
        kind, other = type(module).__name__, there.get(path)
        now = type(other).__name__ if other is not None else "nothing of that name"
        if now != kind:
            yield Change(path, kind, now)
        elif _same_weights(module, other):
            yield Change(path, kind, why="as it was")
        else:
            yield Change(path, kind, f"{kind} with other weights")


def _uncompiled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its path, without the layers that ``torch.compile`` puts around it."""
    for path, module in model.named_modules():
        if UNCOMPILED not in submodules_of(module):
            yield ".".join(name for name in path.split(".") if name != UNCOMPILED), module


def _same_weights(module: nn.Module, other: Any) -> bool:
    """Whether two layers store tensors of the same names, types and values."""
    mine, theirs = module.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(_same(value, theirs[name]) for name, value in mine.items())


def _same(value: Any, other: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(value) is type(other)
    if type(value) is not type(other) or value.dtype != other.dtype or value.shape != other.shape:
        return False
    if is_traceable_wrapper_subclass(value):
        parts = zip(leaves(value), leaves(other), strict=False)
        return all(name == its and _same(part, of_other) for (name, part), (its, of_other) in parts)
    return torch.equal(value, other)
