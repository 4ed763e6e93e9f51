"""A transform of an ONNX file: the cost of what it became, and its outputs held to a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import onnx

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.onnx_drawing import redrawn, without_values
from pytest_modelbudget.equivalence.onnx_judging import Judge, Layers
from pytest_modelbudget.equivalence.onnx_layers import layer_runs
from pytest_modelbudget.equivalence.onnx_precision import wholly_in_float64
from pytest_modelbudget.equivalence.onnx_sides import declared_differences, sides
from pytest_modelbudget.frontends.model_files import existing_file
from pytest_modelbudget.frontends.onnx_types import all_graphs
from pytest_modelbudget.ir.graph import Graph
from pytest_modelbudget.ops.op_rule import nothing
from pytest_modelbudget.ops.op_table import OpTable
from pytest_modelbudget.transforms.onnx_loading import measured_graph, model_with_weights
from pytest_modelbudget.transforms.transform import Change, Job, Transformed


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten model, what became of each operation, and how much it rounds.

    partial_sums is the largest number of sums per output that are rounded to the storage type.
    """

    model: onnx.ModelProto
    changes: tuple[Change, ...]
    partial_sums: int = 1


Rewrite = Callable[[onnx.ModelProto], Rewritten]


def transformed_file(job: Job, rewrite: Rewrite, *, changes_weights: bool = False) -> Transformed:
    """A file's model under a rewrite of its graph.

    A rewrite that changes_weights is applied to the float64 copy once more: what it makes of the
    stored ones is rounded.
    """
    path = existing_file(job.source, "an ONNX model")
    model = model_with_weights(path)
    is_drawn = bool(without_values(model))
    if is_drawn:
        model = redrawn(model, job.rules)
    rewritten = rewrite(model)
    loaded = measured_graph(rewritten.model, path.name, job.source.dims, job.rules)
    promised = products_of(loaded.graph, job.rules) if is_flat(rewritten.model) else None

    def sides_of(weights: onnx.ModelProto) -> Sides:
        found = rewritten if weights is model else rewrite(weights)
        exact = None
        if changes_weights:
            copy = wholly_in_float64(weights)
            exact = (copy, rewrite(copy).model)
        sums = found.partial_sums
        return sides(weights, found.model, exact=exact, partial_sums=sums, promised=promised)

    def layers_of(weights: onnx.ModelProto, claim: Claim) -> Layers:
        before = wholly_in_float64(weights) if changes_weights else weights
        after = (rewritten if before is model else rewrite(before)).model
        runs = tuple(layer_runs(before, after, job.source.dims, claim))
        return Layers(runs, tuple(declared_differences(before, after)))

    def verify(claim: Claim) -> Equivalence:
        judge = Judge(claim, job.source.dims, sides_of, layers_of)
        return judge.equivalence(model, job.rules, is_drawn=is_drawn)

    return Transformed(loaded, rewritten.changes, verify)


def is_flat(model: onnx.ModelProto) -> bool:
    """Whether a session executes a model's nodes as they are counted: no bodies, no functions."""
    return not model.functions and next(islice(all_graphs(model.graph), 1, None), None) is None


def products_of(graph: Graph, rules: OpTable) -> Counter[str]:
    """How often each operator that multiplies stands in a measured graph, by its name."""
    return Counter(
        op.name
        for op in graph.ops
        if op.name in rules and rules[op.name].macs not in (None, nothing)
    )
