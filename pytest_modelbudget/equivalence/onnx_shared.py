"""What two ONNX graphs have in common: values that the very same nodes make of the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto

from pytest_modelbudget.equivalence.onnx_stored import names_read
from pytest_modelbudget.frontends.onnx_scopes import scope_of


@dataclass(frozen=True, slots=True)
class StoredInBoth:
    """Stored tensors of two graphs by name."""

    before: Mapping[str, TensorProto]
    after: Mapping[str, TensorProto]

    def makes_alike(self, node: NodeProto, twin: NodeProto) -> bool:
        """Whether two nodes are one, down to the values of the stored tensors that they read."""
        return node == twin and self._are_alike(names_read((node,)))

    def _are_alike(self, names: Iterable[str]) -> bool:
        return all(self.before.get(name) == self.after.get(name) for name in names)


def stored_in_both(original: onnx.ModelProto, other: onnx.ModelProto) -> StoredInBoth:
    """The initialisers of two models' outermost graphs."""
    before, after = (
        {tensor.name: tensor for tensor in model.graph.initializer} for model in (original, other)
    )
    return StoredInBoth(before, after)


def means_alike(original: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether a node means the same in both models: by operator sets and local functions."""
    models = (original, other)
    before, after = ((list(each.opset_import), list(each.functions)) for each in models)
    return before == after


def common_values(original: onnx.ModelProto, other: onnx.ModelProto) -> frozenset[str]:
    """Names of values that both graphs compute alike, from equal inputs and stored tensors.

    A rewritten network shares all of its nodes before the first change; they need no second run.
    """
    if not means_alike(original, other):
        return frozenset()
    makers = {node.output[0]: node for node in original.graph.node if node.output}
    stored = stored_in_both(original, other)
    inputs = {value.name for value in original.graph.input}
    common = {value.name for value in other.graph.input if value.name in inputs}
    differ: set[str] = {name for name in common if name in stored.before or name in stored.after}
    common -= differ
    made: set[str] = set()
    for node in other.graph.node:
        twin = makers.get(node.output[0]) if node.output else None
        if twin is None or not stored.makes_alike(twin, node):
            continue
        if names_read((node,)) - {""} - common - made <= stored.before.keys():
            made.update(filter(None, node.output))
    return frozenset(made)


def frontier(model: onnx.ModelProto, common: frozenset[str]) -> tuple[str, ...]:
    """Common values that a model's other nodes, or its readers, need."""
    rest = [node for node in model.graph.node if not common.issuperset(filter(None, node.output))]
    wanted = names_read(rest) | {value.name for value in model.graph.output}
    return tuple(sorted(common & wanted))


def changed_layers(original: onnx.ModelProto, other: onnx.ModelProto) -> Mapping[str, str]:
    """Scopes of results that both graphs have under one name, made by other nodes or weights."""
    stored = stored_in_both(original, other)
    makers = {node.output[0]: node for node in other.graph.node if node.output}
    return {
        node.output[0]: scope_of(node)
        for node in original.graph.node
        if node.output
        and node.output[0] in makers
        and not stored.makes_alike(node, makers[node.output[0]])
    }
