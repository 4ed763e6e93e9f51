"""``torch:`` a module, or a callable that builds one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx, nn

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.building import built, converted, is_an_instance
from pytest_modelbudget.torch_models.scopes import ModuleScopes
from pytest_modelbudget.torch_models.script import saved_copy, script_graph, script_subject
from pytest_modelbudget.torch_models.tracing import Rewriting, Subject, WatchedScopes, over_instance, traced
from pytest_modelbudget.torch_models.values import CallInputs
from pytest_modelbudget.torch_models.weights import copied


def load(source: ModelSource, rules: OpTable, *, rewriting: Rewriting | None = None) -> LoadedModel:
    """The graph of the module that ``source`` names, in eval mode.

    Raises SourceError where no module comes of it, and InputError or TraceError where it does not
    run on its inputs.
    """
    dtype = converted(source.dtype)
    model = built(source)
    if isinstance(model, torch.jit.ScriptModule):
        if dtype is not None:
            raise SourceError("dtype converts modules, not TorchScript: save it in that type")
        return script_graph("torch", saved_copy(model), source.inputs, rules, rewriting)
    subject = module_subject(model, source, dtype)
    return traced(subject, source.inputs, rules, dtype, rewriting=rewriting)


def true_subject(source: ModelSource, seed: int = 0) -> Subject:
    """The model with its true weights, for runs: built from this seed, and nobody else's."""
    dtype = converted(source.dtype)
    model = built(source, initialised=True, seed=seed)
    if isinstance(model, torch.jit.ScriptModule):
        return script_subject("torch", saved_copy(model))
    if is_an_instance(source):
        model = copied(model)
    return module_subject(model if dtype is None else model.to(dtype), source, None)


def module_subject(model: nn.Module, source: ModelSource, dtype: torch.dtype | None) -> Subject:
    """How the tracer runs a module."""
    if isinstance(model, torch.jit.ScriptModule):
        return script_subject("torch", saved_copy(model))

    def real() -> Subject:
        true = built(source, initialised=True)
        if true is model:
            true = copied(model)  # a run writes into buffers, and these are the caller's
        if dtype is not None:
            true = true.to(dtype)
        return module_subject(true, source, None)

    def run(inputs: CallInputs, scopes: WatchedScopes) -> Any:
        if not isinstance(model, fx.GraphModule):  # exported ones have the mode they have
            model.eval()
        return model(*inputs.args, **inputs.kwargs)

    return Subject(
        "torch",
        model,
        run,
        ModuleScopes,
        real=real,
        over=partial(over_instance, lambda other: module_subject(other, source, dtype)),
    )
