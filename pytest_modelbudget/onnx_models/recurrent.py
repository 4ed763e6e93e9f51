"""RNN, GRU and LSTM as ONNX defines them, in the type that they are fed: no engine has them in float64.

Every kernel walks over steps of x (time, batch, k), one direction at a time. Where sequences have lengths of
their own, what is behind an end is zero, and the last state is that of the end; the way back begins there.
Source: ONNX operators RNN, GRU and LSTM; defaults of activations as ONNX Runtime has them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx.reference.op_run import OpRun

Array = Any
Squash = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))  # which no large x overflows


# Each activation with the defaults of its alpha and beta; those without take none.
ACTIVATIONS: Mapping[str, tuple[tuple[float, ...], Callable[..., Array]]] = {
    "affine": ((0.0, 0.0), lambda x, alpha, beta: alpha * x + beta),
    "elu": ((1.0,), lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))),
    "hardsigmoid": ((0.2, 0.5), lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "leakyrelu": ((0.01,), lambda x, alpha: np.where(x >= 0, x, alpha * x)),
    "relu": ((), lambda x: np.maximum(x, 0)),
    "scaledtanh": ((0.0, 0.0), lambda x, alpha, beta: alpha * np.tanh(beta * x)),
    "sigmoid": ((), _sigmoid),
    "softplus": ((), lambda x: np.logaddexp(0, x)),
    "softsign": ((), lambda x: x / (1 + np.abs(x))),
    "tanh": ((), np.tanh),
    "thresholdedrelu": ((0.0,), lambda x, alpha: np.where(x > alpha, x, 0)),
}


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a layer: its matrices w (gates·h, k) and r (gates·h, h), biases and activations."""

    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array
    peephole: Array
    squash: tuple[Squash, ...]


class Recurrent(OpRun):
    """What the three layers share: operands, directions, lengths, and the order of axes."""

    op_domain = ""
    gates: ClassVar[int]
    defaults: ClassVar[tuple[str, ...]]  # activations of one direction

    def _run(self, x: Array, w: Array, r: Array, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
        absent: list[Array] = [None] * (5 - len(operands))
        bias, lengths, h, c, peephole = [*operands, *absent]
        batch_first = bool(attributes.get("layout"))
        if batch_first:
            x, h, c = (None if array is None else np.swapaxes(array, 0, 1) for array in (x, h, c))
        states = [self._state(state, x, r) for state in (h, c)]
        ends = np.full(x.shape[1], x.shape[0]) if lengths is None else np.asarray(lengths)
        back = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[_text(attributes, "direction")]
        squashes = self._squashes(len(back), attributes)
        results = []
        for at, is_back in enumerate(back):
            biases = np.zeros((2, w.shape[1]), x.dtype) if bias is None else bias[at].reshape(2, -1)
            peeped = np.zeros(3 * r.shape[-1], x.dtype) if peephole is None else peephole[at]
            direction = Direction(w[at], r[at], biases[0], biases[1], peeped, squashes[at])
            results.append(self._walk(x, direction, [state[at] for state in states], ends, is_back, attributes))
        every, *last = (
            np.stack(parts, axis) for axis, parts in zip((1, 0, 0), zip(*results, strict=True), strict=True)
        )
        if batch_first:
            every, last = every.transpose(2, 0, 1, 3), [np.swapaxes(state, 0, 1) for state in last]
        made = [array.astype(x.dtype, copy=False) for array in (every, *last)]
        return tuple(made[: len(self.onnx_node.output)])

    @staticmethod
    def _state(state: Array, x: Array, r: Array) -> Array:
        return np.zeros((r.shape[0], x.shape[1], r.shape[-1]), x.dtype) if state is None else state

    def _squashes(self, directions: int, attributes: Mapping[str, Any]) -> list[tuple[Squash, ...]]:
        """The activations of each direction; those with an alpha or a beta take the next of the list."""
        names = [_decoded(name) for name in attributes.get("activations") or self.defaults * directions]
        given = [iter(attributes.get(f"activation_{word}") or ()) for word in ("alpha", "beta")]
        squashes = [_activation(name.lower(), given) for name in names]
        width = len(self.defaults)
        return [tuple(squashes[at : at + width]) for at in range(0, len(squashes), width)]

    def _walk(
        self, x: Array, layer: Direction, states: list[Array], ends: Array, is_back: bool, attributes: Mapping[str, Any]
    ) -> tuple[Array, Array, Array]:
        """All outputs (time, batch, h), and the last output and cell of one direction."""
        most = attributes.get("clip")
        cap: Squash = (lambda value: np.clip(value, -most, most)) if most else (lambda value: value)
        every = np.zeros((x.shape[0], *states[0].shape), x.dtype)
        rows = np.arange(x.shape[1])
        h, c = states
        for step in range(x.shape[0]):
            runs = step < ends
            place = np.where(runs, ends - 1 - step, 0) if is_back else np.full(len(ends), step)
            made, cell = self.step(x[place, rows], h, c, layer, cap, attributes)
            h, c = (np.where(runs[:, None], new, old) for new, old in ((made, h), (cell, c)))
            every[place[runs], rows[runs]] = made[runs]
        ran = (ends > 0)[:, None]
        return every, np.where(ran, h, 0), np.where(ran, c, 0)

    @abstractmethod
    def step(
        self, x: Array, h: Array, c: Array, layer: Direction, cap: Squash, attributes: Mapping[str, Any]
    ) -> tuple[Array, Array]:
        """The next (h, c) of rows x (batch, k)."""


def _decoded(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _text(attributes: Mapping[str, Any], name: str) -> str:
    return _decoded(attributes.get(name) or "forward")


def _activation(name: str, given: Sequence[Iterator[float]]) -> Squash:
    defaults, function = ACTIVATIONS[name]
    settings = [next(values, default) for values, default in zip(given, defaults, strict=False)]
    return lambda x: function(x, *settings)


class RNN(Recurrent):
    """h' = f(W·x + R·h + b)."""

    gates, defaults = 1, ("Tanh",)

    def step(self, x, h, c, layer, cap, attributes):  # type: ignore[no-untyped-def]  # as above
        total = x @ layer.w.T + h @ layer.r.T + layer.input_bias + layer.hidden_bias
        return layer.squash[0](cap(total)), c


class GRU(Recurrent):
    """Gates z, r, h of W, R and b; linear_before_reset resets what R gives, and else what it is given."""

    gates, defaults = 3, ("Sigmoid", "Tanh")

    def step(self, x, h, c, layer, cap, attributes):  # type: ignore[no-untyped-def]  # as above
        f, g = layer.squash
        of_x = np.split(x @ layer.w.T + layer.input_bias, 3, axis=-1)
        r_z, r_r, r_h = np.split(layer.r, 3)
        b_z, b_r, b_h = np.split(layer.hidden_bias, 3)
        update, reset = f(cap(of_x[0] + h @ r_z.T + b_z)), f(cap(of_x[1] + h @ r_r.T + b_r))
        is_late = bool(attributes.get("linear_before_reset"))
        of_h = reset * (h @ r_h.T + b_h) if is_late else (reset * h) @ r_h.T + b_h
        return (1 - update) * g(cap(of_x[2] + of_h)) + update * h, c


class LSTM(Recurrent):
    """Gates i, o, f, c of W, R and b, with peepholes of i, o, f; input_forget makes f = 1 - i."""

    gates, defaults = 4, ("Sigmoid", "Tanh", "Tanh")

    def step(self, x, h, c, layer, cap, attributes):  # type: ignore[no-untyped-def]  # as above
        f, g, last = layer.squash
        total = x @ layer.w.T + h @ layer.r.T + layer.input_bias + layer.hidden_bias
        of_i, of_o, of_f, of_c = np.split(total, 4, axis=-1)
        p_i, p_o, p_f = np.split(layer.peephole, 3)
        let_in = f(cap(of_i + p_i * c))
        keep = 1 - let_in if attributes.get("input_forget") else f(cap(of_f + p_f * c))
        cell = keep * c + let_in * g(cap(of_c))
        return f(cap(of_o + p_o * cell)) * last(cell), cell


RECURRENT: list[type[OpRun]] = [RNN, GRU, LSTM]
