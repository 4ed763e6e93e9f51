"""Names that exporters give: module scopes of nodes, paths of weights, and the repeated calls of a module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from pytest_modelbudget.onnx_models.protos import NOTHING_WRITTEN, all_graphs

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"


def metadata_of(proto: NodeProto | TensorProto | ValueInfoProto) -> Mapping[str, str]:
    """The metadata that an exporter wrote for a node, a stored tensor or a declared value."""
    entries = proto.metadata_props
    return {entry.key: entry.value for entry in entries} if entries else NOTHING_WRITTEN


_EXPORTED = "pkg.torch.export.ExportedProgram.graph_signature"
_INPUTS = "\n# inputs\n", "InputSpec("  # with one of which such a list begins, or has it within
_OWNED = re.compile(r"\btarget='([^']+)'")


def owned_names(graph: GraphProto) -> frozenset[str] | None:
    """Names of the tensors that a module stored, as torch's exporter lists them; None where it did not.

    A line of its list is ``p_fc_weight: PARAMETER target='fc.weight'``; older ones have ``InputSpec(…, target=…)``.
    """
    lists = [entry.value for entry in graph.metadata_props if entry.key == _EXPORTED]
    is_known = bool(lists) and any(begins in lists[-1] for begins in _INPUTS)
    return frozenset(_OWNED.findall(lists[-1])) if is_known else None


def scope_of(node: NodeProto) -> str:
    """The module path of a node, or the best name there is for the place.

    torch's exporter writes ``['', 'features', 'features.0', 'conv2d']`` or ``: Net/features: Sequential/features.0:
    Conv2d/conv2d: aten.conv2d.default``; the one before it, and tf2onnx, name the node ``/features/features.0/Conv``. A
    node without any of these is a layer of its own, under its name or that of its first result.
    """
    written = metadata_of(node)
    if NAME_SCOPES in written:
        scopes = written[NAME_SCOPES][2:-2].split("', '")
        return scopes[-2] if len(scopes) > 1 else ""
    if NAMESPACE in written:
        paths = [part.partition(":")[0] for part in written[NAMESPACE].split("/")]
        return paths[-2] if len(paths) > 1 else ""
    name = node.name
    if "/" in name:
        return path_of(name.strip("/").split("/")[:-1])
    return name or (node.output[0] if node.output else "")


def name_scope(node: NodeProto, scope: str) -> None:
    """Write the module path of a node, which goes before that in its name."""
    node.metadata_props.add(key=NAME_SCOPES, value=str(["", scope, ""]))


def path_of(parts: list[str]) -> str:
    """One path of parts that may repeat their parent: layer1, layer1.0, conv → layer1.0.conv."""
    path: list[str] = []
    for part in parts:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def weight_name(name: str, scope: str) -> str:
    """A stored tensor's name under a module: its own, or that of the node that reads it.

    Exporters keep a parameter's path ("fc.weight"); what they folded has a name of theirs.
    """
    return name if is_path(name) or not scope else f"{scope}.{name}"


def is_path(name: str) -> bool:
    """Whether a stored tensor goes by its path in the model, as exporters write it."""
    return "." in name and "/" not in name and ":" not in name


_NUMBERED = re.compile(r"_\d+/[^/]*$")  # of a node's name: the module before the last part
_REPEATED = re.compile(r"(.*?([^.]+))_\d+")  # the scope of a repeated call: its module's, and the last part of that


class Operands(NamedTuple):
    """A node with its scope, the modules that own what it reads by name, and those that first read other matrices."""

    node: NodeProto
    scope: str
    owners: frozenset[str]
    first_readers: frozenset[str]


def rename_repeated_calls(model: ModelProto) -> None:
    """Write a module's own path on the nodes of its repeated calls.

    The weights that they read tell which it is, those of modules within it, or that it stands in a list, by a number.
    A module without any may be one of its own that is named so, and stays.
    """
    graphs = [*all_graphs(model.graph)]
    named = [node for graph in graphs for node in graph.node if "/" in node.name]
    if not any(_NUMBERED.search(node.name) for node in named):
        return
    weights = (tensor for graph in graphs for tensor in graph.initializer)
    paths = {tensor.name: is_path(tensor.name) for tensor in weights if is_path(tensor.name) or len(tensor.dims) > 1}
    aliases = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    operands = [*_operands((node for node in named if not node.metadata_props), paths, aliases)]
    for node, module in _repeated(operands):
        name_scope(node, module)


def _operands(nodes: Iterable[NodeProto], paths: Mapping[str, bool], aliases: Mapping[str, str]) -> Iterator[Operands]:
    """The stored tensors that nodes read; paths says of each whether it goes by its path in the model."""
    first: dict[str, str] = {}
    for node in nodes:
        scope = scope_of(node)
        names = {aliases.get(name, name) for name in node.input} & paths.keys()
        owners = {name.rpartition(".")[0] for name in names if paths[name]}
        readers = {first.setdefault(name, scope) for name in names if not paths[name]}
        yield Operands(node, scope, frozenset(owners), frozenset(readers))


def _repeated(operands: Sequence[Operands]) -> Iterator[tuple[NodeProto, str]]:
    """Nodes of repeated calls, and the module that they call."""
    read: dict[str, set[str]] = {}
    for each in operands:
        read.setdefault(each.scope, set()).update(each.owners | each.first_readers)
    repeated = {scope: found for scope in read if (found := _REPEATED.fullmatch(scope))}
    again = {found[1] for scope, found in repeated.items() if found[1] in read[scope]}
    for each in operands:
        if each.scope not in repeated:
            continue
        module, part = repeated[each.scope].groups()
        if each.scope in read[each.scope]:  # it is another module's name, too
            is_repeated = module in each.owners
        elif read[each.scope]:
            is_repeated = module in read[each.scope]
        else:
            is_repeated = part.isdigit() or any(f"{path}.".startswith(f"{module}.") for path in again)
        if is_repeated:
            yield each.node, module
