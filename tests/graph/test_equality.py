"""Two programs are equal where every operation does the same, on the same memory; names say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_modelbudget.graph.equality import captured, in_context, same
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, contiguous_strides, dense

FLOAT, COMPLEX = DType("float32", 32), DType("complex64", 64)


class Values:
    """The values of a program by name, each on memory of its own; w and v are stored."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._known: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        return self._known.get(name) or self.made(name)

    def made(self, name: str, shape: tuple[int, ...] = (4,), dtype: DType = FLOAT) -> Tensor:
        kind = StorageKind.PARAMETER if name in {"w", "v"} else StorageKind.ACTIVATION
        self._known[name] = dense(self._prefix + name, shape, dtype, Storage(self._prefix + name, 16, kind))
        return self._known[name]


def on(tensor: Tensor, *, offset: int = 0, shape: tuple[int, ...] = (4,), dtype: DType = FLOAT) -> Tensor:
    """A view of its memory."""
    return Tensor(tensor.name, shape, dtype, tensor.storage, offset, contiguous_strides(shape))


def named_alike(mine: Tensor, its: Tensor) -> bool:
    return mine.storage.name[-1] == its.storage.name[-1]


def mul(x: Tensor, y: Tensor, **attributes: Any) -> Op:
    return Op("mul", (x,), (y,), attributes)


def plain(m: Values, *ops: Op) -> Graph:
    return Graph(ops or (mul(m.x, m.y, by=2), Op("add", (m.y, m.w), (m.z,))), (m.x, m.u), (m.z,))


def with_fork(m: Values, *, operator: str = "cond", after: int = 1, condition: str = "y", name: str = "true",
              body: Callable[[Values], Op] = lambda m: mul(m.y, m.t)) -> Graph:  # fmt: skip
    fork = Fork(operator, "", {name: way([body(m)], [m.t])}, condition=getattr(m, condition), after=after)
    return Graph((mul(m.x, m.y), mul(m.y, m.z)), (m.x,), (m.z,), forks=(fork,))


def test_names_and_scopes_say_nothing() -> None:
    first, second = Values(), Values("other ")
    there = plain(second, mul(second.x, second.y, by=2), Op("add", (second.y, second.w), (second.z,), scope="a"))
    assert same(plain(first), there, named_alike)
    assert same(with_fork(first), with_fork(Values("o")), named_alike)


def twice(m: Values, out: Tensor) -> tuple[Op, ...]:
    return mul(m.x, m.y, by=2), Op("add", (m.y, m.w), (out,))


OTHERS: dict[str, Callable[[Values], Graph]] = {
    "operator": lambda m: plain(m, Op("div", (m.x,), (m.y,), {"by": 2}), Op("add", (m.y, m.w), (m.z,))),
    "attribute": lambda m: plain(m, mul(m.x, m.y, by=3), Op("add", (m.y, m.w), (m.z,))),
    "a truth for one": lambda m: plain(m, mul(m.x, m.y, by=2.0), Op("add", (m.y, m.w), (m.z,))),
    "name of an attribute": lambda m: plain(m, mul(m.x, m.y, to=2), Op("add", (m.y, m.w), (m.z,))),
    "times": lambda m: plain(m, Op("mul", (m.x,), (m.y,), {"by": 2}, times=2), Op("add", (m.y, m.w), (m.z,))),
    "mutates": lambda m: plain(m, Op("mul", (m.x,), (m.y,), {"by": 2}, mutates=True), Op("add", (m.y, m.w), (m.z,))),
    "scales": lambda m: plain(m, Op("mul", (m.x,), (m.y,), {"by": 2}, scales=(m.w,)), Op("add", (m.y, m.w), (m.z,))),
    "wiring": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.x, m.w), (m.z,))),
    "input": lambda m: plain(m, mul(m.u, m.y, by=2), Op("add", (m.y, m.w), (m.z,))),
    "stored": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.y, m.v), (m.z,))),
    "an activation for a stored one": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.y, m.x), (m.z,))),
    "no operand": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.y, None), (m.z,))),
    "a list": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", ((m.y, m.w),), (m.z,))),
    "one operand more": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.y, m.w, m.w), (m.z,))),
    "one result more": lambda m: plain(m, mul(m.x, m.y, by=2), Op("add", (m.y, m.w), (m.z, m.t))),
    "one operation more": lambda m: plain(m, *twice(m, m.z), mul(m.z, m.t)),
    "in place": lambda m: plain(m, mul(m.x, on(m.x), by=2), Op("add", (m.x, m.w), (m.z,))),
    "the shape of a result": lambda m: plain(m, mul(m.x, m.made("y", (2, 2)), by=2), Op("add", (m.y, m.w), (m.z,))),
    "the size of a result": lambda m: plain(m, mul(m.x, m.made("y", (3,)), by=2), Op("add", (m.y, m.w), (m.z,))),
    "the layout of a result": lambda m: plain(m, *twice(m, Tensor("z", (4,), FLOAT, m.z.storage, 0, (2,)))),
    "the type of a result": lambda m: plain(m, *twice(m, m.made("z", dtype=COMPLEX))),
    "a row of the input": lambda m: plain(m, mul(on(m.x, offset=1), m.y, by=2), Op("add", (m.y, m.w), (m.z,))),
    "another result": lambda m: Graph(twice(m, m.z), (m.x, m.u), (m.y,)),
    "one input less": lambda m: Graph(twice(m, m.z), (m.x,), (m.z,)),
    "a fork": lambda m: Graph(twice(m, m.z), (m.x, m.u), (m.z,), forks=(Fork("cond", "", {"": way([])}),)),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_makes_programs_differ(other: Callable[[Values], Graph]) -> None:
    assert not same(plain(Values()), other(Values()), named_alike)
    assert not same(other(Values()), plain(Values()), named_alike)
    assert same(other(Values()), other(Values()), named_alike)


def test_a_list_is_no_absent_operand() -> None:
    for first, second in (("a list", "no operand"), ("no operand", "a list")):
        mine, its = (plain(m, mul(m.x, m.y), Op("add", ((m.y,) if each == "a list" else None,), (m.z,)))
                     for each, m in ((first, Values()), (second, Values())))  # fmt: skip
        assert not same(mine, its, named_alike)


@pytest.mark.parametrize(
    "other",
    [{"operator": "if"}, {"after": 0}, {"condition": "x"}, {"name": "false"}, {"body": lambda m: mul(m.x, m.t)},
     {"body": lambda m: mul(m.y, m.t, by=2)}],
    ids=["operator", "place", "condition", "name", "wiring", "attribute"],
)  # fmt: skip
def test_what_makes_forks_differ(other: dict[str, Any]) -> None:
    assert not same(with_fork(Values()), with_fork(Values(), **other), named_alike)
    assert same(with_fork(Values(), **other), with_fork(Values(), **other), named_alike)


def test_two_values_for_one_are_told_apart() -> None:
    """Memory that is read again after something wrote it: one to one, both ways."""

    def summed(m: Values, second: Tensor) -> Graph:
        return Graph((mul(m.x, m.y), mul(m.y, second), Op("add", (m.y, second), (m.z,))), (m.x,), (m.z,))

    first, second = Values(), Values()
    assert not same(summed(first, first.t), summed(second, on(second.y)), named_alike)
    assert not same(summed(second, on(second.y)), summed(first, first.t), named_alike)


def test_values_from_elsewhere_are_like_none() -> None:
    """A branch alone does not say what its inside reads from around it."""
    m = Values()
    inside = Fork("cond", "", {"true": way([mul(m.q, m.t)], [m.t])})
    graph = Graph((mul(m.x, m.y),), (m.x,), (m.y,), forks=(inside,))
    stored = Graph((mul(m.x, m.y),), (m.x,), (m.y,), forks=(Fork("cond", "", {"true": way([mul(m.w, m.t)], [m.t])}),))
    for first, second in ((graph, graph), (graph, stored), (stored, graph)):
        assert not same(first, second, lambda mine, its: True)


def test_a_stored_tensor_is_asked_for_once_it_is_new() -> None:
    m, asked = Values(), []
    assert same(plain(m), plain(m), lambda mine, its: not asked.append((mine, its)))  # type: ignore[func-returns-value]
    assert asked == [(m.w, m.w)]
    assert not same(plain(m), plain(m), lambda mine, its: False)


def test_inputs_may_be_other_rows_of_a_tensor() -> None:
    """Of which each is read as it is given, and no other one; a stored row is another one."""

    def read(row: Tensor, at: int) -> Graph:
        return Graph((mul(on(row, offset=at), Values().y),), (row,), ())

    m = Values()
    rows = [on(m.x, offset=at) for at in (0, 4, 8)]
    assert same(read(rows[1], 4), read(rows[2], 8), named_alike)
    assert not same(read(rows[1], 4), read(rows[2], 4), named_alike)
    two, apart = (Graph((), (m.x, on(m.x, offset=at)), ()) for at in (4, 8))
    assert same(two, two, named_alike)
    assert not same(two, apart, named_alike)


def test_a_branch_stands_behind_what_leads_to_it() -> None:
    """x → y → (y, w → t); p and q lead nowhere."""
    m = Values()
    around = (mul(m.x, m.y), mul(m.x, m.p), mul(m.p, m.q))
    body = way([Op("add", (m.y, m.w), (m.t,))], [m.t])
    found = in_context(around, (m.x,), body)
    assert found is not None
    assert (found.ops, found.inputs, found.outputs) == ((around[0], body.ops[0]), (m.x,), (m.t,))
    chain = in_context(around, (m.x,), way([mul(m.q, m.t)], [m.t]))
    assert chain is not None
    assert chain.ops[:2] == around[1:]


@pytest.mark.parametrize(("name", "at", "is_known"), [("x", 0, False), ("x", 1, True), ("y", 1, False), ("w", 0, False),
                                                      ("w", 1, False)])  # fmt: skip
def test_of_what_is_written_in_place_a_list_does_not_say_enough(name: str, at: int, is_known: bool) -> None:
    """What the branch reads, or what leads to it before it is read for that; elsewhere it is none of its affairs."""
    m = Values()
    body = way([Op("add", (m.y, m.w), (m.t,))], [m.t])
    around, written = [mul(m.x, m.y)], getattr(m, name)
    ops = (*around[:at], Op("fill_", (written,), (on(written),), mutates=True), *around[at:])
    assert (in_context(ops, (m.x,), body) is not None) is is_known
    elsewhere = (*around, mul(m.x, m.p), Op("fill_", (m.p,), (on(m.p),), mutates=True))
    assert in_context(elsewhere, (m.x,), body) is not None


def test_views_are_told_by_their_layout_unless_they_conjugate() -> None:
    """A view writes nothing; that of a complex tensor may have other numbers."""
    m = Values()
    body = way([mul(m.x, m.t)], [m.t])
    for dtype, count in ((FLOAT, 1), (COMPLEX, 2)):
        found = in_context((Op("view", (m.x,), (on(m.x, dtype=dtype),)),), (m.x,), body)
        assert found is not None
        assert len(found.ops) == count


def test_a_branch_on_values_from_elsewhere_has_no_context() -> None:
    m = Values()
    assert in_context((), (m.x,), way([mul(m.q, m.t)], [m.t])) is None


def test_what_a_branch_reads_from_outside() -> None:
    """Operands, results that it hands on, and what branches inside of it read and ask; none of its own."""
    m = Values()
    inner = Fork("cond", "", {"true": way([Op("add", (m.t, m.q), (m.r,))], [m.r])}, condition=m.c)
    body = way([Op("add", (m.y, m.w), (m.t,)), mul(m.t, m.s)], [m.s, m.p], [inner])
    assert captured(body) == {each.storage for each in (m.y, m.w, m.p, m.q, m.c)}
    asked = Fork("cond", "", {}, condition=m.t)
    assert captured(way([mul(m.x, m.t)], [m.t], [asked])) == {m.x.storage}
    written = way([mul(m.x, m.t), Op("fill_", (m.x,), (on(m.x),), mutates=True)], [m.t, m.x])
    assert captured(written) == {m.x.storage}
