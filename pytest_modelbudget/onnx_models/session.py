"""Runs of an ONNX model as it is written: no optimisation, one thread, large graphs in pieces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ctypes import string_at
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import erf, pi, prod
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as state
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19
from onnx.reference.ops.op_conv import Conv as PlainConv

from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.onnx_models import exporter_names, protos
from pytest_modelbudget.onnx_models.functions import inline_functions
from pytest_modelbudget.onnx_models.inputs import OF_A_PACKAGE, Feeds
from pytest_modelbudget.onnx_models.recurrent import RECURRENT
from pytest_modelbudget.onnx_models.value_types import FLOATING

RUNTIME, REFERENCE = "onnxruntime", "onnx.reference"
CPU = "CPUExecutionProvider"


def runtime(node: NodeProto) -> str:
    """ONNX Runtime, for every node: a model in its own types runs as it is written."""
    return RUNTIME


def float64_engine(node: NodeProto) -> str:
    """The engine for a node of a float64 copy.

    ONNX Runtime's CPU has no float64 kernel for Conv, average pooling, Erf and a few more, and none of its own for
    operators that are defined by others. Of some it only declares one, as of recurrent layers: see other_ways.
    """
    domain = protos.domain_of(node.domain)
    if not domain and node.op_type in ONLY_DECLARED:
        return REFERENCE
    types = _kernel_types().get((domain, node.op_type), frozenset())
    knows = bool(types) and ("tensor(double)" in types or "tensor(float)" not in types)
    bodies = (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)
    knows_inside = (float64_engine(inner) == RUNTIME for body in bodies for inner in body.node)
    return RUNTIME if knows and all(knows_inside) else REFERENCE


@cache
def _kernel_types() -> Mapping[tuple[str, str], frozenset[str]]:
    """Types that any CPU kernel of an operator takes, by (domain, operator)."""
    known: dict[tuple[str, str], set[str]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == CPU:
            domain = protos.domain_of(kernel.domain)
            types = known.setdefault((domain, kernel.op_name), set())
            for allowed in kernel.type_constraints.values():
                types.update(allowed)
    return {name: frozenset(types) for name, types in known.items()}


ONLY_DECLARED = frozenset(operator.__name__ for operator in RECURRENT)  # their sessions are made, and then throw
MOST_NODES = 400


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive nodes that run on one engine: what they read, store and make for others."""

    engine: str
    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stored: tuple[str, ...]

    @property
    def key(self) -> Hashable:
        """The same for the same piece of another run of one model, whose values have a name each."""
        return self.engine, tuple([name for node in self.nodes for name in node.output]), self.inputs, self.outputs


def pieces(
    nodes: Sequence[NodeProto],
    results: AbstractSet[str],
    stored: AbstractSet[str],
    engine_of: Callable[[NodeProto], str],
    *,
    most_nodes: int = MOST_NODES,
) -> tuple[Piece, ...]:
    """The pieces of a graph's nodes, in the order in which they run.

    results are the values that the whole run is asked for, stored the names of initialisers.
    """
    wanted = set(results)
    made: list[Piece] = []
    for engine, group in reversed(tuple(_groups(nodes, engine_of, most_nodes))):
        own = {name for node in group for name in node.output if name}
        read = protos.names_read(group) - {""}
        inputs, outputs, kept = (tuple(sorted(names)) for names in (read - own - stored, own & wanted, read & stored))
        made.append(Piece(engine, group, inputs, outputs, kept))
        wanted |= read - own
    return tuple(reversed(made))


def _groups(
    nodes: Sequence[NodeProto], engine_of: Callable[[NodeProto], str], most_nodes: int
) -> Iterator[tuple[str, tuple[NodeProto, ...]]]:
    """(engine, consecutive nodes), each few enough for one session.

    Cut from the end, so that runs which begin at other nodes have all but their first pieces in common.
    """
    for engine, run in groupby(nodes, engine_of):
        group = tuple(run)
        for end in range(len(group) % most_nodes or most_nodes, len(group) + 1, most_nodes):
            yield engine, group[max(end - most_nodes, 0) : end]


# Attributes that name the element type of a result, or of what is computed on the way to it.
TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type"})

# Norms that compute in float32 unless an attribute says otherwise, and the operator set from which one can.
STASHES = {"GroupNormalization": 21, "LayerNormalization": 17, "RMSNormalization": 23}


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs, outputs, casts and constants are float64, without its initialisers.

    Those are upcast where they are needed, so that a large model is not copied once more. Every
    value of a smaller floating type is exact in float64. Integers stay what they are.
    """
    made = protos.with_graph(model, model.graph.node, ())
    opset = protos.opset_of(model)
    del made.graph.value_info[:]
    for graph in protos.all_graphs(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _upcast_type(value.type)
        for node in graph.node:
            _upcast_attributes(node)
            is_norm = STASHES.get(node.op_type, opset + 1) <= opset and node.domain in protos.STANDARD
            if is_norm and all(attribute.name != "stash_type" for attribute in node.attribute):
                node.attribute.append(onnx.helper.make_attribute("stash_type", TensorProto.DOUBLE))
        stored = [upcast_tensor(tensor) for tensor in graph.initializer]
        del graph.initializer[:]
        graph.initializer.extend(stored)
    return made


def wholly_in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with its initialisers, for a transform that works on the weights themselves."""
    made = in_float64(model)
    made.graph.initializer.extend(upcast_tensor(tensor) for tensor in model.graph.initializer)
    return made


def upcast_tensor(tensor: TensorProto) -> TensorProto:
    """A floating tensor in float64; any other as it is."""
    if tensor.data_type not in FLOATING or tensor.data_type == TensorProto.DOUBLE:
        return tensor
    return protos.with_values(tensor, numpy_helper.to_array(tensor).astype("float64"))


def _upcast_type(kind: onnx.TypeProto) -> None:
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in FLOATING:
        kind.tensor_type.elem_type = TensorProto.DOUBLE
    for container in ("sequence_type", "optional_type"):
        if kind.HasField(container):
            _upcast_type(getattr(kind, container).elem_type)


def _upcast_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(upcast_tensor(attribute.t))
        elif attribute.name in TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT:
            attribute.i = TensorProto.DOUBLE if attribute.i in FLOATING else attribute.i
    if node.op_type == "ConstantOfShape" and not node.attribute:  # float32 zeros, unsaid
        _hold(node, [0.0], [1])
    elif node.op_type == "Constant" and node.domain in protos.STANDARD:  # one may be written as numbers
        for attribute in tuple(node.attribute):
            if attribute.name == "value_float":
                _hold(node, [attribute.f], [])
            elif attribute.name == "value_floats":
                _hold(node, [*attribute.floats], [len(attribute.floats)])


def _hold(node: NodeProto, entries: Sequence[float], shape: Sequence[int]) -> None:
    """Make a node hold a float64 tensor as its value."""
    tensor = onnx.helper.make_tensor("", TensorProto.DOUBLE, shape, entries)
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("value", tensor))


class AveragePool(AveragePool_19):
    """Average pooling; windows without padding are taken as one array."""

    def _run(self, x: Any, **attributes: Any) -> tuple[Any]:  # type: ignore[override]  # by name
        if not _is_plain(attributes) or any(attributes.get("pads") or ()) or attributes.get("ceil_mode"):
            result: tuple[Any] = super()._run(x, **attributes)  # type: ignore[no-untyped-call]
            return result
        kernel = attributes["kernel_shape"]
        return (_windows(x, kernel, attributes.get("strides")).mean(tuple(range(-len(kernel), 0))),)


class Conv(PlainConv):
    """Convolution; onnx's own picks the windows of x element by element, which are views where nothing else is asked.

    x (batch, channels, ...), w (n, channels / group, kernel ...) → (batch, n, ...): the same product of the same
    matrices, w's filters by columns of windows.
    """

    def _run(self, x: Any, w: Any, b: Any = None, **attributes: Any) -> tuple[Any]:  # type: ignore[override]  # by name
        axes, group = x.ndim - 2, attributes.get("group") or 1
        pads = attributes.get("pads") or (0,) * 2 * axes
        if not _is_plain(attributes) or min(pads) < 0:
            result: tuple[Any] = super()._run(x, w, b, **attributes)  # type: ignore[no-untyped-call]
            return result
        x = np.pad(x, ((0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)))
        windows = _windows(x, w.shape[2:], attributes.get("strides"))
        sizes = windows.shape[2 : 2 + axes]
        kernel_first = (1, *range(2 + axes, x.ndim + axes), 0, *range(2, 2 + axes))
        columns = windows.transpose(kernel_first).reshape(group, prod(w.shape[1:]), x.shape[0] * prod(sizes))
        filters = w.reshape(group, w.shape[0] // group, -1)
        made = (filters @ columns).reshape(w.shape[0], x.shape[0], *sizes).swapaxes(0, 1)
        return (made if b is None else made + b.reshape(-1, *[1] * axes),)


def _is_plain(attributes: Mapping[str, Any]) -> bool:
    """Whether windows are as their attributes write them down, of elements that lie side by side."""
    return attributes.get("auto_pad") in {None, "NOTSET"} and set(attributes.get("dilations") or (1,)) == {1}


def _windows(x: Any, kernel: Sequence[int], strides: Sequence[int] | None) -> Any:
    """x (batch, channels, ...) → (batch, channels, places ..., kernel ...), as a view."""
    axes = len(kernel)
    windows: Any = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), tuple(range(2, 2 + axes)))
    steps = [slice(None, None, step) for step in strides or [1] * axes]
    index = (..., *steps, *[slice(None)] * axes)
    return windows[index]


class Erf(OpRun):
    """The error function; onnx's own gives float32 values whatever it is fed."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (_erf(x),)


class Gelu(OpRun):
    """x·Φ(x), or its approximation by tanh. Source: ONNX operator Gelu."""

    op_domain = ""

    def _run(self, x: Any, approximate: str = "none") -> tuple[Any]:
        is_by_tanh = approximate == "tanh"
        bell = np.tanh((2 / pi) ** 0.5 * (x + 0.044715 * x**3)) if is_by_tanh else _erf(x / 2**0.5)  # 2·Φ(x) - 1
        return (x * (0.5 + 0.5 * bell),)


def _erf(x: Any) -> Any:
    values = np.fromiter(map(erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


OWN_OPERATORS: list[type[OpRun]] = [AveragePool, Conv, Erf, Gelu, *RECURRENT]


MOST_ELEMENTS_INSIDE = 256  # of a tensor whose values may decide a shape
FATAL_ONLY = 4  # of ONNX Runtime's log: what it raises says the rest


class OnnxRun:
    """A model that can be run many times; its sessions are made at the first run.

    watched names values beside the outputs that are handed out too; given ones are fed like inputs,
    so that the nodes which only lead to them need not run. A float64 run upcasts the
    model first; nodes without a float64 kernel then run on onnx's reference. arrays keeps the
    stored tensors that have been read, for other runs of the same weights, and steps the sessions, for other runs of
    the same model.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        float64: bool = False,
        watched: Iterable[str] = (),
        given: frozenset[str] = frozenset(),
        most_nodes: int = MOST_NODES,
        arrays: StoredArrays | None = None,
        steps: dict[Hashable, Step] | None = None,
    ) -> None:
        if float64:
            model = inline_functions(model, "the model")
        self._weights = Weights(
            {tensor.name: tensor for tensor in model.graph.initializer}, float64, {} if arrays is None else arrays
        )
        if float64:
            model = in_float64(model)
        self._frame = onnx.ModelProto(ir_version=model.ir_version)
        self._frame.opset_import.extend(model.opset_import)
        self._frame.functions.extend(model.functions)
        self._results = tuple(dict.fromkeys((*(value.name for value in model.graph.output), *watched)))
        results, stored = frozenset(self._results), self._weights.tensors.keys()
        nodes = needed(model.graph.node, results, given) if given else model.graph.node
        cut = pieces(nodes, results, stored, float64_engine if float64 else runtime, most_nodes=most_nodes)
        steps = {} if steps is None else steps
        self._steps = [steps.setdefault(piece.key, Step(piece)) for piece in cut]

    def __call__(self, inputs: Feeds) -> Feeds:
        """Outputs in the graph's order, then watched values, by name.

        Raises TransformError, with the engine's own words, where a node cannot run.
        """
        values = dict(inputs)
        self._steps = self._run(self._steps, values)
        stored = (name for name in self._results if name not in values)  # an output may be an input or a stored tensor
        values.update({name: self._weights.array(name) for name in stored})
        return {name: values[name] for name in self._results}

    def _run(self, steps: Iterable[Step], values: dict[str, Any]) -> list[Step]:
        """Run steps one after the other, and add to the values; the steps that it came down to."""
        ran = []
        for step in steps:
            try:
                self._run_one(step, values)
                ran.append(step)
            except TransformError as error:
                if not self._weights.float64:
                    raise
                ran += self._run(step.other_ways(error), values)
        return ran

    def _run_one(self, step: Step, values: dict[str, Any]) -> None:
        piece = step.piece
        feeds = {name: values[name] for name in piece.inputs}
        if step.engine is None:
            with user_code(f"preparing the run on {piece.engine}", TransformError):
                step.engine = _engine(piece, feeds, self._frame, self._weights)
        with user_code(f"running on {piece.engine}", TransformError):
            results = step.engine.run(list(piece.outputs), feeds)
        values.update(zip(piece.outputs, results, strict=True))


@dataclass(slots=True)
class Step:
    """A piece of a run, and what runs it once that is made. refused says why another engine did not."""

    piece: Piece
    engine: Any = None
    refused: str = ""

    def other_ways(self, error: TransformError) -> list[Step]:
        """Steps in place of one that failed in float64: its halves, and of a single node the other engine.

        What an engine declares of its kernels is no promise. Raises TransformError, with the operator, where no way
        is left.
        """
        piece = self.piece
        if len(piece.nodes) > 1:
            stored = frozenset(piece.stored)
            results, half = frozenset(piece.outputs), -(-len(piece.nodes) // 2)
            return [
                Step(each) for each in pieces(piece.nodes, results, stored, lambda _: piece.engine, most_nodes=half)
            ]
        node = piece.nodes[0]
        if self.refused:
            name = protos.op_name(node)
            raise TransformError(
                f"{name} '{exporter_names.scope_of(node)}' does not run in float64: {self.refused}; {error}"
            )
        other = REFERENCE if piece.engine == RUNTIME else RUNTIME
        return [Step(replace(piece, engine=other), refused=str(error))]


def needed(nodes: Sequence[NodeProto], results: AbstractSet[str], given: AbstractSet[str]) -> list[NodeProto]:
    """The nodes that lead to some results, where these values are given."""
    wanted = set(results) - given
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted |= protos.names_read((node,)) - given
    return kept[::-1]


StoredArrays = dict[tuple[str, bool], Any]  # by name, and whether they are upcast


@dataclass(frozen=True, slots=True)
class Weights:
    """Stored tensors as arrays, upcast for a float64 run; made when they are asked for, floating ones once."""

    tensors: Mapping[str, TensorProto]
    float64: bool
    arrays: StoredArrays

    def array(self, name: str) -> Any:
        tensor = self.tensors[name]
        if tensor.data_type not in FLOATING:
            return numpy_helper.to_array(tensor)
        if (name, False) not in self.arrays:
            self.arrays[name, False] = numpy_helper.to_array(tensor)
        if self.float64 and (name, True) not in self.arrays:
            self.arrays[name, True] = self.arrays[name, False].astype("float64", copy=False)
        return self.arrays[name, self.float64]


def _engine(piece: Piece, feeds: Feeds, frame: onnx.ModelProto, weights: Weights) -> Any:
    """A session or a reference evaluator for a piece, with inputs of the types that are fed.

    frame is what every piece shares with its model: versions of operator sets, functions.
    """
    made = onnx.ModelProto()
    made.CopyFrom(frame)
    made.graph.name = "piece"
    made.graph.node.extend(piece.nodes)
    for name, value in feeds.items():
        made.graph.input.append(onnx.ValueInfoProto(name=name, type=_type_of(value)))
    for name in piece.outputs:
        made.graph.output.append(onnx.ValueInfoProto(name=name))
    large: dict[str, Any] = {}
    fed: dict[str, Any] = {}
    for name in piece.stored:
        array = weights.array(name)
        if piece.engine == REFERENCE or array.size <= MOST_ELEMENTS_INSIDE or array.dtype.kind == "V":
            made.graph.initializer.append(numpy_helper.from_array(array, name))
        elif array.dtype.kind == "f":
            fed[name] = array
            made.graph.input.append(onnx.ValueInfoProto(name=name, type=_type_of(array, array.shape)))
        else:
            large[name] = array
            made.graph.initializer.append(_beside(array, name))
    if piece.engine == REFERENCE:
        return ReferenceEvaluator(made, new_ops=OWN_OPERATORS)
    engine = session(made, large)
    types = [str(value.type) for value in (*engine.get_inputs(), *engine.get_outputs())]
    return Session(engine, fed, any(each.startswith(LACKED) for each in types))


LACKED = ("tensor(bfloat16", "tensor(float8", "tensor(int4", "tensor(uint4")  # which numpy has not


@dataclass(frozen=True, slots=True)
class Session:
    """A session that each run feeds stored tensors, of which it would make copies."""

    session: onnxruntime.InferenceSession
    stored: Feeds
    has_lacked: bool  # inputs or outputs of types that numpy has not

    def run(self, outputs: list[str], feeds: Feeds) -> list[Any]:
        """These outputs, each in its own type, of the values of the piece."""
        own = {**feeds, **self.stored}
        if not self.has_lacked:
            return list(self.session.run(outputs, own))
        results = self.session.run_with_ort_values(outputs, {name: _ort_value(array) for name, array in own.items()})
        return list(map(_array, results))


def _ort_value(array: Any) -> onnxruntime.OrtValue:
    """An array for ONNX Runtime, which packs elements of four bits."""
    if array.dtype.isbuiltin != OF_A_PACKAGE:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    tensor = numpy_helper.from_array(array)
    room = np.frombuffer(tensor.raw_data.ljust(array.nbytes, b"\0"), f"u{array.itemsize}").reshape(array.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(room, tensor.data_type)


def _array(value: onnxruntime.OrtValue) -> Any:
    """What ONNX Runtime gave, as numpy has it."""
    code = value.element_type()
    if onnx.helper.tensor_dtype_to_np_dtype(code).isbuiltin != OF_A_PACKAGE:
        return value.numpy()
    content = string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(TensorProto(dims=value.shape(), data_type=code, raw_data=content))


def _beside(array: Any, name: str) -> TensorProto:
    """A stored tensor whose values are passed next to the message, and not copied into it."""
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
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _type_of(value: Any, shape: Sequence[int] | None = None) -> onnx.TypeProto:
    """The type of a value that is handed from one piece to the next, of any shape where none is said."""
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(_type_of(value[0]))
    code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(code, shape)
