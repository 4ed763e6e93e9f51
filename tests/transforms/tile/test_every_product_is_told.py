"""``tile_linear`` leaves nothing unsaid: a product by a weight is tiled, or listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears

pytestmark = pytest.mark.needs_torch

SETTINGS = {"tile": (None, 8, 8), "edge": "ragged", "form": "unrolled", "layers": ("*",)}


class Net(nn.Module):
    """A linear layer of 2 x 2 tiles, and behind it another operation on its result."""

    def __init__(self, operation: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.w, self.g, self.many = (nn.Parameter(torch.randn(size)) for size in ((16, 16), (16,), (4, 16, 16)))
        self.a, self.b = (nn.Parameter(torch.randn(size)) for size in ((16, 2), (2, 16)))
        self.queries = nn.Parameter(torch.randn(5, 16))
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(self, self.first(x))


class Last(nn.Module):
    """A linear layer, and a recurrent one behind it."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(16, 16), cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.cell(self.first(x))
        return given[0] if isinstance(given, tuple) else given


def tiled(model: nn.Module) -> Any:
    source = ModelSource("torch", model.eval(), InputSpecs((TensorSpec("float32", (3, 16)),)))
    return apply_transform(source, "tile_linear", SETTINGS, tables())


FOUR, EIGHT, TWO = "4 products of 8x8", "8 products of 8x8", "2 products of 8x8"
TILED: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], list[str]]] = {
    "scaled": (lambda m, x: torch.matmul(x, m.w * m.g), [FOUR]),
    "by a layer": (lambda m, x: nn.functional.linear(x, m.w * m.g), [FOUR]),
    "an adapter added": (lambda m, x: x @ (m.w + 2 * m.a @ m.b), [TWO, FOUR]),
    "two side by side": (lambda m, x: x @ torch.cat([m.w, m.w], 1), [EIGHT]),
    "two multiplied": (lambda m, x: x @ (m.w @ m.w), [FOUR, FOUR]),
    "turned and copied": (lambda m, x: x @ m.w.t().contiguous(), [FOUR]),
    "with a bias": (lambda m, x: torch.addmm(m.g, x, m.w * 2), [FOUR]),
    "of a softmax": (lambda m, x: x @ m.w.softmax(0), [FOUR]),
    "one of many": (lambda m, x: x @ (m.many * m.g)[1], [FOUR]),
    "written in place": (lambda m, x: x @ m.w.clone().mul_(m.g), [FOUR]),
    "tensordot": (lambda m, x: torch.tensordot(x, m.w.exp(), 1), [FOUR]),
}


@pytest.mark.parametrize("name", TILED)
def test_e7_a_computed_weight_is_tiled(name: str) -> None:
    """16 x 16 weights are 2 x 2 tiles of 8; the same outputs come of them."""
    operation, expected = TILED[name]
    applied = tiled(Net(operation))
    assert [change.became for change in applied.changed.changes] == [FOUR, *expected]
    found = applied.verify(Claim(seeds=(0,)))
    assert found.outcome.value == "within", found.reason


WHOLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "GRU": (lambda: Last(nn.GRU(16, 16)), "'cell' (aten::gru:"),
    "LSTM": (lambda: Last(nn.LSTM(16, 16)), "'cell' (aten::lstm:"),
    "RNN": (lambda: Last(nn.RNN(16, 16)), "'cell' (aten::rnn_tanh:"),
    "GRUCell": (lambda: Last(nn.GRUCell(16, 16)), "'cell' (aten::gru_cell:"),
    "LSTMCell": (lambda: Last(nn.LSTMCell(16, 16)), "'cell' (aten::lstm_cell:"),
    "einsum": (lambda: Net(lambda m, x: torch.einsum("ni,io->no", x, m.w)), "(aten::einsum:"),
    "einsum, computed": (lambda: Net(lambda m, x: torch.einsum("ni,io->no", x, m.w * m.g)), "(aten::einsum:"),
    "bmm": (lambda: Net(lambda m, x: torch.bmm(x.expand(4, 3, 16), m.many)), "(aten::bmm:"),
    "bmm, computed": (lambda: Net(lambda m, x: torch.bmm(x.expand(4, 3, 16), m.many * m.g)), "(aten::bmm:"),
    "batched": (lambda: Net(lambda m, x: x[None] @ m.many), "(aten::matmul:"),
    "batched, computed": (lambda: Net(lambda m, x: x[None] @ (m.many + 1)), "(aten::matmul:"),
    "a vector": (lambda: Net(lambda m, x: torch.mv(x, m.g)), "(aten::mv:"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_e7_what_has_no_tiling_is_named(name: str) -> None:
    """It makes the transform unknown, until it is left out by name."""
    make, named = WHOLE[name]
    with pytest.raises(TransformError, match="left 1 linear operation whole") as raised:
        tiled(make())
    assert f"{named} no tiling is known for it)" in str(raised.value)


ACTIVATIONS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "attention by hand": lambda m, x: (x @ x.t()).softmax(-1) @ x,
    "learnt queries": lambda m, x: (m.queries * m.g) @ x.t(),
    "learnt queries in attention": lambda m, x: nn.functional.scaled_dot_product_attention(
        (m.queries * 2)[None], x[None], x[None]
    ),
    "a scaled activation": lambda m, x: x @ (x * m.g).t(),
    "an overwritten copy": lambda m, x: x @ m.w.clone().copy_(x.t() @ x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_e7_products_of_activations_stay_unlisted(name: str) -> None:
    """Where both sides come of inputs, or the left one is what is asked, there is no weight."""
    assert [change.became for change in tiled(Net(ACTIVATIONS[name])).changed.changes] == [FOUR]


def node(operator: str, reads: str, *, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, reads.split(), ["y"], name="last", domain=domain, **attributes)


OWN = "com.microsoft"
FILES: dict[str, tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], str]] = {
    "GRU": ([node("GRU", "h W R", hidden_size=16)], {"W": (1, 48, 16), "R": (1, 48, 16)}, "onnx::GRU"),
    "LSTM": ([node("LSTM", "h W R", hidden_size=16)], {"W": (1, 64, 16), "R": (1, 64, 16)}, "onnx::LSTM"),
    "RNN": ([node("RNN", "h W R", hidden_size=16)], {"W": (1, 16, 16), "R": (1, 16, 16)}, "onnx::RNN"),
    "Einsum": ([node("Einsum", "h W", equation="abi,io->abo")], {"W": (16, 16)}, "onnx::Einsum"),
    "Einsum, computed": (
        [helper.make_node("Mul", ["W", "g"], ["c"]), node("Einsum", "h c", equation="abi,io->abo")],
        {"W": (16, 16), "g": (16,)},
        "onnx::Einsum",
    ),
    "MatMul, computed": (
        [helper.make_node("Mul", ["W", "g"], ["c"]), node("MatMul", "h c")],
        {"W": (16, 16), "g": (16,)},
        "onnx::MatMul",
    ),
    "MatMul, batched": ([node("MatMul", "h W")], {"W": (3, 16, 16)}, "onnx::MatMul"),
    "Attention": (
        [node("Attention", "h W b", domain=OWN, num_heads=2)],
        {"W": (16, 48), "b": (48,)},
        f"{OWN}::Attention",
    ),
    "FusedMatMul": ([node("FusedMatMul", "h W", domain=OWN)], {"W": (16, 48)}, f"{OWN}::FusedMatMul"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_e7_what_has_no_tiling_in_a_file_is_listed(name: str) -> None:
    """The MatMul before it is tiled; it stays, and the list says why."""
    nodes, stored, operation = FILES[name]
    tensors = {"w0": (16, 16), **stored}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 1, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(size, np.float32), key) for key, size in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    first, last = tiled_linears(
        helper.make_model(graph, opset_imports=opsets, ir_version=9), Tiling(Tile(None, 8, 8))
    ).changes
    assert (first.scope, first.became) == ("first", FOUR)
    assert (last.scope, last.operation, last.became) == ("last", operation, "")
    assert last.why
