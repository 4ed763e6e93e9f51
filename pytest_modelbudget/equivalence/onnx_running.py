"""Running an ONNX model as it is written: no optimisation, one thread, large graphs in pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from pytest_modelbudget.equivalence.onnx_kernels import RUNTIME, float64_engine, runtime
from pytest_modelbudget.equivalence.onnx_pieces import MOST_NODES, Piece, pieces
from pytest_modelbudget.equivalence.onnx_precision import in_float64
from pytest_modelbudget.equivalence.onnx_reference_ops import OWN_OPERATORS
from pytest_modelbudget.equivalence.onnx_stored import FLOATING
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.frontends.user_code import user_code

MOST_ELEMENTS_INSIDE = 256  # of a tensor whose values may decide a shape
FATAL_ONLY = 4  # of ONNX Runtime's log: what it raises says the rest
Feeds = Mapping[str, Any]  # arrays by name


class OnnxRun:
    """A model that can be run many times; its sessions are made at the first run.

    watched names values beside the outputs that are handed out too; given ones are fed like inputs,
    so that the nodes that make them need not run. A float64 run upcasts the
    model first; nodes without a float64 kernel then run on onnx's reference.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        float64: bool = False,
        watched: Iterable[str] = (),
        given: frozenset[str] = frozenset(),
        most_nodes: int = MOST_NODES,
    ) -> None:
        if float64:
            model = _inlined(model)
        self._weights = Weights({each.name: each for each in model.graph.initializer}, float64)
        if float64:
            model = in_float64(model)
        self.inputs = tuple(value.name for value in given_inputs(model))
        self.outputs = tuple(value.name for value in model.graph.output)
        self._frame = _without_graph(model)
        self._watched = tuple(dict.fromkeys(watched))
        engine = float64_engine if float64 else runtime
        self._pieces = pieces(
            [node for node in model.graph.node if not given.issuperset(filter(None, node.output))],
            {*self.outputs, *self._watched},
            self._weights.tensors.keys(),
            engine,
            most_nodes=most_nodes,
        )
        self._engines: dict[int, Any] = {}

    def executed(self) -> Counter[str]:
        """How often each operator stands in the pieces that are run, by its name in rules."""
        return Counter(op_name(node) for piece in self._pieces for node in piece.nodes)

    def __call__(self, inputs: Feeds) -> Feeds:
        """Outputs in the graph's order, then watched values, by name.

        Raises TransformError, with the engine's own words, where a node cannot run.
        """
        values = dict(inputs)
        for position, piece in enumerate(self._pieces):
            feeds = {name: values[name] for name in piece.inputs}
            if position not in self._engines:
                with user_code(f"preparing the run on {piece.engine}", TransformError):
                    self._engines[position] = _engine(piece, feeds, self._frame, self._weights)
            with user_code(f"running on {piece.engine}", TransformError):
                results = self._engines[position].run(list(piece.outputs), feeds)
            values.update(zip(piece.outputs, results, strict=True))
        return {name: self._value(name, values) for name in (*self.outputs, *self._watched)}

    def _value(self, name: str, values: Feeds) -> Any:
        """A value by name; an output may be an input or a stored tensor."""
        if name in values:
            return values[name]
        return self._weights.array(name)


@dataclass(frozen=True, slots=True)
class Weights:
    """Stored tensors as arrays, upcast for a float64 run; made when they are asked for."""

    tensors: Mapping[str, TensorProto]
    float64: bool

    def array(self, name: str) -> Any:
        tensor = self.tensors[name]
        array = numpy_helper.to_array(tensor)
        upcast = self.float64 and tensor.data_type in FLOATING
        return array.astype("float64", copy=False) if upcast else array


def given_inputs(model: onnx.ModelProto) -> tuple[onnx.ValueInfoProto, ...]:
    """Inputs that a caller must give: those without a stored value."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return tuple(value for value in model.graph.input if value.name not in stored)


def upcast(inputs: Feeds) -> Feeds:
    """The same values, floating ones in float64."""
    return {
        name: value if value.dtype.kind in "biuc" else value.astype("float64")
        for name, value in inputs.items()
    }


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value that is a tensor, or those of a sequence 's' as 's.0', 's.1' and so on.

    Raises TransformError for a map and for an optional value that is not there.
    """
    if isinstance(value, list):
        for position, part in enumerate(value):
            yield from tensors_in(f"{name}.{position}", part)
    elif hasattr(value, "dtype"):
        yield name, value
    else:
        what = type(value).__name__
        raise TransformError(f"'{name}' is a {what}: only tensors and their sequences are compared")


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with local functions written out."""
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _without_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """What every piece shares with its model: versions of operator sets, functions."""
    frame = onnx.ModelProto(ir_version=model.ir_version)
    frame.opset_import.extend(model.opset_import)
    frame.functions.extend(model.functions)
    return frame


def _engine(piece: Piece, feeds: Feeds, frame: onnx.ModelProto, weights: Weights) -> Any:
    """A session or a reference evaluator for a piece, with inputs of the types that are fed."""
    made = onnx.ModelProto()
    made.CopyFrom(frame)
    made.graph.name = "piece"
    made.graph.node.extend(piece.nodes)
    for name, value in feeds.items():
        made.graph.input.append(onnx.ValueInfoProto(name=name, type=_type_of(value)))
    for name in piece.outputs:
        made.graph.output.append(onnx.ValueInfoProto(name=name))
    large: dict[str, Any] = {}
    for name in piece.stored:
        array = weights.array(name)
        if (
            piece.engine == RUNTIME
            and array.size > MOST_ELEMENTS_INSIDE
            and array.dtype.kind != "V"
        ):
            large[name] = array
            made.graph.initializer.append(_beside(array, name))
        else:
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    return (
        session(made, large)
        if piece.engine == RUNTIME
        else ReferenceEvaluator(made, new_ops=OWN_OPERATORS)
    )


def _beside(array: Any, name: str) -> TensorProto:
    """A stored tensor whose values are handed over beside the message, and not copied into it."""
    code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, dims=array.shape, data_type=code)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="memory")
    return tensor


def session(model: onnx.ModelProto, large: Feeds) -> onnxruntime.InferenceSession:
    """A session that changes nothing about the graph and gives the same bits every time."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.use_deterministic_compute = True
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # what a piece held is free for the next
    options.add_session_config_entry("session.disable_prepacking", "1")  # saves a copy of weights
    options.log_severity_level = FATAL_ONLY
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in large.values()]
    options.add_external_initializers(list(large), values)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _type_of(value: Any) -> onnx.TypeProto:
    """The type of a value that is handed from one piece to the next, of any shape."""
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(_type_of(value[0]))
    code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(code, None)
