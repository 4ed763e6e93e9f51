"""``quantize`` on ONNX graphs: integers behind a DequantizeLinear where a graph can say so, else the values of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import LoadedModel, Watch
from pytest_modelbudget.onnx_models import protos
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.node_rewriting import Names, why_unusable
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.quantize.costs import Quantised, changed, quantised
from pytest_modelbudget.transforms.quantize.grid import Grid, OnGrid, Scheme, on_grid, scheme_of
from pytest_modelbudget.transforms.quantize.values import (
    Ends,
    Point,
    Points,
    Scales,
    bias_on_grid,
    calibrated,
    ends_of,
    points_of,
)
from pytest_modelbudget.transforms.transform import Changed, Settings

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values

OF_BLOCKS = 21  # operator set from which DequantizeLinear has scales for groups, and types of four bits
# From which operator set one with a scale for each channel gives each type.
SCALED: dict[int, int] = {TensorProto.FLOAT: 13, TensorProto.FLOAT16: 19, TensorProto.BFLOAT16: 19}
CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The graph on integers; raises TransformError where nothing would be."""
    scheme = scheme_of(settings)
    plan = quantised(model, model.rules, scheme)
    made = OnnxModel(QuantisedFile(model, plan, scheme), model.rules, weights=model.weights, is_exact=model.is_exact)
    return changed(made, plan, scheme, is_copy=model.is_copy)


@dataclass(frozen=True, eq=False)
class QuantisedFile:
    """A graph with integers, made when it is run, and measured as the program on these."""

    original: OnnxModel
    plan: Quantised
    scheme: Scheme

    @property
    def name(self) -> str:
        return self.original.source.name

    @property
    def dims(self) -> Mapping[str, int]:
        return self.original.source.dims

    def measured(self, rules: OpTable) -> LoadedModel:
        return self.plan.measured

    def program(self, rules: OpTable) -> Program:
        original, points = self.original, points_of(self.plan, rules)
        if original.is_exact:
            original.upcast_values()
        names = {point: point.tensor.name for point in points.points.values()}

        def observe(inputs: Arrays) -> Iterator[tuple[Point, Ends]]:
            made = {point: name for point, name in names.items() if name not in inputs}
            values = {**inputs, **original.run(inputs, Watch(names=tuple(made.values()))).values}
            yield from ((point, ends_of(values[name])) for point, name in names.items())

        scales = calibrated(points, original, self.scheme.calibrate, observe)
        graph = IntegerGraph(original.program, self.scheme.group)
        graph.store(self.plan)
        graph.round(points, scales)
        return Program(graph.model(), rules)


class IntegerGraph:
    """A graph with integers in place of every chosen weight, for all that read it, and values that are rounded."""

    def __init__(self, program: Program, group: int) -> None:
        self._program, self._group = program, group
        self._opset = program.opsets.get("", 0)
        self._names = Names(program.model)
        self._nodes: list[NodeProto] = []  # before all others
        self._rounding: dict[str, tuple[str, list[NodeProto]]] = {}  # by value: its name before, and what rounds it
        self._stored: dict[str, list[TensorProto]] = {}
        self._scales: dict[str, Values] = {}

    def store(self, plan: Quantised) -> None:
        """Store the integers of every weight; where no DequantizeLinear gives it, the values that they stand for."""
        for shown, grid, axes in plan.on_grids:
            name = _stored_in(self._program, shown)
            whole = self._program.graph.stored[name]
            values = whole.array()
            parts = on_grid(values, grid, axes, self._group, name=shown)
            self._scales[shown] = parts.scale
            if self._is_sayable(parts, grid, axes, whole.proto.data_type):
                self._dequantize(name, grid, axes, parts)
            else:
                self._stored[name] = [protos.with_values(whole.proto, parts.values(axes, values.dtype))]
                self._stored[name][0].name = name

    def _is_sayable(self, parts: OnGrid, grid: Grid, axes: tuple[int, ...], dtype: int) -> bool:
        """Whether a DequantizeLinear gives a weight of these integers and scales."""
        is_blocked = parts.scale.shape[1] > 1
        least = OF_BLOCKS if is_blocked else SCALED.get(dtype, self._opset + 1)
        has_axis = len(axes) < 2 and (not is_blocked or (len(axes) == 1 and parts.integers.ndim == 2))
        return grid.bits <= 8 and has_axis and self._opset >= least

    def _dequantize(self, name: str, grid: Grid, axes: tuple[int, ...], parts: OnGrid) -> None:
        scale, zero, attributes = parts.scale.reshape(()) if parts.scale.size == 1 else parts.scale, parts.zero, {}
        if parts.scale.shape[1] > 1:
            attributes = {"axis": 1 - axes[0], "block_size": self._group}
            scale, zero = (each.T if axes[0] else each for each in (scale, zero))
        elif axes:
            attributes, scale = {"axis": axes[0]}, parts.scale.reshape(-1)
        code = TensorProto.INT4 if grid.bits <= 4 and self._opset >= OF_BLOCKS else TensorProto.INT8
        reads = [(parts.integers, code), (scale, 0)]
        if not grid.symmetric and grid.frac is None:
            reads.append((zero.reshape(scale.shape), code))
        self._node("DequantizeLinear", name, reads, **attributes)

    def _node(self, operator: str, result: str, reads: Sequence[tuple[Values, int]], **attributes: int) -> None:
        """A node before all others, over stored tensors; a code of 0 leaves their type."""
        inputs = [self._names.stem(result, end) for end in (".quantized", ".scale", ".zero_point")][: len(reads)]
        arrays = [each.astype(tensor_dtype_to_np_dtype(code)) if code else each for each, code in reads]
        tensors = [numpy_helper.from_array(each, name) for each, name in zip(arrays, inputs, strict=True)]
        self._stored[result] = tensors
        label = self._names.stem(result, ".dequantize")
        node = helper.make_node(operator, inputs, [result], name=label)
        node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        self._nodes.append(node)

    def round(self, points: Points, scales: Scales) -> None:
        """Round values behind what gives them, and store the integers of biases."""
        for point, (scale, zero) in scales.items():
            self._round(point, scale, zero)
        for bias in points.biases.values():
            name = _stored_in(self._program, bias.bias.name)
            values = self._program.graph.stored[name].array()
            integers, step = bias_on_grid(values, bias, self._scales[bias.weight], scales)
            step = (step if step.size > 1 else step.reshape(())).astype(values.dtype)
            axis = {"axis": 0} if step.ndim else {}
            self._node("DequantizeLinear", name, [(integers.astype(np.int32), 0), (step, 0)], **axis)

    def _round(self, point: Point, scale: float, zero: int) -> None:
        """QuantizeLinear and DequantizeLinear behind a value, and a Clip where its integers are fewer than a type's."""
        name, grid = point.tensor.name, point.grid
        container = TensorProto.INT8 if grid.bits <= 8 else TensorProto.INT16
        dtype = CODES.get(point.tensor.dtype.name, TensorProto.DOUBLE)
        least = OF_BLOCKS if grid.bits > 8 else SCALED.get(dtype, self._opset + 1)
        if grid.bits > 16 or self._opset < least:
            words = f"operator set {self._opset} has no int{grid.bits} of {point.tensor.dtype.name}"
            raise TransformError(f"quantize: activations: {words}: export a newer one, or write 8 bits")
        stem = self._names.stem(name, ".rounded")
        as_float, as_integer = tensor_dtype_to_np_dtype(dtype), tensor_dtype_to_np_dtype(container)
        ends = [(each - zero) * scale for each in grid.ends]
        constants = {"scale": np.array(scale, as_float), "zero": np.array(zero, as_integer),
                     "low": np.array(ends[0], as_float), "high": np.array(ends[1], as_float)}  # fmt: skip
        self._stored[stem] = [numpy_helper.from_array(each, f"{stem}.{word}") for word, each in constants.items()]
        reads = [f"{stem}.scale", f"{stem}.zero"]
        nodes = [
            helper.make_node("Clip", [f"{stem}.float", f"{stem}.low", f"{stem}.high"], [f"{stem}.clipped"]),
            helper.make_node("QuantizeLinear", [f"{stem}.clipped", *reads], [f"{stem}.integers"]),
            helper.make_node("DequantizeLinear", [f"{stem}.integers", *reads], [name]),
        ]
        for node in nodes:
            node.name = node.output[0] if node.output[0] != name else stem
        self._rounding[name] = f"{stem}.float", nodes

    def model(self) -> onnx.ModelProto:
        """The model with all of this."""
        graph, inputs = self._program.model.graph, {value.name for value in self._program.model.graph.input}
        nodes = [*self._nodes]
        entering = {name: stem for name, (stem, _) in self._rounding.items() if name in inputs}
        for name in entering:
            before, rounding = self._rounding[name]
            rounding[0].input[0] = name
            rounding[-1].output[0] = before
            nodes += rounding
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] in self._stored:
                continue
            made = NodeProto()
            made.CopyFrom(node)
            for at, name in enumerate(node.input):
                made.input[at] = entering.get(name, name)
            following = []
            for at, name in enumerate(node.output):
                if name in self._rounding:
                    made.output[at], rounding = self._rounding[name]
                    following += rounding
            nodes += [made, *following]
        kept = [tensor for tensor in graph.initializer if tensor.name not in self._stored]
        return protos.with_graph(self._program.model, nodes, [*kept, *chain(*self._stored.values())])


def _stored_in(program: Program, shown: str) -> str:
    """The name that a file has for a stored tensor: the scope of a reader, which may stand before it, is none of it."""
    parts = shown.split(".")
    names = (".".join(parts[at:]) for at in range(len(parts)))
    name = next((each for each in names if each in program.graph.stored), None)
    why = why_unusable(name, program) if name else f"'{shown}' is stored in a body of the graph"
    if why or name is None:
        raise TransformError(f"quantize: {why}: keep its layer")
    return name
