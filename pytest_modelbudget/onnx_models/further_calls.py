"""Further calls of a module, which PyTorch's exporter of TorchScript graphs names apart: a.0_1 for a.0."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from onnx import ModelProto, NodeProto

from pytest_modelbudget.onnx_models.protos import all_graphs, is_path, name_scope, scope_of

NUMBERED = re.compile(r"_\d+/[^/]*$")  # of a node's name: the module before the last part
FURTHER = re.compile(r"(.*?([^.]+))_\d+")  # a path, and its last part, of a further call


def name_further_calls(model: ModelProto) -> None:
    """Write a module's own path on the nodes of its further calls.

    The weights that they read tell which it is, those of modules within it, or that it stands in a list, by a number.
    A module without any may be one of its own that is named so, and stays.
    """
    graphs = [*all_graphs(model.graph)]
    named = [node for graph in graphs for node in graph.node if "/" in node.name]
    if not any(NUMBERED.search(node.name) for node in named):
        return
    nodes = [node for node in named if not node.metadata_props]
    stored = {tensor.name for graph in graphs for tensor in graph.initializer}
    aliases = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    for node, path in _renamed(nodes, list(_reading(nodes, stored, aliases))):
        name_scope(node, path)


def _reading(nodes: Iterable[NodeProto], stored: set[str], aliases: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    """(scope, owners of stored tensors that it reads) of each node: one without a path is its first reader's."""
    first: dict[str, str] = {}
    for node in nodes:
        scope = scope_of(node)
        names = {aliases.get(name, name) for name in node.input}
        own = {name.rpartition(".")[0] if is_path(name) else first.setdefault(name, scope) for name in names & stored}
        yield scope, own


def _renamed(nodes: list[NodeProto], reading: list[tuple[str, set[str]]]) -> Iterator[tuple[NodeProto, str]]:
    """Nodes of further calls, and the module whose they are."""
    read: dict[str, set[str]] = defaultdict(set)
    for scope, owners in reading:
        read[scope] |= owners
    further = {scope: found for scope in read if (found := FURTHER.fullmatch(scope))}
    again = {found[1] for scope, found in further.items() if found[1] in read[scope]}
    for node, (scope, owners) in zip(nodes, reading, strict=True):
        if scope not in further:
            continue
        module, part = further[scope].groups()
        if scope in read[scope]:  # it is another module's name, too
            is_further = module in owners
        elif read[scope]:
            is_further = module in read[scope]
        else:
            is_further = part.isdigit() or any(f"{each}.".startswith(f"{module}.") for each in again)
        if is_further:
            yield node, module
