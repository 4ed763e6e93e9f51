"""ONNX models: read for their graph, and run as they are written or in float64."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx

from pytest_modelbudget.errors import MissingExtraError, TransformError, user_code
from pytest_modelbudget.formats import model as formats
from pytest_modelbudget.formats.benchmark import Plan, Timing
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.graph.tensor import least_precise
from pytest_modelbudget.onnx_models import reader
from pytest_modelbudget.onnx_models.control_flow import branches
from pytest_modelbudget.onnx_models.gather_rows import PartialReads, partial_reads, stored_everywhere
from pytest_modelbudget.onnx_models.inputs import (
    as_numbers,
    declared_differences,
    drawn_inputs,
    outputs_of,
    spec_of,
    upcast,
)
from pytest_modelbudget.onnx_models.program import Node, Program
from pytest_modelbudget.onnx_models.protos import numbers_of, symbols_of, with_graph
from pytest_modelbudget.onnx_models.reading import missing_weights, model_with_weights, write_model
from pytest_modelbudget.onnx_models.shape_inference import inferred_types
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN, Types
from pytest_modelbudget.onnx_models.weights import attribute_arrays, redrawn
from pytest_modelbudget.ops.table import OpTable

if TYPE_CHECKING:
    from pytest_modelbudget.onnx_models.session import OnnxRun, Step, StoredArrays


def load(source: ModelSource, rules: OpTable) -> OnnxModel:
    """The model in an ONNX file."""
    return OnnxModel(OnnxFile(source), rules)


class OnnxSource(Protocol):
    """Where an ONNX model is: read without its weights to be measured, with them to be run."""

    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> Mapping[str, int]: ...

    def measured(self, rules: OpTable) -> formats.LoadedModel: ...
    def program(self, rules: OpTable) -> Program: ...


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

    def measured(self, rules: OpTable) -> formats.LoadedModel:
        return reader.load(self.source, rules)

    def program(self, rules: OpTable) -> Program:
        return Program(model_with_weights(existing_file(self.source, "an ONNX model")), rules)


@dataclass(frozen=True, eq=False)
class InMemory:
    """A model in memory, read as a file of that name would be."""

    held: Program
    name: str
    dims: Mapping[str, int]

    def measured(self, rules: OpTable) -> formats.LoadedModel:
        return reader.measured_graph(self.held, self.name, self.dims)

    def program(self, rules: OpTable) -> Program:
        return self.held


MOST_WATCHED = 2000  # nodes whose results are looked at, all of them, for values under other names


class OnnxModel(formats.RunnableModel):
    """An ONNX model: measured without its weights, and run with them in ONNX Runtime.

    Weights that lie in a file which is not there are drawn.
    """

    engine = "onnx"
    can_be_redrawn = True
    runs_apart = True

    def __init__(
        self,
        source: OnnxSource,
        rules: OpTable,
        *,
        weights: str = formats.LOADED,
        is_exact: bool = False,
        copy_of: OnnxModel | None = None,
    ) -> None:
        self.source = source
        self.rules = rules
        self.is_exact = is_exact
        self._weights = weights
        self._copy_of = copy_of
        self._sessions: dict[tuple[Collection[str], frozenset[str]], OnnxRun] = {}
        self._arrays: StoredArrays = {}  # of its weights, for all sessions
        self._steps: dict[Hashable, Step] = {}  # with the sessions of all runs

    @cached_property
    def measured(self) -> formats.LoadedModel:
        """What is measured of it; copies have the graph of the model as it was loaded."""
        return self._copy_of.measured if self._copy_of else self.source.measured(self.rules)

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of another one, redrawn or in float64."""
        return self._copy_of is not None

    @cached_property
    def _read(self) -> tuple[Program, str]:
        """The model with all weights, drawn where one is missing, and what is missing."""
        program = self.source.program(self.rules)
        words = missing_weights(program.model, self.source.name)
        return Program(redrawn(program.model, self.rules), self.rules) if words else program, words

    @property
    def program(self) -> Program:
        return self._read[0]

    @property
    def proto(self) -> onnx.ModelProto:
        return self.program.model

    @property
    def missing(self) -> str:  # type: ignore[override]  # known once weights are read
        return self._read[1]

    @property
    def weights(self) -> str:  # type: ignore[override]
        return formats.DRAWN if self._weights == formats.DRAWN or self.missing else formats.LOADED

    @cached_property
    def inputs(self) -> formats.DrawnInputs:
        return drawn_inputs(self.program, self.source.dims)

    def tables(self) -> Mapping[str, Callable[[], formats.Values]]:
        trees = {name: partial(np.asarray, array) for name, array in self._partial_reads.trees.items()}
        return {**self._stored_arrays, **trees}

    def numbers(self) -> Mapping[str, Callable[[], formats.Values]]:
        return {**self._stored_arrays, **attribute_arrays(self.program.graph)}

    @property
    def _stored_arrays(self) -> Mapping[str, Callable[[], formats.Values]]:
        stored = stored_everywhere(self.program.graph)
        return {name: tensor.array for name, tensor in stored.items() if not tensor.is_sparse}

    def branches(self, coverage: formats.Coverage) -> formats.Branches | None:
        return branches(self.program, coverage.executed)

    @cached_property
    def _partial_reads(self) -> PartialReads:
        return partial_reads(self.program.graph, lambda name: self.inferred.get(name, NOTHING_KNOWN))

    @cached_property
    def inferred(self) -> Types:
        """The types of its values, as far as they can be worked out before the run."""
        return inferred_types(self.proto, self.source.dims)

    @property
    def dtype(self) -> str:
        return least_precise([tensor.dtype.name for tensor in self.program.graph.floating])

    def stored(self) -> Mapping[str, Callable[[], formats.Values]]:
        return {tensor.name: tensor.array for tensor in self.program.graph.floating}

    def release(self) -> None:
        self._sessions.clear()
        self._arrays.clear()
        self._steps.clear()

    def redrawn(self) -> OnnxModel:
        drawn = Program(redrawn(self.proto, self.rules), self.rules)
        return self._over(drawn, weights=formats.DRAWN, copy_of=self)

    def in_float64(self) -> OnnxModel:
        """The same model, upcast while it runs: a large one is not copied once more."""
        made = self._over(self.program, weights=self.weights, is_exact=True, copy_of=self)
        made._arrays = self._arrays
        return made

    def changed(self, proto: onnx.ModelProto) -> OnnxModel:
        return self._over(Program(proto, self.rules), weights=self.weights, is_exact=self.is_exact)

    def upcast_values(self) -> None:
        """Let a float64 copy store float64, for a change that works on the values themselves."""
        from pytest_modelbudget.onnx_models.session import wholly_in_float64

        self._read = Program(wholly_in_float64(self.proto), self.rules), self.missing
        self._arrays = {}

    def _over(
        self, program: Program, *, weights: str, is_exact: bool = False, copy_of: OnnxModel | None = None
    ) -> OnnxModel:
        graph = program.model.graph
        still_open = symbols_of(graph) | numbers_of(graph, self.source.dims)  # a change may have fixed some
        dims = {name: size for name, size in self.source.dims.items() if name in still_open}
        source = InMemory(program, self.source.name, dims)
        return OnnxModel(source, self.rules, weights=weights, is_exact=is_exact, copy_of=copy_of)

    def run(self, inputs: formats.Arrays, watch: formats.Watch = formats.UNWATCHED) -> formats.Run:
        partly = None if watch.coverage is None else self._partial_reads
        asked = () if partly is None else (name for name in partly.watched if name not in inputs)
        names = tuple(watch.names)
        layers = {} if watch.layers is None else self._watched_layers(watch.layers)
        probed = {} if watch.probe is None else self._probed(watch.probe)
        session = self._session(tuple(dict.fromkeys((*names, *layers, *asked, *probed))), frozenset(watch.given))
        values = session({**(upcast(inputs) if self.is_exact else inputs), **watch.given})
        if watch.probe is not None:
            for name, node in probed.items():
                dtype = getattr(values[name], "dtype", np.dtype(object))
                if dtype.kind in "fiuV":  # numbers, in float64 where numpy has not their type
                    numbers = as_numbers(values[name])
                    watch.probe.take(formats.LayerValue(name, node.scope, node.proto.op_type, dtype.name, numbers))
        if partly is not None and watch.coverage is not None:
            partly.add_to(watch.coverage, {**inputs, **values}.__getitem__)
        return formats.Run(
            outputs_of(values, self.program.graph),
            values={name: values[name] for name in names},
            layers=self._layer_outputs(layers, values) if layers else (),
        )

    def timed(self, inputs: formats.Arrays, plan: Plan) -> Timing:
        """In ONNX Runtime, whose kernels take what the weights are, drawn ones too."""
        try:
            from pytest_modelbudget.onnx_models.benchmark import time_calls
        except ModuleNotFoundError as error:
            words = "measuring an ONNX model where it runs"
            raise MissingExtraError(words, package=str(error.name), extra="onnx") from error
        with user_code("running on ONNX Runtime", TransformError):
            return time_calls(self.proto, inputs, plan)

    def _session(self, watched: tuple[str, ...], given: frozenset[str]) -> OnnxRun:
        try:  # only here, because it brings ONNX Runtime in
            from pytest_modelbudget.onnx_models.session import OnnxRun
        except ModuleNotFoundError as error:
            words = "running an ONNX model"
            raise MissingExtraError(words, package=str(error.name), extra="onnx") from error

        key = watched, given
        if key not in self._sessions:
            self._sessions[key] = OnnxRun(
                self.proto, float64=self.is_exact, watched=watched, given=given, arrays=self._arrays, steps=self._steps
            )
        return self._sessions[key]

    def _watched_layers(self, names: Collection[str]) -> Mapping[str, str]:
        """Scopes of results by name: of all nodes; of many, these and the last of each layer."""
        nodes = [node for node in self.program.graph.nodes if node.result]
        wanted = set(names)
        if len(nodes) > MOST_WATCHED and any(not wanted.isdisjoint(node.outputs) for node in nodes):
            wanted |= set({node.scope: node.result for node in nodes}.values())
            return {name: node.scope for node in nodes for name in node.outputs if name in wanted}
        return {name: node.scope for node in nodes for name in node.outputs if name}

    def _probed(self, probe: formats.Probe) -> Mapping[str, Node]:
        """The results that a probe wants, by name, with their nodes."""
        nodes = ((node, (node.proto.op_type, node.operator)) for node in self.program.graph.nodes)
        named = ((node, (*names, node.rule.kind) if node.rule else names) for node, names in nodes)
        wanted = (node for node, names in named if probe.wants(node.scope, names, False))
        return {name: node for node in wanted for name in node.outputs if name}

    def _layer_outputs(self, layers: Mapping[str, str], values: Mapping[str, Any]) -> tuple[formats.LayerOutput, ...]:
        """Those of the watched values that are floating tensors."""
        names = [name for name in layers if getattr(values[name], "dtype", np.dtype(object)).kind == "f"]
        places = {name: at for at, name in enumerate(names)}
        readers: dict[str, list[int]] = defaultdict(list)
        ends, moving = set(self.program.graph.outputs), set(self.program.inputs)
        for node in self.program.graph.nodes:
            if not node.reads.isdisjoint(moving):
                moving.update(node.outputs)
            if node.result not in places:  # what becomes of it is not seen
                ends |= node.reads
                continue
            for name in node.reads:
                readers[name].append(places[node.result])
        return tuple(
            formats.LayerOutput(
                name, layers[name], values[name], tuple(readers[name]), name in ends, name not in moving
            )
            for name in names
        )

    def differences_from(self, original: formats.RunnableModel) -> tuple[str, ...]:
        if not isinstance(original, OnnxModel):
            return ()
        return tuple(declared_differences(original.program, self.program))

    def shared_with(self, original: formats.RunnableModel) -> formats.Shared:
        if not isinstance(original, OnnxModel):
            return formats.NOTHING_SHARED
        twins = Twins(original.program, self.program)
        return formats.Shared(twins.frontier(), twins.changed_layers(), partial(layer_pairs, original, self))


def write(model: OnnxModel, file: Path) -> None:
    """Write a model with its weights, as it was judged."""
    write_model(model.proto, file)


@dataclass(frozen=True, eq=False)
class Twins:
    """A program and what a rewrite made of it: which values both have, and compute alike."""

    original: Program
    changed: Program

    @cached_property
    def means_alike(self) -> bool:
        """Whether a node means the same in both: by operator sets and local functions."""
        models = (self.original.model, self.changed.model)
        before, after = ((list(model.opset_import), list(model.functions)) for model in models)
        return before == after

    def makes_alike(self, node: Node, twin: Node) -> bool:
        """Whether two nodes are one, down to the values of the stored tensors that they read."""
        before, after = self.original.graph.stored, self.changed.graph.stored
        return node.proto == twin.proto and all(before.get(name) == after.get(name) for name in node.reads)

    def common_values(self) -> frozenset[str]:
        """Names of values that both compute alike, from equal inputs and stored tensors.

        A rewritten network shares all of its nodes before the first change; they need no second run.
        """
        if not self.means_alike:
            return frozenset()
        makers = self.original.graph.makers
        known = {*self.original.inputs} & {*self.changed.inputs} | self.original.graph.stored.keys()
        made: set[str] = set()
        for node in self.changed.graph.nodes:
            twin = makers.get(node.result)
            if twin is not None and node.reads - known <= made and self.makes_alike(twin, node):
                made.update(filter(None, node.outputs))
        return frozenset(made)

    def frontier(self) -> tuple[str, ...]:
        """Common values that the other nodes of the changed one, or its readers, need."""
        common, graph = self.common_values(), self.changed.graph
        rest = [node for node in graph.nodes if not common.issuperset(filter(None, node.outputs))]
        return tuple(sorted(common & {*graph.outputs}.union(*(node.reads for node in rest))))

    def changed_layers(self) -> Mapping[str, str]:
        """Scopes of results that both have under one name, made by other nodes or weights."""
        makers = self.changed.graph.makers
        return {
            node.result: node.scope
            for node in self.original.graph.nodes
            if node.result in makers and not self.makes_alike(node, makers[node.result])
        }


def layer_pairs(original: OnnxModel, changed: OnnxModel) -> Iterator[formats.LayerPair]:
    """Every layer that was rewritten, cut out of both models.

    A layer whose nodes stayed is rewritten too where a stored tensor that they read was. Raises
    TransformError for an output of both that only one computes: no layer ends in it.
    """
    twins = Twins(original.program, changed.program)
    first, second = original.program.graph, changed.program.graph
    before, after = first.makers, second.makers
    both = before.keys() & after.keys()
    for name in sorted({*first.outputs} & {*second.outputs}):
        if (name in before) != (name in after):
            raise TransformError(f"output '{name}' is computed in one of the models alone")
    types = original.inferred
    for name in before:
        if name in both and not (twins.means_alike and twins.makes_alike(before[name], after[name])):
            cuts = (model.changed(_cut_out(model, name, both - {name}, types)) for model in (original, changed))
            yield formats.LayerPair(before[name].scope, *cuts)


def _cut_out(model: OnnxModel, output: str, borders: Collection[str], types: Types) -> onnx.ModelProto:
    """The nodes that lead from border values to an output, fed with those in their true shapes."""
    graph = model.program.graph
    stored = {tensor.name: tensor.proto for tensor in graph.initializers if not tensor.is_sparse}
    wanted, fed, read = {output}, set[str](), set[str]()
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        nodes.append(node.proto)
        read |= node.reads
        wanted.difference_update(node.outputs)
        for name in node.reads - stored.keys():
            (fed if name in borders else wanted).add(name)
    made = with_graph(model.proto, nodes[::-1], [stored[name] for name in sorted(read & stored.keys())])
    del made.graph.output[:], made.graph.input[:]
    made.graph.output.append(onnx.ValueInfoProto(name=output))
    for name in sorted(fed | wanted):
        spec = spec_of(name, types[name], model.source.dims)
        made.graph.input.append(onnx.helper.make_tensor_value_info(name, types[name].code, spec.shape))
    return made
