"""Random programs: their peak is what a machine sees that runs them step by step and counts references."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.graph.graph import Graph, Op, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.storage import peak_activation
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.graphs import parameter, tensor
from tests.builders.marks import TIMES

KINDS = ("one result", "two results", "view", "in place", "shape", "weighted", "scaled")


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Up to ten operations on any earlier values; some results and inputs nobody reads, some are returned."""
    sizes = st.integers(0, 40)
    inputs = tuple(tensor(f"input{n}", draw(sizes)) for n in range(draw(st.integers(1, 3))))
    values, ops = list(inputs), []
    for number in range(draw(st.integers(0, 10))):
        kind = draw(st.sampled_from(KINDS))
        operands = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        results = tuple(tensor(f"t{number}.{n}", draw(sizes)) for n in range(1 + (kind == "two results")))
        if kind in ("view", "in place"):
            results = (replace(operands[0], name=f"t{number}"),)
        if kind == "shape":
            results = (tensor(f"t{number}", 2, kind=StorageKind.SHAPE),)
        read: tuple[Tensor | None, ...] = (*operands, parameter("w", 99), None) if kind == "weighted" else (*operands,)
        ops.append(
            Op(
                "aten::relu",
                read if draw(st.booleans()) else (read,),
                results,
                scope=f"layer{number}",
                mutates=kind == "in place",
                scales=(draw(st.sampled_from(values)),) if kind == "scaled" else (),
            )
        )
        values.extend(results)
    outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    return Graph(tuple(ops), inputs, tuple(outputs))


def reads(op: Op) -> list[Storage]:
    """The activations that an operation holds while it runs; who asks for a shape holds none."""
    if all(output.storage.kind is StorageKind.SHAPE for output in op.outputs):
        return []
    flat = [part for operand in op.operands for part in (operand if isinstance(operand, tuple) else (operand,))]
    return [part.storage for part in (*flat, *op.scales) if part is not None and part.storage.is_activation]


def run(graph: Graph) -> list[int]:
    """Bytes in memory during each step: results that nobody holds are never made, and the last to let go frees."""
    held = Counter(storage for op in graph.ops for storage in reads(op))
    held.update(output.storage for output in graph.outputs)
    held.update(value.storage for value in graph.inputs)  # by the caller, until the first operation is done
    memory = {value.storage for value in graph.inputs}
    seen = []
    for number, op in enumerate(graph.ops):
        memory |= {out.storage for out in op.outputs if held[out.storage] and out.storage.is_activation}
        seen.append(sum(storage.nbytes for storage in memory))
        held.subtract(reads(op))
        if number == 0:
            held.subtract(value.storage for value in graph.inputs)
        memory = {storage for storage in memory if held[storage]}
    return seen or [sum(storage.nbytes for storage in memory)]


@settings(max_examples=100 * TIMES)
@given(programs())
def test_every_step_holds_what_a_machine_holds_that_counts_references(graph: Graph) -> None:
    """Step by step, not at the peak alone; and the peak is the most of them, with shares that add up to it."""
    seen = run(graph)
    assert live_nbytes(lifetimes(graph), max(len(graph.ops), 1)) == seen
    peak = peak_activation(CostedGraph(graph, builtin_ops()))
    assert peak.value == max(seen)
    assert sum(share.value for share in peak.shares) == peak.value


@settings(max_examples=100 * TIMES)
@given(programs())
def test_the_largest_operation_is_no_more_than_the_peak_and_the_peak_no_more_than_all(graph: Graph) -> None:
    """An operation's own operands are alive with it; and nothing is alive twice."""
    peak = peak_activation(CostedGraph(graph, builtin_ops())).value
    activations = {value.storage for value in graph.inputs}
    for op in graph.ops:
        assert sum(storage.nbytes for storage in set(reads(op))) <= peak
        activations |= {output.storage for output in op.outputs if output.storage.is_activation}
    assert peak <= sum(storage.nbytes for storage in activations)


@settings(max_examples=50 * TIMES)
@given(programs(), st.integers(1, 1000))
def test_who_returns_more_holds_no_less(graph: Graph, position: int) -> None:
    """One more value that the caller gets never lowers what any step holds."""
    values = [*graph.inputs, *(output for op in graph.ops for output in op.outputs)]
    more = replace(graph, outputs=(*graph.outputs, values[position % len(values)]))
    steps = max(len(graph.ops), 1)
    less, held = (live_nbytes(lifetimes(each), steps) for each in (graph, more))
    assert all(before <= after for before, after in zip(less, held, strict=True))
