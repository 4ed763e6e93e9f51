"""An ONNX graph whose operations are replaced by products of tiles, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto, TensorProto

from pytest_modelbudget.equivalence.onnx_stored import (
    names_read,
    opset_of,
    with_graph,
)
from pytest_modelbudget.frontends.onnx_scopes import scope_of
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.transforms.layer_choice import LEFT_OUT, is_chosen
from pytest_modelbudget.transforms.onnx_rewriting import Names, Replacement
from pytest_modelbudget.transforms.onnx_rewritten_file import Rewritten
from pytest_modelbudget.transforms.onnx_spent_nodes import without_spent
from pytest_modelbudget.transforms.tile_grid import Tile, became, tiles_along
from pytest_modelbudget.transforms.transform import Change

OLDEST_OPSET = 13  # from which Split and ReduceSum take sizes and axes as operands


class TiledGraph:
    """Collects what takes the place of a model's operations; the model itself is left alone."""

    def __init__(self, model: onnx.ModelProto, tile: Tile, layers: Sequence[str]) -> None:
        self.names = Names(model)
        self._model = model
        self._opset = opset_of(model)
        self._tile = tile
        self._layers = layers
        self._replacements: dict[str, Replacement] = {}
        self._changes: list[Change] = []
        self._partial_sums = 1

    def keeps(self, node: NodeProto, why: str) -> bool:
        """Whether a node stays as it is, which is noted then; why is "" where it need not."""
        scope = scope_of(node)
        if not is_chosen(scope, self._layers):
            why = LEFT_OUT
        elif not why and self._opset < OLDEST_OPSET:
            why = f"operator set {self._opset} is older than {OLDEST_OPSET}: convert the file first"
        if why:
            self._changes.append(Change(scope, op_name(node), why=why))
        return bool(why)

    def replacement(
        self, node: NodeProto, k: int, n: int, *, rows: int = 1, groups: int = 1
    ) -> Replacement:
        """What is to take a node's place: products of k inputs to n outputs in each group."""
        into = Replacement(node, self.names.stem(node.output[0], "/tiles"))
        self._replacements[node.output[0]] = into
        what = became(self._tile, k, n, rows=rows, groups=groups)
        self._changes.append(Change(scope_of(node), op_name(node), what))
        self._partial_sums = max(self._partial_sums, tiles_along(k, self._tile.k))
        return into

    def result(self) -> Rewritten:
        """The model with new nodes in the place of others, and without what nobody reads now."""
        graph = self._model.graph
        nodes: list[NodeProto] = []
        tensors: list[TensorProto] = []
        for node in graph.node:
            into = self._replacements.get(node.output[0]) if node.output else None
            nodes.extend(into.nodes if into else (node,))
            tensors.extend(into.stored if into else ())
        outputs = frozenset(value.name for value in graph.output)
        nodes, spent = without_spent(nodes, names_read(graph.node), outputs)
        kept = (tensor for tensor in graph.initializer if tensor.name not in spent)
        made = with_graph(self._model, nodes, (*kept, *tensors))
        return Rewritten(made, tuple(self._changes), self._partial_sums)
