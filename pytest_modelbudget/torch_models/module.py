"""``torch:`` a module, or a callable that builds one."""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import fx, nn

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.model import LoadedModel, no_training_step
from pytest_modelbudget.formats.source import InputSpecs, ModelSource
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import exported
from pytest_modelbudget.torch_models.building import built, converted, is_an_instance, method_of
from pytest_modelbudget.torch_models.module_paths import ModuleScopes
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.torchscript import (
    frozen_parts,
    refuse_optimised,
    saved_copy,
    script_graph,
    script_subject,
)
from pytest_modelbudget.torch_models.tracing import Subject, traced
from pytest_modelbudget.torch_models.training import training_step
from pytest_modelbudget.torch_models.values import CallInputs
from pytest_modelbudget.torch_models.weights import at_home, copied, module_tree


def load(source: ModelSource, rules: OpTable) -> TorchModel:
    """The model that ``source`` names; an exported program in memory is one as in a file."""
    exporting = sys.modules.get("torch.export")  # where it was not loaded, nothing was exported
    if exporting is not None and isinstance(source.target, exporting.ExportedProgram):
        return exported.load(source, rules)
    return TorchModel(ModuleSource(source), rules)


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """A module, or a callable that builds one."""

    source: ModelSource

    def trace(self, model: TorchModel) -> LoadedModel:
        """The graph of the module, in eval mode; what it is built with is not filled.

        Raises SourceError where no module comes of it, and InputError or TraceError where it does
        not run on its inputs.
        """
        source, rewriting = self.source, model.rewriting()
        dtype = converted(source.dtype)
        module = built(source)
        if isinstance(module, torch.jit.ScriptModule):
            if dtype is not None:
                raise SourceError("dtype converts modules, not TorchScript: save it in that type")
            opened = saved_copy(module)
            return script_graph("torch", opened, source.inputs, model.rules, rewriting)
        subject = module_subject(module, source, dtype)
        return traced(subject, source.inputs, model.rules, dtype, rewriting=rewriting)

    def training_step(self, model: TorchModel, optimizer: str) -> Graph:
        """The step of the module in train mode; what it is built with is not filled, either."""
        module = built(self.source)
        if isinstance(module, torch.jit.ScriptModule):
            raise no_training_step(model.format)
        dtype = converted(self.source.dtype)
        return training_step(
            module_subject(module, self.source, dtype), self.source.inputs, model.rules, dtype, optimizer
        )

    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        """The module, built from this seed; a copy of one that exists."""
        source = self.source
        dtype = converted(source.dtype)
        module = built(source, initialised=True, seed=seed)
        if isinstance(module, torch.jit.ScriptModule):
            return script_subject("torch", saved_copy(module)), source.inputs
        module = at_home(module) if self.is_factory() else _copy(module)
        module = module if dtype is None else module.to(dtype)
        return module_subject(module, source, None), source.inputs

    def is_factory(self) -> bool:
        return not is_an_instance(self.source)

    def surroundings(self) -> AbstractContextManager[None]:
        return nullcontext()  # what others set, and a note tells

    def reachable(self, model: TorchModel) -> nn.Module:
        """An instance itself, of which a copy was built; what a factory builds may be kept."""
        return model.subject.model if self.is_factory() else built(self.source)


def module_subject(model: nn.Module, source: ModelSource, dtype: torch.dtype | None) -> Subject:
    """How the tracer runs a module."""
    if isinstance(model, torch.jit.ScriptModule):
        return script_subject("torch", saved_copy(model))
    refuse_optimised(model)
    method = method_of(source)
    call = MethodType(method.__func__, model) if method else model

    def real() -> Subject:
        true = built(source, initialised=True)
        # A run writes into buffers, and these are the caller's.
        true = _copy(model) if true is model else at_home(true)
        if dtype is not None:
            true = true.to(dtype)
        return module_subject(true, source, None)

    def run(inputs: CallInputs, scopes: Scopes) -> Any:
        if not isinstance(model, fx.GraphModule):  # exported ones have the mode they have
            to_eval_mode(model)
        return call(*inputs.args, **inputs.kwargs)

    return Subject(
        "torch",
        model,
        run,
        ModuleScopes,
        real=real,
        of_instance=lambda other: module_subject(other, source, dtype),
        frozen=frozen_parts(model),
        method=call if method else None,
    )


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy of a user's instance; raises SourceError for one around an engine, a lock or a socket."""
    try:
        with user_code("copying the model", SourceError):
            return copied(model)
    except SourceError as error:
        raise SourceError(f"{error}: give a factory, which is called instead") from error.__cause__


MODE_METHODS = ("eval", "train", "children", "named_children", "__setattr__")


@cache
def _has_plain_modes(kind: type[nn.Module]) -> bool:
    """Whether torch's own methods put modules of a class into eval mode, and set a flag."""
    return all(getattr(kind, name) is getattr(nn.Module, name) for name in MODE_METHODS)


def to_eval_mode(model: nn.Module) -> None:
    """``model.eval()``; where no class has its own way, without a call for each module."""
    modules = module_tree(model)
    states = [vars(module) for _, module in modules]
    kinds: set[Any] = {type(module) for _, module in modules}
    if all(map(_has_plain_modes, kinds)) and not any("train" in state for state in states):
        for state in states:
            state["training"] = False
    else:
        model.eval()
