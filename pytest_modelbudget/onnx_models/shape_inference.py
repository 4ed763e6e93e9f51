"""Types of an ONNX graph's values: by onnx's inference, then ONNX Runtime, then a table, then the file itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import make_opsetid, np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype
from onnx.shape_inference import InferenceError

from pytest_modelbudget.errors import DimsError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.onnx_models import program, protos, versions
from pytest_modelbudget.onnx_models.checks import MisfitError, one_line
from pytest_modelbudget.onnx_models.contrib_types import ROWS, types_by_row
from pytest_modelbudget.onnx_models.reading import MOST_ELEMENTS_KEPT, weightless
from pytest_modelbudget.onnx_models.value_types import (
    LARGEST,
    NOTHING_KNOWN,
    ScopedTypes,
    Types,
    ValueType,
    sized_type,
    type_proto,
    value_type,
)

Value = Any  # an array, as numpy has it
REFUSALS = (InferenceError, RuntimeError, ValueError, MemoryError)  # of onnx's inference
MOST_ELEMENTS = 65_536  # of a value that is worked out before the run
MOST_ROUNDS = 100  # of questions to ONNX Runtime about one graph
MOST_NODES_OF_A_VALUE = 1000
MOST_NODES = 20_000  # of a graph that ONNX Runtime is asked about: its time grows faster than they do
IR_VERSION = 10  # of the pieces of a model that are asked about: any ONNX Runtime takes it, also one older than onnx
# Of which onnx's inference is wrong: a function that it refuses in some operator sets, or a size: their rows know it.
MISINFERRED = frozenset({"onnx::MeanVarianceNormalization", "onnx::Resize", "onnx::STFT", "onnx::Upsample"})
# Operators whose result may be far larger than what they read: not worked out where nothing says how large.
_GROWING = frozenset({
    "onnx::ConstantOfShape", "onnx::Expand", "onnx::EyeLike", "onnx::OneHot", "onnx::Pad", "onnx::Range",
    "onnx::Resize", "onnx::Tile", "onnx::Upsample",
})  # fmt: skip


@dataclass
class Frame:
    """One graph while it is read: the tensors made so far, and what is known of their types and values.

    times is how often the graph runs, and run which run of a body it is, as of its operations. placed says where a
    result must lie that a loop stacks. is_inferred says that no type has become known since inference was asked.
    """

    body: program.Body
    outer: Frame | None = None
    times: int = 1
    run: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    types: ScopedTypes = field(init=False)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Value | None] = field(default_factory=dict)
    placed: dict[str, Tensor] = field(default_factory=dict)
    containers: dict[str, onnx.TypeProto] = field(default_factory=dict)
    believed: set[str] = field(default_factory=set)  # values whose types no inference gave
    is_inferred: bool = False

    def __post_init__(self) -> None:
        known = () if self.outer else [(name, self.body.types[name]) for name in self.body.inputs]
        self.types = ScopedTypes(known, self.outer.types if self.outer else None)
        self.types.update({name: stored.read_as for name, stored in self.body.stored.items()})

    def inside(self, body: program.Body, *, times: int = 1, run: int = 0) -> Frame:
        """A frame for a body inside this graph, which runs so often for each run of this."""
        return Frame(body, self, self.times * times, run or self.run)

    def place(self, name: str, tensor: Tensor, known: ValueType) -> None:
        """Let a value be a tensor of a type, from here on."""
        if known.shape is not None and self.types.get(name) != known:
            self.is_inferred = False
        self.tensors[name], self.types[name] = tensor, known

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of a value; None for one that nothing has made yet."""
        tensor = self.tensors.get(name)
        return self.outer.tensor(name) if tensor is None and self.outer else tensor

    def type(self, name: str) -> ValueType:
        return self.types[name]

    def home(self, name: str) -> Frame | None:
        """The frame of the graph that makes, takes or stores a value."""
        if name in self.tensors or name in self.body.stored or name in self.body.makers or name in self.values:
            return self
        return self.outer.home(name) if self.outer else None

    def container(self, name: str) -> onnx.TypeProto | None:
        """The type of a value that is no tensor; None where it is not known."""
        found = self.containers.get(name)
        return self.outer.container(name) if found is None and self.outer else found


def bind_numbers(frame: Frame, numbers: Mapping[str, int]) -> None:
    """Let inputs of a graph be the numbers that dims give them; raises DimsError where a type does not hold one."""
    for name, number in numbers.items():
        known = frame.type(name)
        value = np.array(number).astype(tensor_dtype_to_np_dtype(known.code))
        if value != number:
            most = 1 if value.dtype == bool else np.iinfo(value.dtype).max
            raise DimsError(f"dims: {name} is {number}, and no {known.dtype.name}: write one from 0 to {most}")
        frame.values[name] = np.broadcast_to(value, known.sizes or ())


@contextmanager
def _misfits() -> Iterator[None]:
    """Let what onnx's inference raises be a MisfitError in its words."""
    try:
        yield
    except REFUSALS as error:
        raise MisfitError(f"{one_line(error)}: check the model, and sizes in dims") from error


def _is_open(known: ValueType) -> bool:
    return known.sizes is None and not known.container


class ShapeInference:
    """Works out the types of graphs of one model, each graph once for the types that its values from outside have."""

    def __init__(self, model: onnx.ModelProto) -> None:
        opsets = {**protos.opsets_of(model)}
        opsets.setdefault(protos.OF_RUNTIME, 1)
        self._opsets = opsets
        both = {**opsets, **{name: opsets[""] for name in protos.STANDARD if "" in opsets}}
        self._imports = [make_opsetid(*opset) for opset in both.items()]
        self._inputs = {value.name: value.type for value in model.graph.input}
        self._before: dict[object, Types] = {}
        self.decided: dict[str, None] = {}  # operators by which data decide sizes that the file declares

    def types(self, node: program.Node, frame: Frame) -> tuple[ValueType, ...]:
        """Types of a node's results. Raises MisfitError for a node that no runtime runs on its operands."""
        types = tuple(map(frame.types.__getitem__, node.outputs))
        if not frame.is_inferred and any(map(_is_open, types)):
            self.complete(frame)
            types = tuple(map(frame.types.__getitem__, node.outputs))
        return types

    def complete(self, frame: Frame) -> None:
        """Work out the types of a graph's values from those that are known by now."""
        frame.is_inferred = True
        frame.constants = {name: value for name, value in frame.constants.items() if value is not None}
        outside = sorted(frame.body.reads_outside) if frame.outer else ()
        own = (*frame.body.inputs, *(name for node in frame.body.branching for name in node.outputs))
        key = id(frame.body), *map(frame.type, outside), *map(frame.type, own), *map(str, frame.values.items())
        if key not in self._before:
            self._infer(frame)
            self._before[key] = {name: frame.types[name] for name in frame.body.makers}
        frame.types.update(self._before[key])

    def _infer(self, frame: Frame) -> None:
        for name in () if frame.outer else frame.body.inputs:
            if frame.type(name).container:
                frame.containers[name] = self._inputs[name]
        self._take(frame, self._by_rows(frame))
        self._take(frame, self._by_onnx(self._open_nodes(frame.body.nodes, frame), frame))
        while self._take(frame, self._by_rows(frame)):  # of what onnx has given them to read
            self._take(frame, self._by_onnx(self._open_nodes(frame.body.nodes, frame), frame))
        opened = {name for name in frame.body.makers if _is_open(frame.types[name])}
        if not opened:
            return
        late = [node for node in frame.body.nodes if not opened.isdisjoint((*node.inputs, *node.outputs))]
        sources = (
            self._by_runtime,
            self._by_folding,
            self._by_rows,
            self._by_file,
            partial(self._by_file, everywhere=True),
        )
        at, rounds = 0, 0
        while at < len(sources) and rounds < MOST_ROUNDS:
            found = sources[at](frame)
            is_news = self._take(frame, found)
            frame.believed.update(found if at > 1 else ())
            at, rounds = 0 if is_news and at else at + 1, rounds + 1
        late = [node for node in late if not node.bodies and self._is_onnx(node)]
        with _misfits():  # of nodes that cannot take operands of the types that are known by now
            onnx.shape_inference.infer_shapes(self._fragment(late, frame, apart=True), True, True)

    def _take(self, frame: Frame, found: Mapping[str, ValueType]) -> bool:
        """Let values have these types where less is known of them; whether any is sized now that was not."""
        is_news = False
        for name, known in found.items():
            before = frame.types[name]
            if known.code and (before.code == 0 or (_is_open(before) and known.shape is not None)):
                is_news = is_news or (_is_open(before) and not _is_open(known))
                frame.types[name] = known
            elif known.container and not before.container:
                frame.types[name] = known
        return is_news

    def _open_nodes(self, nodes: Iterable[program.Node], frame: Frame) -> list[program.Node]:
        """Nodes with a result whose sizes are not known."""
        types = frame.types
        plain = (node for node in nodes if node.signature.operator != program.CONSTANT)
        return [node for node in plain if any(_is_open(types[name]) for name in node.outputs if name)]

    def _by_onnx(self, nodes: Iterable[program.Node], frame: Frame) -> Types:
        """What onnx's inference says; raises MisfitError where that refuses operands that nobody branches around."""
        nodes = [node for node in nodes if self._is_onnx(node)]
        try:
            inferred = onnx.shape_inference.infer_shapes(self._fragment(nodes, frame), True, True, True)
        except REFUSALS:
            plain = [node for node in nodes if not node.bodies]  # a branch that does not fit may not run
            with _misfits():
                inferred = onnx.shape_inference.infer_shapes(self._fragment(plain, frame), True, True, True)
        found: dict[str, ValueType] = {}
        for value in inferred.graph.value_info:
            name, known = value.name, value_type(value.type)
            found[name] = known
            if known.container:
                frame.containers[name] = value.type
        return found

    def _is_onnx(self, node: program.Node) -> bool:
        """Whether onnx has an operator, in this version of its set, and knows what it gives."""
        domain = protos.domain_of(node.proto.domain)
        return node.operator not in MISINFERRED and protos.has_schema(
            node.proto.op_type, domain, self._opsets.get(domain, 0)
        )

    def _by_folding(self, frame: Frame) -> Types:
        """The same with operands that say sizes worked out one by one: beside types that have no kernels, too."""
        names = {node.inputs[at] for node in self._open_nodes(frame.body.nodes, frame) for at in node.signature.sizing}
        values = {name: self.value(name, frame) for name in names - {""}}
        known = {name: _type_of(value) for name, value in values.items() if value is not None}
        return {**known, **self._by_runtime(frame)} if known else {}

    def _by_runtime(self, frame: Frame) -> Types:
        """What ONNX Runtime says of results that are open, with the nodes that lead to them from what is known."""
        nodes = [node for node in self._open_nodes(frame.body.nodes, frame) if not node.bodies]
        nodes = [node for node in nodes if versions.is_runtimes(node.proto.domain, node.proto.op_type)]
        if not nodes or len(frame.body.nodes) > MOST_NODES or self._opsets.get("", 0) > versions.newest_opset():
            return {}
        model = self._fragment(self._leading_to(nodes, frame), frame)
        made = {name for node in model.graph.node for name in node.output}
        wanted = [name for node in nodes for name in node.outputs if name in made and _is_open(frame.type(name))]
        try:
            return versions.result_types(model, wanted) if wanted else {}
        except versions.RefusedError as error:
            raise MisfitError(f"{one_line(error)}: check the model, and sizes in dims") from error

    def _leading_to(self, nodes: Sequence[program.Node], frame: Frame) -> list[program.Node]:
        """Nodes, and all before them that make small values: these may decide sizes."""
        makers, wanted, waiting = frame.body.makers, {*map(id, nodes)}, [*nodes]
        for node in waiting:  # which grows
            for name in node.inputs:
                is_given = name in frame.believed or frame.constants.get(name) is not None
                maker, known = None if is_given else makers.get(name), frame.type(name)
                is_small = bool(known.container) or (known.sizes is not None and known.elements <= MOST_ELEMENTS_KEPT)
                if (
                    maker
                    and is_small
                    and id(maker) not in wanted
                    and not maker.bodies
                    and versions.is_runtimes(maker.proto.domain, maker.proto.op_type)
                ):
                    wanted.add(id(maker))
                    waiting.append(maker)
        return [node for node in frame.body.nodes if id(node) in wanted]

    def _by_rows(self, frame: Frame) -> Types:
        """What the table says of operators that neither knows."""
        found = ScopedTypes(around=frame.types)
        for node in self._open_nodes([node for node in frame.body.nodes if node.signature.operator in ROWS], frame):
            read = [found[name] if name else NOTHING_KNOWN for name in node.inputs]
            types = types_by_row(node, read, partial(self._operand_value, node, frame))
            found.update(zip(node.outputs, types))  # noqa: B905
        found.pop("", None)
        return dict(found)

    def _by_file(self, frame: Frame, *, everywhere: bool = False) -> Types:
        """What the file declares of results that are open although all is known that their nodes read, or of all."""
        found: dict[str, ValueType] = {}
        for node in self._open_nodes(frame.body.nodes, frame):
            if node.bodies or (not everywhere and any(_is_open(frame.type(name)) for name in node.inputs if name)):
                continue
            declared = {name: frame.type(name).or_declared(frame.body.types[name]) for name in node.outputs if name}
            found.update({name: known for name, known in declared.items() if known.sizes is not None})
            if found.keys() & declared.keys() and (decider := decided_by_data(node, frame)):
                self.decided[decider] = None
        return found

    def _fragment(self, nodes: Iterable[program.Node], frame: Frame, *, apart: bool = False) -> onnx.ModelProto:
        """Nodes as a model: what they read from elsewhere are inputs of known types, or small stored tensors.

        A node that reads what has no type yet is left out, with those behind it. apart says that none reads a result
        of another one: each is given the type that is known.
        """
        model = onnx.ModelProto(ir_version=IR_VERSION, opset_import=self._imports)
        graph = model.graph
        graph.name = "fragment"
        is_there: dict[str, bool] = {"": True}
        fitting: list[program.Node] = []
        for node in nodes:
            names = node.reads if node.bodies else node.inputs
            for name in names:
                if name not in is_there:
                    is_there[name] = self._feed(graph, name, frame)
            fits = all(map(is_there.__getitem__, names))
            if not apart:
                is_there.update(dict.fromkeys(node.outputs, fits))
            if fits:
                fitting.append(node)
        graph.node.extend([node.proto for node in fitting])
        for proto, node in zip(graph.node, fitting, strict=True):
            if apart:
                del proto.output[:]
                proto.output.extend(name and f"{name}::apart" for name in node.outputs)
            if not proto.name:  # which errors tell
                proto.name = node.result
        return model

    def _feed(self, graph: onnx.GraphProto, name: str, frame: Frame) -> bool:
        """Give a graph a value from elsewhere: its number where it is small, else its type; whether it has one."""
        home, known = frame.home(name), frame.type(name)
        stored = home.body.stored.get(name) if home else None
        value = home.values.get(name, home.constants.get(name)) if home else None
        if value is None and home is not None and home is not frame and known.may_hold_sizes and not stored:
            value = self.value(name, home)
        if value is not None:
            graph.initializer.append(numpy_helper.from_array(np.array(value), name))
        elif stored and stored.type.elements <= MOST_ELEMENTS_KEPT and stored.values is not None:
            graph.initializer.append(stored.values)
            graph.initializer[-1].name = name
        elif known.container and (proto := frame.container(name)) is not None:
            graph.input.append(onnx.ValueInfoProto(name=name, type=proto))
        elif known.code and not known.container:
            graph.input.add(name=name, type=type_proto(known))
        else:
            return False
        return True

    def _operand_value(self, node: program.Node, frame: Frame, position: int) -> Value | None:
        return self.value(node.inputs[position], frame)

    def value(self, name: str, frame: Frame) -> Value | None:
        """A value that is the same in every run; None where it is not, or would be too large or dear to work out."""
        home = frame.home(name)
        if home is None:
            return None
        if name in home.values:
            return home.values[name]
        if name not in home.constants:
            home.constants[name] = self._worked_out(name, home)
        return home.constants[name]

    def _worked_out(self, name: str, home: Frame) -> Value | None:
        stored = home.body.stored.get(name)
        if stored is not None:
            return _stored_value(stored)
        model = onnx.ModelProto(ir_version=IR_VERSION, opset_import=self._imports)
        model.graph.name = "constant"
        return versions.constant(model, name) if self._add_makers(name, home, model.graph) else None

    def _add_makers(self, name: str, home: Frame, graph: onnx.GraphProto) -> bool:
        """Add all that makes a value to a graph without inputs; False where some of it is no constant, or too much."""
        nodes, waiting, reached = list[program.Node](), [(name, home)], {name}
        for value, around in waiting:  # which grows
            array = self._at_hand(value, around)
            if array is not None:
                graph.initializer.append(numpy_helper.from_array(np.array(array), value))
                continue
            node = None if value in around.body.stored else around.body.makers.get(value)
            if node is None or not self._is_cheap(node, around) or len(nodes) == MOST_NODES_OF_A_VALUE:
                return False
            nodes.append(node)
            reached.update(node.outputs)
            homes = [(read, around.home(read)) for read in node.inputs if read and read not in reached]
            waiting += [(read, frame) for read, frame in homes if frame is not None]
            reached.update(read for read, _ in homes)
            if any(frame is None for _, frame in homes):
                return False
        graph.node.extend(node.proto for node in nodes)  # ONNX Runtime sorts them
        return True

    def _at_hand(self, name: str, home: Frame) -> Value | None:
        """A value that is stored, bound, or a size of what has sizes."""
        known = home.values.get(name, home.constants.get(name))
        if known is not None or name in home.body.stored:
            return _stored_value(home.body.stored[name]) if known is None else known
        node = home.body.makers.get(name)
        if node is None or node.operator not in program.SIZES:
            return None
        self.types(node, home)
        sizes = home.type(node.inputs[0]).sizes
        if sizes is None:
            return None
        if node.operator == "onnx::Size":
            return np.array(prod(sizes), np.int64) if prod(sizes) <= LARGEST else None
        return np.array(sizes[slice(node.attributes.get("start"), node.attributes.get("end"))], np.int64)

    def _is_cheap(self, node: program.Node, home: Frame) -> bool:
        """Whether a node may be worked out: it draws nothing, holds no body, and gives few elements."""
        if node.bodies or not versions.is_runtimes(node.proto.domain, node.proto.op_type):
            return False
        if node.rule is not None and node.rule.kind == "random":
            return False
        sizes = [known.sizes for known in self.types(node, home) if not known.container]
        if None in sizes:
            return node.operator not in _GROWING
        return sum(prod(each or ()) for each in sizes) <= MOST_ELEMENTS


def _stored_value(stored: program.StoredTensor) -> Value | None:
    try:
        return None if stored.type.elements > MOST_ELEMENTS or stored.values is None else stored.array()
    except (ValueError, TypeError):
        return None  # its bytes are no values of its type


def _type_of(value: Value) -> ValueType:
    return sized_type(np_dtype_to_tensor_dtype(value.dtype), value.shape)


def decided_by_data(node: program.Node, frame: Frame) -> str:
    """The operator by which data decide a size that results of a node have; "" where none is behind it.

    Sizes come from operands whose own are open, and from whole numbers in a row, which may be worked out from such.
    """
    waiting, reached = [(node, frame)], set[str]()
    for maker, around in waiting:  # which grows
        if maker.operator in program.COUNTING and any(around.type(name).sizes is None for name in maker.outputs):
            return f"{maker.operator} '{maker.result}'"
        for name in filter(None, maker.inputs):
            known, home = around.type(name), around.home(name)
            if home is not None and name not in reached and (known.sizes is None or known.may_hold_sizes):
                reached.add(name)
                waiting += [(home.body.makers[name], home)] if name in home.body.makers else []
    return ""


def inferred_types(model: onnx.ModelProto, dims: Mapping[str, int] | None = None) -> Types:
    """The types of a model's values, as far as they can be worked out before the run: dims bind its symbols."""
    light = weightless(model)
    if dims is not None:
        protos.bind(light.graph, dims)
    whole = program.Program(light)
    frame = Frame(whole.graph)
    ShapeInference(light).complete(frame)
    names = {*whole.graph.inputs, *whole.graph.outputs, *whole.graph.makers, *whole.graph.stored}
    return {name: frame.type(name) for name in names}
