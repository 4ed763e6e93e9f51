"""Two ONNX models side by side: their inputs, their runs, and values by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.divergence import Divergence, Watched, worst_element
from pytest_modelbudget.equivalence.figures import ALGEBRA, relative_error
from pytest_modelbudget.equivalence.inputs import (
    SCALES,
    Output,
    Returned,
    Row,
    Specs,
    drawn,
    families_of,
    joined,
    runs_of,
)
from pytest_modelbudget.equivalence.judgement import OutputPair, WrongLayers, first_rounding
from pytest_modelbudget.errors import InputError, TransformError
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.graph.tensor import least_precise
from pytest_modelbudget.onnx_models.inference import inferred_types
from pytest_modelbudget.onnx_models.program import (
    FLOATING,
    Body,
    DeclaredTypes,
    Node,
    Program,
    ValueType,
    bound,
    dtype_of,
    names_read,
    scope_of,
    value_type,
    with_graph,
)
from pytest_modelbudget.onnx_models.running import Feeds, OnnxRun, given_inputs, tensors_in, upcast

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search


Values = Mapping[str, Any]


def divergence_search(original: onnx.ModelProto, other: onnx.ModelProto) -> Search:
    """A search for the first node of the original whose float64 result the other does not compute.

    Results are matched by name, else by value, so that names may have changed. One that only leads
    to results which agree was laid out otherwise (a convolution into which a batch norm was
    folded) and is no divergence, unless it is an output.
    """
    nodes = [node for node in original.graph.node if any(node.output)]
    results = [_result(node) for node in nodes]
    outputs = {value.name for value in original.graph.output}

    @cache
    def runs() -> tuple[OnnxRun, OnnxRun]:
        names = {*results, *last_results(other)}
        there = [name for node in other.graph.node for name in node.output if name in names]
        return (
            OnnxRun(original, float64=True, watched=results),
            OnnxRun(other, float64=True, watched=there),
        )

    def search(inputs: Values) -> Divergence | None:
        before, after = (_floating(run(upcast(inputs))) for run in runs())
        return _first(nodes, outputs, before, after)

    return search


def _first(
    nodes: Sequence[NodeProto], outputs: AbstractSet[str], before: Values, after: Values
) -> Divergence | None:
    """The first of some nodes whose result is wrong, or is an output and wrong."""
    results = map(_result, nodes)
    errors = {name: _error(name, before[name], after) for name in results if name in before}
    for node in nodes:
        name = _result(node)
        if errors.get(name, 0.0) <= ALGEBRA:
            continue
        following = [_result(each) for each in nodes if name in names_read((each,))]
        lost = following and all(errors.get(each, 0.0) <= ALGEBRA for each in following)
        if name in outputs or not lost:
            return _told(node, errors[name], before[name], after.get(name))
    return None


def _result(node: NodeProto) -> str:
    return str(next(filter(None, node.output)))


def last_results(model: onnx.ModelProto) -> Iterable[str]:
    """The last result of every layer: what another model may have under another name."""
    last = {scope_of(node): _result(node) for node in model.graph.node if any(node.output)}
    return last.values()


def _floating(values: Values) -> Values:
    """Those values that are floating tensors."""
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "dtype", None) is not None and value.dtype.kind == "f"
    }


def _error(name: str, value: Any, others: Values) -> float:
    """How far the other model is from one value, wherever it comes closest; inf for NaN."""
    error = relative_error(value, others[name]) if name in others else float("inf")
    if error > ALGEBRA and any(relative_error(value, each) <= ALGEBRA for each in others.values()):
        return 0.0
    return error


def _told(node: NodeProto, error: float, before: Any, after: Any) -> Divergence:
    comparable = after is not None and after.shape == before.shape
    worst = worst_element(before, after) if comparable else None
    return Divergence(scope_of(node), error, worst)


SEE_NO_VALUE = frozenset({"onnx::Shape", "onnx::Size"})


def index_ranges(model: onnx.ModelProto) -> Mapping[str, int]:
    """Below what integer inputs stay: the size of the smallest stored table that each indexes.

    Inputs that are read in any other way than by Gather, or by nothing, are left out.
    """
    graph = Program(model).graph
    ranges = {}
    for name in graph.inputs:
        dtype = dtype_of(graph.types[name].code)
        if "int" not in dtype.name:
            continue
        sizes = list(_sizes(name, graph))
        if sizes and all(sizes):
            signs = 0 if dtype.name.startswith("u") else 1
            ranges[name] = min(*sizes, 2 ** int(dtype.bits - signs))
    return ranges


def _sizes(name: str, graph: Body) -> Iterator[int]:
    """The size of every table that a value indexes; 0 for a reader of another kind."""
    for use in graph.uses.get(name, ()):
        if use.node.operator in SEE_NO_VALUE:
            continue
        for result in use.carries_into:
            yield from _sizes(result, graph)
        if not use.carries_into:
            yield _table_size(name, use.node, graph)


def _table_size(name: str, node: Node, graph: Body) -> int:
    if node.operator != "onnx::Gather" or node.inputs[0] == name:
        return 0
    table = graph.stored.get(graph.origin(node.inputs[0]))
    return table.shape[node.attributes.get("axis", 0)] if table and not table.is_sparse else 0


def rounding_search(
    models: tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto], dtype: str, partial_sums: int
) -> Search:
    """A search among results that both models have under one name, by their layers.

    models are the original for float64 and as it is stored, and the other as it is stored.
    """
    exact, original, other = models

    there = {name for node in other.graph.node for name in node.output}
    scopes = {
        name: scope_of(node)
        for node in original.graph.node
        for name in node.output
        if name and name in there
    }

    @cache
    def runs() -> tuple[OnnxRun, OnnxRun, OnnxRun]:
        return (
            OnnxRun(exact, float64=True, watched=scopes),
            OnnxRun(original, watched=scopes),
            OnnxRun(other, watched=scopes),
        )

    def search(inputs: Feeds) -> Divergence | None:
        reference, first, second = runs()
        return first_rounding(
            _watched(reference(upcast(inputs)), scopes),
            _watched(first(inputs), scopes),
            _watched(second(inputs), scopes),
            dtype,
            partial_sums,
        )

    return search


def _watched(found: Feeds, scopes: Mapping[str, str]) -> Watched:
    """The tensors of a run by the layers that gave them."""
    return [
        (scope, each) for name, scope in scopes.items() for _, each in tensors_in(name, found[name])
    ]


@dataclass(frozen=True, slots=True)
class StoredInBoth:
    """Stored tensors of two graphs by name."""

    before: Mapping[str, TensorProto]
    after: Mapping[str, TensorProto]

    def makes_alike(self, node: NodeProto, twin: NodeProto) -> bool:
        """Whether two nodes are one, down to the values of the stored tensors that they read."""
        return node == twin and self._are_alike(names_read((node,)))

    def _are_alike(self, names: Iterable[str]) -> bool:
        return all(self.before.get(name) == self.after.get(name) for name in names)


def stored_in_both(original: onnx.ModelProto, other: onnx.ModelProto) -> StoredInBoth:
    """The initialisers of two models' outermost graphs."""
    before, after = (
        {tensor.name: tensor for tensor in model.graph.initializer} for model in (original, other)
    )
    return StoredInBoth(before, after)


def means_alike(original: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether a node means the same in both models: by operator sets and local functions."""
    models = (original, other)
    before, after = ((list(each.opset_import), list(each.functions)) for each in models)
    return before == after


def common_values(original: onnx.ModelProto, other: onnx.ModelProto) -> frozenset[str]:
    """Names of values that both graphs compute alike, from equal inputs and stored tensors.

    A rewritten network shares all of its nodes before the first change; they need no second run.
    """
    if not means_alike(original, other):
        return frozenset()
    makers = {node.output[0]: node for node in original.graph.node if node.output}
    stored = stored_in_both(original, other)
    inputs = {value.name for value in original.graph.input}
    common = {value.name for value in other.graph.input if value.name in inputs}
    differ: set[str] = {name for name in common if name in stored.before or name in stored.after}
    common -= differ
    made: set[str] = set()
    for node in other.graph.node:
        twin = makers.get(node.output[0]) if node.output else None
        if twin is None or not stored.makes_alike(twin, node):
            continue
        if names_read((node,)) - {""} - common - made <= stored.before.keys():
            made.update(filter(None, node.output))
    return frozenset(made)


def frontier(model: onnx.ModelProto, common: frozenset[str]) -> tuple[str, ...]:
    """Common values that a model's other nodes, or its readers, need."""
    rest = [node for node in model.graph.node if not common.issuperset(filter(None, node.output))]
    wanted = names_read(rest) | {value.name for value in model.graph.output}
    return tuple(sorted(common & wanted))


def changed_layers(original: onnx.ModelProto, other: onnx.ModelProto) -> Mapping[str, str]:
    """Scopes of results that both graphs have under one name, made by other nodes or weights."""
    stored = stored_in_both(original, other)
    makers = {node.output[0]: node for node in other.graph.node if node.output}
    return {
        node.output[0]: scope_of(node)
        for node in original.graph.node
        if node.output
        and node.output[0] in makers
        and not stored.makes_alike(node, makers[node.output[0]])
    }


class Original:
    """The first model of two; its float64 runs keep the values that the second shares."""

    def __init__(
        self,
        model: onnx.ModelProto,
        exact: onnx.ModelProto,
        shared: tuple[str, ...] = (),
        layers: tuple[str, ...] = (),
    ) -> None:
        self._stored = OnnxRun(model)
        self._exact = OnnxRun(exact, float64=True, watched=(*shared, *layers))
        self._types = output_types(model)
        self._shared = shared
        self._layers = layers
        self._kept: dict[int, tuple[Feeds, Feeds]] = {}
        self._was_stored = False

    def run(self, inputs: Feeds, *, float64: bool) -> Returned:
        """All outputs in their order.

        A float64 run after one in the model's own types begins other inputs: what was kept goes.
        """
        if float64 and self._was_stored:
            self._kept.clear()
        self._was_stored = not float64
        found = self._exact(upcast(inputs)) if float64 else self._stored(inputs)
        if float64:
            kept = {name: found[name] for name in (*self._shared, *self._layers)}
            self._kept[id(inputs)] = (inputs, kept)
        return outputs_of(found, self._types)

    def kept_values(self, inputs: Feeds) -> Feeds:
        """Float64 values that the second model shares, and those of the layers it has changed.

        They are handed out once, and kept no longer.
        """
        if id(inputs) not in self._kept:
            self.run(inputs, float64=True)
        return self._kept.pop(id(inputs))[1]


class Transformed:
    """The second model, stored and exact. In float64 only what differs from the first is run."""

    def __init__(
        self,
        models: tuple[onnx.ModelProto, onnx.ModelProto],
        original: Original,
        common: frozenset[str],
        layers: Mapping[str, str],
    ) -> None:
        model, exact = models
        self._stored = OnnxRun(model)
        self._exact = OnnxRun(exact, float64=True, watched=layers, given=common)
        self._types = output_types(model)
        self._original = original
        self._layers = layers
        self.wrong_layers = WrongLayers(stored_dtype(model))

    def run(self, inputs: Feeds, *, float64: bool) -> Returned:
        """All outputs in their order."""
        if not float64:
            return outputs_of(self._stored(inputs), self._types)
        kept = self._original.kept_values(inputs)
        shared = {name: value for name, value in kept.items() if name not in self._layers}
        found = self._exact({**upcast(inputs), **shared})
        for name, scope in self._layers.items():
            given = (tensors_in(name, values[name]) for values in (kept, found))
            for (_, before), (_, after) in zip(*given, strict=False):
                if before.shape == after.shape:  # else one name for two things
                    self.wrong_layers.compare(scope, before, after)
        return outputs_of(found, self._types)

    def disagreements(self, promised: Counter[str] | None) -> Iterator[str]:
        """Operators that a graph was measured with, and that this run executes not as often."""
        executed = self._stored.executed()
        for name, count in (promised or {}).items():
            if executed[name] != count:
                yield f"the graph has {count:,} {name}, and the run executes {executed[name]:,}"


def output_types(model: onnx.ModelProto) -> Mapping[str, str]:
    """The element type that a model declares for each output, in their order."""
    return {value.name: _type_name(value.type) for value in model.graph.output}


def _type_name(kind: onnx.TypeProto) -> str:
    known = value_type(kind)
    return known.container or tensor_dtype_to_np_dtype(known.code).name


def outputs_of(found: Feeds, types: Mapping[str, str]) -> Returned:
    """What a run gave, with the types that its model declares.

    A sequence is an output for each of its tensors. Raises TransformError for anything else.
    """
    outputs = []
    for name, dtype in types.items():
        for part, values in tensors_in(name, found[name]):
            outputs.append(Output(part, dtype if part == name else values.dtype.name, values))
    return Returned(tuple(outputs))


def sides(
    original: onnx.ModelProto,
    transformed: onnx.ModelProto,
    *,
    exact: tuple[onnx.ModelProto, onnx.ModelProto] | None = None,
    partial_sums: int = 1,
    promised: Counter[str] | None = None,
    other_weights: Callable[[], bool] = lambda: False,
    same_layers: bool = True,
) -> Sides:
    """Both models as the comparison takes them.

    exact are the float64 copies of both, where the second is made of the first's copy and not an
    upcast of the transformed one: a transform that changes weights rounds them to their type.
    promised are the products of the graph whose costs were told, which the run must execute.
    other_weights tells whether the second model stores other values than the first. same_layers
    says that what both graphs call alike is one value, also where other nodes make it: a rewrite
    promises that, and two files do not, one of which may have a batch norm in its convolution.
    """
    before, after = exact or (original, transformed)
    common = common_values(before, after)
    layers = changed_layers(before, after) if same_layers else {}
    first = Original(original, before, frontier(after, common), tuple(layers))
    second = Transformed((transformed, after), first, common, layers)
    dtype = stored_dtype(original)
    return Sides(
        original=first,
        transformed=second,
        dtype=dtype,
        divergence=divergence_search(before, after),
        rounding=rounding_search((before, original, transformed), dtype, partial_sums),
        partial_sums=lambda: partial_sums,
        differences=tuple(declared_differences(original, transformed)),
        disagreements=lambda: second.disagreements(promised),
        other_weights=other_weights,
        wrong_layers=second.wrong_layers.pairs,
        notes=range_notes(original),
    )


def stored_dtype(model: onnx.ModelProto) -> str:
    """The least precise floating type among a model's stored tensors; "" without any."""
    codes = {tensor.data_type for tensor in model.graph.initializer} & FLOATING
    return least_precise([tensor_dtype_to_np_dtype(code).name for code in codes])


def declared_differences(original: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """How what two models declare of their inputs and outputs differs, in one line each."""
    found = []
    for side, of in (("input", given_inputs), ("output", lambda model: model.graph.output)):
        was, now = (
            {value.name: _type_name(value.type) for value in of(m)} for m in (original, other)
        )
        if list(was) != list(now):
            found.append(f"{side}s are {_listed(now)} and were {_listed(was)}")
            continue
        for name, dtype in was.items():
            if now[name] != dtype:
                found.append(f"{side} '{name}' is {now[name]} and was {dtype}")
    return found


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def input_specs(model: onnx.ModelProto, dims: Mapping[str, int]) -> tuple[Specs, bool]:
    """Types, shapes and ranges of what a model must be given, and whether rows may be stacked.

    A first axis that dims leaves open is 1. Rows may be stacked where every first axis is a symbol
    in the file. Raises InputError for another axis that is open, and for what is no tensor.
    """
    specs: dict[str, TensorSpec] = {}
    stacks, ranges = True, index_ranges(model)
    for value in given_inputs(model):
        known = value_type(value.type)
        spec = spec_of(value.name, known, dims)
        specs[value.name] = replace(spec, high=ranges.get(value.name))
        stacks = stacks and bool(known.shape) and isinstance((known.shape or (0,))[0], str)
    return specs, stacks and bool(specs)


def range_notes(model: onnx.ModelProto) -> tuple[str, ...]:
    """What a report says of integer inputs for which a file names no range."""
    ranges = index_ranges(model)
    named = [
        f"'{value.name}'"
        for value in given_inputs(model)
        if "int" in _type_name(value.type) and value.name not in ranges
    ]
    return (f"integers 0 and 1 for {', '.join(named)}: the file says no range",) if named else ()


def spec_of(name: str, known: ValueType, dims: Mapping[str, int]) -> TensorSpec:
    """What is drawn for a value of a type. Raises InputError where that is no sized tensor."""
    if known.container or known.shape is None:
        what = known.container or "value without a shape"
        raise InputError(f"'{name}' is a {what}: no values can be drawn for it")
    shape = tuple(_size(name, axis, size, dims) for axis, size in enumerate(known.shape))
    return TensorSpec(tensor_dtype_to_np_dtype(known.code).name, shape)


def _size(name: str, axis: int, size: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    symbol = size or f"{name}.{axis}"
    if symbol in dims:
        return dims[symbol]
    if axis == 0:
        return 1
    raise InputError(f"not bound by dims: {symbol} (of {name})")


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """One rewritten layer's runs in both graphs, a pair for each family of inputs.

    moves says that the original gives something else on other inputs, or is fed nothing at all.
    """

    scope: str
    moves: bool
    pairs: tuple[OutputPair, ...]


def layer_runs(
    original: onnx.ModelProto, other: onnx.ModelProto, dims: Mapping[str, int], claim: Claim
) -> Iterator[LayerRuns]:
    """Float64 outputs of every layer that was rewritten, on inputs drawn in its true shapes.

    A layer whose nodes stayed is rewritten too where a stored tensor that they read was. Raises
    TransformError for an output of both that only one computes: no layer ends in it.
    """
    stored, alike = stored_in_both(original, other), means_alike(original, other)
    before, after = _makers(original), _makers(other)
    both = before.keys() & after.keys()
    outputs, others = ({v.name for v in each.graph.output} for each in (original, other))
    for name in sorted(outputs & others):
        if (name in before) != (name in after):
            raise TransformError(f"output '{name}' is computed in one of the models alone")
    types = inferred_types(bound(original, dims))
    for name in before:
        if name in both and not (alike and stored.makes_alike(before[name], after[name])):
            cuts = [_cut_out(model, name, both - {name}) for model in (original, other)]
            yield _runs(scope_of(before[name]), cuts, types, (dims, claim, original))


def _makers(model: onnx.ModelProto) -> Mapping[str, NodeProto]:
    return {name: node for node in model.graph.node for name in node.output if name}


def _cut_out(
    model: onnx.ModelProto, output: str, borders: frozenset[str] | set[str]
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """The nodes that lead from border values to an output, and the values that they are fed."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted: set[str] = {output}
    fed: set[str] = set()
    nodes: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if wanted.isdisjoint(node.output):
            continue
        nodes.append(node)
        for name in names_read((node,)) - {""} - stored.keys():
            (fed if name in borders else wanted).add(name)
    made_here = {name for node in nodes for name in node.output}
    fed |= wanted - made_here
    read = names_read(nodes)
    made = with_graph(model, nodes[::-1], [stored[name] for name in sorted(read & stored.keys())])
    del made.graph.output[:]
    made.graph.output.append(onnx.ValueInfoProto(name=output))
    return made, frozenset(fed)


def _runs(
    scope: str,
    cuts: Sequence[tuple[onnx.ModelProto, frozenset[str]]],
    types: DeclaredTypes,
    known: tuple[Mapping[str, int], Claim, onnx.ModelProto],
) -> LayerRuns:
    dims, claim, original = known
    names = sorted(cuts[0][1] | cuts[1][1])
    specs = {name: spec_of(name, types[name], dims) for name in names}
    first, second = (OnnxRun(model, float64=True) for model, _ in cuts)
    rows = [Row(*each) for each in runs_of(families_of(list(specs.values())), claim.seeds)]
    inputs = [upcast(drawn(specs, row, SCALES[0])) for row in rows]
    before, after = ([_only(run(each), scope) for each in inputs] for run in (first, second))
    moves = not names or any(relative_error(x, y) > ALGEBRA for x, y in pairwise(before))
    dtype = stored_dtype(original)
    pairs = []
    for family in dict.fromkeys(row.family for row in rows):
        was, now = (
            joined([each for each, row in zip(results, rows, strict=True) if row.family == family])
            for results in (before, after)
        )
        if was.shape != now.shape:
            raise TransformError(f"layer '{scope}' gives {now.shape} in place of {was.shape}")
        pairs.append(OutputPair(scope, family, dtype, was, now, None, None))
    return LayerRuns(scope, moves, tuple(pairs))


def _only(found: Feeds, scope: str) -> Any:
    """The one value that a cut gives. Raises TransformError where that is no tensor."""
    (value,) = found.values()
    if isinstance(value, list):
        raise TransformError(f"layer '{scope}' gives a sequence, which is not compared alone")
    return value
