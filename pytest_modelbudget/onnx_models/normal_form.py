"""The form in which every file is read: nodes in the order in which they run, functions written out where called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from itertools import chain
from typing import Any

import onnx
import onnx.inliner
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.onnx_models import program, protos

SORTED = "nodes do not stand in the order in which they run: read in that order"
MOST_WRITTEN_OUT = 65_536  # nodes beyond four times those that the file holds
MOST_BYTES = 2**28  # likewise
DEEPEST_CALLS = 100  # functions that call one another


def in_order(whole: program.Program) -> program.Program:
    """A program whose nodes stand in the order in which they run; itself where they did."""
    if all(_stand_in_order(map(_reads_and_results, body.nodes)) for body in whole.everything()):
        return whole
    return program.Program(whole.model, whole.rules) if put_in_order(whole.model) else whole


def put_in_order(model: ModelProto) -> bool:
    """Sort nodes that stand before those whose results they read, in bodies and functions too.

    Whether there were any; all others keep their places. Nodes of a cycle stay as they are: the reader names them.
    """
    inner = (graph for function in model.functions for graph in protos.graphs_in(function.node))
    holders: Sequence[Any] = (*protos.all_graphs(model.graph), *model.functions, *inner)
    has_bodies = len(holders) > 1 + len(model.functions)
    # Inner ones first: outer ones are copied.
    sorted_ones = [_sort(holder.node, has_bodies=has_bodies) for holder in reversed(holders)]
    return any(sorted_ones)


def _reads_and_results(node: program.Node) -> tuple[Iterable[str], Iterable[str]]:
    """Names that a node, or a body of it, reads, and those that it makes."""
    return node.reads if node.bodies else node.inputs, node.outputs


def _stand_in_order(nodes: Iterable[tuple[Iterable[str], Iterable[str]]]) -> bool:
    """Whether none of some nodes, as names that each reads and makes, stands before one whose results it reads."""
    later: set[str] = set()
    for read, made in reversed([*nodes]):
        later.update(made)
        later.discard("")
        if not later.isdisjoint(read):
            return False
    return True


def _sort(nodes: MutableSequence[NodeProto], *, has_bodies: bool) -> bool:
    """Put each node behind those that make what it, or a body of it, reads."""
    names = [protos.names_read((node,)) if has_bodies else node.input for node in nodes]
    if _stand_in_order((read, node.output) for read, node in zip(names, nodes, strict=True)):
        return False
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    order = _order([sorted({makers[name] for name in read if name in makers}) for read in names])
    if not order:
        return False
    ordered = [NodeProto.FromString(nodes[place].SerializeToString()) for place in order]
    del nodes[:]
    nodes.extend(ordered)
    return True


def _order(reads: list[list[int]]) -> list[int]:
    """Places such that each comes behind those that it reads; none where some go round in a circle."""
    order: list[int] = []
    done, begun = set[int](), set[int]()
    for first in range(len(reads)):
        waiting = [first]
        while waiting:
            place = waiting[-1]
            open_reads = [read for read in reads[place] if read not in done] if place not in done else []
            if open_reads and place in begun:
                return []
            begun.add(place)
            if open_reads:
                waiting += reversed(open_reads)
                continue
            if place not in done:
                done.add(place)
                order.append(place)
            waiting.pop()
    return order


def with_functions_written_out(whole: program.Program, file: str) -> program.Program:
    """A program without functions of its own: each is written out where it is called; raises as below."""
    functions = whole.model.functions
    if not functions:
        return whole
    called, count = Counter(map(protos.callee_of, functions)).most_common(1)[0]
    if count > 1:
        name = "::".join(filter(None, called))
        raise SourceError(f"{file}: two of its functions are called {name}: give each a name of its own")
    return program.Program(written_out(whole.model, file), whole.rules)


def written_out(model: ModelProto, file: str) -> ModelProto:
    """A model without functions of its own: each is written out where it is called, as ONNX Runtime does.

    Its nodes are of the model's versions of operators, and attributes that a call leaves out have the function's
    defaults. Raises as below, and SourceError for calls that do not fit their functions.
    """
    refuse_endless_calls(model, file)
    if not model.functions:
        return model
    made = ModelProto()
    made.CopyFrom(model)
    _keep_called(made)
    for function in made.functions:
        given = {*function.input, *(name for node in function.node for name in node.output), ""}
        for name in sorted((protos.names_read(function.node) | {*function.output}) - given)[:1]:
            raise SourceError(
                f"{file}: its function {function.domain}::{function.name} reads '{name}', which no input or node of it "
                "gives: export it anew"
            )
    _import_for_functions(made)
    with user_code(f"{file} is no valid model: writing out its functions", SourceError):
        while outermost := _give_defaults(made):  # onnx's inliner knows no defaults
            made = onnx.inliner.inline_selected_functions(made, outermost)
        return onnx.inliner.inline_local_functions(made)


def _keep_called(model: ModelProto) -> None:
    """Drop functions that nobody calls, and make each overload a function of its own: its name says which."""
    for node in chain(protos.all_nodes(model.graph.node), *(protos.all_nodes(each.node) for each in model.functions)):
        node.op_type, node.overload = _plain_name(node.op_type, node.overload), ""
    for function in model.functions:
        function.name, function.overload = _plain_name(function.name, function.overload), ""
    functions = {(each.domain, each.name): each for each in model.functions}
    waiting, called = [model.graph.node], dict[tuple[str, str], FunctionProto]()
    while waiting:
        for node in protos.all_nodes(waiting.pop()):
            key = node.domain, node.op_type
            if key in functions and key not in called:
                called[key] = functions[key]
                waiting.append(functions[key].node)
    kept = [FunctionProto.FromString(each.SerializeToString()) for each in called.values()]
    del model.functions[:]
    model.functions.extend(kept)


def _plain_name(name: str, overload: str) -> str:
    return f"{name}:{overload}" if overload else name


def _import_for_functions(model: ModelProto) -> None:
    """Let functions import the model's versions of operators: what differs there, onnx's inliner leaves as it is."""
    versions = {**protos.opsets_of(model)}
    for function in model.functions:
        for opset in function.opset_import:
            domain = protos.domain_of(opset.domain)
            if domain not in versions:
                model.opset_import.add(domain=domain, version=opset.version)
            opset.version = versions.setdefault(domain, opset.version)


def _give_defaults(model: ModelProto) -> list[tuple[str, str]]:
    """Write the defaults of functions that the graph calls into its calls; none where no function has any.

    The functions that no other one calls, by domain and name: once they are written out, the attributes of what they
    call are known, too.
    """
    if not any(function.attribute_proto for function in model.functions):
        return []
    functions = {(each.domain, each.name): each for each in model.functions}
    called: dict[tuple[str, str], None] = {}
    for node in protos.all_nodes(model.graph.node):
        function = functions.get((node.domain, node.op_type))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(each for each in function.attribute_proto if each.name not in given)
            called[node.domain, node.op_type] = None
    inner = {(node.domain, node.op_type) for each in model.functions for node in protos.all_nodes(each.node)}
    return [name for name in called if name not in inner]


def refuse_endless_calls(model: ModelProto, file: str) -> None:
    """Raise SourceError where functions call each other in a circle, or would become too much to read."""
    if not model.functions:
        return
    calls = Calls(model, file)
    nodes, nbytes = calls.extent(model.graph.node, ())
    held = sum(1 for node in protos.all_nodes(model.graph.node)) + sum(
        len(function.node) for function in model.functions
    )
    if nodes > 4 * held + MOST_WRITTEN_OUT or nbytes > 4 * model.ByteSize() + MOST_BYTES:
        raise SourceError(
            f"{file}: its functions call each other so often that {held:,} nodes become {nodes:,}: "
            "export it with fewer functions, or written out"
        )


class Calls:
    """How much the functions of a model become where they are called."""

    def __init__(self, model: ModelProto, file: str) -> None:
        self._file = file
        self._functions: Mapping[protos.Callee, FunctionProto] = {
            protos.callee_of(function): function for function in model.functions
        }
        self._extents: dict[protos.Callee, tuple[int, int]] = {}
        self._largest_body = model.graph.ByteSize()

    def extent(self, nodes: Iterable[NodeProto], callers: tuple[str, ...]) -> tuple[int, int]:
        """(nodes, bytes) that these nodes are with all that they call."""
        count = nbytes = 0
        for node in protos.all_nodes(nodes):
            key = protos.callee_of(node)
            called = self._called(key, callers) if key in self._functions else (0, 0)
            count, nbytes = count + 1 + called[0], nbytes + node.ByteSize() + called[1]
            handed = any(a.ref_attr_name and a.type in _GRAPHS for a in node.attribute)
            if handed:  # a body that the caller gives
                count, nbytes = count + self._largest_body, nbytes + self._largest_body
        return count, nbytes

    def _called(self, key: protos.Callee, callers: tuple[str, ...]) -> tuple[int, int]:
        name = "::".join(filter(None, key))
        if name in callers:
            raise SourceError(f"{self._file}: the function {name} calls itself, which ONNX does not permit")
        if len(callers) == DEEPEST_CALLS:
            raise SourceError(f"{self._file}: functions call each other more than {DEEPEST_CALLS} deep, as {name} does")
        if key not in self._extents:
            self._extents[key] = self.extent(self._functions[key].node, (*callers, name))
        return self._extents[key]


_GRAPHS = frozenset({AttributeProto.GRAPH, AttributeProto.GRAPHS})
