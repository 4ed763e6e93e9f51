"""What every runtime refuses of an ONNX file before it runs: versions, names given twice, nodes that no schema takes.

A model that cannot run has no cost. Operators without a schema of ONNX's own (com.microsoft, a project's) are not held
to any here, and what reads their results is held to what is known of those; functions of the file's own are where they
are written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto
from onnx.defs import OpSchema

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.onnx_models.protos import STANDARD, all_nodes, callee_of, domain_of, names_read, op_name
from pytest_modelbudget.onnx_models.value_types import ValueType

ML = "ai.onnx.ml"
# The newest versions that the installed onnx knows: of the format, and of each operator set.
NEWEST_IR, NEWEST = onnx.IR_VERSION, {"": onnx.defs.onnx_opset_version(), ML: onnx.helper.VERSION_TABLE[-1][3]}
# ONNX Runtime has these in operator sets that are older than ONNX's own of the name.
BEFORE_ONNX = frozenset({"LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"})
RUNTIMES_OWN = "com.microsoft"  # of which there has been version 1 alone
COMPILED = "com.microsoft::EPContext"  # a part of a model that was compiled for one device, weights and all
Attributes = tuple[tuple[str, int], ...]  # names and types


def refuse_invalid(program: Program, file: str) -> None:
    """Raise SourceError for what no runtime loads, with the place, and the way out."""
    if not program.model.graph.output:
        raise SourceError(f"{file} is no valid ONNX model: its graph gives no output: export it anew")
    for why in (*_versions(program), *_functions(program), *_names(program.graph, frozenset()), *_nodes(program, file)):
        raise SourceError(f"{file} is no valid ONNX model: {why}")


def _versions(program: Program) -> Iterator[str]:
    written = program.model.ir_version
    if written > NEWEST_IR:
        yield f"its IR version is {written}, and onnx {onnx.__version__} knows {NEWEST_IR}: install a newer onnx"
    for domain, newest in NEWEST.items():
        version = program.opsets.get(domain, newest)
        if not 1 <= version <= newest:
            name = domain or "ai.onnx"
            yield (
                f"it asks for version {version} of the operators of {name}, and onnx {onnx.__version__} knows 1 to "
                f"{newest}: export it for one of those, or install a newer onnx"
            )
    if (version := program.opsets.get(RUNTIMES_OWN, 1)) != 1:
        yield f"it asks for version {version} of the operators of {RUNTIMES_OWN}, which has 1 alone: export it for that"


def _functions(program: Program) -> Iterator[str]:
    """Functions that are defined twice or lack what they read, and calls of those whose domain is not imported."""
    functions = program.model.functions
    if not functions:
        return
    own = Counter(map(callee_of, functions))
    for (domain, name, overload), count in own.items():
        if count > 1:
            called = f"{domain}::{name}:{overload}" if overload else f"{domain}::{name}"
            yield f"two of its functions are called {called}: give each a name of its own"
    calls = [node for node in all_nodes(program.model.graph.node) if callee_of(node) in own]
    for node in calls:
        if domain_of(node.domain) not in program.opsets:
            called = f"{op_name(node)} '{node.name}'"
            yield f"{called} is of the domain {node.domain}, which it does not import: export it anew"
    inner = (node for function in functions for node in all_nodes(function.node))
    used = {callee_of(node) for node in chain(calls, inner)}
    for function in functions:
        imported = {domain_of(opset.domain) for opset in function.opset_import}
        where = f"its function {function.domain}::{function.name}"
        for domain in sorted({domain_of(node.domain) for node in all_nodes(function.node)} - imported):
            yield f"{where} does not import the operators of {domain or 'ai.onnx'}: export it anew"
        for name in _lacked(function) if callee_of(function) in used else ():
            yield f"{where} reads '{name}', which no input or node of it gives: export it anew"


def _lacked(function: onnx.FunctionProto) -> Sequence[str]:
    """Names that a function reads or gives, and does not have."""
    made = {*function.input, *(name for node in function.node for name in node.output), ""}
    return sorted((names_read(function.node) | {*function.output}) - made)


def _names(body: Body, around: AbstractSet[str]) -> Iterator[str]:
    """Values that two nodes give, or that a node gives although they are stored or come from outside.

    A body may store, or take as an input, what has a name around it; what its nodes give is new.
    """
    for name, count in Counter(body.inputs).items():
        if count > 1:
            yield f"two of its inputs are called '{name}': give each a name of its own"
    known = {*around, *body.inputs, *(tensor.name for tensor in body.initializers)}
    for node in body.nodes:
        for inner in node.bodies.values():
            yield from _names(inner, known)
        for name in node.outputs:
            if name in known:
                named = f" '{node.proto.name}'" if node.proto.name else ""
                second = f"the second time by {node.operator}{named}"
                yield f"'{name}' is given twice, {second}: give each value a name of its own"
            elif name:
                known.add(name)


def _nodes(program: Program, file: str) -> Iterator[str]:
    own = {callee_of(each) for each in program.model.functions}
    versions = {domain: program.opsets.get(domain, 0) for domain in NEWEST}
    good: set[tuple[object, ...]] = set()  # by operator and settings, known by their identity, and what else differs
    for node in program.graph.all_nodes():
        if not (node.bodies or "" in node.inputs or "" in node.outputs):
            held = [(each.name, each.type) for each in node.held] if node.held else ()
            alike = (id(node.signature), id(node.attributes), len(node.outputs), *held)
            if alike in good:
                continue
            good.add(alike)
        proto = node.proto
        if node.operator == COMPILED and node.rule is None:
            what = f"{COMPILED} '{proto.name or node.result}' is compiled for one device, and hides what it holds"
            raise SourceError(f"{file}: {what}: measure the file that it was made from")
        domain = "" if proto.domain in STANDARD else proto.domain
        version = versions.get(domain, 0)
        is_held = version and callee_of(proto) not in own
        if why := _misused(node, domain, version) if is_held else _repeated(each.name for each in proto.attribute):
            yield f"{node.operator} '{proto.name or node.result}' {why}"


def check_types(node: Node, operands: Sequence[ValueType], versions: Mapping[str, int]) -> None:
    """Raise SourceError where a node cannot take operands of these types; of unknown ones nothing is said."""
    domain = domain_of(node.proto.domain)
    codes = tuple([0 if known.container else known.code for known in operands])
    if domain in NEWEST and (why := _wrong_type(domain, node.proto.op_type, versions.get(domain, 0), codes)):
        raise SourceError(f"{node.operator} '{node.proto.name or node.result}' {why}: export the model anew")


@lru_cache(maxsize=4096)
def _wrong_type(domain: str, name: str, version: int, codes: tuple[int, ...]) -> str:
    """What is wrong with operands of these types; "" of good ones, and where no schema says it."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return ""
    bound: dict[str, str] = {}
    last = len(schema.inputs) - 1
    for at, code in enumerate(codes if last >= 0 else ()):
        formal = schema.inputs[min(at, last)]
        if not code:
            continue
        spelt = f"tensor({TensorProto.DataType.Name(code).lower()})"
        if all(taken.startswith("seq(") for taken in formal.types):
            continue  # one of constants stands as the stack of its elements
        if spelt not in formal.types:
            return f"cannot take {spelt} as its operand {formal.name}"
        if formal.is_homogeneous and bound.setdefault(formal.type_str, spelt) != spelt:
            return f"cannot take {bound[formal.type_str]} and {spelt} together"
    return ""


def _misused(node: Node, domain: str, version: int) -> str:
    """Why no schema takes a node; most nodes of a model are like one that was asked before."""
    written = node.proto.attribute
    attributes = tuple([(each.name, 0 if each.ref_attr_name else each.type) for each in written]) if written else ()
    inputs, outputs = tuple(map(bool, node.inputs)), tuple(map(bool, node.outputs))
    return _refusal(domain, node.proto.op_type, version, inputs, outputs, attributes)


@lru_cache(maxsize=4096)
def _refusal(
    domain: str, name: str, version: int, inputs: tuple[bool, ...], outputs: tuple[bool, ...], attributes: Attributes
) -> str:
    """What is wrong with nodes that have these operands and results, and attributes of these types; "" of good ones."""
    if not onnx.defs.has(name, domain):
        return ""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        older = name in BEFORE_ONNX
        return "" if older else f"is not in version {version} of its operators: export the model for a newer one"
    if schema.deprecated and schema.since_version < version:  # what was deprecated as it came runtimes take
        return f"is no longer in version {version} of its operators: export the model anew"
    return (
        _lacks(inputs, schema.inputs)
        or _misnumbered("operands", len(inputs), schema.min_input, schema.max_input)
        or _misnumbered("results", len(outputs), schema.min_output, schema.max_output)
        or _settings(schema, attributes)
    )


def _lacks(there: tuple[bool, ...], formals: Sequence[Any]) -> str:
    """An operand that a node must have, and does not have."""
    for at, formal in enumerate(formals):
        is_required = formal.option == OpSchema.FormalParameterOption.Single
        if is_required and (at >= len(there) or not there[at]):
            return f"lacks its operand {formal.name}: export the model anew"
    return ""


def _misnumbered(word: str, count: int, least: int, most: int) -> str:
    if least <= count <= most:
        return ""
    wanted = f"{least}" if least == most else f"{least} to {most}" if count > most else f"at least {least}"
    return f"has {count} {word}, and should have {wanted}: export the model anew"


def _repeated(names: Iterable[str]) -> str:
    for name, count in Counter(names).items():
        if count > 1:
            return f"has the attribute '{name}' more than once: keep one"
    return ""


def _settings(schema: OpSchema, attributes: Attributes) -> str:
    known: Mapping[str, Any] = schema.attributes  # whose types are numbers, as stubs do not say
    if why := _repeated(name for name, _ in attributes):
        return why
    for name, kind in attributes:
        if name.startswith("__"):
            continue  # a note of some tool, which onnx lets pass
        if name not in known:
            return f"has an attribute '{name}', which the operator does not know: remove it"
        if kind and kind != int(known[name].type):
            wanted = AttributeProto.AttributeType.Name(int(known[name].type))
            return f"has an attribute '{name}' that is no {wanted}: export the model anew"
    if schema.name == "Constant" and not attributes:
        return "has no value: export the model anew"
    missing = {name for name, each in known.items() if each.required} - {name for name, _ in attributes}
    return f"lacks its attribute '{min(missing)}': export the model anew" if missing else ""
