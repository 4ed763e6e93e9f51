"""Operations and programs: what moves, what only works out shapes, what is no program."""

from __future__ import annotations

import pytest

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.graph import Graph, Op, Weight, dead_storages, paths
from pytest_modelbudget.graph.tensor import StorageKind, Tensor, unsized
from tests.builders.graphs import FLOAT, parameter, tensor, view

A, B = tensor("a", 6), tensor("b", 6)
OTHER_NAME = view(A, (2, 3), (3, 1))


@pytest.mark.parametrize(
    ("outputs", "mutates", "expected"),
    [
        pytest.param((OTHER_NAME,), False, True, id="the operand's memory under a new name"),
        pytest.param((OTHER_NAME,), True, False, id="written in place"),
        pytest.param((B,), False, False, id="memory of its own"),
        pytest.param((B,), True, False, id="memory of its own, and the operand written"),
        pytest.param((OTHER_NAME, B), False, False, id="one of either"),
        pytest.param((), False, False, id="no output: nothing has a new name"),
    ],
)
def test_a_view_moves_nothing(outputs: tuple[Tensor, ...], mutates: bool, expected: bool) -> None:
    """Every output stands on an operand's memory, and nothing is written into it."""
    assert Op("aten::view", (A,), outputs, mutates=mutates).is_view is expected


def test_an_operation_runs_once_and_writes_its_outputs_alone_unless_it_says_more() -> None:
    """A stored tensor is likewise saved with its model, and not trained."""
    op = Op("aten::relu", (A,), (B,))
    assert (op.times, op.mutates, op.scope) == (1, False, "")
    assert (Weight(A).persistent, Weight(A).trainable) == (True, False)


@pytest.mark.parametrize("kind", list(StorageKind))
def test_only_results_that_are_all_shapes_are_a_shape_computation(kind: StorageKind) -> None:
    """One output of any other kind, or none at all, is work."""
    shape, other = tensor("shape", 2, kind=StorageKind.SHAPE), tensor("other", 2, kind=kind)
    assert Op("aten::size", (A,), (shape, other)).is_shape_computation is (kind is StorageKind.SHAPE)
    assert not Op("aten::_assert", (A,), ()).is_shape_computation


def test_the_first_tensor_of_unknown_shape_says_why() -> None:
    """Operands come before outputs; an operation whose shapes are all known says nothing."""
    lost, gone = (unsized(name, FLOAT, tensor(name, 1).storage, f"{name} is not bound") for name in ("lost", "gone"))
    assert Op("aten::add", (A, lost), (gone,)).unsized == "lost is not bound"
    assert Op("aten::relu", (A,), (gone,)).unsized == "gone is not bound"
    assert Op("aten::relu", (A,), (B,)).unsized == ""


def test_dead_is_what_nobody_reads_and_the_caller_does_not_get() -> None:
    """Of three results one is read, one is returned, one is dead; to ask for its shape is no reading."""
    read, returned, dead = (tensor(name, 2) for name in ("read", "returned", "dead"))
    shape = tensor("shape", 1, kind=StorageKind.SHAPE)
    ops = (
        Op("aten::split", (A,), (read, returned, dead)),
        Op("aten::size", (dead,), (shape,)),
        Op("aten::relu", (read,), (B,)),
    )
    assert dead_storages(Graph(ops, (A,), (B, returned))) == {dead.storage, shape.storage}


def test_what_is_no_program_is_refused_at_birth() -> None:
    """A body may run no times at all; operations are known or not; an output is written by somebody."""
    assert Graph((Op("aten::relu", (A,), (B,), times=0),), (A,), (B,)).ops[0].times == 0
    with pytest.raises(GraphError, match=r"aten::relu in 'act' runs -1 times"):
        Graph((Op("aten::relu", (A,), (B,), scope="act", times=-1),), (A,), (B,))
    with pytest.raises(GraphError, match="1 operations of a graph that knows none: weights alone"):
        Graph((Op("aten::relu", (A,), (B,)),), (A,), (B,), operations_unknown="weights alone")
    assert Graph((), (), (), operations_unknown="weights alone").ops == ()
    with pytest.raises(GraphError, match="the graph's outputs reads b before anything wrote it"):
        Graph((), (A,), (B,))
    assert Graph((), (), (parameter("w", 3),)).outputs  # what is stored needs no writer


def test_a_path_has_itself_and_its_ancestors() -> None:
    """Longest first; the model itself, which has no path, is none of them."""
    assert paths("a.b.c") == ["a.b.c", "a.b", "a"]
    assert paths("a") == ["a"]
