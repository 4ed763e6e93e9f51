"""Lifetimes and peaks of hand-made graphs, against a simulation that allocates and frees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.storage import peak_activation
from tests.builders.graphs import costed, parameter, tensor


def peak(*ops: Op, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> int:
    """Peak of a graph, in bytes."""
    return int(peak_activation(costed(*ops, inputs=inputs, outputs=outputs)).value)


def relu(x: Tensor, y: Tensor) -> Op:
    """One elementwise op."""
    return Op("aten::relu", (x,), (y,))


A, B, C = tensor("a", 10), tensor("b", 20), tensor("c", 30)


def test_operands_live_until_the_op_is_done() -> None:
    """a → b → c: at the second op b and c live, 20 + 30 floats; a is freed."""
    assert peak(relu(A, B), relu(B, C), inputs=(A,), outputs=(C,)) == (20 + 30) * 4


def test_an_input_that_is_an_output_lives_to_the_end() -> None:
    """a is returned too, so 10 + 20 + 30 floats live at the second op."""
    assert peak(relu(A, B), relu(B, C), inputs=(A,), outputs=(C, A)) == (10 + 20 + 30) * 4


def test_an_input_nobody_reads_lives_until_the_first_op() -> None:
    """The unread input of 30 floats is there while b is made, and gone afterwards."""
    unread, d = tensor("unread", 30), tensor("d", 5)
    ops = (relu(A, B), relu(B, d))
    assert peak(*ops, inputs=(A, unread), outputs=(d,)) == (10 + 20 + 30) * 4


def test_a_graph_without_ops_has_its_inputs() -> None:
    """Nothing runs, and the inputs are still there."""
    assert peak(inputs=(A, B), outputs=(A,)) == (10 + 20) * 4


def test_outputs_nobody_reads_cost_nothing() -> None:
    """The indices of a max pool, which nobody asks for, are not allocated."""
    pooled, indices = tensor("pooled", 5), tensor("indices", 1000)
    pool = Op("aten::max_pool2d_with_indices", (A,), (pooled, indices), {"kernel_size": 2})
    assert peak(pool, inputs=(A,), outputs=(pooled,)) == (10 + 5) * 4


def test_weights_are_not_in_the_peak() -> None:
    """A linear layer's weight of 1000 floats adds nothing to 10 + 20."""
    linear = Op("aten::linear", (A, parameter("w", 100, 10), None), (B,))
    assert peak(linear, inputs=(A,), outputs=(B,)) == (10 + 20) * 4


def test_shares_name_who_lives_at_the_peak() -> None:
    """At the peak b (made in 'first') and c (made in 'second') live."""
    first = Op("aten::relu", (A,), (B,), scope="first")
    second = Op("aten::relu", (B,), (C,), scope="second")
    measured = peak_activation(costed(first, second, inputs=(A,), outputs=(C,)))
    assert {share.scope: share.value for share in measured.shares} == {"first": 80, "second": 120}


def test_reading_before_writing_is_no_program() -> None:
    """A graph is validated once, at birth."""
    with pytest.raises(GraphError, match="reads b before anything wrote it"):
        Graph((relu(B, C),), (A,), (C,))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), min_size=1, max_size=12))
def test_peak_equals_a_simulated_allocator(steps: list[tuple[int, int]]) -> None:
    """Random chains and fans: allocate each result, then free what no later op reads."""
    values = [tensor("input", 7)]
    ops = []
    for number, (pick, size) in enumerate(steps):
        operand, result = values[pick % len(values)], tensor(f"t{number}", size)
        ops.append(relu(operand, result))
        values.append(result)
    outputs = (values[-1],)
    read_later = [{t.name for op in ops[i + 1 :] for t in op.tensors()} for i in range(len(ops))]
    live, most = {"input": 7}, 0
    for op, later in zip(ops, read_later, strict=True):
        result = op.outputs[0]
        if result.name in later or result is values[-1]:
            live[result.name] = result.elements
        most = max(most, sum(live.values()))
        live = {n: size for n, size in live.items() if n in later or n == values[-1].name}
    assert peak(*ops, inputs=(values[0],), outputs=outputs) == most * 4
