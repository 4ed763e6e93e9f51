"""What TorchScript asks of the device of its tensors: its interpreter is given the answers of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.devices import ATTRIBUTES
from pytest_modelbudget.torch_models.patches import replaced

CALLED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
ANSWERS = {f"prim::{name}": answer for name, answer in ATTRIBUTES.items()}
NOT_INLINED = ("prim::CallMethod", "prim::CallFunction", "prim::fork")  # of an interface; beside the program


class ScriptCalls:
    """Calls scripted functions and methods that branch on a device in a form that has the answers in it."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[Any, Any]] = {}  # by what is called, which is kept: itself, and its form

    def instead_of(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A call of what is scripted."""

        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in self._forms:
                self._forms[id(called)] = called, with_answers(called)
            form = self._forms[id(called)][1]
            arguments = None if form is None else _in_order(called, args, kwargs)
            return own(called, *args, **kwargs) if arguments is None else form(*arguments)

        return call


def with_answers(called: Any) -> Any:
    """A scripted function or method with the answers of a run in it; None where it asks for none.

    Raises TraceError where another one may ask, which is not known before it runs.
    """
    graph = called.graph.copy()
    torch._C._jit_pass_inline(graph)
    for kind in NOT_INLINED:
        if graph.findAllNodes(kind):
            raise TraceError(f"{called.name} has {kind} in it, which may ask tensors without memory for their device")
    asked = [node for kind in ANSWERS for node in graph.findAllNodes(kind)]
    branches = [(node, use) for node in asked for use in node.output().uses() if not _makes_tensor(use.user)]
    for node, use in branches:
        with graph.insert_point_guard(node):
            use.user.replaceInput(use.offset, graph.insertConstant(ANSWERS[node.kind()]))
    return torch._C._create_function_from_graph(called.name, graph) if branches else None


def _makes_tensor(node: Any) -> bool:
    """Whether a node takes a device to make a tensor there: without memory, where its others have none."""
    return bool(node.kind().startswith("aten::") and [str(out.type()) for out in node.outputs()] == ["Tensor"])


def _in_order(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Every argument of a call at its place, as a form without names and defaults takes it; None where they misfit."""
    owner = [called.owner] if isinstance(called, torch._C.ScriptMethod) else []
    given = [*owner, *args]
    absent = called.schema.arguments[len(given) :]
    is_complete = all(each.name in kwargs or each.has_default_value() for each in absent)
    if not is_complete or kwargs.keys() - {each.name for each in absent}:
        return None
    return [*given, *(kwargs.get(each.name, each.default_value) for each in absent)]


@contextmanager
def scripts_as_on_cpu(way: str) -> Iterator[None]:
    """What is scripted and called in this context, on tensors without memory, finds them on the CPU."""
    if way == "real":
        yield
        return
    calls = ScriptCalls()
    with replaced([(called, "__call__", calls.instead_of(called.__call__)) for called in CALLED]):
        yield
