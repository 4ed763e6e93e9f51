"""``quantize`` on ONNX graphs: integers behind a DequantizeLinear where a graph can say so, else the values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.onnx_models import protos
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.node_rewriting import Names, why_unusable
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.quantize.costs import Quantised, changed, quantised
from pytest_modelbudget.transforms.quantize.grid import Grid, OnGrid, Scheme, on_grid, scheme_of
from pytest_modelbudget.transforms.transform import Changed, Settings

OF_BLOCKS = 21  # operator set from which DequantizeLinear has scales for groups, and types of four bits
# From which operator set one with a scale for each channel gives each type.
SCALED: dict[int, int] = {TensorProto.FLOAT: 13, TensorProto.FLOAT16: 19, TensorProto.BFLOAT16: 19}


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
        if self.original.is_exact:
            self.original.upcast_values()
        return Program(quantised_graph(self.original.program, self.plan, self.scheme.group), rules)


def quantised_graph(program: Program, plan: Quantised, group: int) -> onnx.ModelProto:
    """The graph with integers in place of every chosen weight, for all that read it."""
    names, nodes, tensors = Names(program.model), list[NodeProto](), dict[str, list[TensorProto]]()
    for shown, grid, axes in plan.on_grids:
        name = _stored_in(program, shown)
        whole = program.graph.stored[name]
        values = whole.array()
        parts = on_grid(values, grid, axes, group, name=shown)
        made = _dequantized(name, parts, grid, axes, program, names, group)
        if made is None:
            tensors[name] = [protos.with_values(whole.proto, parts.values(axes, values.dtype))]
            tensors[name][0].name = name
        else:
            nodes.append(made[0])
            tensors[name] = made[1]
    graph = program.model.graph
    kept = [node for node in graph.node if not (node.op_type == "Constant" and node.output[0] in tensors)]
    stored = [tensor for tensor in graph.initializer if tensor.name not in tensors]
    return protos.with_graph(program.model, [*nodes, *kept], [*stored, *chain(*tensors.values())])


def _stored_in(program: Program, shown: str) -> str:
    """The name that a file has for a stored tensor: the scope of a reader, which may stand before it, is none of it."""
    parts = shown.split(".")
    names = (".".join(parts[at:]) for at in range(len(parts)))
    name = next((each for each in names if each in program.graph.stored), None)
    why = why_unusable(name, program) if name else f"'{shown}' is stored in a body of the graph"
    if why or name is None:
        raise TransformError(f"quantize: {why}: keep its layer")
    return name


def _dequantized(
    name: str, parts: OnGrid, grid: Grid, axes: tuple[int, ...], program: Program, names: Names, group: int
) -> tuple[NodeProto, list[TensorProto]] | None:
    """A DequantizeLinear that gives a weight under its name, and what it reads; None where no graph can say so."""
    opset, dtype = program.opsets.get("", 0), program.graph.stored[name].proto.data_type
    is_blocked = parts.scale.shape[1] > 1
    is_sayable = len(axes) < 2 and (not is_blocked or (len(axes) == 1 and parts.integers.ndim == 2))
    is_four = grid.bits <= 4 and opset >= OF_BLOCKS
    if grid.bits > 8 or not is_sayable or opset < (OF_BLOCKS if is_blocked else SCALED.get(dtype, opset + 1)):
        return None
    code = TensorProto.INT4 if is_four else TensorProto.INT8
    is_shifted = not grid.symmetric and grid.frac is None
    reads = [names.stem(name, end) for end in (".quantized", ".scale", ".zero_point")][: 2 + is_shifted]
    node = helper.make_node("DequantizeLinear", reads, [name], name=names.stem(name, ".dequantize"))
    scale, zero = parts.scale, parts.zero
    if is_blocked:
        axis = 1 - axes[0]
        scale, zero = (each if axis == 1 else each.T for each in (scale, zero))
        node.attribute.extend(helper.make_attribute(*each) for each in (("axis", axis), ("block_size", group)))
    elif axes:
        scale, zero = scale.reshape(-1), zero.reshape(-1)
        node.attribute.append(helper.make_attribute("axis", axes[0]))
    else:
        scale, zero = scale.reshape(()), zero.reshape(())
    as_stored = tensor_dtype_to_np_dtype(code)
    arrays = (parts.integers.astype(as_stored), scale, zero.astype(as_stored))
    return node, [numpy_helper.from_array(a, n) for a, n in zip(arrays, reads, strict=False)]
