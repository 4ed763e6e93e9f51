"""The layer table: every column adds up, whatever is folded, shared or never called."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from pytest_modelbudget.formats.model import LayerCall, LoadedModel
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.reports.layer_table import OWN_OPERATIONS, LayerTable, layer_table, layer_text

FLOAT32 = DType("float32", 32)
_serial = count()


def tensor(*shape: int, kind: StorageKind = StorageKind.ACTIVATION, name: str = "") -> Tensor:
    """A dense float32 tensor on memory of its own."""
    name = name or f"t{next(_serial)}"
    nbytes = 4 * dense(name, shape, FLOAT32, Storage(name, 0, kind)).elements
    return dense(name, shape, FLOAT32, Storage(name, nbytes, kind))


def weight(name: str, *shape: int) -> Weight:
    return Weight(tensor(*shape, kind=StorageKind.PARAMETER, name=name), trainable=True)


def residual_net() -> LoadedModel:
    """y = act(fc(x)) + x with fc (4, 4) called twice, a root scale (4,) and a layer never called.

    block.fc: 2 calls x (2·4 outputs x 4) = 64 MACs; act is in place; the sum is the model's own.
    """
    x, first, second, total = (tensor(2, 4) for _ in range(4))
    matrix, scale, unused = (weight("block.fc.weight", 4, 4), weight("scale", 4), weight("spare.weight", 3, 3))
    tied = Weight(Tensor("head.weight", (4, 4), FLOAT32, matrix.tensor.storage, 0, (4, 1)))
    graph = Graph(
        ops=(
            Op("aten::linear", (x, matrix.tensor, None), (first,), {}, scope="block.fc"),
            Op("aten::relu_", (first,), (first,), {}, scope="block.act", mutates=True),
            Op("aten::linear", (first, matrix.tensor, None), (second,), {}, scope="block.fc"),
            Op("aten::add", (second, x), (total,), {}, scope=""),
        ),
        inputs=(x,),
        outputs=(total,),
        weights=(matrix, scale, unused, tied),
    )
    layers = (
        LayerCall("", "Net", (x,), (total,), leaf=False),
        LayerCall("block", "Block", (x,), (second,), leaf=False),
        LayerCall("block.fc", "Linear", (x,), (first,)),
        LayerCall("block.act", "ReLU", (first,), (first,)),
        LayerCall("block.fc", "Linear", (first,), (second,)),
    )
    return LoadedModel(graph, "torch", "meta", layers)


def table_of(model: LoadedModel, depth: int | None = None) -> LayerTable:
    return layer_table(model, CostedGraph(model.graph, builtin_ops()), depth)


@pytest.mark.parametrize("depth", [None, 0, 1, 2, 9])
def test_columns_add_up_at_every_depth(depth: int | None) -> None:
    """Folding a container moves its numbers and loses none."""
    table = table_of(residual_net(), depth)
    assert table.total("params") == 4 * 4 + 4 + 3 * 3  # the tied head adds nothing
    assert table.total("macs") == 2 * (2 * 4 * 4)
    assert table.total("output_nbytes") == 4 * (2 * 8 + 8 + 8)  # fc twice, act (an alias), the sum


def test_rows_follow_the_calls() -> None:
    """Containers carry no numbers, own operations a row, and a layer never called its params."""
    rows = table_of(residual_net()).rows
    assert [(r.scope, r.type, r.calls, r.params, r.macs, r.output_nbytes) for r in rows] == [
        ("", "Net", 1, None, None, None),
        ("", OWN_OPERATIONS, 1, 4, 0, 32),
        ("block", "Block", 1, None, None, None),
        ("block.fc", "Linear", 2, 16, 64, 64),
        ("block.act", "ReLU", 1, 0, 0, 32),
        ("spare", "", 0, 9, 0, 0),
    ]
    assert [row.lacks for row in rows] == ["", "", "", "", "", "never called"]


def test_an_op_without_a_rule_marks_its_row() -> None:
    """A layer with an unknown operation shows a lower bound, not a count."""
    x, y = tensor(1, 2), tensor(1, 2)
    graph = Graph((Op("lab::mystery", (x,), (y,), {}, scope="odd"),), (x,), (y,))
    model = LoadedModel(graph, "torch", layers=(LayerCall("odd", "Odd", (x,), (y,)),))
    table = table_of(model)
    assert [row.unmeasured for row in table.rows] == [0, 1]
    assert ">= 0" in layer_text(table, 80)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_text_fits_the_terminal_and_keeps_every_figure(width: int) -> None:
    """Labels and shapes give way to a narrow terminal; figures never do."""
    lines = layer_text(table_of(residual_net()), width).splitlines()
    assert max(map(len, lines)) <= width
    total = next(line for line in lines if line.startswith("Total"))
    assert total.split() == ["Total", "29", "64", "128"]


def test_weights_that_another_layer_reads_are_not_called_unused() -> None:
    """As exporters that name weights by layers, and operations by their numbers, write every file."""
    model = residual_net()
    spare = model.graph.weights[2].tensor
    read = Op("aten::add", (model.graph.outputs[0], spare), (tensor(2, 4),), {}, scope="op.7")
    graph = replace(model.graph, ops=(*model.graph.ops, read), outputs=read.outputs)
    text = layer_text(table_of(replace(model, graph=graph)), 120)
    assert "spare (weights alone)" in text
    assert "never called" not in text


def test_a_wide_terminal_shows_every_column() -> None:
    """Nothing is left out where there is room, and nothing is said about it."""
    text = layer_text(table_of(residual_net()), 120)
    assert text.splitlines()[0].split() == [
        "Layer", "Input", "Output", "Params", "%", "Kernel", "MACs", "%", "Output", "B",
    ]  # fmt: skip
    assert "columns hidden" not in text
    shares = {line.split()[0]: [word for word in line.split() if word.endswith("%")] for line in text.splitlines()}
    assert shares["fc"] == ["55.2%", "100.0%"]  # 16 of 29 parameters, 64 of 64 MACs
    assert shares["spare"] == ["31.0%"]
    assert "fc Linear x2" in text
    assert "spare (never called)" in text
