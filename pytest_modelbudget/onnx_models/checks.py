"""Refusals of models that no runtime runs: onnx's checker, and what onnx and ONNX Runtime let pass about shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import onnx
from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.onnx_models.contrib_types import Call
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.onnx_models.protos import OF_RUNTIME, domain_of, has_schema, tensors_in
from pytest_modelbudget.onnx_models.value_types import ValueType

ML = "ai.onnx.ml"
NEWEST = {"": onnx.defs.onnx_opset_version(), ML: onnx.helper.VERSION_TABLE[-1][3]}
COMPILED = "com.microsoft::EPContext"  # a part of a model that was compiled for one device, weights and all
Sizes = tuple[int, ...]
Check = Callable[[Call, Sizes], str]  # operands and attributes, the first result's shape


class MisfitError(SourceError):
    """A node that no runtime runs on operands of these shapes."""


def one_line(error: Exception) -> str:
    """The words of onnx or ONNX Runtime in one line."""
    return " ".join(str(error).split()).removeprefix("[ShapeInferenceError] Inference error(s): ")


def refuse_invalid(program: Program, file: str) -> None:
    """Raise SourceError for what no runtime loads; of a node in the words of onnx's checker."""
    invalid, model = f"{file} is no valid ONNX model", program.model
    if not model.graph.output:
        raise SourceError(f"{invalid}: its graph gives no output: export it again")
    sets = [
        (f"operators of {name or 'ai.onnx'}", program.opsets.get(name, most), most) for name, most in NEWEST.items()
    ]
    for what, version, newest in (*sets, ("format", model.ir_version, onnx.IR_VERSION)):
        if not 1 <= version <= newest:
            raise SourceError(
                f"{invalid}: it asks for version {version} of the {what}, and onnx "
                f"{onnx.__version__} knows 1 to {newest}: export it for one of those, or install a newer onnx"
            )
    if twice := _given_twice(program.graph, frozenset()):
        raise SourceError(f"{invalid}: '{twice}' is given twice: export it again")
    context = type(onnx.checker.DEFAULT_CONTEXT)()
    context.ir_version, context.opset_imports = model.ir_version, {OF_RUNTIME: 1, **program.opsets}
    for node in {_use(node): node for node in program.graph.all_nodes()}.values():
        if node.operator == COMPILED and node.rule is None:
            what = f"{COMPILED} '{node.proto.name or node.result}' is compiled for one device, and unreadable"
            raise SourceError(f"{file}: {what}: measure the file that it was made from")
        try:
            if not _is_unknown(node.proto, program.opsets):
                onnx.checker.check_node(_without_values(node), context)
        except onnx.checker.ValidationError as error:
            words = f"{node.operator} '{node.place}': {one_line(error)}"
            raise SourceError(f"{invalid}: {words}: export it again") from error


def _given_twice(body: Body, around: Collection[str]) -> str:
    """A name that two inputs, stored tensors or results have, those around a body with it; "" without any."""
    stored = [tensor.name for tensor in body.initializers]
    counts = chain(Counter(body.inputs).items(), Counter(stored).items())
    known = {*around, *body.inputs, *stored}
    for node in body.nodes:
        for inner in node.bodies.values():
            if twice := _given_twice(inner, known):
                return twice
        for name in filter(None, node.outputs):
            if name in known:
                return name
            known.add(name)
    return next((name for name, count in counts if count > 1), "")


def _use(node: Node) -> Hashable:
    """The same for nodes of which the checker says the same."""
    held = [(each.name, each.type) for each in node.proto.attribute] if node.tensors or node.bodies else ()
    return id(node.signature), id(node.attributes), tuple(map(bool, (*node.inputs, 1, *node.outputs))), *held


def _without_values(node: Node) -> onnx.NodeProto:
    """A node without the values of its tensors and the nodes of its bodies, which are asked about by themselves."""
    made = onnx.NodeProto()
    made.CopyFrom(node.proto)
    made.domain = domain_of(made.domain)
    for attribute in made.attribute if node.tensors or node.bodies else ():
        if attribute.type == onnx.AttributeProto.GRAPH:
            attribute.g.CopyFrom(onnx.GraphProto(name="body"))
    for tensor in tensors_in((made,)) if node.tensors else ():
        tensor.CopyFrom(TensorProto(data_type=tensor.data_type, dims=[0]))
    return made


def _is_unknown(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    """Whether onnx has no operator of this name, or ONNX Runtime had it before."""
    domain = domain_of(node.domain)
    version = versions.get(domain, 0)
    if domain not in NEWEST or not version or has_schema(node.op_type, domain, version):
        return False
    return not onnx.defs.has(node.op_type, domain) or node.op_type in BEFORE_ONNX


# ONNX Runtime has these in operator sets that are older than ONNX's own of the name.
BEFORE_ONNX = frozenset({"LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"})


def check_fit(
    node: Node, operands: Sequence[ValueType], results: Sequence[ValueType], value: Callable[[int], Any]
) -> None:
    """Raise MisfitError where operands of a node, of shapes that are all known, do not fit together.

    value gives that of an operand which is the same in every run.
    """
    result = results[0].sizes if results else None
    if any(name and known.sizes is None for name, known in zip(node.inputs, operands, strict=True)):
        return
    check = CHECKS[node.operator]
    if result is None and check is _same_elements:
        return
    try:
        why = check(Call(operands, node.attributes, value), result or ())
    except (LookupError, ValueError, ZeroDivisionError):  # an operand or an attribute has fewer axes than it must have
        why = " and ".join(_shown(known.sizes) for known in operands if known.sizes)
    if why:
        place = node.proto.name or node.result
        raise MisfitError(f"{node.operator} '{place}' cannot take {why}: check the model, and sizes in dims")


def refuse_negative(node: Node, results: Sequence[ValueType]) -> None:
    """Raise MisfitError where a result would have a negative size, as of numbers that leave 64 bits."""
    for known in results:
        if min(known.sizes or (), default=0) < 0:
            place, shown = node.proto.name or node.result, _shown(known.sizes)
            raise MisfitError(f"{node.operator} '{place}' would give {shown}: check the model, and sizes in dims")


def _shown(sizes: Sequence[int] | None) -> str:
    return "x".join(map(str, sizes or ())) or "one number"


def _convolution(call: Call, result: Sizes, weight: int = 1) -> str:
    """x (batch, c, ...), weight (out, c / groups, kernel ...), of which a window fits into x."""
    x, filters, groups = call.sizes(0), call.sizes(weight), call.integer("group", 1)
    if len(x) != len(filters) or x[1] != filters[1] * groups:
        return f"{_shown(x)} with a weight of {_shown(filters)}, which takes {filters[1] * groups} channels"
    rank = len(x) - 2
    is_padded = str(call.attributes.get("auto_pad", "")).startswith("SAME")
    pads, steps = call.integers("pads") or (0,) * (2 * rank), call.integers("dilations") or (1,) * rank
    sides = zip(x[2:], pads[:rank], pads[rank:], steps, filters[2:], strict=True)
    fits = is_padded or all(size + low + high > step * (extent - 1) for size, low, high, step, extent in sides)
    return "" if fits and min(x[2:], default=1) > 0 else f"{_shown(x)}, which is smaller than its window"


def _transposed(call: Call, result: Sizes) -> str:
    """x (batch, c, ...), weight (c, out / groups, kernel ...)."""
    x, filters = call.sizes(0), call.sizes(1)
    if len(x) != len(filters) or x[1] != filters[0]:
        return f"{_shown(x)} with a weight of {_shown(filters)}, which takes {filters[0]} channels"
    return "" if min(result, default=1) > 0 else f"{_shown(x)}, of which its pads leave nothing"


def _recurrent(call: Call, result: Sizes) -> str:
    """x (time, batch, k), weight (d, gates·h, k), a length for each row, states (d, batch, h).

    Layout 1 puts rows first.
    """
    x, filters, directions = call.sizes(0), call.sizes(1), call.sizes(2)[0]
    h, batch = call.integer("hidden_size", call.sizes(2)[2]), x[0 if call.integer("layout") else 1]
    state = (batch, directions, h) if call.integer("layout") else (directions, batch, h)
    wanted = {"a weight of": (1, (*filters[:2], x[2])), "lengths of": (4, (batch,)), "a state of": (5, state)}
    for what, (at, sizes) in (*wanted.items(), ("a state of", (6, state))):
        if call.has(at) and call.sizes(at) != sizes:
            return f"{what} {_shown(call.sizes(at))}, where {_shown(x)} and {h} units want {_shown(sizes)}"
    return ""


def _same_elements(call: Call, result: Sizes) -> str:
    """An operator that only looks at its operand in another shape."""
    x = call.sizes(0)
    return "" if prod(x) == prod(result) else f"{_shown(x)} as {_shown(result)}"


def _picked(call: Call, result: Sizes) -> str:
    """Rows of a table (rows, ...) of floats, as positions are that a sequence counts."""
    table = call.sizes(0)
    places = call.value(1) if len(table) > 1 and call.operands[0].is_floating else None
    rows, last = table[call.integer("axis")], -1 if places is None or not places.size else int(places.max())
    return f"row {last:,} of a table that has {rows:,}" if last >= rows else ""


# Where the sizes that dims bind may be wrong, and neither onnx's inference nor ONNX Runtime says so before a run.
CHECKS: Mapping[str, Check] = {
    "onnx::Conv": _convolution,
    "onnx::ConvInteger": _convolution,
    "onnx::QLinearConv": partial(_convolution, weight=3),
    "com.microsoft::FusedConv": _convolution,
    "onnx::ConvTranspose": _transposed,
    "onnx::LSTM": _recurrent,
    "onnx::GRU": _recurrent,
    "onnx::RNN": _recurrent,
    "onnx::Gather": _picked,
    "onnx::GatherElements": _picked,
    "onnx::Reshape": _same_elements,
    "onnx::DepthToSpace": _same_elements,
    "onnx::SpaceToDepth": _same_elements,
}
