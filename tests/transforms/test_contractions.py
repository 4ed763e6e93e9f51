"""What multiplies by a weight is asked of its rule, alike for files and modules, by every name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, nothing
from pytest_modelbudget.ops.table import OpTable, builtin_ops
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.fold_batchnorm_on_onnx import folded_batchnorms
from pytest_modelbudget.transforms.tile.conv_on_onnx import tiled_convolutions
from pytest_modelbudget.transforms.tile.grid import Tile, must_be_complete
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.module_transforms import quantisation
from tests.builders.onnx_graphs import graph, model, node, scalar, stored, value

pytestmark = pytest.mark.needs_torch

TILING = Tiling(Tile(None, 4, 4))


def test_every_formula_of_macs_says_what_it_sums_over() -> None:
    """And a rule without products contracts nothing."""
    for name, rule in builtin_ops().items():
        sums = rule.macs not in {None, nothing}
        assert (rule.contracts is not None) == sums, name
        words = {role.word for role in rule.roles[name]}
        assert rule.contracts is None or words & set(rule.contracts.of), name


def after_a_layer(nodes: Sequence[onnx.NodeProto], *weights: onnx.TensorProto, domain: str = "") -> onnx.ModelProto:
    """h = Gemm(x (8, 8), w), and then what these nodes make of it."""
    return model(
        [node("Gemm", "x w", "h"), *nodes],
        [value("x", 8, 8), value("c", code=TensorProto.BOOL)],
        [value("y")],
        [stored("w", 8, 8), *weights],
        domains=["com.microsoft", "lab", *([domain] if domain else [])],
    )


def in_a_branch() -> onnx.ModelProto:
    one = graph([node("Einsum", "h v", "t", equation="bi,io->bo")], [], [value("t", 8, 8)])
    other = graph([node("Relu", "h", "e")], [], [value("e", 8, 8)])
    return after_a_layer([node("If", "c", "y", then_branch=one, else_branch=other)], stored("v", 8, 8))


def recurrent(kind: str, gates: int) -> onnx.ModelProto:
    return after_a_layer(
        [node("Unsqueeze", "h zero", "s"), node(kind, "s wi wh", "y", hidden_size=4)],
        onnx.numpy_helper.from_array(np.array([0]), "zero"),
        stored("wi", 1, 4 * gates, 8),
        stored("wh", 1, 4 * gates, 4),
    )


def attention() -> onnx.ModelProto:
    return after_a_layer(
        [node("Unsqueeze", "h zero", "s"), node("Attention", "s qkv b", "y", domain="com.microsoft", num_heads=2)],
        onnx.numpy_helper.from_array(np.array([0]), "zero"),
        stored("qkv", 8, 24),
        stored("b", 24),
    )


def quantised_product() -> onnx.ModelProto:
    return after_a_layer(
        [node("QuantizeLinear", "h s z", "q"), node("QLinearMatMul", "q s z v s z s z", "y")],
        scalar("s", 1.0),
        scalar("z", 0, np.int8),
        stored("v", 8, 8, dtype=np.int8),
    )


def regression() -> onnx.ModelProto:
    held = {"coefficients": [1.0] * 16, "intercepts": [0.5] * 2, "targets": 2}
    return after_a_layer([node("LinearRegressor", "h", "y", domain="ai.onnx.ml", **held)], domain="ai.onnx.ml")


WHOLE = {
    "einsum": (
        after_a_layer([node("Einsum", "h v", "y", equation="bi,io->bo")], stored("v", 8, 8)),
        "onnx::Einsum is rewritten by no form of tiles",
    ),
    "einsum with a vector": (
        after_a_layer([node("Einsum", "h v", "y", equation="bi,i->b")], stored("v", 8)),
        "onnx::Einsum is rewritten by no form of tiles",
    ),
    "einsum in a branch": (in_a_branch(), "it is in a body of onnx::If"),
    "einsum by a computed weight": (
        after_a_layer(
            [node("Mul", "v g", "k"), node("Einsum", "h k", "y", equation="bi,io->bo")],
            stored("v", 8, 8),
            stored("g", 8),
        ),
        "onnx::Einsum is rewritten by no form of tiles",
    ),
    **{
        kind: (recurrent(kind, gates), f"onnx::{kind} is rewritten by no form of tiles")
        for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    },
    "fused product": (
        after_a_layer([node("FusedMatMul", "h v", "y", domain="com.microsoft")], stored("v", 8, 8)),
        "com.microsoft::FusedMatMul is rewritten by no form of tiles",
    ),
    "packed attention": (attention(), "com.microsoft::Attention is rewritten by no form of tiles"),
    "quantised": (quantised_product(), "onnx::QLinearMatMul is rewritten by no form of tiles"),
    "a learner that holds its weight": (regression(), "ai.onnx.ml::LinearRegressor is rewritten by no form of tiles"),
    "left operand": (after_a_layer([node("MatMul", "v h", "y")], stored("v", 8, 8)), "its weight is the left operand"),
}


@pytest.mark.parametrize(("proto", "why"), WHOLE.values(), ids=WHOLE)
def test_a_file_lists_what_stays_whole(proto: onnx.ModelProto, why: str) -> None:
    """The Gemm in four products of 4x4, and the other one with the reason."""
    changes = tiled_linears(proto, TILING).changes
    assert [each.became or each.why for each in changes] == ["4 products of 4x4", why]


NONE = {
    "einsum that scales": after_a_layer([node("Einsum", "h v", "y", equation="bi,i->bi")], stored("v", 8)),
    "einsum of activations": after_a_layer([node("Einsum", "h x", "y", equation="bi,io->bo")]),
    "fused product of activations": after_a_layer([node("FusedMatMul", "h x", "y", domain="com.microsoft")]),
    "normalised": after_a_layer([node("LayerNormalization", "h s", "y")], stored("s", 8)),
}


@pytest.mark.parametrize("proto", NONE.values(), ids=NONE)
def test_a_file_lists_nothing_else(proto: onnx.ModelProto) -> None:
    """Nothing is contracted with a weight there."""
    assert [each.operation for each in tiled_linears(proto, TILING).changes] == ["onnx::Gemm"]


def low_rank_macs(*, x: Any, down: Any) -> int:
    return int(x.elements * down.shape[-1])


LAB = after_a_layer([node("low_rank", "h v", "y", domain="lab")], stored("v", 8, 2))


@pytest.mark.parametrize(
    ("contracts", "linear", "convolution"),
    [
        pytest.param(Contraction(Over.FEATURES, ("x", "down")), True, False, id="features"),
        pytest.param(Contraction(Over.CHANNELS, ("x", "down")), False, True, id="channels"),
        pytest.param(None, True, True, id="nobody said over what"),
    ],
)
@pytest.mark.parametrize("role", ["down", Role("down", weight=True)], ids=["word", "weight"])
def test_an_extensions_rule_is_asked_too(
    role: str | Role, contracts: Contraction | None, linear: bool, convolution: bool
) -> None:
    """What it does not say may be either."""
    names = {"lab::low_rank": ("x", role)}
    rule = OpRule("low_rank", names, "narrow", macs=low_rank_macs, contracts=contracts)
    rules = OpTable((*dict.fromkeys(builtin_ops().values()), rule))
    changes = tiled_linears(LAB, TILING, rules).changes
    assert ("lab::low_rank" in [each.operation for each in changes]) is linear
    found = tiled_convolutions(LAB, Tile(None, 4, 4), ("*",), rules).changes
    assert ("lab::low_rank" in [each.operation for each in found]) is convolution


class Then(nn.Module):
    """A linear layer, and what is done with its result and stored tensors."""

    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 8)
        self.stored, self.g, self.many = (nn.Parameter(torch.randn(size)) for size in ((8, 8), (8,), (4, 8, 8)))
        self.a, self.b, self.queries = (nn.Parameter(torch.randn(size)) for size in ((8, 2), (2, 8), (5, 8)))
        self.use = use
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self, self.fc(x))


EINSUM = Then(lambda m, h: torch.einsum("bi,io->bo", h, m.stored))
MODULES = {
    "aten::einsum": EINSUM,
    "aten::einsum, computed": Then(lambda m, h: torch.einsum("bi,io->bo", h, m.stored * m.g)),
    "aten::lstm": Then(lambda m, h: m.cell(h)[0], cell=nn.LSTM(8, 4)),
    "aten::gru": Then(lambda m, h: m.cell(h)[0], cell=nn.GRU(8, 4)),
    "aten::rnn_tanh": Then(lambda m, h: m.cell(h)[0], cell=nn.RNN(8, 4)),
    "aten::lstm_cell": Then(lambda m, h: m.cell(h)[0], cell=nn.LSTMCell(8, 4)),
    "aten::gru_cell": Then(lambda m, h: m.cell(h), cell=nn.GRUCell(8, 4)),
    "aten::rnn_tanh_cell": Then(lambda m, h: m.cell(h), cell=nn.RNNCell(8, 4)),
    "aten::bilinear": Then(lambda m, h: m.cell(h, h), cell=nn.Bilinear(8, 8, 4)),
    "aten::bmm": Then(lambda m, h: torch.bmm(h.expand(4, 3, 8), m.many)),
    "aten::bmm, computed": Then(lambda m, h: torch.bmm(h.expand(4, 3, 8), m.many * m.g)),
    "aten::matmul, batched": Then(lambda m, h: h[None] @ m.many),
    "aten::matmul, batched and computed": Then(lambda m, h: h[None] @ (m.many + 1)),
    "aten::scaled_dot_product_attention": Then(
        lambda m, h: nn.functional.scaled_dot_product_attention(m.stored[None], h[None], h[None])
    ),
}


def tiled(module: nn.Module, layers: tuple[str, ...] = ("*",)) -> Any:
    source = ModelSource("torch", module, InputSpecs((TensorSpec("float32", (3, 8)),)))
    settings = {"tile": (None, 4, 4), "edge": "ragged", "layers": layers}
    return apply_transform(source, Transformation("tile_linear", settings), tables())


@pytest.mark.parametrize("operation", MODULES)
def test_a_module_refuses_what_stays_whole(operation: str) -> None:
    """As a file does: the Linear alone in tiles is not the model in tiles."""
    name = operation.partition(",")[0]
    with pytest.raises(TransformError, match=rf"left 1 linear operation whole: .*\({name}: no tiling is known for it"):
        tiled(MODULES[operation])


def attended(queries: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(queries[None], h[None], h[None])


ACTIVATIONS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "attention behind an einsum that scales": lambda m, h: attended(torch.einsum("bi,i->bi", h, m.stored[0]), h),
    "attention by hand": lambda m, h: (h @ h.t()).softmax(-1) @ h,
    "learnt queries": lambda m, h: (m.queries * m.g) @ h.t(),
    "learnt queries in attention": lambda m, h: attended(m.queries * 2, h),
    "a scaled activation": lambda m, h: h @ (h * m.g).t(),
    "an overwritten copy": lambda m, h: h @ m.stored.clone().copy_(h.t() @ h),
}


@pytest.mark.parametrize("use", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_a_module_lists_nothing_else(use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    """Where both sides come of inputs, or the left one is what is asked, there is no weight."""
    assert [each.scope for each in tiled(Then(use)).changed.changes] == ["fc"]


FOUR, EIGHT, TWO = "4 products of 4x4", "8 products of 4x4", "2 products of 4x4"
COMPUTED: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], list[str]]] = {
    "scaled": (lambda m, h: torch.matmul(h, m.stored * m.g), [FOUR]),
    "by a layer": (lambda m, h: nn.functional.linear(h, m.stored * m.g), [FOUR]),
    "an adapter added": (lambda m, h: h @ (m.stored + 2 * m.a @ m.b), [TWO, FOUR]),
    "two side by side": (lambda m, h: h @ torch.cat([m.stored, m.stored], 1), [EIGHT]),
    "two multiplied": (lambda m, h: h @ (m.stored @ m.stored), [FOUR, FOUR]),
    "turned and copied": (lambda m, h: h @ m.stored.t().contiguous(), [FOUR]),
    "with a bias": (lambda m, h: torch.addmm(m.g, h, m.stored * 2), [FOUR]),
    "of a softmax": (lambda m, h: h @ m.stored.softmax(0), [FOUR]),
    "one of many": (lambda m, h: h @ (m.many * m.g)[1], [FOUR]),
    "written in place": (lambda m, h: h @ m.stored.clone().mul_(m.g), [FOUR]),
    "tensordot": (lambda m, h: torch.tensordot(h, m.stored.exp(), 1), [FOUR]),
}


@pytest.mark.parametrize(("use", "became"), COMPUTED.values(), ids=COMPUTED)
def test_a_computed_weight_is_tiled(use: Callable[[Any, torch.Tensor], torch.Tensor], became: list[str]) -> None:
    """8 x 8 weights are 2 x 2 tiles of 4; the same outputs come of them."""
    applied = tiled(Then(use))
    assert [change.became for change in applied.changed.changes] == [FOUR, *became]
    found = applied.verify(Claim(seeds=(0,)))
    assert found.outcome == "within", found.reason


def test_a_file_and_a_module_refuse_alike(tmp_path: Path) -> None:
    """Gemm and Einsum in a file: the transform raises, so that its checks are unknown."""
    path = tmp_path / "m.onnx"
    onnx.save(WHOLE["einsum"][0], path)
    settings = {"tile": (None, 4, 4), "edge": "ragged", "layers": ("*",), "form": "unrolled"}
    source = ModelSource("onnx", str(path))
    with pytest.raises(TransformError, match=r"left 1 linear operation whole: 'y' \(onnx::Einsum"):
        apply_transform(source, Transformation("tile_linear", settings), tables())


def test_layers_of_one_scope_are_named_once() -> None:
    """An LSTM of two layers is two nodes of one scope: both are counted."""
    stays = Change("l", "onnx::LSTM", why="no form of tiles")
    with pytest.raises(TransformError) as raised:
        must_be_complete([stays, stays], "tile_linear", "linear operation")
    said = "tile_linear left 2 linear operations whole: 'l' (onnx::LSTM: no form of tiles): leave them out with"
    assert str(raised.value).startswith(said)


def test_a_quantiser_lists_products_of_any_module() -> None:
    """The module that owns a layer multiplies by a tensor of its own, which is a weight, too."""
    source = ModelSource("torch", EINSUM, InputSpecs((TensorSpec("float32", (3, 8)),)))
    applied = apply_transform(source, Transformation("quantize", quantisation()), tables())
    changes = applied.changed.changes
    assert [(each.scope, each.operation, each.became) for each in changes] == [
        ("fc", "Linear", "int8, a scale per channel"),
        ("", "aten::einsum", "int8, a scale per channel"),
    ]


def test_a_batch_norm_in_a_branch_is_listed() -> None:
    """It stays, and says so beside the one that is folded."""
    norm = "one one one one"
    inner = graph([node("BatchNormalization", f"n {norm}", "t")], [], [value("t", 8, 8)])
    other = graph([node("Relu", "n", "e")], [], [value("e", 8, 8)])
    nodes = [node("BatchNormalization", f"h {norm}", "n"), node("If", "c", "y", then_branch=inner, else_branch=other)]
    changes = folded_batchnorms(after_a_layer(nodes, stored("one", 8))).changes
    assert [(each.scope, each.became or each.why) for each in changes] == [
        ("n", "part of onnx::Gemm 'h'"),
        ("t", "it is in a body of onnx::If"),
    ]
