"""Local functions inlined where they are called, and nodes sorted into the order in which they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableSequence, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

import onnx
import onnx.inliner
from onnx import AttributeProto, ModelProto, NodeProto

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.onnx_models import program, protos

SORTED = "nodes are not in the order in which they run: read in that order"


def inlined(whole: program.Program, file: str) -> tuple[program.Program, bool]:
    """The program without functions of its own, in order, and whether its nodes had to be sorted.

    The same program where it is so already. Raises SourceError as ``inline_functions``.
    """
    bodies = whole.everything()
    is_ordered = all(
        _is_ordered((node.reads if node.bodies else node.inputs, node.outputs) for node in body.nodes)
        for body in bodies
    )
    is_sorted = not is_ordered and sort_nodes(whole.model)
    model = inline_functions(whole.model, file)
    return (program.Program(model, whole.rules) if is_sorted or model is not whole.model else whole), is_sorted


def sort_nodes(model: ModelProto) -> bool:
    """Put each node behind those whose results it reads, in bodies and functions too; whether any was moved.

    The first in the file that can run is the next. Nodes of a cycle stay as they are: the reader names them.
    """
    inner = (graph for function in model.functions for graph in protos.graphs_in(function.node))
    holders: Sequence[Any] = (*protos.all_graphs(model.graph), *model.functions, *inner)
    # Inner ones first: outer ones are copied.
    moved = [_sort(holder.node) for holder in reversed(holders)]
    return any(moved)


def _is_ordered(nodes: Iterable[tuple[Iterable[str], Iterable[str]]]) -> bool:
    """Whether no node, as the names that it reads and makes, precedes one whose results it reads."""
    later: set[str] = set()
    for read, made in reversed([*nodes]):
        later.update(made)
        later.discard("")
        if not later.isdisjoint(read):
            return False
    return True


def _sort(nodes: MutableSequence[NodeProto]) -> bool:
    names = [
        protos.names_read((node,)) if any(a.type in _GRAPHS for a in node.attribute) else node.input for node in nodes
    ]
    if _is_ordered((read, node.output) for read, node in zip(names, nodes, strict=True)):
        return False
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    order = _order([sorted({makers[name] for name in read if name in makers}) for read in names])
    ordered = [NodeProto.FromString(nodes[place].SerializeToString()) for place in order]
    if ordered:
        del nodes[:]
        nodes.extend(ordered)
    return bool(ordered)


def _order(reads: Sequence[Sequence[int]]) -> list[int]:
    """Places such that each comes behind those that it reads, the first that can; none where some form a cycle."""
    sorter, order, ready = TopologicalSorter(dict(enumerate(reads))), list[int](), list[int]()
    with suppress(CycleError):
        sorter.prepare()
        while sorter.is_active():
            for place in sorter.get_ready():
                heappush(ready, place)
            order.append(heappop(ready))
            sorter.done(order[-1])
    return order


def inline_functions(model: ModelProto, file: str) -> ModelProto:
    """A copy whose functions are inlined where they are called, as ONNX Runtime does; itself without any.

    Its nodes are of the model's versions of operators, and attributes that a call leaves out have the function's
    defaults. Raises SourceError for calls that do not fit their functions or form a cycle.
    """
    if not model.functions:
        return model
    called, count = Counter(map(protos.callee_of, model.functions)).most_common(1)[0]
    if count > 1:
        name = "::".join(filter(None, called))
        raise SourceError(f"{file}: two of its functions are called {name}: give each a name of its own")
    made = ModelProto()
    made.CopyFrom(model)
    _import_for_functions(made)
    _give_defaults(made, file)
    with user_code(f"{file} is no valid model: inlining its functions", SourceError):
        return onnx.inliner.inline_local_functions(made)


def _import_for_functions(model: ModelProto) -> None:
    """Let functions import the model's versions of operators: what differs there, onnx's inliner leaves as it is."""
    versions = {**protos.opsets_of(model)}
    for function in model.functions:
        for opset in function.opset_import:
            domain = protos.domain_of(opset.domain)
            if domain not in versions:
                model.opset_import.add(domain=domain, version=opset.version)
            opset.version = versions.setdefault(domain, opset.version)


def _give_defaults(model: ModelProto, file: str) -> None:
    """Write the defaults of functions into their calls, as onnx's inliner knows none.

    Raises SourceError for a call without an attribute that has no default, where its function hands that on to one with
    a default: the inliner leaves out what is handed on and not given.
    """
    functions = {protos.callee_of(each): each for each in model.functions}
    bodies = [(None, model.graph.node), *((name, function.node) for name, function in functions.items())]
    calls = [(outer, node) for outer, nodes in bodies for node in protos.all_nodes(nodes)]
    calls = [(outer, node) for outer, node in calls if protos.callee_of(node) in functions]
    handed_on = set[tuple[protos.Callee | None, str]]()
    for outer, node in calls:
        given = {each.name: each.ref_attr_name for each in node.attribute}
        defaults = functions[protos.callee_of(node)].attribute_proto
        handed_on.update((outer, given[each.name]) for each in defaults if each.name in given)
        node.attribute.extend(each for each in defaults if each.name not in given)
    for _, node in calls:
        callee, given_names = protos.callee_of(node), {each.name for each in node.attribute}
        for name in functions[callee].attribute:
            if name not in given_names and (callee, name) in handed_on:
                what = f"calls the function {callee[0]}::{callee[1]} without '{name}', which that hands on"
                raise SourceError(f"{file}: '{node.name or node.output[0]}' {what}: inline its functions first")


_GRAPHS = frozenset({AttributeProto.GRAPH, AttributeProto.GRAPHS})
