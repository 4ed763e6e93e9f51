"""Further calls of a module, which PyTorch's exporter of TorchScript graphs names apart: a.0_1 for a.0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onnx import ModelProto, NodeProto

from pytest_modelbudget.onnx_models.protos import all_graphs, is_path, name_scope, scope_of

NUMBERED = re.compile(r"_\d+/[^/]*$")  # of a node's name: the module before the last part
FURTHER = re.compile(r"(.*?([^.]+))_\d+")  # the scope of a further call: its module's, and the last part of that


class Reading(NamedTuple):
    """A node with its scope, the modules that own what it reads by name, and those that first read other matrices."""

    node: NodeProto
    scope: str
    owners: frozenset[str]
    first_readers: frozenset[str]


def name_further_calls(model: ModelProto) -> None:
    """Write a module's own path on the nodes of its further calls.

    The weights that they read tell which it is, those of modules within it, or that it stands in a list, by a number.
    A module without any may be one of its own that is named so, and stays.
    """
    graphs = [*all_graphs(model.graph)]
    named = [node for graph in graphs for node in graph.node if "/" in node.name]
    if not any(NUMBERED.search(node.name) for node in named):
        return
    weights = (tensor for graph in graphs for tensor in graph.initializer)
    paths = {tensor.name: is_path(tensor.name) for tensor in weights if is_path(tensor.name) or len(tensor.dims) > 1}
    aliases = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    readings = [*_readings((node for node in named if not node.metadata_props), paths, aliases)]
    for node, module in _further(readings):
        name_scope(node, module)


def _readings(nodes: Iterable[NodeProto], paths: Mapping[str, bool], aliases: Mapping[str, str]) -> Iterator[Reading]:
    """What nodes read of stored tensors; paths says of each whether it goes by its path in the model."""
    first: dict[str, str] = {}
    for node in nodes:
        scope = scope_of(node)
        names = {aliases.get(name, name) for name in node.input} & paths.keys()
        owners = {name.rpartition(".")[0] for name in names if paths[name]}
        readers = {first.setdefault(name, scope) for name in names if not paths[name]}
        yield Reading(node, scope, frozenset(owners), frozenset(readers))


def _further(readings: Sequence[Reading]) -> Iterator[tuple[NodeProto, str]]:
    """Nodes of further calls, and the module whose they are."""
    read: dict[str, set[str]] = {}
    for each in readings:
        read.setdefault(each.scope, set()).update(each.owners | each.first_readers)
    further = {scope: found for scope in read if (found := FURTHER.fullmatch(scope))}
    again = {found[1] for scope, found in further.items() if found[1] in read[scope]}
    for each in readings:
        if each.scope not in further:
            continue
        module, part = further[each.scope].groups()
        if each.scope in read[each.scope]:  # it is another module's name, too
            is_further = module in each.owners
        elif read[each.scope]:
            is_further = module in read[each.scope]
        else:
            is_further = part.isdigit() or any(f"{path}.".startswith(f"{module}.") for path in again)
        if is_further:
            yield each.node, module
