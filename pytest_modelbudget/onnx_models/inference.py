"""Values and shapes that onnx's inference leaves open, worked out where they decide a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper
from onnx.helper import np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype
from onnx.shape_inference import InferenceError

from pytest_modelbudget.errors import DimsError, SourceError, user_code
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.onnx_models import program, protos
from pytest_modelbudget.onnx_models.contrib_types import CONTRIB_TYPES, DELEGATES, GIVE_THEIR_FIRST, contrib_types
from pytest_modelbudget.onnx_models.files import weightless
from pytest_modelbudget.onnx_models.misfits import misfit
from pytest_modelbudget.onnx_models.value_types import (
    LARGEST,
    MOST_AXES,
    NOTHING_KNOWN,
    Types,
    ValueType,
    sized_type,
    value_type,
)


def with_shapes(whole: program.Program, file: str, *, is_bound: bool) -> program.Program:
    """A program, without functions of its own, and with a type beside every value that has one.

    Its model is written to: what it declares of results is looked at last, since nobody keeps it true, and not where
    sizes of inputs were bound and it has no name for any. Raises SourceError where onnx finds two types at odds.
    """
    with user_code(f"{file} is no valid model: working out its shapes", SourceError):
        plain = whole.without_shapes(whole.graph.types if is_bound else None)
        inferred = _inferred_by_onnx(plain)
    if len(inferred.graph.node) != len(plain.model.graph.node):
        raise SourceError(f"{file}: onnx could not work out the shapes of this model")
    return plain.typed(inferred)


def _inferred_by_onnx(plain: program.Program) -> onnx.ModelProto:
    """The model with the types that onnx infers without values: of those its own wrap, and take any memory.

    A classifier without intercepts has a score for each label: inference counts intercepts alone, and is lent zeros.
    """
    _write_defaults(plain)
    lent = [node for node in plain.graph.all_nodes() if node.signature.operator == CLASSIFIER]
    lent = [node for node in lent if not any(each.name == "intercepts" for each in node.proto.attribute)]
    for node in lent:
        labels = [len(each.ints) or len(each.strings) for each in node.proto.attribute if "classlabels" in each.name]
        node.proto.attribute.append(onnx.helper.make_attribute("intercepts", [0.0] * (max(labels, default=0) or 1)))
    try:
        return onnx.shape_inference.infer_shapes(plain.model)
    finally:
        for node in lent:
            node.proto.attribute.pop()


def _write_defaults(plain: program.Program) -> None:
    """Write defaults that onnx's inference takes for others: STFT gives one side where nothing says it."""
    for node in plain.graph.all_nodes():
        if node.signature.operator == "onnx::STFT" and "onesided" not in node.attributes:
            node.proto.attribute.append(onnx.helper.make_attribute("onesided", 1))


CLASSIFIER = "ai.onnx.ml::LinearClassifier"
Value = Any  # an array, as numpy has it


class TypesInside(dict[str, ValueType]):
    """Types of values of one graph, and of all others those of the graph around it; of what is in none, nothing."""

    def __init__(self, known: Mapping[str, ValueType], around: Mapping[str, ValueType] | None) -> None:
        super().__init__(known)
        self._around = around

    def __missing__(self, name: str) -> ValueType:
        return NOTHING_KNOWN if self._around is None else self._around[name]


@dataclass
class Frame:
    """One graph while it is read: the tensors made so far, and what is known of their values.

    times is how often the graph runs, and run which run of a body it is, as of its operations. placed says where a
    result must lie that a loop stacks, and hidden why values or sizes that could be known are not: numbers that leave
    64 bits, too many elements.
    """

    body: program.Body
    outer: Frame | None = None
    times: int = 1
    run: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    types: TypesInside = field(init=False)
    values: dict[str, Value | None] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    placed: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types = TypesInside(self.body.types, self.outer.types if self.outer else None)
        self.types.update({name: stored.read_as for name, stored in self.body.stored.items()})

    def inside(self, body: program.Body, *, times: int = 1, run: int = 0) -> Frame:
        """A frame for a body inside this graph, which runs so often for each run of this."""
        return Frame(body, self, self.times * times, run or self.run)

    def place(self, name: str, tensor: Tensor, known: ValueType) -> None:
        """Let a value be a tensor of a type, from here on."""
        self.tensors[name], self.types[name] = tensor, known

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of a value; None for one that nothing has made yet."""
        tensor = self.tensors.get(name)
        return self.outer.tensor(name) if tensor is None and self.outer else tensor

    def type(self, name: str) -> ValueType:
        """What is known of a value's type."""
        return self.types[name]

    def is_as_inferred(self, name: str) -> bool:
        """Whether a value has the sizes that inference of the whole file saw when it asked what reads it."""
        seen = self.body.types.get(name)
        if seen is None:
            return self.outer is None or self.outer.is_as_inferred(name)
        return seen.sizes == self.types[name].sizes

    def read_by(self, node: program.Node) -> Sequence[ValueType]:
        """What is known of the types of a node's operands; of one that is left out, nothing."""
        if "" in node.inputs:
            return [self.types[name] if name else NOTHING_KNOWN for name in node.inputs]
        return [*map(self.types.__getitem__, node.inputs)]

    def hide(self, node: program.Node, why: str) -> None:
        """Say why the results of a node are not known."""
        self.hidden.update(dict.fromkeys(filter(None, node.outputs), why))

    @property
    def hides(self) -> bool:
        """Whether anything was said of a value, here or around."""
        return bool(self.hidden) or (self.outer is not None and self.outer.hides)

    def hidden_reason(self, name: str) -> str:
        """What was said of a value, here or around; "" for nearly all."""
        why = self.hidden.get(name, "")
        return self.outer.hidden_reason(name) if not why and self.outer else why

    def home(self, name: str) -> Frame | None:
        """The frame of the graph that makes or stores a value."""
        if name in self.tensors or name in self.body.stored or name in self.body.makers:
            return self
        return self.outer.home(name) if self.outer else None


def bind_numbers(frame: Frame, numbers: Mapping[str, int]) -> None:
    """Let inputs of a graph be the numbers that dims give them; raises DimsError where a type does not hold one."""
    for name, number in numbers.items():
        known = frame.type(name)
        value = np.array(number).astype(tensor_dtype_to_np_dtype(known.code))
        if value != number:
            most = 1 if value.dtype == bool else np.iinfo(value.dtype).max
            raise DimsError(f"dims: {name} is {number}, and no {known.dtype.name}: write one from 0 to {most}")
        frame.values[name] = np.broadcast_to(value, known.sizes or ())


BATCH_NORM = "onnx::BatchNormalization"  # of whose further results onnx says nothing before opset 14
KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml"})  # domains whose operators onnx itself knows
MOST_ELEMENTS = 65_536  # of a value that is worked out before the run
MOST_WORK = 2**21  # elements that are read and made for all such values of a model together
LEAST_WORK = 16  # of one node, whose run costs more than its elements
# What onnx's reference implementation raises for what it does not do.
REFUSALS = (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
# What shapes are worked out with: each takes a time that its elements bound. Of the second, data decide the shape of
# the result, which has no more elements than the operands; a sequence stands as the stack of its elements.
_WORKED_OUT = frozenset({
    "onnx::Abs", "onnx::Add", "onnx::And", "onnx::ArgMax", "onnx::ArgMin", "onnx::BitShift",
    "onnx::BitwiseAnd", "onnx::BitwiseNot", "onnx::BitwiseOr", "onnx::BitwiseXor", "onnx::Cast",
    "onnx::CastLike", "onnx::Ceil", "onnx::Clip", "onnx::Concat", "onnx::ConstantOfShape", "onnx::CumSum",
    "onnx::Div", "onnx::Equal", "onnx::Exp", "onnx::Expand", "onnx::EyeLike", "onnx::Flatten",
    "onnx::Floor", "onnx::Gather", "onnx::GatherElements", "onnx::GatherND", "onnx::Greater",
    "onnx::GreaterOrEqual", "onnx::Identity", "onnx::Less", "onnx::LessOrEqual", "onnx::Log", "onnx::Max",
    "onnx::Mean", "onnx::Min", "onnx::Mod", "onnx::Mul", "onnx::Neg", "onnx::Not", "onnx::OneHot",
    "onnx::Or", "onnx::Pad", "onnx::Pow", "onnx::Range", "onnx::Reciprocal", "onnx::ReduceL1",
    "onnx::ReduceL2", "onnx::ReduceMax", "onnx::ReduceMean", "onnx::ReduceMin", "onnx::ReduceProd",
    "onnx::ReduceSum", "onnx::ReduceSumSquare", "onnx::Relu", "onnx::Reshape", "onnx::Round",
    "onnx::ScatterElements", "onnx::ScatterND", "onnx::Sign", "onnx::Slice", "onnx::Split", "onnx::Sqrt",
    "onnx::Squeeze", "onnx::Sub", "onnx::Sum", "onnx::Tile", "onnx::TopK", "onnx::Transpose",
    "onnx::Trilu", "onnx::Unsqueeze", "onnx::Where", "onnx::Xor",
})  # fmt: skip
_SHAPED_BY_VALUES = frozenset({
    "onnx::Compress", "onnx::NonZero", "onnx::SequenceAt", "onnx::SequenceConstruct",
    "onnx::SplitToSequence", "onnx::Unique",
})  # fmt: skip
_DECIDED_BY_DATA = frozenset({"onnx::Compress", "onnx::NonMaxSuppression", "onnx::NonZero", "onnx::Unique"})
_FOLDED = _WORKED_OUT | _SHAPED_BY_VALUES
# Operators whose results have sizes that are sums or products of sizes, operands and attributes.
_OUTGROWING = frozenset({
    "onnx::Col2Im", "onnx::Concat", "onnx::ConvTranspose", "onnx::DepthToSpace", "onnx::MaxUnpool",
    "onnx::Pad", "onnx::Resize", "onnx::Tile", "onnx::Upsample",
})  # fmt: skip


class Folding:
    """What a model's constants decide, one node at a time and only when asked, in bounded time and memory."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets
        self._imports = [onnx.helper.make_opsetid(*opset) for opset in opsets.items()]
        self._work_left = MOST_WORK
        self.decided: dict[str, None] = {}  # operators by which data decide sizes that the file declares
        self._inferred_before: dict[tuple[object, ...], tuple[ValueType, ...]] = {}

    def value(self, name: str, frame: Frame) -> Value | None:
        """A value that is the same in every run, or None."""
        waiting, begun = [(name, frame.home(name))], set[tuple[str, int]]()
        while waiting:
            name, home = waiting[-1]
            if home is None or name in home.values:
                waiting.pop()
                continue
            place = name, id(home)
            if place in begun or not (node := self._worked_out(name, home)):
                home.values[name] = self._value(name, home)
                continue
            begun.add(place)  # what is still open when it comes up again goes round in a circle
            waiting += [(operand, home.home(operand)) for operand in node.inputs if operand]
        return self._known(name, frame)

    def _known(self, name: str, frame: Frame) -> Value | None:
        home = frame.home(name)
        return home.values.get(name) if home is not None else None

    def _worked_out(self, name: str, frame: Frame) -> program.Node | None:
        """The node that makes a value, where the values of its operands may give it."""
        node = None if name in frame.body.stored else frame.body.makers.get(name)
        return node if node and node.operator in _FOLDED else None

    def _value(self, name: str, frame: Frame) -> Value | None:
        stored = frame.body.stored.get(name)
        if stored is not None:
            return _stored_value(stored)
        node = frame.body.makers.get(name)
        return self._results(node, frame).get(name) if node is not None else None

    def _results(self, node: program.Node, frame: Frame) -> dict[str, Value]:
        """All results of a node whose operands are known; none where one is not."""
        if node.operator in {"onnx::Shape", "onnx::Size"}:
            sizes = frame.type(node.inputs[0]).sizes
            return _shape_value(node, sizes, frame) if sizes is not None else {}
        if node.operator not in _FOLDED:
            return {}
        operands = {name: self._known(name, frame) for name in node.inputs if name}
        known = {name: value for name, value in operands.items() if value is not None}
        if len(known) < len(operands) or not self._is_affordable(node, known, frame):
            return {}
        return self._computed(node, known, frame)

    def _is_affordable(self, node: program.Node, operands: Mapping[str, Value], frame: Frame) -> bool:
        """Whether a node is worked out here, which the work that is left then pays."""
        read = made = sum([value.size for value in operands.values()])
        if node.operator not in _SHAPED_BY_VALUES:
            types = [frame.type(name) for name in node.outputs if name]
            if any(known.sizes is None for known in types):
                types = [known for name, known in zip(node.outputs, self._inferred(node, frame), strict=True) if name]
            sizes = [known.sizes for known in types if known.sizes is not None]
            if len(sizes) < len(types):
                return False
            made = sum(map(prod, sizes))
        work = max(read + made, LEAST_WORK)
        if made > MOST_ELEMENTS or work > self._work_left:
            why = f"{node.operator} '{node.result}': {made:,} values are more than are worked out before the run"
            frame.hide(node, why)
            return False
        self._work_left -= work
        return True

    def _computed(self, node: program.Node, feeds: Mapping[str, Value], frame: Frame) -> dict[str, Value]:
        """Results by onnx's own reference implementation; none where it has none, or where they do not fit."""
        names = [name for name in node.outputs if name]
        try:
            with np.errstate(all="ignore"):
                results = self._run(node, names, feeds)
                if not self._fit(node, names, feeds, results):
                    frame.hide(node, f"{node.operator} '{node.result}': its integers do not fit in their type")
                    return {}
            return dict(zip(names, results, strict=True))
        except REFUSALS:
            return {}  # then the shape stays unknown, and that is said

    def _run(self, node: program.Node, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        if node.operator in _DIRECT:
            return [np.asarray(_DIRECT[node.operator](node, [feeds[name] for name in node.inputs]))]
        from onnx.reference import ReferenceEvaluator

        inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds]
        outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names]
        graph = onnx.helper.make_graph([node.proto], "one", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self._imports)
        return [np.asarray(result) for result in ReferenceEvaluator(model).run(None, dict(feeds))]

    def _fit(self, node: program.Node, names: Sequence[str], feeds: Mapping[str, Any], results: Sequence[Any]) -> bool:
        """Whether integer results are what real numbers would give, up to what a division rounds: none wrapped."""
        read = [feeds[name] for name in node.inputs if name]  # one may be read twice
        is_whole = any(result.dtype.kind in "iu" for result in results)
        if not is_whole or node.operator in _ONLY_MOVING:
            return True
        if node.operator not in _GROWING_FAST and all(array.size <= 64 for array in read):
            entries = [entry for array in read if array.dtype.kind in "iu" for entry in array.ravel().tolist()]
            if prod([abs(entry) or 1 for entry in entries]) < 2**31:
                return True
        if node.operator in _CASTS:
            exact = [next(iter(feeds.values()))]
        else:
            words = dict(zip(node.inputs, node.roles, strict=True))
            wide = {
                name: array.astype(np.float64) if array.dtype.kind in "iu" and not words[name].shape else array
                for name, array in feeds.items()
            }
            try:
                exact = self._run(node, names, wide)
            except REFUSALS:
                return True  # an operator of integers alone, which works on their bits
        return all(_agrees(result, real) for result, real in zip(results, exact, strict=True))

    def types(self, node: program.Node, frame: Frame) -> tuple[ValueType, ...]:
        """Types of a node's results, from its operands' types and those values that are known."""
        types = self._inferred(node, frame)
        if all(known.sizes is not None for known in types):
            return types
        results = self._worked_results(node, frame)
        return tuple(
            _type_of(results[name]) if name in results else known
            for name, known in zip(node.outputs, types, strict=True)
        )

    def _worked_results(self, node: program.Node, frame: Frame) -> dict[str, Value]:
        values = {name: self.value(name, frame) for name in node.outputs if name}
        return {name: value for name, value in values.items() if value is not None}

    def outgrown(self, node: program.Node, types: Sequence[ValueType], frame: Frame) -> str:
        """Why the sizes of results are no claim: they, or what makes them, do not fit in 64 bits; "" where they do."""
        for name in node.inputs if frame.hides else ():
            why = frame.hidden_reason(name)
            if why and ((sizes := frame.type(name).sizes) is None or prod(sizes) > LARGEST):
                return why
        if node.operator in _OUTGROWING and not _stays_small(node, self, frame):
            return f"{node.operator} '{node.result}': its sizes do not fit in 64 bits"
        for name, known in zip(node.outputs, types, strict=True):
            if len(known.shape or ()) > MOST_AXES:
                return f"{node.operator} '{node.result}': a shape of {len(known.shape or ()):,} axes"
            if known.elements > LARGEST:  # each size fits; what comes of it need not
                frame.hidden[name] = f"'{name}' has {known.elements:,} elements, more than 64 bits count"
        return ""

    def _inferred(self, node: program.Node, frame: Frame) -> tuple[ValueType, ...]:
        """Types by what the operands are; those of layers that repeat are asked for once."""
        operands = {name: frame.type(name) for name in node.inputs if name}
        is_delegated = node.operator in DELEGATES
        is_known = protos.domain_of(node.proto.domain) in KNOWN_DOMAINS and node.operator not in CONTRIB_TYPES
        if not is_known and not is_delegated:
            return contrib_types(node, operands)
        if any(not known.code for known in operands.values()):
            return (NOTHING_KNOWN,) * len(node.outputs)
        values = {name: self.value(name, frame) for name in operands}
        if node.held or node.bodies:
            return self._asked(node, operands, values)
        read = [(operands[name], _content(values[name])) if name else None for name in node.inputs]
        # The nodes of a program keep both as long as it is read, so that no other has their place in memory.
        look = id(node.signature), id(node.attributes), tuple(map(bool, node.outputs)), *read
        if look not in self._inferred_before:
            self._inferred_before[look] = self._asked(node, operands, values)
        return self._inferred_before[look]

    def _asked(
        self, node: program.Node, operands: Mapping[str, ValueType], values: Mapping[str, Value | None]
    ) -> tuple[ValueType, ...]:
        """What onnx's inference says of one node."""
        try:
            types = self._checked(node, operands, values)
        except (*REFUSALS, onnx.checker.ValidationError, onnx.defs.SchemaError, InferenceError):
            types = {}
        found = tuple(value_type(types[name]) if name in types else NOTHING_KNOWN for name in node.outputs)
        if node.operator == BATCH_NORM and len(found) > 1:
            statistics = operands.get(node.inputs[-1], NOTHING_KNOWN)
            return (found[0], *(known if known.sizes is not None else statistics for known in found[1:]))
        if not found or found[0].sizes is not None or not node.inputs:
            return found
        if node.operator in GIVE_THEIR_FIRST:
            return (operands.get(node.inputs[0], NOTHING_KNOWN), *found[1:])
        if node.operator in _SIZED_BY_VALUES:
            sizes = _SIZED_BY_VALUES[node.operator](node, operands[node.inputs[0]].sizes, values)
            return (found[0] if sizes is None else sized_type(found[0].code, sizes), *found[1:])
        return found

    def _checked(
        self, node: program.Node, operands: Mapping[str, ValueType], values: Mapping[str, Value | None]
    ) -> Mapping[str, onnx.TypeProto]:
        """Types of a node's results; raises InferenceError where its operands do not fit."""
        proto, domain = node.proto, protos.domain_of(node.proto.domain)
        if node.operator in DELEGATES:
            proto, domain = self._delegate(proto, *DELEGATES[node.operator]), ""
        types: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(proto.op_type, self._opsets.get(domain, 1), domain),
            proto,
            {name: onnx.helper.make_tensor_type_proto(known.code, known.shape) for name, known in operands.items()},
            {name: numpy_helper.from_array(value, name) for name, value in values.items() if value is not None},
            opset_imports=self._imports,
        )
        return types

    def refuse_misfit(self, node: program.Node, frame: Frame) -> None:
        """Raise MisfitError where onnx refuses the shapes of a node's operands, which are all known."""
        operands = {name: frame.type(name) for name in node.inputs if name}
        if any(known.sizes is None for known in operands.values()):
            return
        if protos.domain_of(node.proto.domain) not in KNOWN_DOMAINS and node.operator not in DELEGATES:
            return
        try:
            self._checked(node, operands, {name: self.value(name, frame) for name in operands})
        except InferenceError as error:
            raise misfit(node, frame.read_by(node)) from error
        except (*REFUSALS, onnx.checker.ValidationError, onnx.defs.SchemaError):
            return

    def _delegate(self, node: NodeProto, standard: str, operands: slice) -> NodeProto:
        """The standard operator that gives results of the same types, with what it knows."""
        schema = onnx.defs.get_schema(standard, self._opsets.get("", 1))
        made = onnx.helper.make_node(standard, node.input[operands], node.output[: schema.max_output])
        made.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
        return made


def _kept(node: program.Node, x: Sizes | None, values: Mapping[str, Value | None]) -> Sizes | None:
    """Compress: as many slices of x as a condition has true ones, which may be shorter than their axis."""
    condition, axis = values[node.inputs[1]], node.attributes.get("axis")
    if x is None or condition is None or not (axis is None or -len(x) <= axis < len(x)):
        return None
    if axis is None:
        return (int(np.count_nonzero(condition[: prod(x)])),)
    axis %= len(x)
    return (*x[:axis], int(np.count_nonzero(condition[: x[axis]])), *x[axis + 1 :])


def _unpooled(node: program.Node, x: Sizes | None, values: Mapping[str, Value | None]) -> Sizes | None:
    """MaxUnpool: as large as its third operand says."""
    sizes = values.get(node.inputs[2]) if len(node.inputs) > 2 else None
    return None if sizes is None else tuple(map(int, sizes))


Sizes = tuple[int, ...]
# Operators whose results have sizes that values of their operands say, of which onnx's inference knows nothing.
_SIZED_BY_VALUES: Mapping[str, Callable[[program.Node, Sizes | None, Mapping[str, Value | None]], Sizes | None]] = {
    "onnx::Compress": _kept,
    "onnx::MaxUnpool": _unpooled,
}
# What stands in nearly every chain of shapes, as numpy has it: building an evaluator takes longer by far.
_DIRECT: Mapping[str, Callable[[program.Node, list[Any]], Any]] = {
    "onnx::Add": lambda node, read: np.add(*_of_one_type(read)),
    "onnx::Concat": lambda node, read: np.concatenate(read, node.attributes["axis"]),
    "onnx::Gather": lambda node, read: np.take(read[0], read[1], node.attributes.get("axis", 0)),
    "onnx::Mul": lambda node, read: np.multiply(*_of_one_type(read)),
    "onnx::Sub": lambda node, read: np.subtract(*_of_one_type(read)),
    "onnx::Unsqueeze": lambda node, read: np.expand_dims(read[0], _axes(node, read)),
}


def _of_one_type(read: Sequence[Value]) -> Sequence[Value]:
    if len({array.dtype for array in read}) > 1:
        raise TypeError("operands of different types")
    return read


def _axes(node: program.Node, read: Sequence[Value]) -> tuple[int, ...]:
    """The axes of an operator that reads them as its second operand, and had them as an attribute before."""
    return tuple(read[1].ravel().tolist()) if len(read) > 1 else node.attributes["axes"]


def _content(value: Value | None) -> tuple[object, ...] | None:
    if value is None:
        return None
    return value.dtype, value.shape, tuple(value.ravel().tolist()) if value.dtype.hasobject else value.tobytes()


_CASTS = frozenset({"onnx::Cast", "onnx::CastLike"})
_GROWING_FAST = _CASTS | {"onnx::Pow"}  # results may be large where operands are small
_ONLY_MOVING = frozenset({
    "onnx::Compress", "onnx::Concat", "onnx::ConstantOfShape", "onnx::Expand", "onnx::EyeLike",
    "onnx::Flatten", "onnx::Gather", "onnx::GatherElements", "onnx::GatherND", "onnx::Identity",
    "onnx::NonZero", "onnx::OneHot", "onnx::Pad", "onnx::Reshape", "onnx::SequenceAt",
    "onnx::SequenceConstruct", "onnx::Slice", "onnx::Split", "onnx::SplitToSequence", "onnx::Squeeze",
    "onnx::Tile", "onnx::Transpose", "onnx::Trilu", "onnx::Unique", "onnx::Unsqueeze", "onnx::Where",
})  # fmt: skip


def _agrees(result: Any, real: Any) -> bool:
    """Whether whole numbers are these real ones, of which a part behind the point may have been cut off."""
    if result.dtype.kind not in "iu":
        return True
    difference = np.abs(result.astype(np.float64) - real.astype(np.float64))
    return bool((difference <= 1 + 1e-12 * np.abs(real.astype(np.float64))).all())


def _stays_small(node: program.Node, folding: Folding, frame: Frame) -> bool:
    """Whether no sum or product of its sizes, its attributes and the numbers that it reads leaves 64 bits."""
    sizes = [size for name in node.inputs if name for size in frame.type(name).sizes or ()]
    numbers = [entry for entry in node.attributes.values() if isinstance(entry, int)]
    numbers += [entry for entry in node.attributes.values() if isinstance(entry, tuple) for entry in entry]
    for name, role in zip(node.inputs, node.roles, strict=True):
        value = folding.value(name, frame) if name and role.shape else None
        numbers += value.ravel().tolist() if value is not None else []
    largest = max((abs(entry) for entry in numbers if isinstance(entry, (int, float))), default=0)
    return (1 + sum(sizes)) * (1 + largest) * 4 <= LARGEST


def _type_of(value: Value) -> ValueType:
    return sized_type(np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _stored_value(stored: program.StoredTensor) -> Value | None:
    try:
        return None if stored.values is None else stored.array()
    except REFUSALS:
        return None  # its bytes are no values of its type


def _shape_value(node: program.Node, sizes: tuple[int, ...], frame: Frame) -> dict[str, Value]:
    """What Shape (with its range) or Size says of a tensor of these sizes; nothing of more than 64 bits count."""
    result = node.outputs[0]
    if node.operator == "onnx::Size":
        if prod(sizes) > LARGEST:
            frame.hide(node, f"onnx::Size '{result}': {prod(sizes):,} elements are more than 64 bits count")
            return {}
        return {result: np.array(prod(sizes), np.int64)}
    chosen = sizes[slice(node.attributes.get("start"), node.attributes.get("end"))]
    return {result: np.array(chosen, np.int64)}


def find_types(frame: Frame, folding: Folding) -> None:
    """Work out the types of a graph's values where the file leaves them open, before its results are placed."""
    for node in frame.body.nodes:
        if not node.bodies and node.operator != program.CONSTANT:
            result_types(node, frame, folding)


def result_types(node: program.Node, frame: Frame, folding: Folding) -> tuple[ValueType, ...]:
    """Types of a node's results: as inferred, worked out where that leaves them open, or else as the file declares."""
    types = tuple(map(frame.types.__getitem__, node.outputs))
    is_plain = bool(types) and node.signature.operator not in _OUTGROWING and not frame.hides
    for known in types:
        is_plain = is_plain and known.is_plain
    if is_plain:
        if not all(map(frame.is_as_inferred, filter(None, node.inputs))):
            folding.refuse_misfit(node, frame)
        return types
    if not types or any(known.sizes is None for known in types):
        pairs = zip(types, folding.types(node, frame), strict=True)
        types = tuple(known if known.sizes is not None or not other.code else other for known, other in pairs)
    believed = tuple(map(frame.body.believed.__getitem__, node.outputs))
    if any(known.sizes is None and other.sizes is not None for known, other in zip(types, believed, strict=True)):
        folding.refuse_misfit(node, frame)
    declared = tuple(known.or_declared(other) for known, other in zip(types, believed, strict=True))
    if declared != types and (decider := decided_by_data(node, frame)):
        folding.decided[decider] = None
    types = declared
    why = folding.outgrown(node, types, frame)
    if why:
        frame.hide(node, why)
        types = tuple([ValueType(known.code) for known in types])
    frame.types.update(zip(node.outputs, types, strict=True))
    return types


def decided_by_data(node: program.Node, frame: Frame) -> str:
    """The operator by which data decide a size that results of a node have; "" where none is behind it.

    Sizes come from operands whose own are open, and from whole numbers in a row, which may be worked out from such.
    """
    waiting, reached = [(node, frame)], set[str]()
    for maker, around in waiting:  # which grows
        if maker.operator in _DECIDED_BY_DATA and any(around.type(name).sizes is None for name in maker.outputs):
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
    bare = program.Program(light).without_shapes()
    whole = bare.typed(_inferred_by_onnx(bare))
    frame, folding = Frame(whole.graph), Folding(whole.opsets)
    find_types(frame, folding)
    names = {*whole.graph.inputs, *whole.graph.outputs, *whole.graph.makers, *whole.graph.stored}
    return {name: frame.type(name) for name in names}
