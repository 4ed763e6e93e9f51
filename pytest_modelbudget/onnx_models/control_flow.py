"""Loop, Scan and If: bodies read once for all runs that are alike, and the branches that data choose between."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from typing import Any, Protocol

import numpy as np
from onnx import AttributeProto, TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.model import Branch, Branches
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.graph.tensor import ACTIVATION, Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.checks import MisfitError
from pytest_modelbudget.onnx_models.program import CONSTANT, COUNTING, SIZES, Body, Node, Program, StoredTensor
from pytest_modelbudget.onnx_models.protos import callee_of
from pytest_modelbudget.onnx_models.shape_inference import Frame, ShapeInference
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN, ValueType
from pytest_modelbudget.ops.table import OpTable

Known = Mapping[str, Tensor]  # what values are, by their names
IF, LOOP = "onnx::If", "onnx::Loop"
CHOOSING = {IF: 1, LOOP: 2}  # how many operands of a node say whether a body of it runs: its condition, or how often


def choosers(node: Node) -> tuple[str, ...]:
    """The values that say which body of a node runs, or whether it does; none of a node that they do not choose for."""
    return tuple(filter(None, node.inputs[: CHOOSING.get(node.operator, 0)]))


def way_taken(node: Node, value_of: Callable[[str], Any]) -> str:
    """The body that a run enters; "" for that of a loop which ends before its first run."""
    goes = all(np.ravel(value_of(name))[0] > 0 for name in choosers(node))
    if node.operator == LOOP:
        return "body" if goes else ""
    return "then_branch" if goes else "else_branch"


def decided(graph: Body) -> tuple[Node, ...]:
    """The Ifs and Loops of a graph, without those of its bodies, that depend on values and not on shapes alone."""
    if all(node.operator not in CHOOSING for node in graph.branching):
        return ()
    moving = {*graph.inputs} - graph.stored.keys()
    sized = set[str]()  # values that are as large as others say
    found = []
    for node in graph.nodes:
        read = node.reads
        if not moving.isdisjoint(choosers(node)):
            found.append(node)
        if not sized.isdisjoint(read) or (not moving.isdisjoint(read) and _says_how_large(node, moving)):
            sized.update(filter(None, node.outputs))
        if not (sized if node.operator in SIZES else moving).isdisjoint(read):
            moving.update(filter(None, node.outputs))
    return tuple(found)


def _says_how_large(node: Node, moving: set[str]) -> bool:
    """Whether values that a node reads, some of which move, may say how large its results are."""
    if node.rule is None or node.bodies or node.operator in COUNTING:
        return True
    return any(node.inputs[at] in moving for at in node.signature.sizing)


def branches(program: Program, executed: Mapping[str, set[str]]) -> Branches:
    """The bodies of every If and Loop that values choose; of those inside of other bodies nobody knows which ran."""
    names = Counter(name for body in program.graph.everything() for name in body.stored)
    reader, chosen = ProgramReader(program), {node.result for node in decided(program.graph)}
    inputs = sorted({*program.graph.inputs} - program.graph.stored.keys())
    types = [str(program.graph.types[name]) for name in inputs]
    model = Op("a model", (), (), {"inputs": inputs, "types": types})
    graph = reader.graph(program.graph, {}, model, inputs)

    def name_of(tensor: Tensor) -> str:
        return tensor.name if names[tensor.name] == 1 and tensor.storage in reader.stored else ""

    def digest_of(tensor: Tensor) -> str:
        return _digest(reader.stored[tensor.storage]) if tensor.storage in reader.stored else ""

    def inside(body: Graph, around: tuple[Op, ...], *, is_open: bool) -> Iterator[Branch]:
        for fork in body.forks:
            key = str(fork.source)
            is_asked = fork.operator in CHOOSING if is_open else key in chosen
            for name, each in fork.ways.items():
                ran = None if is_open else name in executed.get(key, ())
                if is_asked:
                    yield Branch(key, name, fork.place, ran, each, around)
                if ran or is_open or not is_asked:
                    yield from inside(each, around + each.ops, is_open=True)

    return Branches(graph, tuple(inside(graph, graph.ops, is_open=False)), name_of, digest_of)


class ProgramReader:
    """Reads nodes as operations that are equal where they do the same: a body stands beside its node, as a fork.

    Sizes and types of values follow from those of inputs. stored are the stored tensors, by what stands for them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.stored: dict[Storage, StoredTensor] = {}

    def graph(self, body: Body, outside: Known, caller: Op, inputs: Sequence[str]) -> Graph:
        """A body that an operation gives its inputs, of these names."""
        own = {name: self._value(name, stored) for name, stored in body.stored.items()}
        given = {name: self._value(name) for name in inputs}
        entry = Op(f"inputs of {caller.name}", caller.operands, tuple(given.values()), caller.attributes)
        known, ops, forks = ChainMap({**given, **own}, {**outside}), [entry] if given else [], list[Fork]()
        for node in body.nodes:
            if node.operator == CONSTANT:
                continue
            ops.append(self._op(node, known))
            forks += [] if (fork := self._fork(node, known, ops[-1], len(ops))) is None else [fork]
            known.update(zip(filter(None, node.outputs), ops[-1].outputs, strict=True))
        return way(ops, [known[name] for name in body.outputs], forks)

    def _value(self, name: str, stored: StoredTensor | None = None) -> Tensor:
        storage = Storage(name, 0, ACTIVATION if stored is None else StorageKind.CONSTANT)
        if stored is not None:
            self.stored[storage] = stored
        return dense(name, (), NOTHING_KNOWN.dtype, storage)

    def _op(self, node: Node, known: Known) -> Op:
        attributes = sorted(
            attribute.SerializeToString(deterministic=True)
            for attribute in node.proto.attribute
            if attribute.type != AttributeProto.GRAPH
        )
        is_own = callee_of(node.proto) in self._program.functions
        operands = tuple(known[name] if name else None for name in node.inputs)
        outputs = tuple(map(self._value, filter(None, node.outputs)))
        said = {
            "attributes": attributes,
            "given": tuple(map(bool, node.outputs)),
            "overload": "" if is_own else node.proto.overload,
        }
        return Op("a function" if is_own else node.operator, operands, outputs, said)

    def _fork(self, node: Node, known: Known, op: Op, after: int) -> Fork | None:
        """What a node runs inside: its bodies, or the function that it calls; None of any other."""
        function = self._program.functions.get(callee_of(node.proto))
        if function is None and not node.bodies:
            return None
        ways = {name: self.graph(body, known, op, body.inputs) for name, body in sorted(node.bodies.items())}
        ways.update({} if function is None else {"": self.graph(function, {}, op, function.inputs)})
        place = f"{node.operator.rpartition('::')[2]} '{node.place}'"
        return Fork("a function" if function else node.operator, place, ways, source=node.result, after=after)


def _digest(tensor: StoredTensor) -> str:
    """Its values and their type in a few letters."""
    kind = str((tensor.dtype.name, *tensor.proto.dims)).encode()
    if tensor.is_sparse:
        return sha256(tensor.proto.SerializeToString(deterministic=True)).hexdigest()
    array: Any = tensor.array()
    values = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return sha256(kind + values).hexdigest()


SCAN_WITHOUT_BATCH = 9  # the first opset whose Scan has no batch dimension of its own
MOST_READ = 2**17  # nodes of all bodies of a model, as often as these are read
TRUE = np.array(True)
Value = tuple[Tensor, ValueType]
Values = Mapping[str, Value]


@dataclass(slots=True)
class Flow:
    """What a node with bodies, or one body, runs and gives: its results by name."""

    ops: list[Op] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    results: dict[str, Value] = field(default_factory=dict)

    def add(self, other: Flow) -> None:
        """Run another flow behind this one; its results are its own."""
        self.ops += other.ops
        self.notes += other.notes
        self.forks += other.forks
        self.states += other.states


class Reading(Protocol):
    """The reading of the model around a node: how its operands and bodies are read."""

    rules: OpTable
    opset: int
    shapes: ShapeInference
    nodes_in_bodies: int

    def operand(self, name: str, reader: str, frame: Frame) -> Tensor: ...
    def choice(self, names: Sequence[str], frame: Frame) -> str: ...
    def next_run(self) -> int: ...
    def read_body(self, inside: Frame, scope: str) -> Flow: ...
    def unmeasured(self, node: Node, frame: Frame, why: str) -> Flow: ...


@dataclass(frozen=True, slots=True)
class Slices:
    """A tensor that runs of a body read, or write, slice by slice along an axis: from its end where backwards.

    node_name names the whole among the node's results, where the body writes it.
    """

    inside: str
    axis: int = 0
    backwards: bool = False
    node_name: str = ""

    def of(self, whole: Tensor, run: int, count: int) -> Tensor:
        """The slice of the run of this number, on the memory of the whole."""
        at, axis = count - 1 - run if self.backwards else run, self.axis % len(whole.shape)
        shape, strides = (part[:axis] + part[axis + 1 :] for part in (whole.shape, whole.strides))
        offset = whole.offset + at * whole.strides[axis]
        return Tensor(self.inside, shape, whole.dtype, whole.storage, offset, strides)

    def shape(self, sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The shape of so many slices of these sizes."""
        axis = self.axis % (len(sizes) + 1)
        return (*sizes[:axis], count, *sizes[axis:])


@dataclass(frozen=True, slots=True)
class LoopBody:
    """A body that runs count times.

    inputs are the values that its first run reads, of scanned ones the whole. carried are triples: a result of the
    node, the value that a run leaves for it, and the input by which the next run reads it. condition is an input that
    is true in every run, where the count is known.
    """

    node: Node
    body: Body
    count: int
    inputs: Values
    carried: Sequence[tuple[str, str, str]]
    stacked: Sequence[Slices]
    scanned: Sequence[Slices] = ()
    condition: str = ""

    def outside(self, frame: Frame) -> list[Tensor]:
        """What it reads of the graph around it."""
        read = map(frame.tensor, sorted(self.body.reads_outside))
        return [*(tensor for tensor in read if tensor), *(tensor for tensor, _ in self.inputs.values())]

    def entered(self, inside: Frame, states: Values, run: int) -> Frame:
        """The frame in which the run of this number reads these states and its slices."""
        for name, value in {**self.inputs, **states}.items():
            inside.place(name, *value)
        for part in self.scanned:
            whole, known = self.inputs[part.inside]
            slice_ = replace(part.of(whole, run, self.count), sweeps=whole.sweeps or whole)
            inside.place(part.inside, slice_, ValueType(known.code, slice_.shape))
        if self.condition:
            inside.values[self.condition] = TRUE
        return inside


@contextmanager
def _fitting(node: Node) -> Iterator[None]:
    """Let a body with other inputs, outputs or slices than its node be a SourceError."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        what = f"{node.operator} '{node.result}', its bodies and what it reads do not fit together"
        raise SourceError(f"{what}: check the model, and sizes in dims") from error


def read_loop(node: Node, frame: Frame, reading: Reading) -> Flow:
    """Loop(trip count, condition, state ...): its body, times the count where that is known."""
    with _fitting(node):
        body, states = node.bodies["body"], node.inputs[2:]
        counter, condition, *inputs = body.inputs
        fed = {counter: _register(counter, TensorProto.INT64), condition: _register(condition, TensorProto.BOOL)}
        for inside, name in zip(inputs, states, strict=True):
            fed[inside] = reading.operand(name, node.scope, frame), frame.type(name)
        results = body.outputs[1:]
        carried = list(zip(node.outputs, results, inputs, strict=False))
        ends = zip(results[len(states) :], node.outputs[len(states) :], strict=True)
        stacked = [Slices(inside, node_name=name) for inside, name in ends]
    count = _trip_count(node, frame, body, reading.shapes)
    if count is None:
        choice = reading.choice(node.inputs[:2], frame)
        return _left(node, frame, f"how often its body runs is not known before the run{choice}", reading)
    return _repeated(LoopBody(node, body, count, fed, carried, stacked, condition=condition), frame, reading)


def _register(name: str, code: int) -> Value:
    """A scalar that a loop keeps for itself: its counter or its condition."""
    known = ValueType(code, ())
    return dense(name, (), known.dtype, Storage(name, nbytes_of(1, known.dtype), StorageKind.CONSTANT)), known


def _trip_count(node: Node, frame: Frame, body: Body, folding: ShapeInference) -> int | None:
    """How often a Loop runs: its count, where no condition can end it before."""
    wanted = folding.value(node.inputs[0], frame) if node.inputs[0] else None
    if len(node.inputs) > 1 and node.inputs[1]:
        condition = folding.value(node.inputs[1], frame)
        if condition is None:
            return None
        if not condition.any():
            return 0
    if wanted is None:
        return None
    inside, flag = frame.inside(body), body.inputs[1]
    inside.values[flag] = TRUE
    inside.place(flag, *_register(flag, TensorProto.BOOL))
    goes_on = folding.value(body.outputs[0], inside)
    if goes_on is None or not goes_on.all():
        return None
    return max(int(wanted.reshape(-1)[0]), 0)


def read_scan(node: Node, frame: Frame, reading: Reading) -> Flow:
    """Scan(state ..., scanned ...): its body, times the length of what it scans."""
    operands = [reading.operand(name, node.scope, frame) for name in node.inputs if name]
    if reading.opset < SCAN_WITHOUT_BATCH:
        why = f"it has a batch of its own: convert the model to opset {SCAN_WITHOUT_BATCH}"
        return _left(node, frame, why, reading)
    if any(operand.unsized for operand in operands):
        return _left(node, frame, "the length that it scans is not known before the run", reading)
    with _fitting(node):
        body, scanned = node.bodies["body"], node.attributes["num_scan_inputs"]
        states = len(operands) - scanned
        fed = dict(zip(body.inputs, zip(operands, map(frame.type, node.inputs), strict=True), strict=True))
        slices = [Slices(*each) for each in _ends(node, "input", body.inputs[states:])]
        wholes = zip(range(scanned), operands[states:], slices, strict=True)
        (count,) = {whole.shape[part.axis] for _, whole, part in wholes}
        carried = list(zip(node.outputs[:states], body.outputs[:states], body.inputs[:states], strict=True))
        written = zip(_ends(node, "output", body.outputs[states:]), node.outputs[states:], strict=True)
        stacked = [Slices(*end, name) for end, name in written]
    return _repeated(LoopBody(node, body, count, fed, carried, stacked, slices), frame, reading)


def _ends(node: Node, side: str, names: Sequence[str]) -> Iterator[tuple[str, int, bool]]:
    """Values that a Scan reads or writes slice by slice: their names, axes, and whether from behind."""
    axes, directions = (
        node.attributes.get(f"scan_{side}_{what}", (0,) * len(names)) for what in ("axes", "directions")
    )
    return zip(names, axes, map(bool, directions), strict=True)


def _repeated(loop: LoopBody, frame: Frame, reading: Reading) -> Flow:
    """The runs of a body one behind the other: those that find their states in the same way are read once.

    As many runs stand by themselves behind these as before them: what the last ones leave unread lives as long.
    """
    if reading.nodes_in_bodies > MOST_READ:
        why = f"bodies have more than {MOST_READ:,} nodes, as often as they are read"
        return _left(loop.node, frame, why, reading)
    outside = loop.outside(frame)
    if _meets_itself(loop, outside):
        return _left(loop.node, frame, "it scans a tensor of which it reads another part in the same run", reading)
    if not loop.count:
        if loop.stacked:
            return _left(loop.node, frame, "its body never runs, and gives no slices", reading)
        return Flow(results={result: loop.inputs[read] for result, _, read in loop.carried})
    ahead = loop.entered(frame.inside(loop.body), {}, 0)
    if loop.stacked:  # whose slices it says the types of
        reading.read_body(ahead, loop.node.scope)
    types = {part: ahead.type(part.inside) for part in loop.stacked}
    if any(known.sizes is None for known in types.values()):
        why = _why_other(ahead.tensors[part.inside] for part in loop.stacked if part.inside in ahead.tensors)
        return _left(loop.node, frame, why, reading)
    stacks = {part: _stack(part, known, loop.count) for part, known in types.items()}
    flow, at, settled, before = Flow(), 0, 0, None
    states: Values = {read: loop.inputs[read] for _, _, read in loop.carried}
    while at < loop.count:
        pattern = _pattern(states, outside)
        settled = settled or (at - 1 if pattern == before else 0)
        if at > len(states) + 2 and not settled:
            return _left(loop.node, frame, "its states change places from run to run", reading)
        times = max(loop.count - settled - at, 1) if settled else 1
        run = _run(loop, states, stacks, (at, times), frame, reading)
        left = {read: run.results[name] for _, name, read in loop.carried}
        if any(tensor.shape != states[read][0].shape for read, (tensor, _) in left.items()):
            return _left(loop.node, frame, _why_other(tensor for tensor, _ in left.values()), reading)
        flow.add(run)
        states, before, at = left, pattern, at + times
    flow.results.update((result, states[read]) for result, _, read in loop.carried)
    flow.results.update((part.node_name, stack) for part, stack in stacks.items())
    return flow


def _why_other(tensors: Iterable[Tensor]) -> str:
    """Why states or slices are not as the run before had them."""
    return next((tensor.unsized for tensor in tensors if tensor.unsized), "its state or its slices change their shape")


def _stack(part: Slices, known: ValueType, count: int) -> Value:
    """The whole result whose slices a body writes."""
    whole = ValueType(known.code, part.shape(known.sizes or (), count))
    storage = Storage(part.node_name, nbytes_of(prod(whole.sizes or ()), whole.dtype), StorageKind.ACTIVATION)
    return dense(part.node_name, whole.sizes or (), whole.dtype, storage), whole


def _meets_itself(loop: LoopBody, outside: Sequence[Tensor]) -> bool:
    """Whether two parts of one tensor may be the same in some runs and others in the rest: no run stands for all."""
    wholes = {part: loop.inputs[part.inside][0] for part in loop.scanned}
    elements = {whole.storage: whole.elements for whole in wholes.values()}
    paths = {(whole.storage, part.axis, part.backwards, whole.offset) for part, whole in wholes.items()}
    return len(paths) > len(elements) or any(each.elements < elements.get(each.storage, 0) for each in outside)


def _pattern(states: Values, outside: Sequence[Tensor]) -> object:
    """How states lie in memory: each in that of a value from outside, or in one that a run has left."""
    known = {tensor.storage for tensor in outside}
    made: dict[Storage, int] = {}
    return tuple(
        (tensor.storage if tensor.storage in known else made.setdefault(tensor.storage, len(made)), tensor.strides)
        for tensor, _ in states.values()
    )


def _run(
    loop: LoopBody, states: Values, stacks: Mapping[Slices, Value], at: tuple[int, int], frame: Frame, reading: Reading
) -> Flow:
    """The run of a number, for as many as are like it; its slices lie in the stacked results."""
    (first, times), count = at, loop.count
    inside = frame.inside(loop.body, times=times, run=reading.next_run() if count > 1 else 0)
    inside, wanted = loop.entered(inside, states, first), frame.body.reads
    places = {part: part.of(whole, first, count) for part, (whole, _) in stacks.items() if wanted.get(part.node_name)}
    inside.placed.update((part.inside, place) for part, place in places.items())
    run = reading.read_body(inside, loop.node.scope)
    for part, place in places.items():
        slice_, _ = run.results[part.inside]
        if slice_.storage is not place.storage:  # no operation of the body wrote it there
            copied = Op("onnx::Identity", (slice_,), (place,), {}, loop.node.scope, times=inside.times, run=inside.run)
            run.ops.append(copied)
    run.states += [run.results[name][0] for _, name, _ in loop.carried]
    return run


def read_if(node: Node, frame: Frame, reading: Reading) -> Flow:
    """If: the branch that a known condition takes, else the dearer one, and a note says which.

    What is counted is a lower bound where the other branch cannot run, or gives another shape to all that follows.
    """
    reading.operand(node.inputs[0], node.scope, frame)
    condition = reading.shapes.value(node.inputs[0], frame)
    bodies = {name: node.bodies[name] for name in ("then_branch", "else_branch")}
    if condition is not None:
        body = bodies["then_branch" if condition.any() else "else_branch"]
        return _taken(node, body, reading.read_body(frame.inside(body), node.scope), Flow())
    flow, read = _readable(node, frame, bodies, reading)
    given = {name: _results(bodies[name], branch) for name, branch in read.items()}
    shapes = {tuple(known.shape for _, known in values) for values in given.values()}
    if len(shapes) > 1 and any(frame.body.uses(name) for name in node.outputs):
        why = "its branches give different shapes, and which one is taken is not known"
        flow.add(reading.unmeasured(node, frame, why))
    ways = {name: way(each.ops, [t for t, _ in given[name]], each.forks) for name, each in read.items()}
    counted = max(sorted(read, reverse=True), key=lambda name: _cost(ways[name], reading.rules))
    choice = reading.choice(node.inputs[:1], frame)
    flow.notes.append(f"If '{node.place}' is counted as its dearer branch, {counted}{choice}")
    home = frame.home(node.inputs[0])
    varies = home is not None and home.run > 0
    flow.forks.append(Fork(node.operator, f"If '{node.place}'", ways, counted, (frame.body, node.result), varies))
    flow.states += [state for name, each in read.items() if name != counted for state in each.states]
    return _taken(node, bodies[counted], replace(read[counted], forks=[]), flow)


def _readable(
    node: Node, frame: Frame, bodies: Mapping[str, Body], reading: Reading
) -> tuple[Flow, Mapping[str, Flow]]:
    """The branches that can run, by name, behind what the others leave; raises MisfitError where none can."""
    read: dict[str, Flow] = {}
    misfits: dict[str, MisfitError] = {}
    for name, body in bodies.items():
        try:
            read[name] = reading.read_body(frame.inside(body), node.scope)
        except MisfitError as error:  # as exporters write it for other shapes
            misfits[name] = error
    flow = Flow()
    for name, misfit in misfits.items():
        if not read:
            raise misfit
        flow.add(_left(node, frame, f"its {name} is not counted: {misfit}", reading, [name]))
    return flow, read


def _results(body: Body, branch: Flow) -> list[Value]:
    """The results of a body in their order."""
    return [branch.results[name] for name in body.outputs]


def _taken(node: Node, body: Body, branch: Flow, flow: Flow) -> Flow:
    """A flow with a branch behind it, whose results are those of the node."""
    flow.add(branch)
    with _fitting(node):
        flow.results = dict(zip(node.outputs, _results(body, branch), strict=True))
    return flow


def _cost(branch: Graph, rules: OpTable) -> tuple[bool, int, int]:
    """Unmeasured before measured, then MACs, then bytes moved."""
    costed = CostedGraph(branch, rules)
    computed, moved = macs(costed), bandwidth(costed)
    complete = computed.complete and moved.complete
    return not complete, int(computed.value), int(moved.value)


def unknown_branches(node: Node, names: Collection[str] = (), why: str = "") -> Iterator[Fork]:
    """Bodies of a node that are not read, all or those of these names: which operators they hold.

    why is the operator around them by which nobody knows how often they run, where that is not the node's.
    """
    why, place = why or node.operator, f"{node.operator.rpartition('::')[2]} '{node.place}'"
    for name in names or node.bodies:
        nodes = node.bodies[name].nodes
        ops = [Op(each.operator, (), (), {}, each.scope) for each in nodes if each.operator not in NO_OPERATION]
        yield Fork(
            why, place, {name: way(ops, (), [fork for each in nodes for fork in unknown_branches(each, (), why)])}
        )


def _left(node: Node, frame: Frame, why: str, reading: Reading, names: Collection[str] = ()) -> Flow:
    """A node that is unmeasured for a reason, with its bodies, all or those of these names, unread."""
    flow = reading.unmeasured(node, frame, why)
    flow.forks += unknown_branches(node, names)
    return flow


ReadNode = Callable[[Node, Frame, Reading], Flow]
CONTROL_FLOW: Mapping[str, ReadNode] = {"onnx::Loop": read_loop, "onnx::Scan": read_scan, "onnx::If": read_if}
NO_OPERATION = frozenset({*CONTROL_FLOW, CONSTANT})
