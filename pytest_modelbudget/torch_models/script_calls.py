"""Calls of modules within a script: put where they are called, between marks that say which module runs.

TorchScript calls them without Python, where no hook sees them; a mark is an operator, and comes to whoever follows.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.jit._builtins
from torch._ops import OpOverloadPacket

from pytest_modelbudget.errors import TraceError

_builtins: Any = torch.jit._builtins  # torch gives no types for it
CALL, ATTRIBUTE, SET = "prim::CallMethod", "prim::GetAttr", "prim::SetAttr"
MODULE, INTERFACE = "ClassType", "InterfaceType"
ENTER, LEAVE = "modelbudget::enter", "modelbudget::leave"
FORK = "prim::fork"
FORWARD = re.compile(r"forward(__)?\d*")  # as scripts call it, overloads of one, and further calls of it in a trace


class Follower(Protocol):
    """Whoever is told which module of a script runs."""

    def begin(self, owner: Any) -> None:
        """A method of this module is called from Python; anything else stands for a function."""

    def end(self) -> None:
        """It has returned, or failed."""

    def enter(self, path: str) -> None:
        """A module begins, at this path below the one that began last."""

    def leave(self) -> None:
        """The module ends."""


_FOLLOWERS: list[Follower] = []


@contextmanager
def followed_by(follower: Follower) -> Iterator[None]:
    """Marks come to this follower alone."""
    _FOLLOWERS.append(follower)
    try:
        yield
    finally:
        _FOLLOWERS.pop()


@contextmanager
def begun(called: Any, args: tuple[Any, ...]) -> Iterator[None]:
    """Whoever follows is told whose method runs: that of the first argument, where it has become a function."""
    if not _FOLLOWERS:
        yield
        return
    follower = _FOLLOWERS[-1]
    follower.begin(called.owner if isinstance(called, torch._C.ScriptMethod) else next(iter(args), None))
    try:
        yield
    finally:
        follower.end()


def _enter(path: str) -> None:
    if _FOLLOWERS:
        _FOLLOWERS[-1].enter(path)


def _leave() -> None:
    if _FOLLOWERS:
        _FOLLOWERS[-1].leave()


# What a mark does, by its operator; a recorder does it itself, and no mode below it sees one.
MARKS: Mapping[str, Callable[..., None]] = {ENTER: _enter, LEAVE: _leave}
SCHEMAS = ("enter(str path) -> ()", "leave() -> ()")


@contextmanager
def marks_known() -> Iterator[None]:
    """Torch has the operators of marks in the outermost of these contexts, and none afterwards."""
    if hasattr(torch.ops.modelbudget, "enter"):
        yield
        return
    library: Any = torch.library.Library("modelbudget", "FRAGMENT")  # type: ignore[no-untyped-call]  # no types there
    try:
        for schema, (name, does) in zip(SCHEMAS, MARKS.items(), strict=True):
            library.define(schema, alias_analysis="CONSERVATIVE")  # or what gives nothing would be left out
            library.impl(name, does, "CompositeExplicitAutograd")
        yield
    finally:
        _forget_addresses()
        library._destroy()


def _forget_addresses() -> None:
    """TorchScript knows every operator that was looked up by its address, which something else is given afterwards."""
    table: dict[int, str] = _builtins._get_builtin_table()
    for packet in vars(torch.ops.modelbudget).values():
        if isinstance(packet, OpOverloadPacket):
            table.pop(id(packet._op), None)


def put_calls_in_place(graph: Any, owner: Any) -> None:
    """Put what each method of a module within does where it is called, each forward between marks.

    graph is a copy of that of a method of owner. Calls stay of what is no module, and of what a run may replace.
    """
    paths = dict(_paths(owner, ""))
    parts = {module: dict(torch._C.ModuleDict(module).items()) for module in paths}
    replaceable = frozenset(_set_in(paths))
    me = next(graph.inputs()).debugName()

    def receiver(value: Any) -> Any:
        """The module that a value is; None where that is known in a run alone."""
        if value.debugName() == me:
            return owner
        node, kind = value.node(), value.type().kind()
        if kind not in (MODULE, INTERFACE) or node.kind() != ATTRIBUTE:
            return None
        name, above = node.s("name"), receiver(node.inputsAt(0))
        return None if above is None or (kind == INTERFACE and name in replaceable) else parts[above].get(name)

    while calls := [(node, of) for node in graph.findAllNodes(CALL) if (of := receiver(node.inputsAt(0))) is not None]:
        for node, module in calls:
            name = node.s("name")
            is_forward = bool(paths[module]) and FORWARD.fullmatch(name)
            node.inputsAt(0).setType(module._type())  # where it was known by an interface
            _put_in_place(graph, node, module._get_method(name).graph.copy(), paths[module] if is_forward else "")


def _paths(module: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Every module within one with its path: of several the first, as in Python."""
    for name, within in reversed(list(torch._C.ModuleDict(module).items())):
        yield from _paths(within, f"{path}.{name}" if path else name)
    yield module, path


def _set_in(modules: Iterable[Any]) -> Iterator[str]:
    """Names of all attributes that a method of one of these sets: another module may stand there in a run."""
    for module in modules:
        for name in module._method_names():
            graph = module._get_method(name).graph  # which owns its nodes
            yield from (node.s("name") for node in graph.findAllNodes(SET))


def _put_in_place(graph: Any, node: Any, called: Any, path: str) -> None:
    """Put a graph where a node calls it, between marks of this path, if any."""
    with graph.insert_point_guard(node):
        if path:
            graph.insertNode(graph.create(ENTER, [graph.insertConstant(path)], 0))
        results = graph.insertGraph(called, [*node.inputs()])
        if path:
            graph.insertNode(graph.create(LEAVE, [], 0))
    for before, after in zip(node.outputs(), results, strict=True):
        before.replaceAllUsesWith(after)
    node.destroy()


def inlined(graph: Any) -> Any:
    """Inline all calls of a graph, in place, except forks and calls by an interface."""
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
