"""``tile`` for ONNX nodes that are more than one product: Conv (im2col), Einsum and recurrent layers.

A Conv is W times its patches, an Einsum one product of transposed operands. A recurrent node is unrolled: the products
of its inputs at once, those of its state step by step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from pytest_modelbudget.graph.tensor import broadcast
from pytest_modelbudget.onnx_models.node_rewriting import Replacement, WholeOperation, operations_of
from pytest_modelbudget.onnx_models.program import Node, Program
from pytest_modelbudget.onnx_models.value_types import Types
from pytest_modelbudget.ops.dense import expanded
from pytest_modelbudget.ops.rule import SUMMED
from pytest_modelbudget.transforms.tile.forms_on_onnx import (
    LinearOperation,
    NotTiledError,
    TiledGraph,
    TiledLinear,
    Tiles,
    joined,
    linear_operation,
    split,
    tiles_of,
    unrolled,
)
from pytest_modelbudget.transforms.tile.grid import Tile

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand of a product (..., rows, columns); array holds the values of one that is stored in tiles."""

    name: str
    shape: Shape
    array: Any = None


class Writer:
    """Writes the products of one node in tiles."""

    def __init__(self, graph: TiledGraph, node: Node, tile: Tile, program: Program, types: Types) -> None:
        self.graph, self.node, self.tile = graph, node, tile
        self.stored, self.types = program.graph.stored, types
        self._tiles: dict[str, Tiles] = {}

    def shape(self, at: int) -> Shape:
        """The sizes of an input. Raises NotTiledError where they are not known."""
        name = self.node.inputs[at]
        sizes = self.types[name].sizes
        if sizes is None:
            raise NotTiledError(f"the sizes of '{name}' are not known: export the file with fixed sizes, or give dims")
        return sizes

    def array(self, at: int) -> Any:
        """The values of a stored input. Raises NotTiledError where it is none."""
        if self.node.inputs[at] not in self.stored:
            raise NotTiledError(f"its input '{self.node.inputs[at]}' is computed in the graph")
        return self.stored[self.node.inputs[at]].array()

    def given(self, at: int) -> bool:
        return at < len(self.node.inputs) and bool(self.node.inputs[at])

    def activations(self) -> tuple[str, ...]:
        """The functions that a recurrent node names."""
        given = self.node.attributes.get("activations", ())
        return tuple(each if isinstance(each, str) else each.decode() for each in given)

    def dot(self, into: Replacement, x: Matrix, y: Matrix) -> Matrix:
        """x (..., M, K) · y (..., K, N) in tiles, which are noted."""
        (m, k), n = x.shape[-2:], y.shape[-1]
        leading = broadcast([x.shape[:-2], y.shape[:-2]])
        self.graph.note(self.node, k, n, rows=m, groups=prod(leading))
        operation = LinearOperation(self.node, y.name, k, n, stack=len(y.shape) - 2)
        layer = TiledLinear(operation, y.array, None, f"{y.name}.", x.shape[:-1], y.array is None, stacked=True)
        if y.array is not None and y.name not in self._tiles:  # stored once, however often it is read
            self._tiles[y.name] = tiles_of(into, layer, self.tile)
        return Matrix(unrolled(into, layer, self.tile, x.name, self._tiles.get(y.name)), (*leading, m, n))


def einsum(to: Writer, into: Replacement) -> None:
    """Both operands transposed to (batch ..., M, K) and (batch ..., K, N), and the product transposed back."""
    if len(to.node.inputs) != 2:
        raise NotTiledError(f"it has {len(to.node.inputs)} operands, and only two are tiled")
    shapes = [to.shape(0), to.shape(1)]
    (first, second), result = expanded(str(to.node.attributes["equation"]).replace(" ", ""), shapes)
    sizes = dict(zip(first + second, [*shapes[0], *shapes[1]], strict=True))
    batch, summed = ([c for c in first if c in second and (c in result) is kept] for kept in (True, False))
    rows, columns = ([c for c in term if c not in other] for term, other in ((first, second), (second, first)))
    if len({*first}) < len(first) or len({*second}) < len(second) or not {*rows, *columns} <= {*result}:
        raise NotTiledError("it takes a diagonal, or sums up an index of one operand alone")

    def turned(at: int, term: str, *groups: Sequence[str]) -> Matrix:
        order = [term.index(c) for group in (batch, *groups) for c in group]
        name = into.node("Transpose", (to.node.inputs[at],), f"turned.{at}", perm=order)
        shape = (*(sizes[c] for c in batch), *(prod(sizes[c] for c in group) for group in groups))
        return Matrix(into.node("Reshape", (name, into.integers(shape, f"shape.{at}")), f"matrix.{at}"), shape)

    found = to.dot(into.named("dot"), turned(0, first, rows, summed), turned(1, second, summed, columns))
    made = [*batch, *rows, *columns]
    name = into.node("Reshape", (found.name, into.integers([sizes[c] for c in made], "shape")), "split")
    into.finish(into.node("Transpose", (name,), "result", perm=[made.index(c) for c in result]))


def convolution(to: Writer, into: Replacement) -> None:
    """W (groups, N, K · taps) · patches (batch, groups, K · taps, positions)."""
    (batch, channels, *sizes), (n, _, *kernel), attributes = to.shape(0), to.shape(1), to.node.attributes
    rank, groups, pads = len(sizes), attributes.get("group", 1), attributes.get("pads") or (0,) * 2 * len(sizes)
    strides, dilations = (attributes.get(name) or (1,) * rank for name in ("strides", "dilations"))
    if attributes.get("auto_pad", "NOTSET") not in {"NOTSET", b"NOTSET"}:
        raise NotTiledError("its auto_pad is no list of pads")
    x, taps = to.node.inputs[0], []
    if any(pads):
        x = into.node("Pad", (x, into.integers([0, 0, *pads[:rank], 0, 0, *pads[rank:]], "pads")), "padded")
    places = [
        (size + pads[at] + pads[rank + at] - dilations[at] * (kernel[at] - 1) - 1) // strides[at] + 1
        for at, size in enumerate(sizes)
    ]
    steps = into.integers(range(2, 2 + rank), "axes"), into.integers(strides, "steps")
    for at, tap in enumerate(product(*map(range, kernel))):
        starts = [each * d for each, d in zip(tap, dilations, strict=True)]
        ends = [start + s * (count - 1) + 1 for start, s, count in zip(starts, strides, places, strict=True)]
        bounds = into.integers(starts, f"starts.{at}"), into.integers(ends, f"ends.{at}")
        taps.append(into.node("Slice", (x, *bounds, *steps), f"tap.{at}"))
    inner = channels // groups * len(taps)
    matrix, patches = (
        Matrix(into.node("Reshape", (name, into.integers(shape, f"{part}.shape")), part), shape)
        for name, part, shape in (
            (to.node.inputs[1], "matrix", (groups, n // groups, inner)),
            (
                joined(into, taps, "taps", axis=2),
                "patches",
                (batch, groups, channels // groups * len(taps), prod(places)),
            ),
        )
    )
    found = to.dot(into.named("dot"), matrix, patches)
    result = into.node("Reshape", (found.name, into.integers([batch, n, *places], "shape")), "positions")
    if to.given(2):
        bias = into.node("Reshape", (to.node.inputs[2], into.integers([-1, *[1] * rank], "bias.shape")), "bias")
        result = into.node("Add", (result, bias), "biased")
    into.finish(result)


FOLLOWED = {"direction", "hidden_size", "linear_before_reset", "activations"}  # attributes
ACTIVATIONS = {"onnx::LSTM": ("Sigmoid", "Tanh", "Tanh"), "onnx::GRU": ("Sigmoid", "Tanh")}  # the only ones that are


def recurrent(to: Writer, into: Replacement) -> None:
    """x (steps, batch, inputs) through W (directions, gates · h, inputs) and R (directions, gates · h, h)."""
    node, (steps, batch, _), weights, states = to.node, to.shape(0), to.array(1), to.array(2)
    directions, hidden = len(weights), states.shape[2]
    others = [name for name, value in node.attributes.items() if name not in FOLLOWED and value]
    own = ACTIVATIONS.get(node.operator, ()) * directions
    others += ["activations"] if own and to.activations() not in ((), own) else []
    others += [f"its input {at}" for at in (4, 7) if to.given(at)]
    if others:
        raise NotTiledError(f"{others[0]} is given")
    biases = to.array(3) if to.given(3) else states[..., 0].repeat(2, 1) * 0
    runs, last, is_lstm = [], [], node.operator == "onnx::LSTM"
    for d, (weight, state) in enumerate(zip(weights, states, strict=True)):
        part, (bias_of_x, bias) = into.named(f"d{d}"), biases[d].reshape(2, -1)
        x = Matrix(node.inputs[0], to.shape(0)), Matrix(f"{node.inputs[1]}.d{d}", weight.T.shape, weight.T)
        inputs = part.node("Add", (to.dot(part.named("x"), *x).name, part.store(bias_of_x, "x_bias")), "inputs")
        each_step = split(part, inputs, [1] * steps, "x", axis=0)
        held = [first_state(to, part, at, d, (1, batch, hidden)) for at in ((5, 6) if is_lstm else (5,))]
        outputs, stored_bias = [""] * steps, part.store(bias, "bias")
        is_backwards = d == 1 or node.attributes.get("direction") in {"reverse", b"reverse"}
        for t in range(steps)[:: -1 if is_backwards else 1]:
            cell = Cell(to, part.named(f"t{t}"), state, stored_bias, hidden, f"{node.inputs[2]}.d{d}", d)
            held = CELLS[node.operator](cell, each_step[t], held)
            outputs[t] = held[0]
        runs.append(part.node("Unsqueeze", (joined(part, outputs, "steps", axis=0), part.integers([1], "axis")), "run"))
        last.append(held)
    if node.outputs[0]:
        into.finish(into.node("Identity", (joined(into, runs, "runs", axis=1),), "y"))
    for at, name in enumerate(node.outputs[1:], 1):
        if name:
            whole = joined(into, [held[at - 1] for held in last], f"states.{at}", axis=0)
            into.finish(into.node("Identity", (whole,), f"state.{at}"), at)


def first_state(to: Writer, part: Replacement, at: int, direction: int, shape: Shape) -> str:
    """The state (1, batch, h) that a direction begins with."""
    if not to.given(at):
        return part.store(np.zeros(shape, to.array(2).dtype), f"state.{at}")
    place = [
        part.integers([value], f"state.{at}.{word}") for word, value in (("from", direction), ("to", direction + 1))
    ]
    return part.node("Slice", (to.node.inputs[at], *place, part.integers([0], f"state.{at}.axis")), f"state.{at}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of one direction: R (gates · h, h) and its bias."""

    to: Writer
    into: Replacement
    state: Any
    bias: str
    hidden: int
    name: str
    direction: int

    def product(self, h: str) -> str:
        """h · Rᵀ + b, of all gates."""
        turned = self.state.T
        x = Matrix(h, (1, self.to.shape(0)[1], self.hidden))
        made = self.to.dot(self.into.named("h"), x, Matrix(self.name, turned.shape, turned))
        return self.node("Add", made.name, self.bias)

    def node(self, operator: str, *inputs: str) -> str:
        return self.into.node(operator, inputs, f"{operator.lower()}.{len(self.into.nodes)}")

    def gates(self, whole: str, count: int) -> tuple[str, ...]:
        return split(self.into, whole, [self.hidden] * count, f"gates.{len(self.into.nodes)}", axis=-1)


def lstm(cell: Cell, x: str, held: list[str]) -> list[str]:
    """c = f · c + i · g, h = o · tanh(c); gates in the order i, o, f, g."""
    i, o, f, g = cell.gates(cell.node("Add", x, cell.product(held[0])), 4)
    i, o, f = (cell.node("Sigmoid", each) for each in (i, o, f))
    c = cell.node("Add", cell.node("Mul", f, held[1]), cell.node("Mul", i, cell.node("Tanh", g)))
    return [cell.node("Mul", o, cell.node("Tanh", c)), c]


def gru(cell: Cell, x: str, held: list[str]) -> list[str]:
    """h = (1 - z) · n + z · h, which is n + z · (h - n); gates in the order z, r, n."""
    if not cell.to.node.attributes.get("linear_before_reset"):
        raise NotTiledError("linear_before_reset is 0")
    (z, r, n), (hz, hr, hn) = cell.gates(x, 3), cell.gates(cell.product(held[0]), 3)
    z, r = cell.node("Sigmoid", cell.node("Add", z, hz)), cell.node("Sigmoid", cell.node("Add", r, hr))
    n = cell.node("Tanh", cell.node("Add", n, cell.node("Mul", r, hn)))
    return [cell.node("Add", n, cell.node("Mul", z, cell.node("Sub", held[0], n)))]


def rnn(cell: Cell, x: str, held: list[str]) -> list[str]:
    """h = tanh(x + h · Rᵀ + b), or relu."""
    squash = (cell.to.activations() or ("Tanh",) * 2)[cell.direction]
    if squash not in {"Tanh", "Relu"}:
        raise NotTiledError(f"its activation is {squash}")
    return [cell.node(squash, cell.node("Add", x, cell.product(held[0])))]


CELLS: Mapping[str, Callable[[Cell, str, list[str]], list[str]]] = {
    "onnx::LSTM": lstm,
    "onnx::GRU": gru,
    "onnx::RNN": rnn,
}
WRITERS: Mapping[str, Callable[[Writer, Replacement], None]] = {
    "onnx::Einsum": einsum,
    "onnx::Conv": convolution,
    **dict.fromkeys(CELLS, recurrent),
}


def products_in(program: Program, types: Types) -> Iterator[LinearOperation | Node | WholeOperation]:
    """All that sums products, in the order of the file; of a MatMul of two activations the second is the weight."""

    def multiplies(node: Node, constants: AbstractSet[str]) -> bool:
        rule, count = node.rule, len(node.inputs) + len(node.signature.attributes)
        return rule is not None and any(rule.multiplied(node.operator, over, node.attributes, count) for over in SUMMED)

    def operation_of(node: Node, program: Program) -> LinearOperation | Node | WholeOperation:
        if node.operator in WRITERS:
            return node
        linear = linear_operation(node, program)
        if node.operator != "onnx::MatMul" or isinstance(linear, LinearOperation):
            return linear
        x, y = (types[name].sizes or () for name in node.inputs)
        if min(len(x), len(y)) < 2:
            return WholeOperation(node, "the sizes of both matrices are not known")
        return LinearOperation(node, node.inputs[1], y[-2], y[-1], stack=len(y) - 2)

    return operations_of(program, multiplies, operation_of)
