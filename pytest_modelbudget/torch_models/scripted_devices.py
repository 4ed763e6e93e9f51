"""What TorchScript asks of the device of its tensors: its interpreter, which asks nobody, is given a run's answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.torch_models.patches import replaced

CALLED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
ANSWERS = {"prim::device": torch.device("cpu"), "prim::is_cpu": True, "prim::is_meta": False}


class Told:
    """Calls scripted functions and methods that branch on a device in a form that has the answers in it."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[Any, Any]] = {}  # by what is called, which is kept: itself, and its form

    def instead_of(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A call of what is scripted."""

        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in self._forms:
                self._forms[id(called)] = called, answered(called)
            form = self._forms[id(called)][1]
            if form is None:
                return own(called, *args, **kwargs)
            return form(*_in_order(called, args, kwargs))

        return call


def answered(called: Any) -> Any:
    """A scripted function or method with the answers of a run; None where it asks for none."""
    graph = called.graph.copy()
    torch._C._jit_pass_inline(graph)
    asked = [node for kind in ANSWERS for node in graph.findAllNodes(kind)]
    branches = [(node, use) for node in asked for use in node.output().uses() if not _makes_tensor(use.user)]
    for node, use in branches:
        with graph.insert_point_guard(node):
            use.user.replaceInput(use.offset, graph.insertConstant(ANSWERS[node.kind()]))
    return torch._C._create_function_from_graph(called.name, graph) if branches else None


def _makes_tensor(node: Any) -> bool:
    """Whether a node takes a device to make a tensor there: without memory, where its others have none."""
    return bool(node.kind().startswith("aten::") and [str(out.type()) for out in node.outputs()] == ["Tensor"])


def _in_order(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Every argument of a call, at its place: the other form has neither names nor defaults."""
    owner = [called.owner] if isinstance(called, torch._C.ScriptMethod) else []
    given = [*owner, *args]
    absent = called.schema.arguments[len(given) :]
    return [*given, *(kwargs.get(each.name, each.default_value) for each in absent)]


@contextmanager
def scripts_answered(way: str) -> Iterator[None]:
    """What is scripted and called in this context, on tensors without memory, goes where a run does."""
    if way == "real":
        yield
        return
    told = Told()
    with replaced([(called, "__call__", told.instead_of(called.__call__)) for called in CALLED]):
        yield
