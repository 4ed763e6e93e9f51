"""Rewritten layers cut out of two ONNX graphs by name, and run alone in float64.

For networks that cannot run in float64 as a whole, or in their own type: a layer that was rewritten
is what stands between values that both graphs have under one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import onnx
from onnx import NodeProto

from pytest_modelbudget.equivalence.array_errors import ALGEBRA, relative_error
from pytest_modelbudget.equivalence.batches import Row, drawn, joined
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.input_families import SCALES, families_of, runs_of
from pytest_modelbudget.equivalence.judgement import OutputPair
from pytest_modelbudget.equivalence.onnx_running import Feeds, OnnxRun, upcast
from pytest_modelbudget.equivalence.onnx_shared import means_alike, stored_in_both
from pytest_modelbudget.equivalence.onnx_sides import spec_of, stored_dtype
from pytest_modelbudget.equivalence.onnx_stored import bound, names_read, with_graph
from pytest_modelbudget.equivalence.onnx_weightless import inferred_types
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.onnx_scopes import scope_of
from pytest_modelbudget.frontends.onnx_shapes import DeclaredTypes


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
