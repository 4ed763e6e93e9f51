"""ONNX models: read for their graph, and run as they are written or in float64."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import onnx
from onnx import NodeProto, TensorProto

from pytest_modelbudget.errors import MissingExtraError, TransformError
from pytest_modelbudget.formats.model import (
    DRAWN,
    LOADED,
    NOTHING_SHARED,
    UNWATCHED,
    DrawnInputs,
    LayerOutput,
    LayerPair,
    LoadedModel,
    Run,
    RunnableModel,
    Shared,
    Watch,
)
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.onnx_models import graph_reader
from pytest_modelbudget.onnx_models.files import model_with_weights
from pytest_modelbudget.onnx_models.graph_reader import measured_graph
from pytest_modelbudget.onnx_models.inference import inferred_types
from pytest_modelbudget.onnx_models.inputs import (
    declared_differences,
    drawn_inputs,
    output_types,
    outputs_of,
    spec_of,
    stored_dtype,
    upcast,
)
from pytest_modelbudget.onnx_models.program import (
    DeclaredTypes,
    ValueType,
    bound,
    floating_arrays,
    names_read,
    scope_of,
    type_proto,
    with_graph,
)
from pytest_modelbudget.onnx_models.weights import redrawn, without_values
from pytest_modelbudget.ops.table import OpTable

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values
    from pytest_modelbudget.onnx_models.running import OnnxRun


def load(source: ModelSource, rules: OpTable) -> OnnxModel:
    """The model in an ONNX file."""
    return OnnxModel(OnnxFile(source), rules)


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A file: its graph is read without its weights, which are read to be run."""

    source: ModelSource

    @property
    def name(self) -> str:
        return existing_file(self.source, "an ONNX model").name

    @property
    def dims(self) -> Mapping[str, int]:
        return self.source.dims

    def measured(self, rules: OpTable) -> LoadedModel:
        return graph_reader.load(self.source, rules)

    def proto(self) -> onnx.ModelProto:
        return model_with_weights(existing_file(self.source, "an ONNX model"))


@dataclass(frozen=True, eq=False)
class InMemory:
    """A model in memory, read as a file of that name would be."""

    held: onnx.ModelProto
    name: str
    dims: Mapping[str, int]

    def measured(self, rules: OpTable) -> LoadedModel:
        return measured_graph(self.held, self.name, self.dims, rules)

    def proto(self) -> onnx.ModelProto:
        return self.held


class OnnxModel(RunnableModel):
    """An ONNX model: measured without its weights, and run with them in ONNX Runtime.

    Weights that lie in a file which is not there are drawn.
    """

    engine = "onnx"
    can_be_redrawn = True

    def __init__(
        self,
        source: OnnxFile | InMemory,
        rules: OpTable,
        *,
        weights: str = LOADED,
        is_exact: bool = False,
        copy_of: OnnxModel | None = None,
    ) -> None:
        self.source = source
        self.rules = rules
        self.is_exact = is_exact
        self._weights = weights
        self._copy_of = copy_of
        self._sessions: dict[tuple[Collection[str], frozenset[str]], OnnxRun] = {}

    @cached_property
    def measured(self) -> LoadedModel:
        """What is measured of it; copies have the graph of the model as it was loaded."""
        return self._copy_of.measured if self._copy_of else self.source.measured(self.rules)

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of another one, redrawn or in float64."""
        return self._copy_of is not None

    @cached_property
    def _read(self) -> tuple[onnx.ModelProto, str]:
        """The model with all weights, drawn where one is missing, and what is missing."""
        proto = self.source.proto()
        absent = next(iter(without_values(proto)), None)
        if absent is None:
            return proto, ""
        words = f"{self.source.name}: the data of '{absent}' lie in a file that is not there"
        return redrawn(proto, self.rules), words

    @property
    def proto(self) -> onnx.ModelProto:
        """The model with its weights."""
        return self._read[0]

    @property
    def missing(self) -> str:  # type: ignore[override]  # known once weights are read
        return self._read[1]

    @property
    def weights(self) -> str:  # type: ignore[override]
        return DRAWN if self._weights == DRAWN or self.missing else LOADED

    @cached_property
    def inputs(self) -> DrawnInputs:
        return drawn_inputs(self.proto, self.source.dims)

    @property
    def dtype(self) -> str:
        return stored_dtype(self.proto)

    def stored(self) -> Mapping[str, Callable[[], Values]]:
        return floating_arrays(self.proto)

    def release(self) -> None:
        self._sessions.clear()

    def redrawn(self) -> OnnxModel:
        return self._over(redrawn(self.proto, self.rules), weights=DRAWN, copy_of=self)

    def in_float64(self) -> OnnxModel:
        """The same model, upcast while it runs: a large one is not copied once more."""
        return self._over(self.proto, weights=self.weights, is_exact=True, copy_of=self)

    def changed(self, proto: onnx.ModelProto) -> OnnxModel:
        """A changed model of the same kind."""
        return self._over(proto, weights=self.weights, is_exact=self.is_exact)

    def upcast_values(self) -> None:
        """Let a float64 copy store float64, for a change that works on the values themselves."""
        from pytest_modelbudget.onnx_models.running import wholly_in_float64

        self._read = wholly_in_float64(self.proto), self.missing

    def _over(
        self, proto: onnx.ModelProto, *, weights: str, is_exact: bool = False, copy_of: OnnxModel | None = None
    ) -> OnnxModel:
        source = InMemory(proto, self.source.name, self.source.dims)
        return OnnxModel(source, self.rules, weights=weights, is_exact=is_exact, copy_of=copy_of)

    def run(self, inputs: Arrays, watch: Watch = UNWATCHED) -> Run:
        names = tuple(watch.names)
        layers = {} if watch.layers is None else self._watched_layers(watch.layers)
        session = self._session((*names, *layers), frozenset(watch.given))
        values = session({**(upcast(inputs) if self.is_exact else inputs), **watch.given})
        return Run(
            outputs_of(values, output_types(self.proto)),
            values={name: values[name] for name in names},
            layers=self._layer_outputs(layers, values) if layers else (),
            executed=Counter((name, None) for name in session.executed().elements()) if watch.counts else None,
        )

    def _session(self, watched: tuple[str, ...], given: frozenset[str]) -> OnnxRun:
        try:  # only here, because it brings ONNX Runtime in
            from pytest_modelbudget.onnx_models.running import OnnxRun
        except ModuleNotFoundError as error:
            words = "running an ONNX model"
            raise MissingExtraError(words, package=str(error.name), extra="onnx") from error

        key = watched, given
        if key not in self._sessions:
            self._sessions[key] = OnnxRun(self.proto, float64=self.is_exact, watched=watched, given=given)
        return self._sessions[key]

    def _watched_layers(self, names: Collection[str]) -> Mapping[str, str]:
        """Scopes of results by name: of these and the last of each layer, else of all nodes."""
        nodes = [node for node in self.proto.graph.node if any(node.output)]
        wanted = set(names)
        if any(not wanted.isdisjoint(node.output) for node in nodes):
            wanted |= set({scope_of(node): _result(node) for node in nodes}.values())
            return {name: scope_of(node) for node in nodes for name in node.output if name in wanted}
        return {_result(node): scope_of(node) for node in nodes}

    def _layer_outputs(self, layers: Mapping[str, str], values: Mapping[str, Any]) -> tuple[LayerOutput, ...]:
        """Those of the watched values that are floating tensors."""
        names = [name for name in layers if getattr(values[name], "dtype", NO_TYPE).kind == "f"]
        places = {name: at for at, name in enumerate(names)}
        readers: dict[str, list[int]] = defaultdict(list)
        for node in self.proto.graph.node:
            if any(node.output) and _result(node) in places:
                for name in names_read((node,)):
                    readers[name].append(places[_result(node)])
        outputs = {value.name for value in self.proto.graph.output}
        return tuple(
            LayerOutput(name, layers[name], values[name], tuple(readers[name]), name in outputs) for name in names
        )

    def differences_from(self, original: RunnableModel) -> tuple[str, ...]:
        if not isinstance(original, OnnxModel):
            return ()
        return tuple(declared_differences(original.proto, self.proto))

    def shared_with(self, original: RunnableModel) -> Shared:
        if not isinstance(original, OnnxModel):
            return NOTHING_SHARED
        common = common_values(original.proto, self.proto)
        return Shared(
            frontier(self.proto, common),
            changed_layers(original.proto, self.proto),
            partial(layer_pairs, original, self),
        )


@dataclass(frozen=True, slots=True)
class _NoType:
    kind: str = ""


NO_TYPE = _NoType()


def _result(node: NodeProto) -> str:
    return str(next(filter(None, node.output)))


# What two models share.


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
    before, after = ({tensor.name: tensor for tensor in model.graph.initializer} for model in (original, other))
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
        if node.output and node.output[0] in makers and not stored.makes_alike(node, makers[node.output[0]])
    }


def layer_pairs(original: OnnxModel, changed: OnnxModel) -> Iterator[LayerPair]:
    """Every layer that was rewritten, cut out of both models.

    A layer whose nodes stayed is rewritten too where a stored tensor that they read was. Raises
    TransformError for an output of both that only one computes: no layer ends in it.
    """
    first, second = original.proto, changed.proto
    stored, alike = stored_in_both(first, second), means_alike(first, second)
    before, after = _makers(first), _makers(second)
    both = before.keys() & after.keys()
    outputs, others = ({v.name for v in each.graph.output} for each in (first, second))
    for name in sorted(outputs & others):
        if (name in before) != (name in after):
            raise TransformError(f"output '{name}' is computed in one of the models alone")
    types = inferred_types(bound(first, original.source.dims))
    for name in before:
        if name in both and not (alike and stored.makes_alike(before[name], after[name])):
            cuts = (model.changed(_cut_out(model, name, both - {name}, types)) for model in (original, changed))
            yield LayerPair(scope_of(before[name]), *cuts)


def _makers(model: onnx.ModelProto) -> Mapping[str, NodeProto]:
    return {name: node for node in model.graph.node for name in node.output if name}


def _cut_out(whole: OnnxModel, output: str, borders: Collection[str], types: DeclaredTypes) -> onnx.ModelProto:
    """The nodes that lead from border values to an output, fed with those in their true shapes."""
    model = whole.proto
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
    del made.graph.output[:], made.graph.input[:]
    made.graph.output.append(onnx.ValueInfoProto(name=output))
    for name in sorted(fed):
        spec = spec_of(name, types[name], whole.source.dims)
        kind = type_proto(ValueType(types[name].code, spec.shape))
        made.graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
    return made
