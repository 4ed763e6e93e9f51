"""Parameters and bytes that a model stores, tied, viewed and packed ones too."""

from __future__ import annotations

from pytest_modelbudget.graph.graph import Weight
from pytest_modelbudget.graph.tensor import DType, StorageKind
from pytest_modelbudget.metrics.storage import model_size, params, trainable_params, weight_memory
from tests.builders.graphs import costed, parameter, tensor, view


def test_each_kind_of_weight_counts_where_it_belongs() -> None:
    """An int4 weight with its scale, a frozen bias, a persistent and a transient buffer.

    params 15 + 4; weight_memory ⌈15·4 / 8⌉ + 2·4 + 4·4; model_size adds the persistent buffer.
    """
    x = tensor("x", 1)
    weights = (
        Weight(parameter("fc.weight", 15, dtype=DType("int4", 4)), trainable=True),
        Weight(tensor("fc.weight_scale", 2, kind=StorageKind.QUANTISER)),
        Weight(parameter("fc.bias", 4)),
        Weight(tensor("norm.mean", 5, kind=StorageKind.BUFFER)),
        Weight(tensor("cache", 100, kind=StorageKind.BUFFER), persistent=False),
    )
    graph = costed(inputs=(x,), outputs=(x,), weights=weights)
    assert params(graph).value == 15 + 4
    assert trainable_params(graph).value == 15
    assert weight_memory(graph).value == 8 + 2 * 4 + 4 * 4
    assert model_size(graph).value == 8 + 2 * 4 + 4 * 4 + 5 * 4


def test_overlapping_parameters_count_their_union() -> None:
    """Rows 0-3 and rows 2-5 of one 6x4 storage are 24 parameters; the second adds two rows."""
    base = parameter("base", 6, 4)
    first, second = view(base, (4, 4), (4, 1)), view(base, (4, 4), (4, 1), offset=8)
    weights = (Weight(first), Weight(second))
    measured = params(costed(inputs=(), outputs=(), weights=weights))
    assert measured.value == 24


def test_a_tied_weight_belongs_to_its_first_owner() -> None:
    """The share of the second owner is nothing, so that shares add up."""
    weight = parameter("embedding.weight", 50, 16)
    tied = Weight(view(weight, (50, 16), (16, 1)))
    measured = params(costed(inputs=(), outputs=(), weights=(Weight(weight), tied)))
    assert [(share.scope, share.value) for share in measured.shares] == [("embedding", 800)]
