"""Recurrent layers: every gate of every step is a matrix product with its weights."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import BIAS, WEIGHT, Role
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, under


def recurrent_macs(*, x: Tensor, params: tuple[Tensor, ...]) -> int:
    """Each weight matrix is applied once per step and batch element.

    x (time, batch, features) in either order, or (time, features) unbatched, or packed
    (rows, features); params of all layers and directions, matrices (gates·h, k), biases (gates·h,).
    """
    steps = prod(x.shape[:-1])
    return steps * sum(param.elements for param in params if len(param.shape) == 2)


def cell_macs(*, x: Tensor, input_weight: Tensor, hidden_weight: Tensor) -> int:
    """One step: x (batch, k) or (k,) through both matrices of the cell."""
    return prod(x.shape[:-1]) * (input_weight.elements + hidden_weight.elements)


def lstm_flops(*, x: Tensor, state: tuple[Tensor, ...], params: tuple[Tensor, ...]) -> int:
    """9 per cell and step (three sigmoids, two tanh, three products, one sum), and the biases.

    state is (h, c); c (layers · directions, batch, h).
    """
    return _per_step(x, 9 * _units(state[1]) + _bias_elements(params))


def gru_flops(*, x: Tensor, state: Tensor, params: tuple[Tensor, ...]) -> int:
    """10 per hidden unit and step, and the biases; state (layers · directions, batch, h)."""
    return _per_step(x, 10 * _units(state) + _bias_elements(params))


def rnn_flops(*, x: Tensor, state: Tensor, params: tuple[Tensor, ...]) -> int:
    """2 per hidden unit and step (a sum and an activation), and the biases."""
    return _per_step(x, 2 * _units(state) + _bias_elements(params))


def _per_step(x: Tensor, operations: int) -> int:
    return prod(x.shape[:-1]) * operations


def _units(state: Tensor) -> int:
    """Hidden units of all layers and directions: state is (layers · directions, batch, h)."""
    return state.shape[0] * state.shape[-1]


def _bias_elements(params: tuple[Tensor, ...]) -> int:
    return sum(param.elements for param in params if len(param.shape) == 1)


def _cell_flops(units: Tensor, per_unit: int, *biases: Tensor | None) -> int:
    """Gate arithmetic of one step, and each (gates · h,) bias once per batch row."""
    rows = prod(units.shape[:-1])
    return units.elements * per_unit + rows * sum(b.elements for b in biases if b is not None)


def lstm_cell_flops(
    *, state: tuple[Tensor, ...], input_bias: Tensor | None, hidden_bias: Tensor | None
) -> int:
    """One LSTM step; state is (h, c), c (batch, h)."""
    return _cell_flops(state[1], 9, input_bias, hidden_bias)


def gru_cell_flops(*, state: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None) -> int:
    """One GRU step; state (batch, h)."""
    return _cell_flops(state, 10, input_bias, hidden_bias)


def rnn_cell_flops(*, state: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None) -> int:
    """One RNN step; state (batch, h)."""
    return _cell_flops(state, 2, input_bias, hidden_bias)


CELL_ROLES = (
    "x",
    "state",
    Role("input_weight", weight=True),
    Role("hidden_weight", weight=True),
    Role("input_bias", weight=True),
    Role("hidden_bias", weight=True),
)
STACKED_ROLES = ("x", WEIGHT, Role("hidden_weight", weight=True), BIAS, "lengths", "state")


def stacked_macs(*, x: Tensor, weight: Tensor, hidden_weight: Tensor) -> int:
    """Both matrices once per step and batch element, for each direction.

    x (time, batch, k) in either order, weight (directions, gates·h, k), hidden_weight
    (directions, gates·h, h). Sequence lengths save nothing.
    """
    return prod(x.shape[:-1]) * (weight.elements + hidden_weight.elements)


def stacked_flops(per_unit: int) -> Callable[..., int]:
    """FLOPs per hidden unit and step, and the biases; a peephole is a product and a sum."""

    def flops(
        *,
        x: Tensor,
        hidden_weight: Tensor,
        bias: Tensor | None = None,
        peephole: Tensor | None = None,
    ) -> int:
        units = hidden_weight.shape[0] * hidden_weight.shape[-1]
        added = bias.elements if bias is not None else 0
        peeped = 2 * peephole.elements if peephole is not None else 0
        return prod(x.shape[:-1]) * (per_unit * units + added + peeped)

    return flops


RECURRENT: tuple[OpRule, ...] = (
    OpRule(
        kind="lstm",
        names={
            "aten::lstm": ("x", "state", Role("params", weight=True)),
            "aten::lstm.data": ("x", "batch_sizes", "state", Role("params", weight=True)),
        },
        macs=recurrent_macs,
        contracts=Contraction(Over.FEATURES, ("x", "params")),
        flops=lstm_flops,
        because="four gates of W_ih·x + W_hh·h a step, and the projection: torch.nn.LSTM",
    ),
    OpRule(
        kind="gru",
        names={
            "aten::gru": ("x", "state", Role("params", weight=True)),
            "aten::gru.data": ("x", "batch_sizes", "state", Role("params", weight=True)),
        },
        macs=recurrent_macs,
        contracts=Contraction(Over.FEATURES, ("x", "params")),
        flops=gru_flops,
        because="three gates of W_ih·x + W_hh·h a step: torch.nn.GRU",
    ),
    OpRule(
        kind="rnn",
        names={
            "aten::rnn_tanh": ("x", "state", Role("params", weight=True)),
            "aten::rnn_relu": ("x", "state", Role("params", weight=True)),
            "aten::rnn_tanh.data": ("x", "batch_sizes", "state", Role("params", weight=True)),
            "aten::rnn_relu.data": ("x", "batch_sizes", "state", Role("params", weight=True)),
        },
        macs=recurrent_macs,
        contracts=Contraction(Over.FEATURES, ("x", "params")),
        flops=rnn_flops,
        because="W_ih·x + W_hh·h a step: torch.nn.RNN",
    ),
    OpRule(
        kind="lstm_cell",
        names=under("aten::lstm_cell", *CELL_ROLES),
        macs=cell_macs,
        contracts=Contraction(Over.FEATURES, ("x", "input_weight", "hidden_weight")),
        flops=lstm_cell_flops,
        because="one LSTM step: torch.nn.LSTMCell",
    ),
    OpRule(
        kind="gru_cell",
        names=under("aten::gru_cell", *CELL_ROLES),
        macs=cell_macs,
        contracts=Contraction(Over.FEATURES, ("x", "input_weight", "hidden_weight")),
        flops=gru_cell_flops,
        because="one GRU step: torch.nn.GRUCell",
    ),
    OpRule(
        kind="rnn_cell",
        names=under("aten::rnn_tanh_cell aten::rnn_relu_cell", *CELL_ROLES),
        macs=cell_macs,
        contracts=Contraction(Over.FEATURES, ("x", "input_weight", "hidden_weight")),
        flops=rnn_cell_flops,
        because="one RNN step: torch.nn.RNNCell",
    ),
    OpRule(
        kind="lstm",
        names=under("onnx::LSTM", *STACKED_ROLES, "cell_state", Role("peephole", weight=True))
        | under(
            "com.microsoft::DynamicQuantizeLSTM",
            *STACKED_ROLES,
            "cell_state",
            Role("peephole", weight=True),
            Role("weight_scale", quantises="weight"),
            Role("weight_zero_point", quantises="weight"),
            Role("hidden_weight_scale", quantises="hidden_weight"),
            Role("hidden_weight_zero_point", quantises="hidden_weight"),
        ),
        macs=stacked_macs,
        contracts=Contraction(Over.FEATURES, ("x", "weight", "hidden_weight")),
        flops=stacked_flops(9),
        because="four gates of W·x + R·h a step: ONNX LSTM",
    ),
    OpRule(
        kind="gru",
        names=under("onnx::GRU", *STACKED_ROLES),
        macs=stacked_macs,
        contracts=Contraction(Over.FEATURES, ("x", "weight", "hidden_weight")),
        flops=stacked_flops(10),
        because="three gates of W·x + R·h a step: ONNX GRU",
    ),
    OpRule(
        kind="rnn",
        names=under("onnx::RNN", *STACKED_ROLES),
        macs=stacked_macs,
        contracts=Contraction(Over.FEATURES, ("x", "weight", "hidden_weight")),
        flops=stacked_flops(2),
        because="W·x + R·h a step: ONNX RNN",
    ),
)
