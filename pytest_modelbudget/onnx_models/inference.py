"""Values and shapes that onnx's inference leaves open, worked out where they decide a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import onnx
import onnx.inliner
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from onnx.shape_inference import InferenceError

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.onnx_models.contrib_types import CONTRIB_TYPES, DELEGATES, contrib_types
from pytest_modelbudget.onnx_models.files import MOST_ELEMENTS_KEPT, ReadModel, has_values
from pytest_modelbudget.onnx_models.program import (
    NOTHING_KNOWN,
    Body,
    ValueType,
    elements_of,
    op_name,
    tensor_type,
    type_proto,
    value_type,
    with_graph,
    strip_values,
)


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


@dataclass(frozen=True, slots=True)
class DeclaredTypes:
    """Types that a graph declares or inference found, by value; decoded when asked for."""

    protos: Mapping[str, onnx.TypeProto]

    def __getitem__(self, name: str) -> ValueType:
        proto = self.protos.get(name)
        return NOTHING_KNOWN if proto is None else value_type(proto)


def declared_types(graph: onnx.GraphProto) -> DeclaredTypes:
    """The types that stand in one graph, without those of bodies inside it."""
    values = (*graph.value_info, *graph.output, *graph.input)
    return DeclaredTypes({value.name: value.type for value in values})


@dataclass
class Frame:
    """One graph while it is read: the tensors made so far, and what is known of their values.

    shapes are values that only lead to shapes. times is how often the graph runs. placed says on
    whose memory a result must lie, where a loop stacks it.
    """

    body: Body
    declared: DeclaredTypes
    shapes: frozenset[str]
    outer: Frame | None = None
    times: int = 1
    prefix: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    stored: dict[str, onnx.TensorProto] = field(default_factory=dict)
    values: dict[str, onnx.TensorProto | None] = field(default_factory=dict)
    placed: dict[str, Storage] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of a value; None for one that nothing has made yet."""
        found = self.tensors.get(name)
        return self.outer.tensor(name) if found is None and self.outer else found

    def type(self, name: str) -> ValueType:
        """What is known of a value's type."""
        known = self.types.get(name)
        if known is not None:
            return known
        if name in self.stored:
            return tensor_type(self.stored[name])
        if self.outer is None or name in self.declared.protos:
            return self.declared[name]
        return self.outer.type(name)

    def home(self, name: str) -> Frame | None:
        """The frame of the graph that makes or stores a value."""
        if name in self.tensors or name in self.stored or name in self.producers:
            return self
        return self.outer.home(name) if self.outer else None

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that makes each value of this graph."""
        return {name: step.node for step in self.body.steps for name in step.outputs if name}


KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml"})  # domains whose operators onnx itself knows
MOST_ELEMENTS = 65_536  # of a value that is worked out before the run
DEEPEST = 200  # operations between a constant and the shape it decides
# What onnx's reference implementation raises for what it does not do.
REFUSALS = (
    ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_DRAWN = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "ImageDecoder",
})  # fmt: skip


class Folding:
    """What a model's constants decide, one node at a time and only when asked."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets
        self._imports = [onnx.helper.make_opsetid(*each) for each in opsets.items()]

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
        stored = frame.stored.get(name)
        if stored is not None:
            return stored if has_values(stored) else None
        node = frame.producers.get(name)
        return self._results(node, frame, depth).get(name) if node is not None else None

    def _results(self, node: NodeProto, frame: Frame, depth: int) -> dict[str, TensorProto]:
        """All results of a node whose operands are known; none where one is not."""
        if node.op_type in {"Shape", "Size"} and not node.domain:
            sizes = frame.type(node.input[0]).sizes
            return {node.output[0]: _shape_value(node, sizes)} if sizes is not None else {}
        if node.op_type in _DRAWN or _has_body(node) or _domain(node) not in KNOWN_DOMAINS:
            return {}
        operands = {each: self.value(each, frame, depth + 1) for each in node.input if each}
        known = {each: value for each, value in operands.items() if value is not None}
        if len(known) < len(operands) or _grows_large(known.values(), frame, node):
            return {}
        return self._computed(node, known)

    def _computed(
        self, node: NodeProto, operands: Mapping[str, TensorProto]
    ) -> dict[str, TensorProto]:
        """Results by onnx's own reference implementation; none where it has none."""
        from onnx.reference import ReferenceEvaluator

        inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in operands]
        outputs = [
            onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name
        ]
        graph = onnx.helper.make_graph([node], "one", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self._imports)
        feeds = {name: numpy_helper.to_array(value) for name, value in operands.items()}
        try:
            results = ReferenceEvaluator(model).run(None, feeds)
            return {
                output.name: numpy_helper.from_array(_array(result), output.name)
                for output, result in zip(outputs, results, strict=True)
            }
        except REFUSALS:
            return {}  # then the shape stays unknown, and that is said

    def types(self, node: NodeProto, frame: Frame) -> tuple[ValueType, ...]:
        """Types of a node's results, from its operands' types and those values that are known."""
        found = self._inferred(node, frame)
        if all(each.sizes is not None for each in found):
            return found
        results = self._results(node, frame, 0)
        return tuple(
            tensor_type(results[name]) if name in results else known
            for name, known in zip(node.output, found, strict=True)
        )

    def _inferred(self, node: NodeProto, frame: Frame) -> tuple[ValueType, ...]:
        results = tuple(node.output)
        nothing = (NOTHING_KNOWN,) * len(results)
        operands = {name: frame.type(name) for name in node.input if name}
        name = op_name(node)
        if name in DELEGATES:
            node = self._delegate(node, *DELEGATES[name])
        elif name in CONTRIB_TYPES or _domain(node) not in KNOWN_DOMAINS:
            return contrib_types(name, node, operands)
        if any(not each.code for each in operands.values()):
            return nothing
        values = {name: self.value(name, frame) for name in operands}
        version = self._opsets.get(_domain(node), 1)
        try:
            types = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, version, _domain(node)),
                node,
                {name: type_proto(each) for name, each in operands.items()},
                {name: value for name, value in values.items() if value is not None},
                opset_imports=self._imports,
            )
        except (*REFUSALS, onnx.checker.ValidationError, onnx.defs.SchemaError, InferenceError):
            return nothing
        return tuple(
            value_type(types[name]) if name in types else NOTHING_KNOWN for name in results
        )

    def _delegate(self, node: NodeProto, standard: str, operands: slice) -> NodeProto:
        """The standard operator that gives results of the same types, with what it knows."""
        schema = onnx.defs.get_schema(standard, self._opsets.get("", 1))
        made = onnx.helper.make_node(
            standard, node.input[operands], node.output[: schema.max_output]
        )
        made.attribute.extend(each for each in node.attribute if each.name in schema.attributes)
        return made


def _has_body(node: NodeProto) -> bool:
    return any(each.type == AttributeProto.GRAPH for each in node.attribute)


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _shape_value(node: NodeProto, sizes: tuple[int, ...]) -> TensorProto:
    """What Shape (with its range) or Size says of a tensor of these sizes."""
    if node.op_type == "Size":
        return onnx.helper.make_tensor(node.output[0], TensorProto.INT64, (), [prod(sizes)])
    bounds = {each.name: each.i for each in node.attribute}
    chosen = sizes[slice(bounds.get("start"), bounds.get("end"))]
    return onnx.helper.make_tensor(node.output[0], TensorProto.INT64, (len(chosen),), chosen)


def _grows_large(operands: Iterable[TensorProto], frame: Frame, node: NodeProto) -> bool:
    """Whether a result may be too large to be worked out here."""
    known = [frame.type(name).sizes for name in node.output if name]
    if all(sizes is not None for sizes in known):
        return any(prod(sizes) > MOST_ELEMENTS for sizes in known if sizes is not None)
    largest = 1
    for value in operands:
        if value.data_type == TensorProto.INT64 and elements_of(value) <= 16:
            entries = [abs(int(each)) or 1 for each in numpy_helper.to_array(value).flat]
            largest = max(largest, prod(entries))
    return largest > MOST_ELEMENTS and node.op_type in {
        "ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Upsample", "OneHot",
        "EyeLike", "CenterCropPad", "HannWindow", "HammingWindow", "BlackmanWindow",
        "MelWeightMatrix", "AffineGrid", "Col2Im",
    }  # fmt: skip


def _array(result: Any) -> Any:
    import numpy as np

    return np.asarray(result)


def inferred_types(model: onnx.ModelProto) -> DeclaredTypes:
    """The types of a model's values, as far as onnx can work them out."""
    inferred = onnx.shape_inference.infer_shapes(weightless(model), data_prop=True)
    return declared_types(inferred.graph)


def weightless(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the values of its initialisers, but for small ones."""
    stored = (
        tensor if elements_of(tensor) <= MOST_ELEMENTS_KEPT else strip_values(tensor)
        for tensor in model.graph.initializer
    )
    return with_graph(model, model.graph.node, stored)
