"""``quantize_weights`` for ONNX: stored integers behind a DequantizeLinear (QDQ)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models import node_rewriting
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.on_onnx import Rewritten, change_layers
from pytest_modelbudget.transforms.quantize.grid import Grid, floor_of, grid_of
from pytest_modelbudget.transforms.tile.forms_on_onnx import StoredWeight, weight_behind
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings

CODES = {8: TensorProto.INT8, 4: TensorProto.INT4}
OLDEST_OPSET = {8: 13, 4: 21}  # from which DequantizeLinear takes the type, a scale per channel
# From which operator set a dequantiser gives each type.
SCALED: dict[int, int] = {
    TensorProto.FLOAT: 13, TensorProto.FLOAT16: 19, TensorProto.BFLOAT16: 19,
}  # fmt: skip
LAYERS = frozenset({"onnx::Conv", "onnx::ConvTranspose", "onnx::Gemm", "onnx::MatMul"})


@dataclass(frozen=True, slots=True)
class Quantised:
    """Integers q, scales s and zero points z: the weight is s·(q - z), along one axis or whole."""

    integers: Any
    scale: Any
    zero_point: Any
    axis: int | None


@dataclass(frozen=True, slots=True)
class WeightedLayer:
    """A node with a weight: the stored tensor, and the axis that output channels lie along."""

    node: Node
    weight: str
    axis: int


def quantised_weights(model: onnx.ModelProto, grid: Grid, rules: OpTable | None = None) -> Rewritten:
    """The model with the weights of its selected layers stored as integers.

    rules are the project's own where none are given.
    """
    program = Program(model, rules)
    graph = DequantisedGraph(program, grid)
    changes = []
    for node, layer in weighted_nodes(program, grid):
        if isinstance(layer, str):
            changes.append(Change(node.scope, node.operator, why=layer))
            continue
        graph.redirect(layer)
        changes.append(Change(node.scope, node.operator, grid.text))
    return Rewritten(graph.result(), tuple(changes))


def weighted_nodes(program: Program, grid: Grid) -> Iterator[tuple[Node, WeightedLayer | str]]:
    """Every node that multiplies by a weight: the layer to be quantised, or why it stays."""
    is_layer = node_rewriting.multiplies_weight(Over.FEATURES, Over.CHANNELS)
    for operation in node_rewriting.operations_of(program, is_layer, layer_of):
        if isinstance(operation, WeightedLayer):
            yield operation.node, _why_not(operation, grid, program) or operation
        else:
            yield operation.node, operation.why


def layer_of(node: Node, program: Program) -> WeightedLayer | node_rewriting.WholeOperation:
    """The node as a layer with a stored weight, or why it is none."""
    name, graph = node.operator, program.graph
    if name not in LAYERS:
        return node_rewriting.WholeOperation(node, "its type is not quantised")
    if name in {"onnx::Gemm", "onnx::MatMul"}:
        weight = weight_behind(node.inputs[1], program)
        if isinstance(weight, StoredWeight):
            is_turned = weight.turned != bool(node.attributes.get("transB", 0))
            return WeightedLayer(node, weight.name, 0 if is_turned else 1)
        is_left = node.inputs[0] in graph.constants
        computed = "the left operand" if is_left else "computed in the graph"
        return node_rewriting.WholeOperation(node, weight or f"its weight is {computed}")
    if node.inputs[1] not in graph.stored:
        return node_rewriting.WholeOperation(node, "its weight is computed in the graph, or quantised already")
    return WeightedLayer(node, node.inputs[1], 1 if name == "onnx::ConvTranspose" else 0)


def _why_not(layer: WeightedLayer, grid: Grid, program: Program) -> str:
    """Why a layer's weight stays as it is; "" where it is quantised."""
    if not grid.selects(layer.node.scope):
        return LEFT_OUT
    why = node_rewriting.why_unusable(layer.weight, program)
    if why:
        return why
    opset, kind = program.opsets.get("", 0), program.graph.stored[layer.weight].proto.data_type
    name = TensorProto.DataType.Name(kind).lower()
    if kind not in SCALED:
        return f"its weight '{layer.weight}' is {name}, which no DequantizeLinear gives"
    if opset < SCALED[kind]:
        return f"operator set {opset} has no DequantizeLinear to {name}: {SCALED[kind]} has"
    if opset < OLDEST_OPSET[grid.bits]:
        return f"operator set {opset} has no int{grid.bits} weights: {OLDEST_OPSET[grid.bits]} has"
    return ""


class DequantisedGraph:
    """A graph of which chosen layers, and no other reader, have weights behind a DequantizeLinear.

    A weight has one for each axis that its scales lie along. What stands between a weight and a
    chosen layer (Transpose, Identity) is written once more behind it, under a fresh name.
    """

    def __init__(self, program: Program, grid: Grid) -> None:
        self._program, self._graph, self._grid = program, program.graph, grid
        self._names = node_rewriting.Names(program.model)
        self._nodes: list[NodeProto] = []
        self._tensors: list[TensorProto] = []
        self._made: dict[tuple[str, int | None], str] = {}
        self._reads: dict[str, str] = {}

    def redirect(self, layer: WeightedLayer) -> None:
        """Let a layer read its weight as integers give it."""
        self._reads[layer.node.outputs[0]] = self._behind(layer.node.inputs[1], layer)

    def _behind(self, value: str, layer: WeightedLayer) -> str:
        """What takes the place of a value between a layer and its stored weight."""
        key = value, layer.axis if self._grid.per_channel else None
        if key not in self._made:
            if value in self._graph.stored:
                made = self._dequantizer(layer)
            else:
                made = NodeProto()
                made.CopyFrom(self._graph.makers[value].proto)
                made.name = f"{node_rewriting.path_within(made)}.dequantized"
                made.input[0] = self._behind(made.input[0], layer)
                made.output[0] = self._names.stem(value, ".dequantized")
            self._nodes.append(made)
            self._made[key] = made.output[0]
        return self._made[key]

    def _dequantizer(self, layer: WeightedLayer) -> NodeProto:
        """A DequantizeLinear that gives a layer's weight under a fresh name."""
        node, name, code = layer.node.proto, layer.weight, CODES[self._grid.bits]
        whole = self._graph.stored[name]
        weight = whole.array()
        parts = quantised(weight, self._grid, layer.axis if self._grid.per_channel else None)
        ends = (".quantized", ".scale", ".zero_point")
        reads = [self._names.stem(name, end) for end in ends]
        tensors = [
            _integers(reads[0], code, list(weight.shape), parts.integers),
            numpy_helper.from_array(parts.scale, reads[1]),
            _integers(reads[2], code, list(parts.scale.shape), parts.zero_point),
        ]
        tensors[0].metadata_props.extend(whole.proto.metadata_props)
        self._tensors += tensors
        result = self._names.stem(name, ".dequantized")
        made = helper.make_node("DequantizeLinear", reads, [result], name=f"{node_rewriting.path_within(node)}.weight")
        made.metadata_props.extend(node.metadata_props)
        if parts.axis is not None:
            made.attribute.append(helper.make_attribute("axis", parts.axis))
        return made

    def result(self) -> onnx.ModelProto:
        """The model, without floating weights that nothing reads any more."""
        nodes = [*self._nodes, *map(self._redirected, self._program.model.graph.node)]
        return node_rewriting.with_nodes(self._program, nodes, self._tensors)

    def _redirected(self, node: NodeProto) -> NodeProto:
        if not node.output or node.output[0] not in self._reads:
            return node
        made = NodeProto()
        made.CopyFrom(node)
        made.input[1] = self._reads[node.output[0]]
        return made


def _integers(name: str, code: int, shape: list[int], values: Any) -> TensorProto:
    """A stored tensor of small integers; two of four bits share a byte."""
    array = values.reshape(shape).astype(tensor_dtype_to_np_dtype(code))
    return numpy_helper.from_array(array, name)


def quantised(weight: Any, grid: Grid, axis: int | None) -> Quantised:
    """The integers nearest to a weight, on a grid of its own or one for each channel."""
    import numpy as np

    wide = weight.astype(np.float64)
    others = tuple(each for each in range(wide.ndim) if each != axis)
    least = np.minimum(wide.min(others, keepdims=True), 0.0)
    most = np.maximum(wide.max(others, keepdims=True), 0.0)
    low, high = grid.ends
    scale = np.maximum(-least, most) / high if grid.symmetric else (most - least) / (high - low)
    scale = _rounded_up(np.where(scale > 0, scale, 1.0), weight.dtype)
    step = scale.astype(np.float64)
    zero = np.zeros_like(step) if grid.symmetric else np.clip(np.rint(low - least / step), low, high)
    integers = np.clip(np.rint(wide / step) + zero, low, high)
    few = () if axis is None else (-1,)
    return Quantised(integers, scale.reshape(few), zero.reshape(few), axis)


def _rounded_up(wide: Any, dtype: Any) -> Any:
    """Float64 scales in the type that stores them: no peak is off the grid, however small it is."""
    import numpy as np

    near = wide.astype(dtype)
    above = np.nextafter(near, dtype.type(np.inf))
    return np.where(near.astype(np.float64) < wide, above, near)


def off_grid(before: onnx.ModelProto, after: onnx.ModelProto, grid: Grid) -> tuple[str, ...]:
    """Scopes of layers that were to be quantised and do not read w = s·(q - z), to half a step."""
    then, now = Program(before), Program(after).graph
    scopes = []
    for node, layer in weighted_nodes(then, grid):
        if isinstance(layer, str):
            continue
        weight = then.graph.stored[layer.weight].array()
        dequantizer = _dequantizer(now.makers[node.outputs[0]].inputs[1], now)
        if dequantizer is None or not _gives(dequantizer, weight, now, grid):
            scopes.append(node.scope)
    return tuple(scopes)


def _dequantizer(name: str, graph: Body) -> Node | None:
    """The DequantizeLinear behind a weight, or None."""
    maker = graph.makers.get(name)
    while maker is not None and maker.hands_on:
        maker = graph.makers.get(maker.hands_on)
    return maker if maker is not None and maker.operator == "onnx::DequantizeLinear" else None


def _gives(dequantizer: Node, weight: Any, graph: Body, grid: Grid) -> bool:
    """Whether a dequantiser reads stored integers of so many bits that stand for a weight."""
    import numpy as np

    reads = dequantizer.inputs
    if any(name not in graph.stored for name in reads):
        return False
    if graph.stored[reads[0]].proto.data_type != CODES[grid.bits]:
        return False
    integers, step, zero = (graph.stored[name].array().astype(np.float64) for name in reads)
    if step.ndim:
        axis = dequantizer.attributes.get("axis", 1) % weight.ndim
        along = [-1 if each == axis else 1 for each in range(weight.ndim)]
        step, zero = step.reshape(along), zero.reshape(along)
    low, high = grid.ends
    off = np.abs(step * (integers - zero) - weight.astype(np.float64)) / step
    is_close = bool((off <= grid.most_steps_off).all())
    return is_close and low <= integers.min() and integers.max() <= high


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model with integer weights; TransformError where no layer was changed."""
    grid = grid_of(settings)

    def rewrite(proto: onnx.ModelProto) -> Rewritten:
        quantised = quantised_weights(proto, grid, model.rules)
        wrong = off_grid(proto, quantised.model, grid)
        if wrong:
            words = "reads a weight off the grid: leave it out with layers:"
            raise TransformError(f"quantize_weights: '{wrong[0]}' {words}")
        return quantised

    changed = change_layers(model, rewrite, grid.layers, _must_change)
    count = sum(1 for change in changed.changes if change.became)
    return replace(changed, floor=floor_of(grid.bits, count))


def _must_change(changes: Sequence[Change]) -> None:
    """Raises TransformError where no layer was changed."""
    if not any(change.became for change in changes):
        whys = [each.why for each in changes if each.why != LEFT_OUT]
        why = whys[0] if whys else "the model has no layer that layers: selects"
        raise TransformError(f"quantize_weights changed nothing: {why}")
