"""What each stored tensor is: parameter, quantiser, buffer, constant or shape."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.graph.graph import Reader
from pytest_modelbudget.graph.tensor import StorageKind, kept
from pytest_modelbudget.onnx_models import program, protos
from pytest_modelbudget.onnx_models.value_types import FLOATING
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.table import OpTable

SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"
DYNAMIC = "onnx::DynamicQuantizeLinear"  # x → integers, scale, zero point
KINDS_WRITTEN = {"PARAMETER": StorageKind.PARAMETER, "BUFFER": StorageKind.BUFFER}


class FinalUse(NamedTuple):
    """A use at the end of a chain of carriers; floating tells what the value has become."""

    node: program.Node
    role: Role
    floating: bool


class StoredKinds:
    """Kinds of stored tensors, from the roles in which operations read them."""

    def __init__(self, graph: program.Body, masks: frozenset[str]) -> None:
        self._graph = graph
        self._masks = masks

    @kept
    def _stored(self) -> frozenset[str]:
        """Names of stored tensors, and of what they are handed on as."""
        waiting = [name for body in self._graph.everything() for name in body.stored]
        reached = set(waiting)
        for name in waiting:  # which grows
            results = {result for use in self._graph.uses(name) for result in use.carries_into} - reached
            reached |= results
            waiting += results
        return frozenset(reached)

    def kind(self, tensor: program.StoredTensor) -> StorageKind:
        """The kind of one tensor; where the exporter's metadata says it, that decides."""
        written = KINDS_WRITTEN.get(tensor.metadata.get(SIGNATURE, ""))
        if written:
            return written
        if tensor.name in self._graph.shaping:
            return StorageKind.SHAPE
        finals = self._finals(tensor.name, tensor.is_floating)
        rescaling = bool(self._dynamic_scales) and any(self._rescales(final) for final in finals)
        may_be_learnt = not rescaling and bool(tensor.shape) and tensor.name not in self._masks
        if may_be_learnt and any(map(_is_parameter, finals)):
            return StorageKind.PARAMETER
        if any(final.role.statistic for final in finals):
            return StorageKind.BUFFER
        if rescaling or any(self._quantises_parameter(final) for final in finals):
            return StorageKind.QUANTISER
        return StorageKind.CONSTANT

    def unknown_reader(self, tensor: program.StoredTensor) -> Reader | None:
        """An operation for which a constant may be a weight: no rule says what it reads there."""
        if not tensor.shape or tensor.name in self._masks:
            return None
        is_quantised = "int" in tensor.dtype.name and tensor.dtype.bits <= 8  # perhaps
        for final in self._finals(tensor.name, tensor.is_floating):
            if not final.role.declared and (final.floating or is_quantised):
                return Reader(final.node.operator, final.role.word)
        return None

    def packed(self, tensor: program.StoredTensor) -> int | None:
        """Logical elements of a weight whose bytes hold several in a layout of their own."""
        for use in () if tensor.is_floating else self._graph.uses(tensor.name):
            if use.role.packed:
                return prod(int(use.node.attributes[size]) for size in use.role.packed)
        return None

    def _finals(self, name: str, floating: bool) -> Sequence[FinalUse]:
        """Uses of a value, those behind what hands it on in their place, each once however many ways lead there."""
        uses = self._graph.uses(name)
        if name not in self._graph.handed_on and not any(role.carried for _, role in uses):
            return [FinalUse(node, role, floating) for node, role in uses]  # the usual case
        waiting, finals = [(name, floating)], []
        reached = set(waiting)
        for name, floating in waiting:  # which grows
            steps = [(inside, floating) for inside in self._graph.handed_on.get(name, ())]
            for use in self._graph.uses(name):
                if use.role.carried:
                    steps += [(result, floating or use.role.dequantised) for result in use.carries_into]
                else:
                    finals.append(FinalUse(*use, floating))
            if steps:
                waiting += [step for step in dict.fromkeys(steps) if step not in reached]
                reached.update(steps)
        return finals

    def _rescales(self, use: FinalUse) -> bool:
        """Whether it is multiplied with the scale of dynamic quantisation: the scale of a weight, then."""
        return use.node.operator == "onnx::Mul" and not self._dynamic_scales.isdisjoint(use.node.inputs)

    @kept
    def _dynamic_scales(self) -> frozenset[str]:
        nodes = (node for node in self._graph.nodes if node.operator == DYNAMIC)
        return frozenset(node.outputs[1] for node in nodes if len(node.outputs) > 1)

    def _quantises_parameter(self, use: FinalUse) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        if not use.role.quantises:
            return False
        for name, role in zip(use.node.inputs, use.node.roles, strict=True):
            if role.word == use.role.quantises and name in self._stored:
                return role.weight or any(map(_is_parameter, self._finals(name, True)))
        return False


def _is_parameter(final: FinalUse) -> bool:
    return final.role.weight or (final.floating and final.role.learnt)


_MASK_TYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})


def masks(graph: program.Body) -> frozenset[str]:
    """Names of the tensors that are added and hold only 0 and −inf or the type's lowest value.

    At least one value must shut something out: a bias of zeros, as every fresh layer has, is a
    parameter. Only values inside the file are looked at, and of tensors that nobody adds none.
    """
    bodies = tuple(graph.everything())
    added = frozenset(_added(bodies))
    tensors = ((name, body.stored.get(name)) for body in bodies for name in added)
    return frozenset(name for name, tensor in tensors if tensor and _only_masks(tensor))


def _added(bodies: Iterable[program.Body]) -> Iterator[str]:
    """Names of operands that are added to others."""
    rules = {node.operator: node.rule for body in bodies for node in body.nodes if node.rule}
    adding = {name for name, rule in rules.items() if any(role.added for role in rule.roles[name])}
    for body in bodies:
        for node in body.nodes:
            if node.operator in adding:
                yield from (name for name, role in zip(node.inputs, node.roles, strict=True) if role.added)


def _only_masks(tensor: program.StoredTensor) -> bool:
    proto, code = tensor.proto, tensor.type.code
    raw = proto.raw_data
    if tensor.is_sparse or code not in _MASK_TYPES or not (raw or proto.float_data) or not tensor.shape:
        return False
    dtype = tensor_dtype_to_np_dtype(code)
    values = np.frombuffer(raw, dtype) if raw else np.array(proto.float_data, dtype)
    shut = (values == -np.inf) | (values == np.finfo(dtype).min)
    return bool(shut.any() and (shut | (values == 0)).all())


def redrawn(model: onnx.ModelProto, rules: OpTable, seed: int = 0) -> onnx.ModelProto:
    """A copy whose floating parameters and statistics are drawn, at the scale of their fan-in.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5), each
    under its own name. What means something by its values (masks, shapes, scalars) stays.
    """
    graph = program.Program(model, rules).graph
    kinds = StoredKinds(graph, masks(graph))
    drawn = []
    for tensor in graph.initializers:
        proto = tensor.proto
        is_learnt = kinds.kind(tensor) in {StorageKind.PARAMETER, StorageKind.BUFFER}
        if is_learnt and proto.data_type in FLOATING and not tensor.is_sparse:
            values = draw_values(tensor.name, tensor.shape, graph.uses(tensor.name), seed)
            dtype = tensor_dtype_to_np_dtype(proto.data_type)
            proto = protos.with_values(proto, values.astype(dtype))
        if not tensor.is_sparse:
            drawn.append(proto)
    return protos.with_graph(model, model.graph.node, drawn)


def draw_values(name: str, shape: tuple[int, ...], uses: Sequence[program.Use], seed: int) -> Any:
    """The values of one weight, from its name, shape, seed and use alone."""
    generator = np.random.Generator(np.random.Philox([seed, crc32(name.encode())]))
    if len(shape) > 1:
        contractions = ((use.node.rule.contraction, use.node.attributes) for use in uses if use.node.rule)
        sums = [contraction.fan_in(shape, attributes) for contraction, attributes in contractions if contraction]
        values = generator.standard_normal(shape)
        values /= sqrt(max(sums[0] if sums else prod(shape[1:]), 1))  # in place: a large one takes as long to copy
        return values
    if any(use.role.scales for use in uses):
        return generator.uniform(0.5, 1.5, shape)
    return generator.standard_normal(shape) * 0.1
