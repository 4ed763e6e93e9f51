"""Bytes that ops move, on hand-made graphs with the arithmetic beside them."""

from __future__ import annotations

from fractions import Fraction

from pytest_modelbudget.graph.graph import Op, Weight
from pytest_modelbudget.graph.tensor import DType, StorageKind, Tensor
from pytest_modelbudget.metrics.traffic import arithmetic_intensity, bandwidth, bandwidth_floor, total_activation
from tests.builders.graphs import costed, parameter, tensor, view

INT64 = DType("int64", 64)


def moved(*ops: Op, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> dict[str, int]:
    """Bandwidth by part."""
    return dict(bandwidth(costed(*ops, inputs=inputs, outputs=outputs)).parts)


X, Y = tensor("x", 4, 6), tensor("y", 4, 6)


def test_an_operand_used_twice_is_read_once() -> None:
    """x · x reads 24 floats and writes 24."""
    product = Op("aten::mul", (X, X), (Y,))
    assert moved(product, inputs=(X,), outputs=(Y,)) == {"read": 96, "weights": 0, "write": 96}


def test_an_operand_and_its_transpose_are_read_once() -> None:
    """x @ x.T reads 24 floats, not 48."""
    out = tensor("out", 4, 4)
    transpose = Op("aten::t", (X,), (view(X, (6, 4), (1, 6)),))
    product = Op("aten::mm", (X, transpose.outputs[0]), (out,))
    assert moved(transpose, product, inputs=(X,), outputs=(out,)) == {
        "read": 4 * 6 * 4,
        "weights": 0,
        "write": 4 * 4 * 4,
    }


def test_a_broadcast_operand_is_read_as_stored() -> None:
    """An expanded bias of 6 floats is 24 bytes, however often it is added."""
    bias = tensor("bias", 6)
    spread = view(bias, (4, 6), (0, 1))
    add = Op("aten::add", (X, spread), (Y,))
    assert moved(add, inputs=(X, bias), outputs=(Y,))["read"] == 24 * 4 + 6 * 4


def test_in_place_work_reads_and_writes_and_allocates_nothing() -> None:
    """relu_(x) reads 24 floats and writes 24 into the same memory."""
    relu = Op("aten::relu_", (X,), (X,), mutates=True)
    assert moved(relu, inputs=(X,), outputs=(X,)) == {"read": 96, "weights": 0, "write": 96}


def test_a_copy_does_not_read_its_target() -> None:
    """copy_ reads the source alone."""
    copy = Op("aten::copy_", (X, Y), (X,), mutates=True)
    assert moved(copy, inputs=(X, Y), outputs=(X,)) == {"read": 96, "weights": 0, "write": 96}


def test_a_weight_is_read_once_per_use() -> None:
    """The same 6x6 weight in two layers: twice in bandwidth, once in its floor."""
    weight, hidden = parameter("w", 6, 6), tensor("hidden", 4, 6)
    ops = (Op("aten::linear", (X, weight, None), (hidden,)), Op("aten::linear", (hidden, weight, None), (Y,)))
    graph = costed(*ops, inputs=(X,), outputs=(Y,), weights=(Weight(weight),))
    assert bandwidth(graph).parts["weights"] == 2 * 36 * 4
    assert bandwidth_floor(graph).value == X.nbytes + 36 * 4 + Y.nbytes


def test_an_embedding_reads_rows_and_not_the_table() -> None:
    """3 tokens of a 1000x8 table: 3 rows and 3 indices, 96 + 24 bytes."""
    table, tokens = parameter("table", 1000, 8), tensor("tokens", 3, dtype=INT64)
    rows = tensor("rows", 3, 8)
    lookup = Op("aten::embedding", (table, tokens), (rows,))
    assert moved(lookup, inputs=(tokens,), outputs=(rows,)) == {"read": 3 * 8, "weights": 3 * 8 * 4, "write": 3 * 8 * 4}


def test_an_indexed_write_touches_the_region_written() -> None:
    """x[rows] = values writes 2 rows of 6 floats, and does not read x."""
    rows, values = tensor("rows", 2, dtype=INT64), tensor("values", 2, 6)
    put = Op("aten::index_put_", (X, (rows,), values), (X,), mutates=True)
    assert moved(put, inputs=(X, rows, values), outputs=(X,)) == {
        "read": 2 * 8 + 2 * 6 * 4,
        "weights": 0,
        "write": 2 * 6 * 4,
    }


def test_a_boolean_mask_does_not_tell_how_much_it_writes() -> None:
    """x[mask] = 0 is unmeasured traffic, named with its reason."""
    mask, zero = tensor("mask", 4, 6, dtype=DType("bool", 8)), tensor("zero")
    put = Op("aten::index_put_", (X, (mask,), zero), (X,), mutates=True)
    (missing,) = bandwidth(costed(put, inputs=(X, mask, zero), outputs=(X,))).unmeasured
    assert "boolean mask" in missing.why


def test_scalar_constants_are_immediates() -> None:
    """x · 0.5 moves x alone, though the 0.5 is a tensor."""
    half = tensor("half", kind=StorageKind.CONSTANT)
    assert moved(Op("aten::mul", (X, half), (Y,)), inputs=(X,), outputs=(Y,))["weights"] == 0


def test_views_move_nothing_and_later_uses_read_the_part_they_see() -> None:
    """relu of half of x reads 12 floats."""
    half, out = view(X, (2, 6), (6, 1)), tensor("out", 2, 6)
    ops = (Op("aten::slice", (X,), (half,)), Op("aten::relu", (half,), (out,)))
    assert moved(*ops, inputs=(X,), outputs=(out,)) == {"read": 48, "weights": 0, "write": 48}


def test_concatenation_reads_all_and_writes_all() -> None:
    """Two parts of 24 floats."""
    out = tensor("out", 8, 6)
    cat = Op("aten::cat", ((X, Y),), (out,), {"dim": 0})
    assert moved(cat, inputs=(X, Y), outputs=(out,)) == {"read": 192, "weights": 0, "write": 192}


def test_a_body_that_runs_three_times_costs_three() -> None:
    """times multiplies traffic and MACs alike."""
    w = parameter("w", 6, 6)
    once = Op("aten::linear", (X, w, None), (Y,))
    thrice = Op("aten::linear", (X, w, None), (Y,), times=3)
    assert moved(thrice, inputs=(X,), outputs=(Y,)) == {
        part: 3 * nbytes for part, nbytes in moved(once, inputs=(X,), outputs=(Y,)).items()
    }


def test_an_unknown_op_still_has_exact_traffic() -> None:
    """Its operands and outputs are known, although nobody knows what it computes."""
    assert moved(Op("custom::op", (X,), (Y,)), inputs=(X,), outputs=(Y,))["write"] == 96


def test_total_activation_is_what_ops_write() -> None:
    """Two activations of 24 floats; the view between them writes nothing."""
    hidden, out = tensor("hidden", 4, 6), tensor("out", 24)
    flat = view(hidden, (24,), (1,))
    ops = (Op("aten::relu", (X,), (hidden,)), Op("aten::view", (hidden,), (flat,)), Op("aten::relu", (flat,), (out,)))
    assert total_activation(costed(*ops, inputs=(X,), outputs=(out,))).value == 2 * 24 * 4


def test_intensity_is_a_ratio_and_keeps_the_pair_it_was_made_from() -> None:
    """A 6x6 linear on 4 rows: 2·144 FLOP over 96 + 144 + 96 bytes."""
    linear = Op("aten::linear", (X, parameter("w", 6, 6), None), (Y,))
    measured = arithmetic_intensity(costed(linear, inputs=(X,), outputs=(Y,)))
    assert measured.unreduced == (2 * 4 * 6 * 6, 96 + 144 + 96)
    assert measured.value == Fraction(288, 336)


def test_no_traffic_gives_no_ratio() -> None:
    """A graph that moves nothing has an unknown intensity, not zero and not infinity."""
    assert not arithmetic_intensity(costed(inputs=(X,), outputs=(X,))).complete
