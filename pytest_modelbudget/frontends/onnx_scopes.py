"""Module paths of ONNX nodes, from what their exporter wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"
NOTHING_WRITTEN: Mapping[str, str] = MappingProxyType({})


def metadata_of(proto: onnx.NodeProto | onnx.TensorProto) -> Mapping[str, str]:
    """What an exporter wrote beside a node or a stored tensor."""
    entries = proto.metadata_props
    return {entry.key: entry.value for entry in entries} if entries else NOTHING_WRITTEN


def scope_of(node: onnx.NodeProto) -> str:
    """The module path of a node, or the best name there is for the place.

    torch's exporter writes ``['', 'features', 'features.0', 'conv2d']`` or
    ``: Net/features: Sequential/features.0: Conv2d/conv2d: aten.conv2d.default``; the one before
    it, and tf2onnx, name the node ``/features/features.0/Conv``. A node without any of these is
    a layer of its own, under its name or that of its first result.
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
    is_path = "." in name and "/" not in name and ":" not in name
    return name if is_path or not scope else f"{scope}.{name}"
