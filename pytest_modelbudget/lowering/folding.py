"""Operations that vanish into the one that feeds them: batch norms into weights, activations into results."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from pytest_modelbudget.graph.graph import Op, Operand, Weight
from pytest_modelbudget.graph.rewrite import as_written
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.ops.rule import nothing

FEEDERS = frozenset({"convolution", "linear"})  # a batch norm is part of their weights and bias
FUSING = frozenset({"convolution", "linear", "add", "mul", "pooling", "adaptive_pooling"})
CLAMPS = frozenset({"clamp", "hardtanh", "relu6"})


@dataclass(frozen=True, slots=True)
class _Pair:
    """An operation and the one that made its input, by position."""

    at: int
    op: Op
    feeder_at: int
    feeder: Op


class _Feeders:
    """Which operation made what another one reads, and who else reads it."""

    def __init__(self, program: Program) -> None:
        self._program, self._readers = program, program.readers()
        self._kept = {tensor.storage for tensor in program.outputs}
        self._kept.update(tensor.storage for tensor in program.states)
        self._writer: dict[Storage, int] = {}

    def wrote(self, position: int, op: Op) -> None:
        """Note that an operation has run."""
        for output in op.outputs:
            if op.mutates or not op.is_view:
                self._writer[output.storage] = position

    def pair(self, position: int, op: Op, kinds: frozenset[str]) -> _Pair | str:
        """The operation with its feeder of one of these kinds, into which it may vanish; or why it may not."""
        read = next(iter(op.tensors()), None)
        at = self._writer.get(read.storage) if read else None
        feeder = None if at is None else self._program.ops[at]
        if read is None or at is None or feeder is None or self._program.kind(feeder) not in kinds:
            return f"no {', '.join(sorted(kinds))} makes what it reads"
        if feeder.outputs[0] is not read or len(op.fresh_outputs) > 1 or feeder.run != op.run:
            return f"it reads a part of what '{feeder.scope}' makes, or has results of its own"
        later = [reader for reader in self._readers[read.storage] if reader > at]
        in_place = op.outputs[0].storage is read.storage
        if later[:1] != [position] or not (in_place or (len(later) == 1 and read.storage not in self._kept)):
            return f"others read what '{feeder.scope}' makes"
        return _Pair(position, op, at, feeder)

    def merge(self, pair: _Pair, **changes: object) -> None:
        """Have the feeder make the result, and the operation vanish."""
        result, before = pair.op.outputs[0], pair.feeder.outputs[0]
        mutates = pair.feeder.mutates and result.storage is before.storage
        outputs = (result, *pair.feeder.outputs[1:])
        merged = replace(pair.feeder, outputs=outputs, mutates=mutates, **changes)  # type: ignore[arg-type]
        merged = as_written(pair.feeder, merged)
        self._program.ops[pair.feeder_at], self._program.ops[pair.at] = merged, None
        if before is not result:  # what works in place may name its result as its operand
            self._program.replaced[before] = result  # for shapes that are asked for, and layers
        self._writer[result.storage] = pair.feeder_at


class _Folding:
    """Batch norms that become part of the operation before them: its weights take the scale, its bias the shift."""

    def __init__(self, program: Program) -> None:
        self._program, self._readers = program, program.readers()
        self._biases: dict[Storage, Tensor] = {}  # that norms made, by the weight that they stand beside
        self._norms: dict[int, tuple[Storage, ...]] = {}  # the constants of the norm behind each feeder, by position
        self._counters: defaultdict[str, list[Tensor]] = defaultdict(list)  # and other buffers, by module
        self._folded: list[Tensor] = []
        for weight in program.weights:
            if weight.scope and weight.kind is StorageKind.BUFFER:
                self._counters[weight.scope].append(weight.tensor)

    def run(self) -> None:
        pairs = _Feeders(self._program)
        for position, op in self._program.running():
            if self._program.kind(op) == "batch_norm":
                pair = pairs.pair(position, op, FEEDERS)
                if isinstance(pair, _Pair):
                    self._norms[pair.feeder_at] = _constants(op)
            pairs.wrote(position, op)
        feeders = _Feeders(self._program)
        for position, op in self._program.running():
            if self._program.kind(op) == "batch_norm":
                pair = feeders.pair(position, op, FEEDERS)
                why = pair if isinstance(pair, str) else self._why_not(pair)
                if isinstance(pair, _Pair) and not why:
                    self._fold(feeders, pair)
                    continue
                self._program.left.append(Step(op.name, op.scope, f"not folded: {why}"))
            feeders.wrote(position, op)
        self._program.drop_unread(self._folded)

    def _why_not(self, pair: _Pair) -> str:
        norm, feeder = self._program.operands(pair.op), self._program.operands(pair.feeder)
        flags = ("training", "train", "training_mode")
        if norm.get("mean") is None or any(pair.op.attributes.get(word) for word in flags):
            return "its statistics are the batch's own"
        if any(tensor.storage.is_activation for tensor in pair.op.tensors()[1:]):
            return "its scale or statistics are computed, and not stored"
        weight, bias = feeder.get("weight"), feeder.get("bias")
        if not isinstance(weight, Tensor) or weight.storage.is_activation:
            return f"the weight of '{pair.feeder.scope}' is computed, and not stored"
        if "bias" not in feeder or (isinstance(bias, Tensor) and bias.storage.is_activation):
            return f"{pair.feeder.name} takes no bias"
        if self._program.kind(pair.feeder) == "linear" and len(pair.feeder.outputs[0].shown_shape) != 2:
            return f"it does not scale the feature axis of '{pair.feeder.scope}'"
        others = set(self._readers[weight.storage]) - {pair.feeder_at}
        if any(self._norms.get(other) != _constants(pair.op) for other in others):
            return f"others read the weight of '{pair.feeder.scope}', without this norm behind them"
        return ""

    def _fold(self, feeders: _Feeders, pair: _Pair) -> None:
        feeder, changes = self._program.operands(pair.feeder), dict[str, object]()
        bias, weight = feeder.get("bias"), feeder["weight"]
        assert isinstance(weight, Tensor)  # it is stored
        # A bias that others read, too, stays theirs.
        if not isinstance(bias, Tensor) or self._readers[bias.storage] != self._readers[weight.storage]:
            changes["operands"] = self._with_bias(pair)
        feeders.merge(pair, **changes)
        self._folded += (*pair.op.tensors()[1:], *self._counters[pair.op.scope])
        self._program.done.append(Step(pair.op.name, pair.op.scope, f"folded into '{pair.feeder.scope}'"))

    def _with_bias(self, pair: _Pair) -> tuple[Operand, ...]:
        """The feeder's operands with a bias of its own, of the norm's type: one element a channel."""
        rule = self._program.rule(pair.feeder)
        assert rule is not None  # its kind is known
        mean, weight = self._program.operands(pair.op)["mean"], self._program.operands(pair.feeder)["weight"]
        assert isinstance(mean, Tensor)  # both are stored
        assert isinstance(weight, Tensor)
        if weight.storage not in self._biases:
            name = f"{pair.feeder.scope}.bias"
            bias = dense(name, mean.shape, mean.dtype, Storage(name, mean.nbytes, StorageKind.PARAMETER))
            self._program.weights.append(Weight(bias, trainable=True))
            self._biases[weight.storage] = bias
        at = [role.word for role in rule.roles[pair.feeder.name]].index("bias")
        operands: list[Operand] = [*pair.feeder.operands, *[None] * (at + 1 - len(pair.feeder.operands))]
        operands[at] = self._biases[weight.storage]
        return tuple(operands)


def _constants(norm: Op) -> tuple[Storage, ...]:
    return tuple(tensor.storage for tensor in norm.tensors()[1:])


def fold_batchnorms(program: Program) -> None:
    """Have every norm with fixed statistics vanish into what feeds it, where nothing else needs what it is fed."""
    _Folding(program).run()


def _not_alone(program: Program, pair: _Pair, fixed: set[Storage]) -> str:
    """Why an operation is no activation of what its feeder makes, and of nothing else; "" where it is one."""
    rule = program.rule(pair.op)
    assert rule is not None  # its kind is known
    if rule.macs is not nothing or pair.op.outputs[0].shape != pair.feeder.outputs[0].shape:
        return f"{rule.kind} is no activation: its results are not those of single elements"
    needed = (each for each in pair.op.tensors()[1:] if _varies(each, fixed))
    return next((f"it reads {tensor.name} besides" for tensor in needed), "")


def _varies(tensor: Tensor, fixed: set[Storage]) -> bool:
    """Return whether a compiler does not know a tensor: it is trained, or computed from more than constants."""
    kind = tensor.storage.kind
    return kind is StorageKind.PARAMETER or (tensor.storage.is_activation and tensor.storage not in fixed)


def fuse_activations(program: Program, asked: frozenset[str]) -> None:
    """Have activations of these kinds vanish into what makes their input; "clamp" means all that cut off."""
    kinds = asked | CLAMPS if "clamp" in asked else asked
    feeders, fixed = _Feeders(program), set[Storage]()
    fused: list[Tensor] = []
    for position, op in program.running():
        if not any(_varies(tensor, fixed) for tensor in op.tensors()):
            fixed.update(output.storage for output in op.outputs)
        if program.kind(op) in kinds:
            pair = feeders.pair(position, op, FUSING)
            why = pair if isinstance(pair, str) else _not_alone(program, pair, fixed)
            if isinstance(pair, _Pair) and not why:
                feeders.merge(pair)
                fused += op.tensors()[1:]
                program.done.append(Step(op.name, op.scope, f"computed inside '{pair.feeder.scope}'"))
                continue
            program.left.append(Step(op.name, op.scope, f"not fused: {why}"))
        feeders.wrote(position, op)
    program.drop_unread(fused)
