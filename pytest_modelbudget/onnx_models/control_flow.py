"""Loop, Scan and If: bodies written out as often as they run, and branches that data choose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.checks import MisfitError
from pytest_modelbudget.onnx_models.program import CONSTANT, Body, Node
from pytest_modelbudget.onnx_models.runs import TRUE, Repeated, Runs, Scanned, Stacked, give_back, given_first
from pytest_modelbudget.onnx_models.shape_inference import Frame, find_types
from pytest_modelbudget.onnx_models.value_types import ValueType, fresh

if TYPE_CHECKING:
    from pytest_modelbudget.onnx_models.graph_reader import GraphReader

SCAN_WITHOUT_BATCH = 9  # the first opset whose Scan has no batch dimension of its own


def read_loop(reader: GraphReader, node: Node, frame: Frame) -> None:
    """Loop(trip count, condition, state ...): its body, times the count where that is known."""
    body, states = _body(node, "body"), node.inputs[2:]
    _expect(node, "inputs", len(body.inputs), 2 + len(states))
    _expect(node, "outputs", len(body.outputs), 1 + len(node.outputs))
    counter, condition, *inputs = body.inputs
    fed = {
        counter: (_register(counter, TensorProto.INT64), ValueType(TensorProto.INT64, ())),
        condition: (_register(condition, TensorProto.BOOL), ValueType(TensorProto.BOOL, ())),
    }
    scope = node.scope
    for inside, name in zip(inputs, states, strict=True):
        fed[inside] = (reader.operand(name, scope, frame), frame.type(name))
    count = _trip_count(reader, node, frame, body)
    if count is None:
        choice = reader.choice(node.inputs[:2], frame)
        _leave(reader, node, frame, f"how often its body runs is not known before the run{choice}")
        return
    results = body.outputs[1:]
    carried = list(zip(node.outputs, results, inputs, strict=False))
    stacked = [Stacked(*ends) for ends in zip(node.outputs[len(states) :], results[len(states) :], strict=True)]
    _repeat(reader, Repeated(node, body, count, fed, carried, stacked, holds=condition), frame)


def _body(node: Node, name: str) -> Body:
    """A body of a node; raises SourceError where the node has none of that name."""
    if name not in node.bodies:
        raise SourceError(f"{node.operator} '{node.result}' has no {name}, which ONNX asks for")
    return node.bodies[name]


def _expect(node: Node, what: str, count: int, wanted: int) -> None:
    """Raise SourceError where a body has another number of inputs or outputs than its node gives and takes."""
    if count != wanted:
        raise SourceError(f"{node.operator} '{node.result}': its body has {count} {what}, and should have {wanted}")


def _trip_count(reader: GraphReader, node: Node, frame: Frame, body: Body) -> int | None:
    """How often a Loop runs: its count, where no condition can end it before."""
    wanted = reader.folding.value(node.inputs[0], frame) if node.inputs[0] else None
    if len(node.inputs) > 1 and node.inputs[1]:
        condition = reader.folding.value(node.inputs[1], frame)
        if condition is None:
            return None
        if not condition.any():
            return 0
    if wanted is None:
        return None
    inside, flag = frame.inside(body), body.inputs[1]
    inside.values[flag] = TRUE
    inside.place(flag, _register(flag, TensorProto.BOOL), ValueType(TensorProto.BOOL, ()))
    goes_on = reader.folding.value(body.outputs[0], inside)
    if goes_on is None or not goes_on.all():
        return None
    return max(int(wanted.reshape(-1)[0]), 0)


def read_scan(reader: GraphReader, node: Node, frame: Frame) -> None:
    """Scan(state ..., scanned ...): its body, times the length of what it scans."""
    attributes, body, scope = node.attributes, _body(node, "body"), node.scope
    scanned = attributes.get("num_scan_inputs", 0)
    states = len(node.inputs) - scanned
    operands = [reader.operand(name, scope, frame) for name in node.inputs if name]
    if reader.opset < SCAN_WITHOUT_BATCH:
        _leave(reader, node, frame, f"it has a batch of its own: convert the model to opset {SCAN_WITHOUT_BATCH}")
        return
    if any(operand.unsized for operand in operands):
        _leave(reader, node, frame, "the length that it scans is not known before the run")
        return
    _expect(node, "inputs", len(body.inputs), len(operands))
    _expect(node, "outputs", len(body.outputs), len(node.outputs))
    fed = {
        inside: (operand, frame.type(name))
        for inside, operand, name in zip(body.inputs, operands, node.inputs, strict=True)
    }
    axes = attributes.get("scan_input_axes") or (0,) * scanned
    count = _scanned_length(node, operands[max(states, 0) :], axes)
    ways = _directions(node, "scan_input_directions", scanned)
    slices = [
        Scanned(inside, fed[inside][0], axis, is_backwards)
        for inside, axis, is_backwards in zip(body.inputs[states:], axes, ways, strict=True)
    ]
    results = body.outputs
    carried = list(zip(node.outputs[:states], results[:states], body.inputs[:states], strict=True))
    out_axes = attributes.get("scan_output_axes") or (0,) * (len(results) - states)
    out_ways = _directions(node, "scan_output_directions", len(results) - states)
    ends = zip(node.outputs[states:], results[states:], out_axes, out_ways, strict=True)
    stacked = [Stacked(*each) for each in ends]
    _repeat(reader, Repeated(node, body, count, fed, carried, stacked, slices), frame)


def _directions(node: Node, name: str, count: int) -> list[bool]:
    """Whether each of so many is scanned, or written, from its end; raises SourceError where it says of others."""
    written = node.attributes.get(name) or (0,) * count
    if len(written) != count:
        raise SourceError(f"{node.operator} '{node.result}': its {name} are {len(written)}, and should be {count}")
    return [bool(way) for way in written]


def _scanned_length(node: Node, wholes: Sequence[Tensor], axes: Sequence[int]) -> int:
    """How many slices all that is scanned has; raises SourceError where that is no one number."""
    fits = 0 < len(wholes) == len(axes) and all(
        -len(whole.shape) <= axis < len(whole.shape) for whole, axis in zip(wholes, axes, strict=True)
    )
    lengths = {whole.shape[axis] for whole, axis in zip(wholes, axes, strict=True)} if fits else set()
    if len(lengths) != 1:
        said = f"tensors of different lengths, {sorted(lengths)}" if lengths else "nothing, or along no axis of it"
        raise SourceError(f"{node.operator} '{node.result}' scans {said}")
    return lengths.pop()


def _repeat(reader: GraphReader, repeated: Repeated, frame: Frame) -> None:
    """Write the runs of a body one behind the other; their slices land in the stacked results."""
    if not repeated.count:
        _pass_by(reader, repeated, frame)
        return
    ops, forks, before = len(reader.ops), len(reader.forks), reader.repeated
    runs = Runs(reader, repeated, frame)
    if why := runs.write():
        del reader.ops[ops:], reader.forks[forks:]
        if not frame.run:  # else each run around it could take as much
            give_back(reader, before)
        _leave(reader, repeated.node, frame, why)
        return
    for part, stack in runs.stacks.items():
        if part.result:
            frame.place(part.result, stack, ValueType(runs.codes[part.inside], stack.shape))
    for result, _, read in filter(itemgetter(0), repeated.carried):
        frame.place(result, *runs.states[read])


def _pass_by(reader: GraphReader, repeated: Repeated, frame: Frame) -> None:
    """A body that never runs: its states are as they came, and its stacked results are empty."""
    inside = given_first(repeated, frame)
    with suppress(MisfitError):  # of what does not run
        find_types(inside, reader.folding)
    known = {part: inside.type(part.inside) for part in repeated.stacked}
    if any(slice_.sizes is None for slice_ in known.values()):
        reader.opaque(repeated.node, frame, "its body never runs, and does not say the shapes of its slices")
    for result, _, read in repeated.carried:
        if result:
            frame.place(result, *repeated.inputs[read])
    for part, slice_ in known.items():
        if part.result and slice_.sizes is not None:
            empty = ValueType(slice_.code, part.shape(slice_.sizes, 0))
            nothing = Storage(part.result, 0, StorageKind.CONSTANT)  # an activation is written by some operation
            frame.place(part.result, fresh(part.result, empty, "", nothing), empty)


def read_if(reader: GraphReader, node: Node, frame: Frame) -> None:
    """If: the branch that a known condition takes, else the dearer one, and a note says which.

    What is counted is a lower bound where the other branch cannot run, or gives another shape to all that follows.
    """
    branches = {name: _body(node, name) for name in ("then_branch", "else_branch")}
    for body in branches.values():
        _expect(node, "outputs", len(body.outputs), len(node.outputs))
    scope = node.scope
    reader.operand(node.inputs[0], scope, frame)
    condition = reader.folding.value(node.inputs[0], frame)
    if condition is not None:
        taken = "then_branch" if condition.any() else "else_branch"
        known = _branch(reader, branches[taken], frame, scope)
        reader.forks.extend(known.forks)
        _take(reader, node, frame, known)
        return
    read = _readable(reader, node, frame, branches)
    _must_agree(reader, node, frame, read)
    taken = max(sorted(read, reverse=True), key=lambda name: _cost(read[name], reader))
    choice = reader.choice(node.inputs[:1], frame)
    reader.notes.append(f"If '{node.place}' is counted as its dearer branch, {taken}{choice}")
    ways = {
        name: way(branch.ops, (tensor for tensor, _ in branch.outputs), branch.forks) for name, branch in read.items()
    }
    home = frame.home(node.inputs[0])
    varies = home is not None and home.run > 0
    reader.forks.append(Fork(node.operator, f"If '{node.place}'", ways, taken, (frame.body, node.result), varies))
    _take(reader, node, frame, read[taken])


def _readable(reader: GraphReader, node: Node, frame: Frame, branches: Mapping[str, Body]) -> dict[str, Branch]:
    """The branches that can run, by name; raises MisfitError where none can."""
    read: dict[str, Branch] = {}
    misfits: dict[str, MisfitError] = {}
    for name, body in branches.items():
        try:
            read[name] = _branch(reader, body, frame, node.scope)
        except MisfitError as error:  # as exporters write it for other shapes
            misfits[name] = error
    for name, misfit in misfits.items():
        if not read:
            raise misfit
        _leave(reader, node, frame, f"its {name} is not counted: {misfit}", [name])
    return read


def _must_agree(reader: GraphReader, node: Node, frame: Frame, read: Mapping[str, Branch]) -> None:
    """Refuse branches of other types; what is counted behind branches of other shapes is a lower bound."""
    types = {tuple(known.code for _, known in branch.outputs) for branch in read.values()}
    if len(types) > 1 and all(code for codes in types for code in codes):
        raise SourceError(
            f"If '{node.place}' gives other types in its branches, which no runtime loads: export it anew"
        )
    shapes = {tuple(known.shape for _, known in branch.outputs) for branch in read.values()}
    if len(shapes) > 1 and any(frame.body.uses(name) for name in node.outputs):
        reader.opaque(node, frame, "its branches give different shapes, and nobody knows which is taken")


@dataclass(frozen=True, slots=True)
class Branch:
    """What one branch does and gives."""

    ops: tuple[Op, ...]
    outputs: tuple[tuple[Tensor, ValueType], ...]
    notes: tuple[str, ...]
    forks: tuple[Fork, ...]


def _branch(reader: GraphReader, body: Body, frame: Frame, scope: str) -> Branch:
    ops, notes, forks = len(reader.ops), len(reader.notes), len(reader.forks)
    inside = frame.inside(body)
    try:
        reader.read(inside)
        outputs = tuple((reader.operand(name, scope, inside), inside.type(name)) for name in body.outputs)
        return Branch(tuple(reader.ops[ops:]), outputs, tuple(reader.notes[notes:]), tuple(reader.forks[forks:]))
    finally:
        del reader.ops[ops:], reader.notes[notes:], reader.forks[forks:]


def _take(reader: GraphReader, node: Node, frame: Frame, branch: Branch) -> None:
    reader.ops.extend(branch.ops)
    reader.notes.extend(branch.notes)
    for name, (tensor, known) in zip(node.outputs, branch.outputs, strict=True):
        frame.place(name, tensor, known)


def _cost(branch: Branch, reader: GraphReader) -> tuple[bool, int, int]:
    """Unmeasured before measured, then MACs, then bytes moved."""
    operands = tuple(tensor for op in branch.ops for tensor in op.tensors())
    outputs = tuple(tensor for tensor, _ in branch.outputs)
    costed = CostedGraph(Graph(branch.ops, (*operands, *outputs), outputs), reader.rules)
    computed, moved = macs(costed), bandwidth(costed)
    complete = computed.complete and moved.complete
    return not complete, int(computed.value), int(moved.value)


def unread(node: Node, names: Collection[str] = (), why: str = "") -> Iterator[Fork]:
    """Bodies of a node that are not written out, all or those of these names: which operators they hold.

    why is the operator around them by which nobody knows how often they run, where that is not the node's.
    """
    why, place = why or node.operator, f"{node.operator.rpartition('::')[2]} '{node.place}'"
    for name in names or node.bodies:
        nodes = node.bodies[name].nodes
        ops = [Op(each.operator, (), (), {}, each.scope) for each in nodes if each.operator not in NO_OPERATION]
        yield Fork(why, place, {name: way(ops, (), [fork for each in nodes for fork in unread(each, (), why)])})


def _leave(reader: GraphReader, node: Node, frame: Frame, why: str, names: Collection[str] = ()) -> None:
    """Leave a node unmeasured, for that reason, with its bodies, all or those of these names, unread."""
    reader.opaque(node, frame, why)
    reader.forks.extend(unread(node, names))


def _register(name: str, code: int) -> Tensor:
    """A scalar that a loop keeps for itself: its counter or its condition."""
    dtype = ValueType(code).dtype
    return dense(name, (), dtype, Storage(name, nbytes_of(1, dtype), StorageKind.CONSTANT))


ReadNode = Callable[["GraphReader", Node, Frame], None]
CONTROL_FLOW: Mapping[str, ReadNode] = {"onnx::Loop": read_loop, "onnx::Scan": read_scan, "onnx::If": read_if}
NO_OPERATION = frozenset({*CONTROL_FLOW, CONSTANT})
