"""Calls of TorchScript: each runs as it is written, on the CPU, whatever plan or device an earlier call has left."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.accelerators import CPU, is_accelerator
from pytest_modelbudget.torch_models.escapes import ATTRIBUTES
from pytest_modelbudget.torch_models.recording import NeedsMemoryError
from pytest_modelbudget.torch_models.versions import optimised, plan_anew, script_function, script_methods, script_type

CALLED: tuple[Any, ...] = (torch.ScriptFunction, torch.ScriptMethod)
IN_CPP = "__torch__.torch.classes."  # as packed weights are: without plans
FORK, LISTED = "prim::fork", "prim::tolist"  # the latter reads memory without an operator
BY_INTERFACE = "prim::CallMethod"  # what is left of calls when all that is known is inlined
ANSWERS = {f"prim::{name}": answer for name, answer in ATTRIBUTES.items()}  # of a tensor without memory, as in a run
DEVICE = "DeviceObjType"


class ScriptCalls:
    """Runs scripted functions and methods as copies that no call has planned.

    The optimiser makes one call of two alike, and drops what nobody reads; it does so after a number of calls, and
    at once in another executor than the profiling one, which speechbrain chooses. note_list is called for each call of
    a script that makes lists of floating values: what it computes with them is not seen.
    """

    def __init__(self, *, have_memory: bool, note_list: Callable[[], None]) -> None:
        self._have_memory, self._note_list = have_memory, note_list
        self._forms: dict[int, tuple[Any, Any, bool]] = {}  # by what is called, which is kept: its form, and of lists

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Return the attributes of torch that call scripts, with the function that replaces each."""
        return ((kind, "__call__", self._instead_of(kind.__call__)) for kind in CALLED)

    def _instead_of(self, own: Callable[..., Any]) -> Callable[..., Any]:
        run = torch.ScriptFunction.__call__

        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in self._forms:
                with optimised(True):  # graphs made in here stay, and autocast is put into these
                    self._forms[id(called)] = called, *self._formed(called)
            _, form, has_lists = self._forms[id(called)]
            if has_lists:
                self._note_list()
            arguments = None if form is None else in_order(called, args, kwargs)
            with optimised(False):
                return own(called, *args, **kwargs) if arguments is None else run(form, *arguments)

        return call

    def _formed(self, called: Any) -> tuple[Any, bool]:
        """The copy of a script that is run, None where it has no graph; and whether it makes lists of values."""
        is_method = isinstance(called, torch.ScriptMethod)
        if is_method and script_type(called.owner).qualified_name().startswith(IN_CPP):
            return None, False
        graph = called.inlined_graph  # a copy, but for forks and calls by an interface
        behind: list[Any] = []
        if graph.findAllNodes(BY_INTERFACE):
            if not self._have_memory:
                raise NeedsMemoryError(f"{called.name} calls by an interface what may ask for devices or values")
            behind = [*_methods(called.owner)] if is_method else []
            for method in behind:
                _plan_anew(called.name, method)
        graphs = [graph, *(method.inlined_graph for method in behind)]
        if any(each.findAllNodes(FORK) for each in graphs):
            raise TraceError(
                f"{called.name} calls torch.jit.fork, which runs in a thread of its own: call the function itself, or "
                "give the module that was scripted"
            )
        if not self._have_memory and graph.findAllNodes(LISTED):  # at address 0 it would end the process
            raise NeedsMemoryError(f"{called.name} makes a list of a tensor's values")
        _put_on_cpu(graph, {} if self._have_memory else ANSWERS)
        listed = (str(node.output().type()) for each in graphs for node in each.findAllNodes(LISTED))
        return script_function(called.name, graph), any("float" in of or "complex" in of for of in listed)


def _plan_anew(name: str, method: Any) -> None:
    """Have a method, which is called by an interface, planned again; raises TraceError where it cannot be."""
    try:
        plan_anew(method)
    except RuntimeError as error:
        raise TraceError(
            f"{name} calls by an interface what has run without the profiling executor, "
            "and TorchScript then omits what is not read: give a model that has not run"
        ) from error


def _methods(module: Any) -> Iterator[Any]:
    """Every method of the scripted modules within one."""
    for _, within in torch.ModuleDict(module).items():
        yield from script_methods(within)
        yield from _methods(within)


def _put_on_cpu(graph: Any, answers: dict[str, object]) -> None:
    """Put the CPU in the place of accelerators that a graph names, and answers where it branches on a device."""
    constants = [node for node in graph.findAllNodes("prim::Constant") if node.output().type().kind() == DEVICE]
    named = [node for node in constants if node.hasAttribute("value") and is_accelerator(node.s("value"))]
    named += [node for node in graph.findAllNodes("prim::GetAttr") if node.output().type().kind() == DEVICE]
    for node in named:
        with graph.insert_point_guard(node):
            node.output().replaceAllUsesWith(graph.insertConstant(CPU))
        node.destroy()
    asked = [node for kind in answers for node in graph.findAllNodes(kind)]
    branches = [(node, use) for node in asked for use in node.output().uses() if not _makes_tensor(use.user)]
    for node, use in branches:
        with graph.insert_point_guard(node):
            use.user.replaceInput(use.offset, graph.insertConstant(answers[node.kind()]))


def _makes_tensor(node: Any) -> bool:
    """Return whether a node takes a device to make a tensor there: without memory, where its others have none."""
    return bool(node.kind().startswith("aten::") and [str(out.type()) for out in node.outputs()] == ["Tensor"])


def in_order(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Every argument of a call at its place, as a form without names and defaults takes it; None where they misfit."""
    owner = [called.owner] if isinstance(called, torch.ScriptMethod) else []
    given = [*owner, *args]
    absent = called.schema.arguments[len(given) :]
    is_complete = all(each.name in kwargs or each.has_default_value() for each in absent)
    if not is_complete or kwargs.keys() - {each.name for each in absent}:
        return None
    return [*given, *(kwargs.get(each.name, each.default_value) for each in absent)]
