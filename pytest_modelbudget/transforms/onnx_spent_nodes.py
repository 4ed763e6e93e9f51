"""What only led to stored tensors that nobody reads once a graph is rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from onnx import NodeProto

from pytest_modelbudget.equivalence.onnx_stored import CARRIERS, names_read


def without_spent(
    nodes: Sequence[NodeProto], spent: Iterable[str], outputs: frozenset[str]
) -> tuple[list[NodeProto], frozenset[str]]:
    """Nodes without those that only led to values which nobody reads now, and all such values.

    Only what may lie between a stored tensor and its reader is taken away.
    """
    reads = Counter(name for node in nodes for name in names_read((node,)))
    gone = {name for name in spent if not reads[name]} - outputs
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if node.op_type in CARRIERS and gone.issuperset(node.output):
            reads.subtract(names_read((node,)))
            gone.update(name for name in node.input if not reads[name] and name not in outputs)
        else:
            kept.append(node)
    return kept[::-1], frozenset(gone)
