"""Forks of TorchScript, whose bodies its interpreter runs in threads of its own: here each runs where it is called.

As ``torch.jit.fork`` in Python does. In such threads scripts are optimised, whatever this one asks for, and operators
of several forks come in any order: forks that have to stay there are refused.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.script_calls import ENTER, put_calls_in_place

FORK, WAIT = "prim::fork", "aten::wait"
REGION = ("prim::Enter", "prim::Exit")  # begin and end the region of a with statement
OF_OBJECTS = frozenset({"prim::GetAttr", "prim::CreateObject", "prim::CallMethod"})  # may hand over what others keep
MADE_OF_ONE = {"ListType": torch._C.ListType, "OptionalType": torch._C.OptionalType}


def inlined(graph: Any) -> Any:
    """A graph that is nobody else's, with all that it calls in it, but for forks and what is called by an interface."""
    torch._C._jit_pass_inline(graph)
    return graph


def with_all_it_calls(called: Any) -> Any:
    """The graph of a scripted function or method with all that it calls in it, as ``inlined`` has it.

    Modules within its own stand between marks.
    """
    graph = called.graph.copy()
    if isinstance(called, torch._C.ScriptMethod):
        put_calls_in_place(graph, called.owner)
    return inlined(graph)


def bodies_of_forks(graph: Any) -> Iterator[Any]:
    """What each fork in a graph does, all that it calls in it."""
    return (inlined(node.g("Subgraph").copy()) for node in graph.findAllNodes(FORK))


def in_order(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Every argument of a call at its place, as a form without names and defaults takes it; None where they misfit."""
    owner = [called.owner] if isinstance(called, torch._C.ScriptMethod) else []
    given = [*owner, *args]
    absent = called.schema.arguments[len(given) :]
    is_complete = all(each.name in kwargs or each.has_default_value() for each in absent)
    if not is_complete or kwargs.keys() - {each.name for each in absent}:
        return None
    return [*given, *(kwargs.get(each.name, each.default_value) for each in absent)]


def in_one_graph(called: Any) -> Any:
    """A scripted function or method whose forks and modules run where they are called; None where it has none.

    Raises TraceError where something else may wait for its forks: then they stay in threads of their own.
    """
    graph = with_all_it_calls(called)
    if not graph.findAllNodes(FORK):
        return torch._C._create_function_from_graph(called.name, graph) if graph.findNode(ENTER) else None
    if any(map(_holds_future, (*graph.inputs(), *graph.outputs()))):
        raise _in_threads(f"{called.name} takes or returns a Future")
    _cast_regions(graph)
    while forks := graph.findAllNodes(FORK):
        for node in forks:
            _put_in_place(graph, node)
        if isinstance(called, torch._C.ScriptMethod):
            put_calls_in_place(graph, called.owner)
        inlined(graph)
    for node in graph.findAllNodes(WAIT):
        node.output().replaceAllUsesWith(node.inputsAt(0))
        node.destroy()
    values = [*_values(graph)]
    if any(_holds_future(value) and value.node().kind() in OF_OBJECTS for value in values):
        raise _in_threads(f"{called.name} keeps a Future in an object")
    for value in filter(_holds_future, values):
        value.setType(_without_futures(value.type()))
    return torch._C._create_function_from_graph(called.name, graph)


def refuse_forks_behind(called: Any, methods: Iterable[Any]) -> None:
    """Raise TraceError where one of the methods that a scripted one may call by an interface has forks."""
    if any(inlined(method.graph.copy()).findAllNodes(FORK) for method in methods):
        raise _in_threads(f"{called.name} calls by an interface what forks")


def _in_threads(why: str) -> TraceError:
    return TraceError(
        f"{why}: TorchScript runs such a fork in a thread of its own, and not as it is written: "
        "wait for it in the method that forks, or give the module that was scripted"
    )


def _cast_regions(graph: Any) -> None:
    """Write the casts of regions of autocast, which are for the graph that they stand in, and for no fork of it.

    TorchScript writes its own behind the same passes.
    """
    if not _regions(graph):
        return
    torch._C._jit_pass_peephole(graph, True)
    torch._C._jit_pass_constant_propagation_immutable_types(graph)  # type: ignore[attr-defined]  # see below
    torch._C._jit_pass_autocast(graph)  # type: ignore[attr-defined]  # of neither torch tells a type
    for node in _regions(graph):
        node.output().replaceAllUsesWith(node.inputsAt(0))
        node.destroy()


def _regions(graph: Any) -> list[Any]:
    """The nodes that begin and end regions of autocast."""
    nodes = (node for kind in REGION for node in graph.findAllNodes(kind))
    return [node for node in nodes if "autocast" in str(node.inputsAt(0).type())]


def _put_in_place(graph: Any, node: Any) -> None:
    """Put what a fork does where it stands; its result takes the place of the future."""
    with graph.insert_point_guard(node):
        results = graph.insertGraph(node.g("Subgraph").copy(), [*node.inputs()])
    node.output().replaceAllUsesWith(results[0])
    node.destroy()


def _values(block: Any) -> Iterator[Any]:
    """All values of a graph, or of a block, those of the blocks in it too."""
    yield from block.inputs()
    for node in block.nodes():
        yield from node.outputs()
        for within in node.blocks():
            yield from _values(within)


def _holds_future(value: Any) -> bool:
    return "Future[" in str(value.type())


def _without_futures(kind: Any) -> Any:
    """A type, and what it is made of, with the results of futures in the place of these."""
    name = kind.kind()
    if name == "FutureType":
        return _without_futures(kind.getElementType())
    if name in MADE_OF_ONE:
        return MADE_OF_ONE[name](_without_futures(kind.getElementType()))
    if name == "TupleType":
        return torch._C.TupleType([_without_futures(each) for each in kind.elements()])
    if name == "DictType":
        return torch._C.DictType(kind.getKeyType(), _without_futures(kind.getValueType()))
    return kind
