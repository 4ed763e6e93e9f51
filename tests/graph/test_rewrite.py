"""Graphs with storages or tensors replaced: what follows the change, and what stays the object that it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_modelbudget.graph.graph import Fork, Graph, Op, Weight
from pytest_modelbudget.graph.rewrite import StorageMap, op_over, operand_over, with_storages, with_tensors, with_ways
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor
from tests.builders.graphs import parameter, tensor, view

X, Y, Z, STATE = (tensor(name, 6) for name in ("x", "y", "z", "state"))
WEIGHT, SCALE = parameter("fc.weight", 6), parameter("fc.scale", 1)
NEW = Storage("new", 24, StorageKind.BUFFER)
OTHER = Storage("other", 24, StorageKind.ACTIVATION)
HALF = DType("float16", 16)


def program() -> Graph:
    """y = linear(x, w) and z = cat(y, None), with y as a state, and a fork that reads y."""
    way = Graph((Op("aten::relu", (Y,), (STATE,)),), (Y,), (STATE,))
    ops = (Op("aten::linear", (X, WEIGHT, None), (Y,), scales=(SCALE,)), Op("aten::cat", ((Y, None),), (Z,)))
    forks = (Fork("cond", "here", {"true": way, "false": replace(way, ops=way.ops)}, counted="true"),)
    return Graph(ops, (X,), (Z, Y), (Weight(WEIGHT), Weight(SCALE)), forks=forks, states=(Y,))


def tensors_of(graph: Graph) -> list[Tensor]:
    """Every tensor that a graph names, those of its branches behind it."""
    own = [tensor for op in graph.ops for tensor in (*op.tensors(), *op.outputs)]
    own += (*graph.inputs, *graph.outputs, *graph.states, *(weight.tensor for weight in graph.weights))
    return [*own, *(each for fork in graph.forks for way in fork.ways.values() for each in tensors_of(way))]


@pytest.mark.parametrize("old", [X, Y, Z, STATE, WEIGHT, SCALE], ids=lambda old: old.name)
def test_a_replaced_storage_is_replaced_wherever_it_is_named(old: Tensor) -> None:
    """In operands, lists, results, scales, inputs, outputs, states, stored tensors and branches; others stay."""
    before = tensors_of(program())
    after = tensors_of(with_storages(program(), {old.storage: NEW}))
    assert len(before) == len(after)
    for was, now in zip(before, after, strict=True):
        if was.storage is old.storage:
            assert (now.storage, now.name, now.shape, now.dtype) == (NEW, was.name, was.shape, was.dtype)
        else:
            assert now is was
    assert len({id(now) for now in after if now.storage is NEW}) == 1, "one copy of one tensor"


def test_branches_share_the_copies_of_the_graph_around_them() -> None:
    """A branch that read y reads the copy of y."""
    after = with_storages(program(), {Y.storage: NEW})
    for way in after.forks[0].ways.values():
        assert way.ops[0].operands[0] is way.inputs[0] is after.ops[0].outputs[0]


def test_a_graph_without_replacements_is_itself() -> None:
    """Nothing is copied, and operations and branches that name nothing new are themselves."""
    graph = program()
    assert with_storages(graph, {}) is graph
    elsewhere = with_storages(graph, {Storage("unnamed", 0, StorageKind.BUFFER): NEW})
    assert elsewhere.ops == graph.ops
    assert with_tensors(graph, lambda tensor: tensor).ops == graph.ops
    assert with_ways(graph, lambda way: way) is graph
    assert with_ways(graph, replace) is not graph, "an equal graph is another one"


def test_a_rewritten_branch_is_a_new_graph() -> None:
    """With the same operations, and each branch under its name."""
    graph, new = program(), {}

    def rewrite(way: Graph) -> Graph:
        if way is graph.forks[0].ways["true"]:
            return way
        return new.setdefault("false", replace(way, outputs=()))

    after = with_ways(graph, rewrite)
    assert after is not graph
    assert after.ops == graph.ops
    assert after.forks[0].counted == "true"
    assert after.forks[0].ways == {"true": graph.forks[0].ways["true"], "false": new["false"]}


def test_a_new_type_is_that_of_its_storage_alone() -> None:
    """Other tensors keep theirs, on new storages too."""
    moved = StorageMap({X.storage: NEW, Y.storage: OTHER}, {X.storage: HALF})
    assert (moved(X).dtype, moved(Y).dtype, moved(Z)) == (HALF, Y.dtype, Z)
    assert moved.copies == {X: moved(X), Y: moved(Y)}


def test_maps_share_no_copies() -> None:
    """Each is of its own storages."""
    assert StorageMap({X.storage: NEW})(X).storage is NEW
    assert StorageMap({X.storage: OTHER})(X).storage is OTHER


def test_a_slice_and_what_it_sweeps_move_together() -> None:
    """The whole is copied as any other tensor is: once."""
    whole = tensor("stacked", 6)
    part = replace(view(whole, (2,), (1,)), sweeps=whole)
    moved = StorageMap({whole.storage: NEW})
    assert moved(part).sweeps is moved(whole)
    assert moved(whole).sweeps is None


def test_tensors_may_take_the_name_of_their_storage() -> None:
    """A part of a constant has a number behind its name."""
    constant = Storage("constant_3", 24, StorageKind.CONSTANT)
    part = replace(X, name="constant_3_1", storage=constant)
    new = Storage("parameter_3", 24, StorageKind.PARAMETER)
    assert StorageMap({constant: new}, renames=True)(part).name == "parameter_3_1"
    assert StorageMap({constant: new})(part).name == "constant_3_1"
    graph = Graph((), (), (), (Weight(part),))
    assert with_storages(graph, {constant: new}, renames=True).weights[0].tensor.name == "parameter_3_1"
    assert with_storages(graph, {constant: new}).weights[0].tensor.name == "constant_3_1"


def test_a_result_that_comes_to_lie_in_its_operand_is_written_in_place() -> None:
    """A view stays a view, and an allocated result allocated."""
    relu, reshape = Op("aten::relu", (X,), (Y,)), Op("aten::view", (X,), (view(X, (2, 3), (3, 1)),))
    into_x = StorageMap({Y.storage: X.storage})
    assert op_over(relu, into_x).mutates
    assert not op_over(relu, StorageMap({Y.storage: NEW})).mutates
    assert not op_over(reshape, StorageMap({X.storage: NEW})).mutates
    assert op_over(reshape, StorageMap({X.storage: NEW})).is_view
    assert op_over(relu, StorageMap({})) is relu


def test_an_operation_keeps_all_but_its_tensors() -> None:
    """Name, attributes, scope, number of runs and the body that it is in."""
    op = Op("aten::add_", (X, (Y, None), None), (X,), {"alpha": 2}, "here", 3, mutates=True, scales=(SCALE,), run=4)
    new = op_over(op, StorageMap({X.storage: NEW}))
    kept = (new.name, dict(new.attributes), new.scope, new.times, new.mutates, new.scales, new.run)
    assert kept == ("aten::add_", {"alpha": 2}, "here", 3, True, (SCALE,), 4)
    assert new.operands == (new.outputs[0], (Y, None), None)
    assert op_over(op, StorageMap({SCALE.storage: NEW})).scales[0].storage is NEW


def test_operands_may_be_absent_or_lists() -> None:
    """With absent elements among them."""
    moved = StorageMap({X.storage: NEW})
    assert operand_over(None, moved) is None
    assert operand_over((), moved) == ()
    assert operand_over((X, None, Y), moved) == (moved(X), None, Y)
    assert operand_over(X, moved) is moved(X)
