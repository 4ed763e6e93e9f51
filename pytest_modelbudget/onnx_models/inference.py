"""Values and shapes that onnx's inference leaves open, worked out where they decide a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
import onnx.inliner
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.shape_inference import InferenceError

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.onnx_models import program
from pytest_modelbudget.onnx_models.contrib_types import CONTRIB_TYPES, DELEGATES, contrib_types
from pytest_modelbudget.onnx_models.files import ReadModel, weightless


def with_shapes(model: ReadModel, file: str) -> onnx.ModelProto:
    """The model with local functions written out and a type beside every value that has one.

    Raises SourceError where onnx finds the types of two operations at odds.
    """
    proto = model.proto
    with user_code(f"{file} is no valid model: working out its shapes", SourceError):
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    if len(inferred.graph.node) != len(proto.graph.node):
        raise SourceError(f"{file}: onnx could not work out the shapes of this model")
    return inferred


@dataclass
class Frame:
    """One graph while it is read: the tensors made so far, and what is known of their values.

    times is how often the graph runs. placed says on whose memory a result must lie, where a loop stacks it.
    """

    body: program.Body
    outer: Frame | None = None
    times: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    types: dict[str, program.ValueType] = field(default_factory=dict)
    values: dict[str, TensorProto | None] = field(default_factory=dict)
    placed: dict[str, Storage] = field(default_factory=dict)

    def inside(self, body: program.Body, *, times: int = 1) -> Frame:
        """A frame for a body inside this graph, which runs so often for each run of this."""
        return Frame(body, self, self.times * times)

    def place(self, name: str, tensor: Tensor, known: program.ValueType) -> None:
        """Let a value be a tensor of a type, from here on."""
        self.tensors[name], self.types[name] = tensor, known

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of a value; None for one that nothing has made yet."""
        tensor = self.tensors.get(name)
        return self.outer.tensor(name) if tensor is None and self.outer else tensor

    def type(self, name: str) -> program.ValueType:
        """What is known of a value's type."""
        known = self.types.get(name)
        if known is not None:
            return known
        if name in self.body.stored:
            return program.tensor_type(self.body.stored[name].proto)
        if self.outer is None or name in self.body.types:
            return self.body.types[name]
        return self.outer.type(name)

    def home(self, name: str) -> Frame | None:
        """The frame of the graph that makes or stores a value."""
        if name in self.tensors or name in self.body.stored or name in self.body.makers:
            return self
        return self.outer.home(name) if self.outer else None


KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml"})  # domains whose operators onnx itself knows
MOST_ELEMENTS = 65_536  # of a value that is worked out before the run
DEEPEST = 200  # operations between a constant and the shape it decides
# What onnx's reference implementation raises for what it does not do.
REFUSALS = (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
_DRAWN = frozenset({
    "onnx::Bernoulli", "onnx::Multinomial", "onnx::RandomNormal", "onnx::RandomNormalLike",
    "onnx::RandomUniform", "onnx::RandomUniformLike", "onnx::ImageDecoder",
})  # fmt: skip
# Operators whose results are as large as the values of their operands say.
_GROWING = frozenset({
    "onnx::ConstantOfShape", "onnx::Expand", "onnx::Tile", "onnx::Range", "onnx::Pad",
    "onnx::Resize", "onnx::Upsample", "onnx::OneHot", "onnx::EyeLike", "onnx::CenterCropPad",
    "onnx::HannWindow", "onnx::HammingWindow", "onnx::BlackmanWindow", "onnx::MelWeightMatrix",
    "onnx::AffineGrid", "onnx::Col2Im",
})  # fmt: skip


class Folding:
    """What a model's constants decide, one node at a time and only when asked."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets
        self._imports = [onnx.helper.make_opsetid(*opset) for opset in opsets.items()]

    def value(self, name: str, frame: Frame, depth: int = 0) -> TensorProto | None:
        """A value that is the same in every run, or None."""
        home = frame.home(name)
        if home is None or depth > DEEPEST:
            return None
        if name not in home.values:
            home.values[name] = None  # a cycle ends here
            home.values[name] = self._value(name, home, depth)
        return home.values[name]

    def _value(self, name: str, frame: Frame, depth: int) -> TensorProto | None:
        stored = frame.body.stored.get(name)
        if stored is not None:
            return stored.values
        node = frame.body.makers.get(name)
        return self._results(node, frame, depth).get(name) if node is not None else None

    def _results(self, node: program.Node, frame: Frame, depth: int) -> dict[str, TensorProto]:
        """All results of a node whose operands are known; none where one is not."""
        if node.operator in {"onnx::Shape", "onnx::Size"}:
            sizes = frame.type(node.inputs[0]).sizes
            return {node.outputs[0]: _shape_value(node, sizes)} if sizes is not None else {}
        if node.operator in _DRAWN or node.bodies or _domain(node) not in KNOWN_DOMAINS:
            return {}
        operands = {name: self.value(name, frame, depth + 1) for name in node.inputs if name}
        known = {name: value for name, value in operands.items() if value is not None}
        if len(known) < len(operands) or _grows_large(known.values(), frame, node):
            return {}
        return self._computed(node, known)

    def _computed(self, node: program.Node, operands: Mapping[str, TensorProto]) -> dict[str, TensorProto]:
        """Results by onnx's own reference implementation; none where it has none."""
        from onnx.reference import ReferenceEvaluator

        inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in operands]
        outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.outputs if name]
        graph = onnx.helper.make_graph([node.proto], "one", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self._imports)
        feeds = {name: numpy_helper.to_array(value) for name, value in operands.items()}
        try:
            results = ReferenceEvaluator(model).run(None, feeds)
            return {
                output.name: numpy_helper.from_array(np.asarray(result), output.name)
                for output, result in zip(outputs, results, strict=True)
            }
        except REFUSALS:
            return {}  # then the shape stays unknown, and that is said

    def types(self, node: program.Node, frame: Frame) -> tuple[program.ValueType, ...]:
        """Types of a node's results, from its operands' types and those values that are known."""
        types = self._inferred(node, frame)
        if all(known.sizes is not None for known in types):
            return types
        results = self._results(node, frame, 0)
        return tuple(
            program.tensor_type(results[name]) if name in results else known
            for name, known in zip(node.outputs, types, strict=True)
        )

    def _inferred(self, node: program.Node, frame: Frame) -> tuple[program.ValueType, ...]:
        unknown = program.NOTHING_KNOWN
        nothing = (unknown,) * len(node.outputs)
        operands = {name: frame.type(name) for name in node.inputs if name}
        proto, domain = node.proto, _domain(node)
        if node.operator in DELEGATES:
            proto, domain = self._delegate(proto, *DELEGATES[node.operator]), ""
        elif node.operator in CONTRIB_TYPES or domain not in KNOWN_DOMAINS:
            return contrib_types(node, operands)
        if any(not known.code for known in operands.values()):
            return nothing
        values = {name: self.value(name, frame) for name in operands}
        try:
            types = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(proto.op_type, self._opsets.get(domain, 1), domain),
                proto,
                {name: onnx.helper.make_tensor_type_proto(known.code, known.shape) for name, known in operands.items()},
                {name: value for name, value in values.items() if value is not None},
                opset_imports=self._imports,
            )
        except (*REFUSALS, onnx.checker.ValidationError, onnx.defs.SchemaError, InferenceError):
            return nothing
        return tuple(
            program.value_type(types[name]) if name in types else program.NOTHING_KNOWN for name in node.outputs
        )

    def _delegate(self, node: NodeProto, standard: str, operands: slice) -> NodeProto:
        """The standard operator that gives results of the same types, with what it knows."""
        schema = onnx.defs.get_schema(standard, self._opsets.get("", 1))
        made = onnx.helper.make_node(standard, node.input[operands], node.output[: schema.max_output])
        made.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
        return made


def _domain(node: program.Node) -> str:
    return "" if node.proto.domain in program.STANDARD else str(node.proto.domain)


def _shape_value(node: program.Node, sizes: tuple[int, ...]) -> TensorProto:
    """What Shape (with its range) or Size says of a tensor of these sizes."""
    if node.operator == "onnx::Size":
        return onnx.helper.make_tensor(node.outputs[0], TensorProto.INT64, (), [prod(sizes)])
    chosen = sizes[slice(node.attributes.get("start"), node.attributes.get("end"))]
    return onnx.helper.make_tensor(node.outputs[0], TensorProto.INT64, (len(chosen),), chosen)


def _grows_large(operands: Iterable[TensorProto], frame: Frame, node: program.Node) -> bool:
    """Whether a result may be too large to be worked out here."""
    known = [frame.type(name).sizes for name in node.outputs if name]
    if all(sizes is not None for sizes in known):
        return any(prod(sizes) > MOST_ELEMENTS for sizes in known if sizes is not None)
    largest = 1
    for value in operands:
        if value.data_type == TensorProto.INT64 and prod(value.dims) <= 16:
            entries = [abs(int(entry)) or 1 for entry in numpy_helper.to_array(value).flat]
            largest = max(largest, prod(entries))
    return largest > MOST_ELEMENTS and node.operator in _GROWING


def inferred_types(model: onnx.ModelProto) -> program.DeclaredTypes:
    """The types of a model's values, as far as onnx can work them out."""
    inferred = onnx.shape_inference.infer_shapes(weightless(model), data_prop=True)
    return program.declared_types(inferred.graph)
