"""Recurrent layers: every gate of every step is a matrix product with its weights."""

from collections.abc import Callable
from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import BIAS, WEIGHT, WEIGHT_SCALES, roles
from pytest_modelbudget.ops.rule import Contraction, Formula, Maybe, Names, OpRule, Over, under


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


def _cell_flops(units: Tensor, per_unit: int, *biases: Maybe) -> int:
    """Gate arithmetic of one step, and each (gates · h,) bias once per batch row."""
    rows = prod(units.shape[:-1])
    return units.elements * per_unit + rows * sum(b.elements for b in biases if b is not None)


def lstm_cell_flops(*, state: tuple[Tensor, ...], input_bias: Maybe, hidden_bias: Maybe) -> int:
    """One LSTM step; state is (h, c), c (batch, h)."""
    return _cell_flops(state[1], 9, input_bias, hidden_bias)


def gru_cell_flops(*, state: Tensor, input_bias: Maybe, hidden_bias: Maybe) -> int:
    """One GRU step; state (batch, h)."""
    return _cell_flops(state, 10, input_bias, hidden_bias)


def rnn_cell_flops(*, state: Tensor, input_bias: Maybe, hidden_bias: Maybe) -> int:
    """One RNN step; state (batch, h)."""
    return _cell_flops(state, 2, input_bias, hidden_bias)


def stacked_macs(*, x: Tensor, weight: Tensor, hidden_weight: Tensor) -> int:
    """Both matrices once per step and batch element, for each direction.

    x (time, batch, k) in either order, weight (directions, gates·h, k), hidden_weight
    (directions, gates·h, h). Sequence lengths save nothing.
    """
    return prod(x.shape[:-1]) * (weight.elements + hidden_weight.elements)


def stacked_flops(per_unit: int) -> Callable[..., int]:
    """FLOPs per hidden unit and step, and the biases; a peephole is a product and a sum."""

    def flops(*, x: Tensor, hidden_weight: Tensor, bias: Maybe = None, peephole: Maybe = None) -> int:
        units = hidden_weight.shape[0] * hidden_weight.shape[-1]
        added = bias.elements if bias is not None else 0
        peeped = 2 * peephole.elements if peephole is not None else 0
        return prod(x.shape[:-1]) * (per_unit * units + added + peeped)

    return flops


PARAMS = roles("params", weight=True)
CELL = roles("input_weight hidden_weight input_bias hidden_bias", weight=True)
# Read from two packs, which hold the biases that are added; torch passes these beside them, too.
PACKED_CELL = (
    roles("input_weight input_bias hidden_weight hidden_bias", weight=True),
    roles("same_input_bias same_hidden_bias", unread=True),
)
HIDDEN_WEIGHT, PEEPHOLE = roles("hidden_weight peephole", weight=True)
STATE, CELL_STATE = roles("state cell_state", learnt=True, starts=True)
STACKED = ("x", WEIGHT, HIDDEN_WEIGHT, BIAS, "lengths", STATE)
LSTM = (STACKED, CELL_STATE, PEEPHOLE)
HIDDEN_SCALES = roles("hidden_weight_scale hidden_weight_zero_point", quantises="hidden_weight")
LAYER_OF = Contraction(Over.FEATURES, ("x", "params"))
CELL_OF = Contraction(Over.FEATURES, ("x", "input_weight", "hidden_weight"))
STACKED_OF = Contraction(Over.FEATURES, ("x", "weight", "hidden_weight"))


def _layer(kind: str, names: str, flops: Formula | None, because: str, *, legacy: str = "") -> OpRule:
    """A layer of torch, over steps of one length or (``.data``) packed ones."""
    packed = " ".join([f"{name}.data" for name in names.split()] + legacy.split())
    both = under(names, "x state", PARAMS) | under(packed, "x batch_sizes state", PARAMS)
    return OpRule(kind, both, because, macs=recurrent_macs, contracts=LAYER_OF, flops=flops)


def _cell(kind: str, names: str, flops: Formula, because: str) -> OpRule:
    operands = under(names, "x state", CELL)
    return OpRule(kind, operands, because, macs=cell_macs, contracts=CELL_OF, flops=flops)


def _packed_cell(kind: str, names: str, flops: Formula) -> OpRule:
    packed = " ".join(f"quantized::quantized_{name}_dynamic" for name in names.split())
    because = f"one step of the float {kind} over packed weights: torch.ao.nn.quantized.dynamic"
    operands = under(packed, "x state", PACKED_CELL)
    return OpRule(kind, operands, because, macs=cell_macs, contracts=CELL_OF, flops=flops)


def _stacked(kind: str, names: Names, per_unit: int, because: str) -> OpRule:
    flops = stacked_flops(per_unit)
    return OpRule(kind, names, because, macs=stacked_macs, contracts=STACKED_OF, flops=flops)


RECURRENT: tuple[OpRule, ...] = (
    _layer(
        "lstm",
        "lstm quantized_lstm",
        lstm_flops,
        "four gates of W_ih·x + W_hh·h a step, and the projection: torch.nn.LSTM",
        legacy="quantized_lstm.data_legacy",
    ),
    _layer(
        "gru",
        "gru quantized_gru",
        gru_flops,
        "three gates of W_ih·x + W_hh·h a step: torch.nn.GRU",
        legacy="quantized_gru.data_legacy",
    ),
    _layer("rnn", "rnn_tanh rnn_relu", rnn_flops, "W_ih·x + W_hh·h a step: torch.nn.RNN"),
    _layer(
        "lstm", "tflite::UNIDIRECTIONAL_SEQUENCE_LSTM tflite::LSTM", lstm_flops, "four gates a step, as torch.nn.LSTM"
    ),
    _layer("rnn", "tflite::UNIDIRECTIONAL_SEQUENCE_RNN tflite::RNN", rnn_flops, "W·x + R·h a step"),
    _layer("rnn", "tflite::SVDF", None, "x (batch, k) through a filter of features, and one of past steps"),
    _cell("lstm_cell", "lstm_cell", lstm_cell_flops, "one LSTM step: torch.nn.LSTMCell"),
    _cell("gru_cell", "gru_cell", gru_cell_flops, "one GRU step: torch.nn.GRUCell"),
    _cell("rnn_cell", "rnn_tanh_cell rnn_relu_cell", rnn_cell_flops, "one RNN step: torch.nn.RNNCell"),
    _packed_cell("lstm_cell", "lstm_cell", lstm_cell_flops),
    _packed_cell("gru_cell", "gru_cell", gru_cell_flops),
    _packed_cell("rnn_cell", "rnn_tanh_cell rnn_relu_cell", rnn_cell_flops),
    _stacked(
        "lstm",
        under("LSTM", LSTM) | under("com.microsoft::DynamicQuantizeLSTM", LSTM, WEIGHT_SCALES, HIDDEN_SCALES),
        9,
        "four gates of W·x + R·h a step: ONNX LSTM",
    ),
    _stacked("gru", under("GRU", STACKED), 10, "three gates of W·x + R·h a step: ONNX GRU"),
    _stacked("rnn", under("RNN", STACKED), 2, "W·x + R·h a step: ONNX RNN"),
)
