"""Which operations between dequantise and quantise compute on integers, and why the others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import DType, Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable

QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """Kinds of operations that runtimes have on integers.

    is_open: the result may stay floating. carries: values are handed on, so that scale and zero point of the operand
    are those of the result; steps: as an activation right behind another operation, it is part of that one.
    """

    kinds: frozenset[str]
    because: str
    is_open: bool = False
    carries: bool = False
    steps: bool = False
    folds: bool = False  # constants per channel, which are folded into the integers' multipliers


def _form(kinds: str, because: str, **facts: bool) -> IntegerForm:
    return IntegerForm(frozenset(kinds.split()), because, **facts)


FORMS = (
    _form("convolution", "QLinearConv, quantized::conv2d: integers summed, one requantisation at the end"),
    _form("linear matmul", "QGemm and QLinearMatMul; without requantisation MatMulIntegerToFloat", is_open=True),
    _form("add sub mul div maximum", "QLinearAdd, QLinearMul; SUB, MINIMUM and MAXIMUM of TFLite, division of QNN"),
    _form("relu relu6 clamp hardtanh", "the range to which requantisation clamps: quantized::conv2d_relu", steps=True),
    _form("cast", "from one floating type to another nothing happens to an integer", steps=True),
    _form(
        "leaky_relu prelu elu celu selu sigmoid tanh hardsigmoid hardswish gelu silu mish softplus softsign erf exp "
        "log abs neg sqrt rsqrt square reciprocal",
        "a table of one value per integer: QLinearSigmoid, QLinearLeakyRelu",
    ),
    _form("softmax log_softmax", "QLinearSoftmax; SOFTMAX and LOG_SOFTMAX of TFLite"),
    _form("pooling adaptive_pooling", "QLinearAveragePool, QLinearGlobalAveragePool; a maximum is one of its integers"),
    _form("mean sum", "QLinearReduceMean; MEAN and SUM of TFLite"),
    _form("interpolation", "Resize takes integers; RESIZE_BILINEAR of TFLite"),
    _form("where", "QLinearWhere"),
    _form(
        "batch_norm instance_norm layer_norm group_norm rms_norm",
        "normalisations of QNN in fixed point, which ONNX Runtime's quantiser writes for it",
        folds=True,
    ),
    _form(
        "cat reshape alias dropout transpose expand slice split gather embedding pad copy maximum_over sort",
        "moves values and computes none of them: QLinearConcat; Reshape, Gather and their like take integers",
        carries=True,
    ),
)
FORM_OF: Mapping[str, IntegerForm] = {kind: form for form in FORMS for kind in form.kinds}
MAXIMA = frozenset({"pooling", "adaptive_pooling"})  # carry values where their operator takes a maximum
READS_ROWS = frozenset({"gather", "embedding"})  # of a stored table: dequantised as they are read


class Grid(NamedTuple):
    """The integers that stand for floating values: their type, and the scale and zero point behind it.

    run is that of a body in which they are made.
    """

    dtype: DType
    scale: tuple[object, ...]
    run: int

    @property
    def scales(self) -> tuple[Tensor, ...]:
        """Scale and zero point, where they are tensors."""
        return tuple(part for part in self.scale if isinstance(part, Tensor))


SCALE_ATTRIBUTES = ("scale", "scales", "zero_point", "axis", "block_size", "group_size")


def is_floating(tensor: Tensor) -> bool:
    """Return whether it holds floating values that may have been dequantised."""
    return tensor.dtype.name in FLOATING


def grid_of(op: Op, integers: Tensor) -> Grid:
    """The grid of a quantise or dequantise: equal for the same stored scales, or the same numbers."""
    settings = tuple((name, str(op.attributes[name])) for name in SCALE_ATTRIBUTES if name in op.attributes)
    return Grid(integers.dtype, (*op.tensors()[1:], *settings), op.run)


class Groups:
    """The operations of a graph that compute on integers: the most for which every rule holds.

    members are their positions; grids the grid of each floating tensor that is then held in integers; why says of
    the other operations what kept each from it.
    """

    def __init__(self, graph: Graph, rules: OpTable) -> None:
        self.graph, self.rules = graph, rules
        self.maker = {output: at for at, op in enumerate(graph.ops) for output in op.outputs}
        self.readers: dict[Tensor, list[int]] = defaultdict(list)
        for at, op in enumerate(graph.ops):
            for tensor in () if op.is_shape_computation else dict.fromkeys(op.tensors()):
                self.readers[tensor].append(at)
        used = (*self.readers, *graph.outputs)
        self._stacked = frozenset(tensor.storage for tensor in used if tensor not in self.maker)
        self._states = frozenset(graph.states)
        self._returned = self._states.union(graph.outputs)
        self._mutated = frozenset(t.storage for op in graph.ops if op.mutates for t in (*op.tensors(), *op.outputs))
        self.why: dict[int, str] = {}
        self.members = {at for at, op in enumerate(graph.ops) if self._may_be_member(at, op)}
        self.grids: dict[Tensor, Grid] = {}
        while leaving := self._leaving():
            self.why.update(leaving)
            self.members -= leaving.keys()

    def kind(self, at: int) -> str:
        """The kind of an operation; "" without a rule."""
        rule = self.rules.get(self.graph.ops[at].name)
        return rule.kind if rule else ""

    def form(self, at: int) -> IntegerForm:
        """The integer form of a member."""
        return FORM_OF[self.kind(at)]

    def carries(self, at: int) -> bool:
        """Return whether an operation hands values on as they are."""
        kind, name = self.kind(at), self.graph.ops[at].name
        return kind in FORM_OF and (FORM_OF[kind].carries or (kind in MAXIMA and "max" in name.lower()))

    def is_quantize(self, at: int) -> bool:
        """Return whether it quantises by a scale that is known before the run."""
        op, rule = self.graph.ops[at], self.rules.get(self.graph.ops[at].name)
        if rule is None or rule.kind != QUANTIZE or not any(role.quantises for role in rule.roles[op.name]):
            return False
        if len(op.outputs) != 1 or not op.tensors() or is_floating(op.outputs[0]):
            return False
        return not any(scale.storage.is_activation for scale in op.tensors()[1:])

    def is_dequantize(self, at: int) -> bool:
        """Return whether it gives floating values of integers, which nothing changes afterwards."""
        op = self.graph.ops[at]
        if self.kind(at) != DEQUANTIZE or len(op.outputs) != 1 or not op.tensors():
            return False
        if is_floating(op.tensors()[0]) or not is_floating(op.outputs[0]):
            return False  # an emulation: values on the grid, kept as floats
        return not self.is_mutated(op.outputs[0])

    def stored_behind(self, integers: Tensor) -> Tensor:
        """The stored tensor that integers are, or are quantised from before the run; else themselves."""
        at = self.maker.get(integers)
        if at is not None and self.is_quantize(at) and not self.graph.ops[at].tensors()[0].storage.is_activation:
            return self.graph.ops[at].tensors()[0]
        return integers

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether values are known before the run: stored ones, and those moved or dequantised from them."""
        if not tensor.storage.is_activation:
            return True
        at = self.maker.get(tensor)
        if at is None:
            return False
        if self.is_dequantize(at):
            return not self.stored_behind(self.graph.ops[at].tensors()[0]).storage.is_activation
        return at in self.members and self.carries(at) and self._only_known(at)

    def _only_known(self, at: int) -> bool:
        return all(map(self.is_known, self.graph.ops[at].tensors()))

    def _may_be_member(self, at: int, op: Op) -> bool:
        kind = self.kind(at)
        if kind in {QUANTIZE, DEQUANTIZE} or op.is_shape_computation:
            return False
        if kind not in FORM_OF:
            self.why[at] = "no integer form of it is known" if kind else "no rule says what it does"
            return False
        if op.mutates or not op.outputs:
            self.why[at] = "it writes into its operand"
            return False
        return not (kind == "cast" and not all(map(is_floating, (*op.tensors()[:1], *op.outputs))))

    def _leaving(self) -> dict[int, str]:
        """Members for which a rule does not hold, and which one; works out the grids of the others."""
        goals = self._goals()
        self.grids, leaving = {}, {}
        for at, op in enumerate(self.graph.ops):
            if self.is_dequantize(at):
                self.grids[op.outputs[0]] = grid_of(op, op.tensors()[0])
            elif at in self.members:
                problem = self._operand_problem(at, op)
                problem = self._result_problem(at, op, goals) if problem is None else problem
                if problem is not None:
                    leaving[at] = problem
        return leaving

    def _goals(self) -> Mapping[Tensor, Grid]:
        """The one grid that all readers of a tensor quantise it to, also behind what hands it on."""
        goals: dict[Tensor, Grid] = {}
        for op in reversed(self.graph.ops):
            for output in filter(is_floating, op.outputs):
                wanted = {self._goal_at(reader, output, goals) for reader in self.readers.get(output, ())}
                goal = wanted.pop() if len(wanted) == 1 else None
                if goal and goal.run == op.run and not self.is_needed(output):
                    goals[output] = goal
        return goals

    def is_needed(self, tensor: Tensor) -> bool:
        """Return whether a floating tensor is seen from outside, or changed in place."""
        return tensor in self._returned or self.is_mutated(tensor)

    def is_left_before(self, tensor: Tensor, op: Op) -> bool:
        """Return whether an earlier run of a body left it for this one: in floats, the type of the state."""
        at = self.maker.get(tensor)
        return tensor in self._states and at is not None and self.graph.ops[at].run != op.run

    def is_put(self, tensor: Tensor) -> bool:
        """Return whether it has its place in memory of which others read all, as a slice of a stacked result has."""
        return tensor.storage in self._stacked

    def is_mutated(self, tensor: Tensor) -> bool:
        """Return whether an operation writes into its memory after it was made."""
        return tensor.storage in self._mutated

    def _goal_at(self, at: int, tensor: Tensor, goals: Mapping[Tensor, Grid]) -> Grid | None:
        op = self.graph.ops[at]
        if self.is_quantize(at):
            return grid_of(op, op.outputs[0]) if op.tensors()[0] is tensor else None
        if at not in self.members or not (self.form(at).steps or self.carries(at)):
            return None
        wanted = {goals.get(output) for output in op.outputs if is_floating(output)}
        return wanted.pop() if len(wanted) == 1 else None

    def operands(self, at: int) -> Iterator[tuple[Role, Tensor]]:
        """Role and tensor of every operand that is there."""
        return read_in_roles(self.graph.ops[at], self.rules.get(self.graph.ops[at].name))

    def _operand_problem(self, at: int, op: Op) -> str | None:
        """Why an operand cannot be read in integers, "" where none is; None where all can."""
        in_integers = False
        for role, tensor in self.operands(at):
            if not is_floating(tensor) or tensor.is_immediate:
                continue
            grid = self.grids.get(tensor)
            if grid is not None and (grid.run == op.run or self.is_known(tensor)):
                in_integers = True
            elif tensor.storage.is_activation or not (role.word == "bias" or self.form(at).folds):
                return f"it reads {tensor.dtype.name} next to integers"
        return None if in_integers else ""

    def _result_problem(self, at: int, op: Op, goals: Mapping[Tensor, Grid]) -> str | None:
        """Why a result is not stored in integers; None where all are, or need not be."""
        used = (output for output in op.outputs if self.readers.get(output) or self.is_needed(output))
        floating = [output for output in used if is_floating(output)]
        without = [output for output in floating if output not in goals]
        self.grids.update((output, goals[output]) for output in floating if output in goals)
        if not without or (self.form(at).is_open and len(without) == len(floating)):
            return None
        if self.carries(at) or self.kind(at) == "cast":
            grids = {self.grids[t] for _, t in self.operands(at) if is_floating(t) and not t.is_immediate}
            if len(grids) == 1 and all(self._reads_integers(output, at) for output in without):
                self.grids.update(dict.fromkeys(without, grids.pop()))
                return None
        return f"its result {self._fate(without[0])}"

    def _reads_integers(self, output: Tensor, maker: int) -> bool:
        """Return whether all readers of a result that is quantised nowhere take integers."""
        if self.is_needed(output):
            return False
        known = self._only_known(maker)
        return all(at in self.members or (known and self.reads_stored(at)) for at in self.readers[output])

    def reads_stored(self, at: int) -> bool:
        """Return whether an operation dequantises a stored operand while it reads it, and does not only move it."""
        kind = self.kind(at)
        if kind in {"", QUANTIZE, DEQUANTIZE, "loop", "if", "cast"} or self.graph.ops[at].mutates:
            return False
        return kind in READS_ROWS or not self.carries(at)

    def _fate(self, tensor: Tensor) -> str:
        """The fate of a floating result that should have been quantised."""
        if tensor in self._returned:
            return "is an output of the model"
        readers = self.readers.get(tensor, [])
        floating = [at for at in readers if not self.is_quantize(at)]
        if floating:
            return f"is read by {self.graph.ops[floating[0]].name} in {tensor.dtype.name}"
        return "is quantised in more than one way" if readers else "is not quantised"
