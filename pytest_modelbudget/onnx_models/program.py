"""An ONNX program as one view: types of values, nodes in order, what is stored and who reads it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.tensor import DType, kept
from pytest_modelbudget.onnx_models.exporter_names import metadata_of, owned_names, scope_of
from pytest_modelbudget.onnx_models.protos import (
    NOTHING_WRITTEN,
    VALUE_FIELDS,
    Callee,
    callee_of,
    operator_name,
    opsets_of,
    place_of,
)
from pytest_modelbudget.onnx_models.value_types import FLOATING, ScopedTypes, ValueType, declared_types, tensor_type
from pytest_modelbudget.ops.role import UNDECLARED, Role
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable, builtin_ops

SIZES = frozenset({"onnx::Shape", "onnx::Size"})
# Operators whose results are as large as values say; beside them are those with an operand that only says how large.
COUNTING = frozenset({"onnx::Compress", "onnx::NonMaxSuppression", "onnx::NonZero", "onnx::Unique"})
CONSTANT = "onnx::Constant"
WRITTEN_BY_TORCH = "pkg.torch.onnx.fx_node"  # what its exporter says of each node that it writes
RESULT = re.compile(r"/.+_output_\d+")  # names of results, as torch's exporter for TorchScript writes them
FIRST_WITHOUT_INPUTS = 4  # IR version from which a stored tensor need not be an input too


class Signature(NamedTuple):
    """What all nodes of an operator with as many operands have alike.

    operator is its name as rules spell it, rule is None without one, and roles are one per operand, undeclared where no
    rule names it. The others are places of operands, -1 where there is none: sizing of those that only say how large or
    where the result is, viewed of the one whose memory the first result is, unless the flag says otherwise.
    attributes are the roles of what its nodes hold themselves: operands behind their inputs.
    """

    operator: str
    rule: OpRule | None
    roles: tuple[Role, ...]
    sizing: tuple[int, ...]
    viewed: int
    flag: int
    attributes: tuple[Role, ...] = ()
    kind: str = ""  # of its rule


class Node(NamedTuple):
    """One node: what its operator says of it, and what it reads.

    inputs and outputs are names of values, "" where one is left out. attributes are the plain ones, one mapping for all
    nodes that have the same; bodies the graphs inside, and tensors the attributes that are neither.
    """

    proto: NodeProto
    signature: Signature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    bodies: Mapping[str, Body]
    tensors: tuple[AttributeProto, ...] = ()

    @property
    def operator(self) -> str:
        """Its operator's name as rules spell it."""
        return self.signature.operator

    @property
    def rule(self) -> OpRule | None:
        return self.signature.rule

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.signature.roles

    @property
    def scope(self) -> str:
        return scope_of(self.proto)

    @property
    def place(self) -> str:
        """Its place, for people: its module path, or its own name where that is the model's."""
        return self.scope or self.proto.name or self.result

    @property
    def reads(self) -> set[str]:
        """Names that it reads, and those that its bodies read from outside."""
        names = {*self.inputs}
        for body in self.bodies.values():
            names |= body.reads_outside
        return names - {""}

    @property
    def result(self) -> str:
        """The name of its first result; "" where it has none."""
        return next(filter(None, self.outputs), "")

    @property
    def hands_on(self) -> str:
        """The operand that its result is, in another shape, type or place; "" for any other."""
        is_handed_on = bool(self.roles) and self.roles[0].carried and not self.roles[0].dequantised
        return self.inputs[0] if is_handed_on else ""


class Use(NamedTuple):
    """One operand of one node, and the role in which it is read."""

    node: Node
    role: Role

    @property
    def carries_into(self) -> tuple[str, ...]:
        """The results that are this value handed on."""
        if not self.role.carried:
            return ()
        return self.node.outputs if self.role.into_all else self.node.outputs[:1]


class StoredTensor(NamedTuple):
    """A tensor whose values a file holds: an initializer, or what a Constant node gives.

    proto has the values that are not zero alone where it is sparse. declared is what an exporter wrote beside its
    declaration among the graph's values, which torch's does where it writes nothing beside the tensor. beside is what
    it says of the file with its values, where they lie in one. is_literal says that a
    Constant node gives it: it stands in the text of the program. is_exporters says that torch's exporter wrote that
    node, as it tells there: what it makes of weights that it stored it does not write so, and other tools do.
    """

    name: str
    proto: TensorProto
    type: ValueType
    is_sparse: bool = False
    declared: Mapping[str, str] = NOTHING_WRITTEN
    beside: Mapping[str, str] = NOTHING_WRITTEN
    is_literal: bool = False
    is_exporters: bool = False

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.type.sizes is not None
        return self.type.sizes

    @property
    def read_as(self) -> ValueType:
        """The type that operations read: the shape of a sparse one is not that of its values."""
        return ValueType(self.type.code) if self.is_sparse else self.type

    @property
    def is_floating(self) -> bool:
        """Whether its values are real or complex numbers."""
        return self.type.is_floating

    @property
    def is_folded(self) -> bool:
        """Whether it is in the text of the program, or has the name of a result: no layer stores it."""
        return self.is_literal or RESULT.fullmatch(self.name) is not None

    @property
    def is_outside(self) -> bool:
        return self.proto.data_location == TensorProto.EXTERNAL

    @property
    def place(self) -> tuple[str, str] | None:
        """The file next to the model, and the offset at which its values begin there; None where they are in the model.

        Nothing else tells that two stored tensors are one memory. None, too, where it does not say how many they are:
        all tensors of a model that was published without its weights name the beginning of one file.
        """
        if self.is_sparse or "length" not in self.beside:  # as of most
            return None
        return str(PurePosixPath(self.beside.get("location", ""))), self.beside.get("offset") or "0"

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that an exporter wrote for it."""
        own = metadata_of(self.proto)
        return {**self.declared, **own} if self.declared and own else own or self.declared

    @property
    def values(self) -> TensorProto | None:
        """The tensor, where all of its values are in memory; one without elements has all of them."""
        has_values = any(getattr(self.proto, name) for name in VALUE_FIELDS) or not self.type.elements
        return self.proto if has_values and not self.is_sparse else None

    def array(self) -> Any:
        return numpy_helper.to_array(self.proto)


def stored_tensor(
    name: str, proto: TensorProto, *, is_sparse: bool = False, declared: Mapping[str, str] = NOTHING_WRITTEN
) -> StoredTensor:
    """A tensor as the value of a name."""
    beside = place_of(proto) if proto.data_location == TensorProto.EXTERNAL else NOTHING_WRITTEN
    return StoredTensor(name, proto, tensor_type(proto), is_sparse, declared, beside)


@dataclass(frozen=True, eq=False)
class Body:
    """Nodes in the order in which they run: of the outermost graph, or of one inside a node.

    Whatever is said of readers counts the bodies inside, which see the names around them. types are those that the
    graph declares, without those of the bodies. owned are the names of what the module itself stored, as torch's
    exporter lists them; None where it did not.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: tuple[StoredTensor, ...] = ()
    types: ScopedTypes = field(default_factory=ScopedTypes)
    owned: frozenset[str] | None = None

    def everything(self) -> Iterator[Body]:
        """This body, and every one inside its nodes."""
        yield self
        for node in self.branching:
            for body in node.bodies.values():
                yield from body.everything()

    @kept
    def branching(self) -> tuple[Node, ...]:
        """Its nodes with bodies."""
        return tuple([node for node in self.nodes if node.bodies])

    def all_nodes(self) -> Iterator[Node]:
        """Its nodes, and those of every body inside them."""
        return chain.from_iterable(body.nodes for body in self.everything())

    @kept
    def stored(self) -> Mapping[str, StoredTensor]:
        """Its initializers and the tensors of its Constant nodes, by name."""
        constants = [
            _constant(node)._replace(is_literal=True, is_exporters=WRITTEN_BY_TORCH in metadata_of(node.proto))
            for node in self.nodes
            if node.signature.operator == CONSTANT
        ]
        return {tensor.name: tensor for tensor in (*self.initializers, *constants)}

    @property
    def floating(self) -> Iterator[StoredTensor]:
        """Its initializers of the types that weights have, without sparse ones."""
        return (t for t in self.initializers if t.type.code in FLOATING and not t.is_sparse)

    def origin(self, name: str) -> str:
        """The name that a value has where it is stored: exporters hand shared ones on."""
        while name not in self.stored and name in self.makers:
            maker = self.makers[name]
            if maker.operator != "onnx::Identity":
                break
            name = maker.inputs[0]
        return name

    @kept
    def reads(self) -> Mapping[str, int]:
        """How many operands and outputs a value is, by name; a value that nobody reads is none."""
        count = Counter([name for body in self.everything() for name in body.outputs])
        count.update([name for node in self.all_nodes() for name in node.inputs if name])
        return count

    @kept
    def reads_outside(self) -> AbstractSet[str]:
        """Names of values around it that it reads."""
        read = {*self.outputs}.union(*(node.reads for node in self.nodes))
        own = {*self.inputs, *(tensor.name for tensor in self.initializers), *self.makers}
        return read - own

    def most_reads(self, name: str) -> int:
        """The most reads of a value, or of any that it is made of between it and what is stored."""
        most = self.reads.get(name, 0)
        while name not in self.stored:
            name = self.makers[name].inputs[0]
            most = max(most, self.reads.get(name, 0))
        return most

    @kept
    def makers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    def uses(self, name: str) -> Sequence[Use]:
        return [Use(*read) for read in self.readers.get(name, ())]

    @kept
    def readers(self) -> Mapping[str, list[tuple[Node, Role]]]:
        """The same of every value that is read, as plain pairs: a model has thousands."""
        readers: dict[str, list[tuple[Node, Role]]] = defaultdict(list)
        for node in self.all_nodes():
            for name, role in zip(node.inputs, node.signature.roles, strict=True):
                readers[name].append((node, role))
        return dict(readers)

    @kept
    def handed_on(self) -> Mapping[str, list[str]]:
        """Names under which values go into bodies, and come out of them.

        A Loop hands its states on behind its count and its condition, a Scan all that it reads.
        """
        names: dict[str, list[str]] = defaultdict(list)
        for node in chain.from_iterable(body.branching for body in self.everything()):
            for inner in node.bodies.values():
                extra = max(len(inner.outputs) - len(node.outputs), 0)  # a Loop's condition
                results = zip(inner.outputs[extra:], node.outputs)  # noqa: B905
                operands = zip(node.inputs[::-1], inner.inputs[::-1])  # noqa: B905  # from behind
                for name, counterpart in (*results, *operands):
                    names[name].append(counterpart)
        return names

    @kept
    def constants(self) -> frozenset[str]:
        """Names of values that depend on nothing but stored tensors, which are among them."""
        return self.constants_with(frozenset())

    def constants_with(self, outer: AbstractSet[str]) -> frozenset[str]:
        """The constants where values from around it are some, too."""
        constants = {*outer, *(tensor.name for tensor in self.initializers)}
        for node in self.nodes:
            if node.operator == CONSTANT or ((read := node.reads) and read <= constants):
                constants.update(filter(None, node.outputs))
        return frozenset(constants)

    @kept
    def shaping(self) -> frozenset[str]:
        """Values that only lead to shapes of others, and are worked out before the run.

        Shape → Gather → Concat → Reshape is the usual chain. A value that nobody reads is none.
        """
        read = {*self.outputs}
        shaping: set[str] = set()
        for node in reversed(self.nodes):
            if node.bodies:
                read |= node.reads
            elif not shaping.isdisjoint(node.outputs) and not any(
                o in read or o in self.worked_out for o in node.outputs
            ):
                shaping.update(node.inputs)
                continue
            sizing = node.signature.sizing
            if not sizing:
                read.update(node.inputs)
                continue
            for at, name in enumerate(node.inputs):
                (shaping if at in sizing else read).add(name)
        return frozenset(shaping - read - self.worked_out)

    @kept
    def worked_out(self) -> frozenset[str]:
        """Values that a run makes of floating inputs, not of their shapes: no size is known by them before it."""
        floating = {name for name in self.inputs if self.types[name].code in FLOATING} - self.stored.keys()
        worked_out = {*floating}
        for node in self.nodes:
            read = node.reads if node.bodies else node.inputs
            if node.signature.operator not in SIZES and not worked_out.isdisjoint(read):
                worked_out.update(filter(None, node.outputs))
        return frozenset(worked_out - floating)


NO_BODIES: Mapping[str, Body] = {}
NO_ATTRIBUTES: Mapping[str, Any] = {}


class Program:
    """A model's graph and functions; each is made when it is asked for.

    rules are the project's own where there are no others.
    """

    def __init__(self, model: onnx.ModelProto, rules: OpTable | None = None, graph: Body | None = None) -> None:
        self.model = model
        self._graph = graph
        self.rules = builtin_ops() if rules is None else rules
        self.opsets = opsets_of(model)
        self._reader = NodeReader(self.rules)

    @kept
    def graph(self) -> Body:
        return self._graph or self._reader.body(self.model.graph)

    @kept
    def functions(self) -> Mapping[Callee, Body]:
        """The model's own functions, by what calls them."""
        return {
            callee_of(function): Body(self._reader.nodes(function.node), tuple(function.input), tuple(function.output))
            for function in self.model.functions
        }

    def everything(self) -> Iterator[Body]:
        """Its graph, its functions, and every body inside them."""
        for body in (self.graph, *self.functions.values()):
            yield from body.everything()

    @kept
    def inputs(self) -> tuple[str, ...]:
        """Inputs that a caller must give: those without a stored value."""
        return tuple([name for name in self.graph.inputs if name not in self.graph.stored])

    @kept
    def replaceable(self) -> frozenset[str]:
        """Stored tensors that are inputs too: a caller may feed others in their place."""
        if self.model.ir_version < FIRST_WITHOUT_INPUTS:
            return frozenset()
        return frozenset(self.graph.inputs) & self.graph.stored.keys()


class NodeReader:
    """Reads nodes as plain data; what many have alike, operator and attributes, is worked out and held once."""

    def __init__(self, rules: OpTable) -> None:
        self._rules = rules
        self._signatures: dict[tuple[str, str, int], Signature] = {}
        self._attributes: dict[tuple[bytes, ...], Mapping[str, Any]] = {}

    def body(self, graph: onnx.GraphProto) -> Body:
        """A graph with its nodes, and what it stores."""
        declared = {value.name: metadata_of(value) for value in graph.value_info if value.metadata_props}
        return Body(
            self.nodes(graph.node),
            tuple([value.name for value in graph.input]),
            tuple([value.name for value in graph.output]),
            (
                *[
                    stored_tensor(tensor.name, tensor, declared=declared.get(tensor.name, NOTHING_WRITTEN))
                    for tensor in graph.initializer
                ],
                *[stored_tensor(s.values.name, s.values, is_sparse=True) for s in graph.sparse_initializer],
            ),
            declared_types(graph),
            owned=owned_names(graph),
        )

    def nodes(self, protos: Iterable[NodeProto]) -> tuple[Node, ...]:
        return tuple([self.node(proto) for proto in protos])

    def node(self, proto: NodeProto) -> Node:
        """One node."""
        inputs, outputs = tuple(proto.input[:]), tuple(proto.output[:])  # slices: protobuf iterates slowly
        key = proto.domain, proto.op_type, len(inputs)
        signature = self._signatures.get(key) or self._signature(*key)
        written = proto.attribute[:]
        if not written:
            return Node(proto, signature, inputs, outputs, NO_ATTRIBUTES, NO_BODIES)
        plain: list[AttributeProto] = []
        held: list[AttributeProto] = []
        bodies = NO_BODIES
        for attribute in written:
            kind = attribute.type
            if kind in _PLAIN_VALUES:
                plain.append(attribute)
            elif kind == AttributeProto.GRAPH:
                bodies = {**bodies, attribute.name: self.body(attribute.g)}
            else:
                held.append(attribute)
        attributes = self._shared(plain) if plain else NO_ATTRIBUTES
        return Node(proto, signature, inputs, outputs, attributes, bodies, tuple(held))

    def _signature(self, domain: str, name: str, count: int) -> Signature:
        operator = operator_name(domain, name)
        rule = self._rules.get(operator)
        roles = rule.roles_of(operator, count) if rule else (UNDECLARED,) * count
        words = [role.word for role in roles]
        sizing = tuple([at for at, role in enumerate(roles) if role.shape])
        places = (_place(words, rule.shares_storage_of), _place(words, rule.computes_where)) if rule else (-1, -1)
        own = tuple([role for role in rule.roles[operator] if role.attribute]) if rule else ()
        signature = Signature(operator, rule, roles, sizing, *places, own, rule.kind if rule else "")
        return self._signatures.setdefault((domain, name, count), signature)

    def _shared(self, plain: list[AttributeProto]) -> Mapping[str, Any]:
        """Attributes by name; the mapping of the first node that has the same."""
        key = tuple([attribute.SerializeToString() for attribute in plain])
        known = self._attributes.get(key)
        if known is None:
            known = {attribute.name: _PLAIN_VALUES[attribute.type](attribute) for attribute in plain}
            self._attributes[key] = known
        return known


def _place(words: list[str], word: str | None) -> int:
    return words.index(word) if word in words else -1


def read_node(proto: NodeProto, rules: OpTable) -> Node:
    """A node as plain data."""
    return NodeReader(rules).node(proto)


def _constant(node: Node) -> StoredTensor:
    """The tensor of a Constant node, whichever of its attributes holds it."""
    if not node.proto.attribute:
        raise SourceError(f"onnx::Constant '{node.result}' has no value: export the model again")
    name, attribute = node.outputs[0], node.proto.attribute[0]
    if attribute.type == AttributeProto.TENSOR:
        return stored_tensor(name, attribute.t)
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return stored_tensor(name, attribute.sparse_tensor.values, is_sparse=True)
    value = node.attributes[attribute.name]
    code = _CONSTANT_CODES[attribute.type]
    entries, shape = (value, (len(value),)) if isinstance(value, tuple) else ((value,), ())
    return stored_tensor(name, onnx.helper.make_tensor(name, code, shape, entries))


_CONSTANT_CODES = {
    AttributeProto.INT: TensorProto.INT64,
    AttributeProto.INTS: TensorProto.INT64,
    AttributeProto.FLOAT: TensorProto.FLOAT,
    AttributeProto.FLOATS: TensorProto.FLOAT,
    AttributeProto.STRING: TensorProto.STRING,
    AttributeProto.STRINGS: TensorProto.STRING,
}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


# What reads an attribute that is an int, a float, a text or several of these; no rule asks for others.
_PLAIN_VALUES: Mapping[int, Callable[[AttributeProto], object]] = {
    AttributeProto.INT: lambda attribute: attribute.i,
    AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    AttributeProto.FLOAT: lambda attribute: attribute.f,
    AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    AttributeProto.STRING: lambda attribute: _text(attribute.s),
    AttributeProto.STRINGS: lambda attribute: tuple(map(_text, attribute.strings)),
}
