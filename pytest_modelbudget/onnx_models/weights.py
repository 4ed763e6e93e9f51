"""Kinds of stored tensors (parameter, quantiser, buffer, constant, shape), weights in attributes, and drawn weights."""

from __future__ import annotations

from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod, sqrt
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from pytest_modelbudget.graph.graph import Reader
from pytest_modelbudget.graph.tensor import StorageKind, kept
from pytest_modelbudget.onnx_models import program, protos
from pytest_modelbudget.onnx_models.value_types import FLOATING, ValueType, tensor_type
from pytest_modelbudget.ops.role import Role, logical_bits
from pytest_modelbudget.ops.table import OpTable

SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"  # the list of all values that it was made of, as text
DYNAMIC = "onnx::DynamicQuantizeLinear"  # x → integers, scale, zero point
KINDS_WRITTEN = {"PARAMETER": StorageKind.PARAMETER, "BUFFER": StorageKind.BUFFER}


# A use at the end of a chain of carriers, and whether the value has become floating: plain, as a model has thousands.
FinalUse = tuple[program.Node, Role, bool]


class StoredKinds:
    """Kinds of stored tensors, from the roles in which operations read them."""

    def __init__(self, graph: program.Body, untrained: frozenset[str]) -> None:
        self._graph = graph
        self._untrained = untrained

    @kept
    def _stored(self) -> frozenset[str]:
        """Names of stored tensors, and of what they are handed on as."""
        waiting = [name for body in self._graph.everything() for name in body.stored]
        reached = set(waiting)
        for name in waiting:  # which grows
            results = {result for use in self._graph.uses(name) for result in _handed_on(use, floating=False)}
            results = {*results, *self._graph.handed_on.get(name, ())} - reached
            reached |= results
            waiting += results
        return frozenset(reached)

    def kind(self, tensor: program.StoredTensor) -> StorageKind:
        """The kind of one tensor; where the exporter's metadata says it, that decides."""
        metadata = tensor.metadata
        if metadata and (written := KINDS_WRITTEN.get(metadata.get(SIGNATURE, ""))):
            return written
        if tensor.name in self._graph.shaping:
            return StorageKind.SHAPE
        becomes, finals = self._followed(tensor.name, tensor.is_floating)
        rescaling = bool(self._dynamic_scales) and any(map(self._rescales, finals))
        is_neutral = tensor.is_literal and tensor.name in self._untrained
        is_weight = is_learnt = is_statistic = quantises = False
        for _, role, floating in finals:  # one pass: of every stored tensor
            is_weight = is_weight or (role.weight and not (is_neutral and role.neutral is not None))
            is_learnt = is_learnt or (floating and role.learnt)
            is_statistic = is_statistic or role.statistic
            quantises = quantises or bool(role.quantises)
        is_start = not is_weight and tensor.name in self._untrained
        may_be_learnt = not rescaling and bool(tensor.shape) and not (is_start or self._is_made(tensor))
        if may_be_learnt and (is_weight or is_learnt or self._is_result(becomes)):
            return StorageKind.PARAMETER
        if is_statistic:
            return StorageKind.BUFFER
        if rescaling or (quantises and any(map(self._quantises_parameter, finals))):
            return StorageKind.QUANTISER
        return StorageKind.CONSTANT

    def is_unowned(self, tensor: program.StoredTensor) -> bool:
        """Whether a parameter is in the program alone, and no operation reads it as the weight of a layer."""
        finals = self._followed(tensor.name, tensor.is_floating)[1] if tensor.is_folded else ()
        return bool(finals) and not any(role.weight or sums_products(node.signature) for node, role, _ in finals)

    def unknown_reader(self, tensor: program.StoredTensor) -> Reader | None:
        """An operation for which a constant may be a weight: no rule says what it reads there."""
        if not tensor.shape or tensor.name in self._untrained or self._is_made(tensor):
            return None
        is_quantised = "int" in tensor.dtype.name and tensor.dtype.bits <= 8  # perhaps
        for node, role, floating in self._followed(tensor.name, tensor.is_floating)[1]:
            if not role.declared and (floating or is_quantised):
                return Reader(node.operator, role.word)
        return None

    def _is_made(self, tensor: program.StoredTensor) -> bool:
        """Whether the exporter wrote it, or folded it from nothing that the module stored: ones, positions, counts.

        What it fused goes by the name of the weight, and an ending.
        """
        owned, written = self._graph.owned, tensor.metadata.get(FOLDED_FROM)
        if owned is None or written is None:
            return owned is not None and tensor.is_exporters
        try:
            names = [str(name) for name in literal_eval(written)]
        except (SyntaxError, ValueError):
            return False
        ends = ((name, at) for name in names for at, letter in enumerate(f"{name}_") if letter == "_")
        return not any(name[:end] in owned for name, end in ends)

    def packed(self, tensor: program.StoredTensor) -> int | None:
        """Logical elements of a weight whose bytes hold several in a layout of their own."""
        for use in () if tensor.is_floating else self._graph.uses(tensor.name):
            if use.role.packed:
                return prod(int(use.node.attributes[size]) for size in use.role.packed)
            if use.role.bits and tensor.dtype.name == "uint8":
                return tensor.type.elements * 8 // logical_bits(use.role, use.node.attributes)
        return None

    def _scales_of(self, use: program.Use) -> tuple[str, ...]:
        """The rows that are picked of a table, where they are scales of other rows and nothing else."""
        rows = use.node.outputs[:1] if use.role.picked else ()
        names = [*rows]
        for name in names:  # which grows
            names += {result for each in self._graph.uses(name) for result in each.carries_into} - {*names}
        read_as = [role for name in names for _, role in self._graph.uses(name) if not role.carried]
        return rows if read_as and all(role.quantises for role in read_as) else ()

    @kept
    def _results(self) -> frozenset[str]:
        return frozenset(self._graph.outputs)

    def _followed(self, name: str, floating: bool) -> tuple[Sequence[tuple[str, bool]], Sequence[FinalUse]]:
        """A value and all that it is handed on as, each with whether that is floating; and the uses of all these.

        Not those that hand it on in their place. Each once, however many ways lead there.
        """
        waiting, finals = [(name, floating)], []
        reached, handed_on = {*waiting}, self._graph.handed_on
        for name, floating in waiting:  # which grows
            steps = [(inside, floating) for inside in handed_on[name]] if name in handed_on else []
            for node, role in self._graph.readers.get(name, ()):
                if role.carried or role.picked:
                    use = program.Use(node, role)
                    rows = self._scales_of(use) if floating else ()
                    results = _handed_on(use, floating) or rows
                    steps += [(result, floating or role.dequantised) for result in results]
                    if role.carried or rows:
                        continue
                finals.append((node, role, floating))
            if steps:
                waiting += [step for step in dict.fromkeys(steps) if step not in reached]
                reached.update(steps)
        return waiting, finals

    def _is_result(self, becomes: Iterable[tuple[str, bool]]) -> bool:
        """Whether a value is handed out in floats."""
        return any(floating and name in self._results for name, floating in becomes)

    def _rescales(self, use: FinalUse) -> bool:
        """Whether it is multiplied with the scale of dynamic quantisation: the scale of a weight, then."""
        node = use[0]
        return node.operator == "onnx::Mul" and not self._dynamic_scales.isdisjoint(node.inputs)

    @kept
    def _dynamic_scales(self) -> frozenset[str]:
        nodes = (node for node in self._graph.nodes if node.operator == DYNAMIC)
        return frozenset(node.outputs[1] for node in nodes if len(node.outputs) > 1)

    def _quantises_parameter(self, use: FinalUse) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        node, read_as, _ = use
        if not read_as.quantises:
            return False
        for name, role in zip(node.inputs, node.roles, strict=True):
            if role.word == read_as.quantises and name in self._stored:
                becomes, finals = self._followed(name, True)
                return role.weight or self._is_result(becomes) or any(map(_is_parameter, finals))
        return False


def _handed_on(use: program.Use, floating: bool) -> tuple[str, ...]:
    """The results that are this value, or rows of it: whether integers are weights, shows where those go."""
    if use.role.picked and not floating:
        return use.node.outputs[:1]
    return use.carries_into


def _is_parameter(final: FinalUse) -> bool:
    _, role, floating = final
    return role.weight or (floating and role.learnt)


class AttributeNames:
    """Names of weights in attributes, "forest.nodes_values": by scope, and by result where two nodes share a scope."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, node: program.Node, attribute: str) -> str:
        """The name of one attribute, asked once for each, in the order in which nodes are read."""
        path = ".".join(filter(None, (node.scope, attribute)))
        path = f"{path} of {node.result}" if path in self._taken else path
        self._taken.add(path)
        return path


def attribute_weight(node: program.Node, name: str) -> tuple[ValueType, Callable[[], Any]] | None:
    """The type of the numbers or the tensor that an attribute of a node holds, and their reader; None without any."""
    value = node.attributes.get(name)
    if isinstance(value, tuple) and value and not isinstance(value[0], str):
        code, dtype = (TensorProto.FLOAT, np.float32) if isinstance(value[0], float) else (TensorProto.INT64, np.int64)
        return ValueType(code, (len(value),)), partial(np.asarray, value, dtype)
    tensor = next((each.t for each in node.tensors if each.name == name and prod(each.t.dims)), None)
    return None if tensor is None else (tensor_type(tensor), partial(to_array, tensor))


def attribute_arrays(graph: program.Body) -> Mapping[str, Callable[[], Any]]:
    """Readers of the weights in attributes that rules know, by name."""
    names = AttributeNames()
    return {
        names.name(node, role.attribute): weight[1]
        for node in graph.all_nodes()
        for role in node.signature.attributes
        if (weight := attribute_weight(node, role.attribute))
    }


# The values of a stored tensor, in whatever shape; None where nobody has them.
Values = Callable[[program.StoredTensor], Any]


class Test(NamedTuple):
    """What the values of a stored tensor must be; is_literal: and it stands in the text of the program.

    is_folded: or a simplifier has made an initializer of what stood there.
    """

    holds: Callable[[Any], bool]
    is_literal: bool = False
    is_folded: bool = False

    def concerns(self, tensor: program.StoredTensor) -> bool:
        """Whether the values of a tensor tell anything."""
        of_program = tensor.is_literal if self.is_literal else tensor.is_folded
        return bool(tensor.shape) and (of_program or not (self.is_literal or self.is_folded))

    @property
    def tells_of_all(self) -> bool:
        """Whether every value is looked at: what stands in the text of a program is short."""
        return self.is_literal or self.is_folded


# Nothing, −inf, and the lowest values of float16, bfloat16, float32 and float64: a mask keeps the
# one of the type that it was made in, whatever it is stored as.
_SHUT_OUT = (
    0.0,
    -np.inf,
    -65504.0,
    -(2.0 - 2.0**-7) * 2.0**127,
    -(2.0 - 2.0**-23) * 2.0**127,
    np.finfo(np.float64).min,
)
_HEAD = 64  # elements that tell of nearly every trained tensor that it is one
_DRAWN_TOGETHER = 1 << 16  # normal values in memory as float64


def values_inside(tensor: program.StoredTensor) -> Any:
    """The values of a tensor of real numbers that lie in the file, in one row; None of any other.

    None, too, where they do not fill its shape.
    """
    if tensor.is_sparse or tensor.type.code not in FLOATING:
        return None
    try:
        return to_array(tensor.proto).ravel()
    except ValueError:
        return None


def untrained(graph: program.Body, values: Values = values_inside) -> frozenset[str]:
    """Names of the stored tensors whose values show that they were not trained.

    Masks, which are added to scores or chosen for them and hold only 0 and −inf or a type's lowest value; at least
    one must shut something out: a bias of zeros, as every fresh layer has, is a parameter. Zeros that a recurrence
    starts with. And ones that scale, and zeros that shift, what a norm gives, where the text of the program has them:
    so exporters write a norm that learns neither. There zeros that a sum starts with, positions and strides, too:
    exporters fold them for one size of the inputs. Of tensors that nobody reads so, also behind what hands them on, no
    value is looked at. Where bodies store different ones under a name, all must be such.
    """
    bodies = tuple(graph.everything())
    tests = dict.fromkeys(each for body in bodies for each in _tested(body))

    def passes(tensor: program.StoredTensor, test: Test) -> bool:
        read = values(tensor) if test.concerns(tensor) else None
        if read is None or (not test.tells_of_all and may_be_trained(read)):
            return False
        # A bias that a simplifier has reshaped for its sum has one axis.
        sizes = [size for size in tensor.shape if size > 1 or tensor.is_literal]
        return test.holds(read.reshape(sizes) if read.size == prod(sizes) else read)

    found = set()
    for name, test in _traced_back(tests, graph):
        same = [body.stored[name] for body in bodies if name in body.stored]
        if same and all(passes(tensor, test) for tensor in same):
            found.add(name)
    return frozenset(found)


def _traced_back(tests: Iterable[tuple[str, Test]], graph: program.Body) -> Sequence[tuple[str, Test]]:
    """Values with their tests, and those that they are handed on from, into bodies and out of them, too."""
    waiting = list(tests)
    reached = set(waiting)
    bodies, outside = tuple(graph.everything()), _handed_from(graph) if waiting else {}
    for name, test in waiting:  # which grows
        steps = {(before, test) for before in outside.get(name, ())}
        for maker in (body.makers[name] for body in bodies if name in body.makers):
            steps |= {(operand, test) for operand, role in zip(maker.inputs, maker.roles, strict=True) if role.carried}
        waiting += steps - reached
        reached |= steps
    return waiting


def _handed_from(graph: program.Body) -> Mapping[str, Sequence[str]]:
    """The values that go by another name inside a body, or behind it."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, others in graph.handed_on.items():
        for other in others:
            names[other].append(name)
    return names


def _tested(body: program.Body) -> Iterator[tuple[str, Test]]:
    """(name, test of values) of operands whose values may tell that they are no weights."""
    yield from ((name, IS_ZERO) for node in body.branching for name in _states(node))
    signatures = {id(node.signature): node.signature for node in body.nodes}
    has_grids = any(IS_GRID.concerns(tensor) and tensor.is_floating for tensor in body.stored.values())
    tests = {key: tests for key, signature in signatures.items() if (tests := [*_tests(signature, has_grids)])}
    for node in body.nodes:
        for at, test in tests.get(id(node.signature), ()):
            yield node.inputs[at], test


def _tests(signature: program.Signature, has_grids: bool) -> Iterator[tuple[int, Test]]:
    """(place, test of values) of operands that are masks, start a recurrence, or scale or shift what a norm gives.

    And of those that are added or multiplied element by element, where there may be grids.
    """
    has_grids = has_grids and not sums_products(signature)
    for at, role in enumerate(signature.roles):
        if has_grids and role.learnt:
            yield at, IS_GRID
        if role.masks or role.starts:
            yield at, IS_MASK if role.masks else IS_ZERO
        elif role.neutral is not None:
            yield at, CHANGES_NOTHING[role.neutral]


def sums_products(signature: program.Signature) -> bool:
    """Whether an operator multiplies what it reads as a layer does."""
    return signature.rule is not None and signature.rule.contraction is not None


def _states(node: program.Node) -> Sequence[str]:
    """What the body of a Loop or a Scan is given to start with."""
    if node.operator == "onnx::Loop":
        return node.inputs[2:]
    scanned = node.attributes.get("num_scan_inputs", 0)
    return node.inputs[: len(node.inputs) - scanned] if node.operator == "onnx::Scan" else ()


def may_be_trained(values: Any) -> bool:
    """Whether the first values show that it is neither a mask nor zeros."""
    head = values[:_HEAD]
    is_plain = head.size and float(head[0]) not in _SHUT_OUT  # which one number tells of nearly every trained tensor
    return bool(is_plain) or not _only_masks(head).all()


def _is_mask(values: Any) -> bool:
    return bool(values.any() and _only_masks(values).all())


def _is_zero(values: Any) -> bool:
    return not values.any()


def _is_one(values: Any) -> bool:
    return bool((values == 1).all())


def _is_grid(values: Any) -> bool:
    """Whether these are whole numbers or halves, or evenly spaced along an axis: positions, strides, zeros of a sum.

    One or two values of one axis may be a bias, and two are always evenly spaced.
    """
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        return False
    is_table = numbers.ndim > 1 or np.unique(numbers).size > 2
    if is_table and (numbers * 2 == np.rint(numbers * 2)).all():
        return True
    rows = [numbers.reshape(1, -1), numbers.reshape(numbers.shape[0], -1), numbers.reshape(-1, numbers.shape[-1]).T]
    return any(len(lines) < numbers.size and all(map(_is_even, lines)) for lines in rows)


def _is_even(numbers: Any) -> bool:
    """Whether at least three distinct numbers have the same distance from each to the next, as far as float32 tells."""
    distinct = np.unique(numbers)
    steps = np.diff(distinct)
    return distinct.size > 2 and bool(np.ptp(steps) <= 4 * np.finfo(np.float32).eps * np.abs(distinct).max())


def _only_masks(values: Any) -> Any:
    """Which of these are 0, −inf or the lowest value of a floating type."""
    return np.isin(values.astype(np.float64), _SHUT_OUT)


IS_MASK, IS_ZERO = Test(_is_mask), Test(_is_zero)
IS_GRID = Test(_is_grid, is_folded=True)
CHANGES_NOTHING = {1.0: Test(_is_one, is_literal=True), 0.0: Test(_is_zero, is_literal=True)}


def redrawn(model: onnx.ModelProto, rules: OpTable, seed: int = 0) -> onnx.ModelProto:
    """A copy whose floating parameters and statistics are drawn, at the scale of their fan-in.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5), each
    under its own name. What means something by its values (masks, shapes, scalars) stays.
    """
    graph = program.Program(model, rules).graph
    kinds = StoredKinds(graph, untrained(graph))
    drawn = []
    for tensor in graph.initializers:
        proto = tensor.proto
        is_learnt = kinds.kind(tensor) in {StorageKind.PARAMETER, StorageKind.BUFFER}
        if is_learnt and proto.data_type in FLOATING and not tensor.is_sparse:
            dtype = tensor_dtype_to_np_dtype(proto.data_type)
            values = draw_values(tensor.name, tensor.shape, graph.uses(tensor.name), seed, dtype)
            proto = protos.with_values(proto, values)
        if not tensor.is_sparse:
            drawn.append(proto)
    return protos.with_graph(model, model.graph.node, drawn)


def draw_values(name: str, shape: tuple[int, ...], uses: Sequence[program.Use], seed: int, dtype: Any) -> Any:
    """The values of one weight, from its name, shape, seed and use alone: drawn as float64, and rounded."""
    generator = np.random.Generator(np.random.Philox([seed, crc32(name.encode())]))
    if len(shape) > 1:
        contractions = ((use.node.rule.contraction, use.node.attributes) for use in uses if use.node.rule)
        sums = [contraction.fan_in(shape, attributes) for contraction, attributes in contractions if contraction]
        scale = sqrt(max(sums[0] if sums else prod(shape[1:]), 1))
        values, block = np.empty(prod(shape), dtype), np.empty(_DRAWN_TOGETHER)
        for start in range(0, values.size, block.size):
            drawn = block[: values.size - start]
            generator.standard_normal(out=drawn)
            drawn /= scale
            values[start : start + drawn.size] = drawn
        return values.reshape(shape)
    if any(use.role.scales for use in uses):
        return generator.uniform(0.5, 1.5, shape).astype(dtype)
    return (generator.standard_normal(shape) * 0.1).astype(dtype)
