"""TorchScript's interpreter, told to run what is scripted as it is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.patching import replaced

CALLED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
IN_CPP = "__torch__.torch.classes."
BY_INTERFACE = "prim::CallMethod"  # what is left of calls when all that is known is inlined
FORK = "prim::fork"


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """Whatever is scripted runs as its source says, also where earlier calls have left an optimised plan of it.

    The optimiser makes one call of two alike, and drops what nobody reads; it does so after a number of calls.
    """
    called_before: dict[int, tuple[Any, Any]] = {}  # by what is called, which is kept: itself, and its form

    def as_written(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in called_before:
                with optimised(True):
                    called_before[id(called)] = called, _prepared(called)
            form = called_before[id(called)][1]
            arguments = None if form is None else in_order(called, args, kwargs)
            with optimised(False):
                return own(called, *args, **kwargs) if arguments is None else run(form, *arguments)

        return call

    run = torch._C.ScriptFunction.__call__
    wrapped = [(called, "__call__", as_written(called.__call__)) for called in CALLED]
    with profiling(), optimised(True), replaced(wrapped):  # graphs made in here stay, and autocast is put into these
        yield


@contextmanager
def optimised(is_on: bool) -> Iterator[None]:
    """Whether TorchScript's optimiser is on, as before afterwards."""
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(is_on)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)


@contextmanager
def profiling() -> Iterator[None]:
    """TorchScript's profiling executor, as torch has it at first; whichever there was before, afterwards.

    speechbrain turns it off: the others leave out what nobody reads, and run no other plan.
    """
    executor, mode = torch._C._jit_set_profiling_executor(True), torch._C._jit_set_profiling_mode(True)
    try:
        yield
    finally:
        torch._C._jit_set_profiling_executor(executor)
        torch._C._jit_set_profiling_mode(mode)


def _prepared(called: Any) -> Any:
    """The form in which a scripted function or method is run instead, None where it is run itself.

    The interpreter plans the next run of it anew, and of what it calls on its own. Raises TraceError for forks.
    """
    is_method = isinstance(called, torch._C.ScriptMethod)
    if is_method and called.owner._type().qualified_name().startswith(IN_CPP):  # as packed weights are: without plans
        return None
    graph = inlined(called.graph.copy())
    refuse_forks(called.name, graph)
    form: Any = None
    if not _plans_anew(called):
        form = torch._C._create_function_from_graph(called.name, graph)
        form._debug_flush_compilation_cache()
    if is_method and called.inlined_graph.findAllNodes(BY_INTERFACE):
        behind = [*_methods(called.owner)]
        for method in behind:
            refuse_forks(called.name, inlined(method.graph.copy()))
        if not all(_plans_anew(method) for method in behind):
            raise TraceError(
                f"{called.name} calls by an interface what has run after torch._C._jit_set_profiling_executor(False), "
                "and TorchScript then leaves out what nobody reads: give a model that has not run"
            )
    return form


def _plans_anew(called: Any) -> bool:
    """Whether the interpreter plans the next run of a function or method anew.

    It does not where the first run was in another executor than its profiling one: each stays in that of its first.
    """
    try:
        called._debug_flush_compilation_cache()
    except RuntimeError:
        return False
    return True


def _methods(module: Any) -> Iterator[Any]:
    """Every method of the scripted modules within one."""
    for _, within in torch._C.ModuleDict(module).items():
        yield from (within._get_method(name) for name in within._method_names())
        yield from _methods(within)


def inlined(graph: Any) -> Any:
    """Inline all calls of a graph, in place, except forks and calls by an interface."""
    torch._C._jit_pass_inline(graph)
    return graph


def in_order(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Every argument of a call at its place, as a form without names and defaults takes it; None where they misfit."""
    owner = [called.owner] if isinstance(called, torch._C.ScriptMethod) else []
    given = [*owner, *args]
    absent = called.schema.arguments[len(given) :]
    is_complete = all(each.name in kwargs or each.has_default_value() for each in absent)
    if not is_complete or kwargs.keys() - {each.name for each in absent}:
        return None
    return [*given, *(kwargs.get(each.name, each.default_value) for each in absent)]


def refuse_forks(name: str, graph: Any) -> None:
    """Raise TraceError for ``torch.jit.fork``: its body runs in a thread, where no operator is seen."""
    if graph.findAllNodes(FORK):
        raise TraceError(
            f"{name} calls torch.jit.fork, which runs in a thread of its own: call the function itself, or give the "
            "module that was scripted"
        )
