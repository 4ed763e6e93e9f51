"""What two ONNX graphs have in common: values that the very same nodes make of the same inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from pytest_modelbudget.equivalence.onnx_stored import names_read
from pytest_modelbudget.frontends.onnx_scopes import scope_of


def common_values(original: onnx.ModelProto, other: onnx.ModelProto) -> frozenset[str]:
    """Names of values that both graphs compute alike, from equal inputs and stored tensors.

    A rewritten network shares all of its nodes before the first change; they need no second run.
    """
    if original.opset_import != other.opset_import or original.functions != other.functions:
        return frozenset()
    makers = {node.output[0]: node for node in original.graph.node if node.output}
    stored = {tensor.name: tensor for tensor in original.graph.initializer}
    others = {tensor.name: tensor for tensor in other.graph.initializer}
    inputs = {value.name for value in original.graph.input}
    common = {value.name for value in other.graph.input if value.name in inputs}
    differ: set[str] = {name for name in common if (name in stored) or (name in others)}
    common -= differ
    made: set[str] = set()
    for node in other.graph.node:
        twin = makers.get(node.output[0]) if node.output else None
        if twin is None or twin != node:
            continue
        read = names_read((node,)) - {""} - common - made
        if all(name in stored and stored[name] == others.get(name) for name in read):
            made.update(filter(None, node.output))
    return frozenset(made)


def frontier(model: onnx.ModelProto, common: frozenset[str]) -> tuple[str, ...]:
    """Common values that a model's other nodes, or its readers, need."""
    rest = [node for node in model.graph.node if not common.issuperset(filter(None, node.output))]
    wanted = names_read(rest) | {value.name for value in model.graph.output}
    return tuple(sorted(common & wanted))


def changed_layers(original: onnx.ModelProto, other: onnx.ModelProto) -> Mapping[str, str]:
    """Scopes of results that both graphs have under one name, made by other nodes."""
    makers = {node.output[0]: node for node in other.graph.node if node.output}
    return {
        node.output[0]: scope_of(node)
        for node in original.graph.node
        if node.output and node.output[0] in makers and makers[node.output[0]] != node
    }
