"""Which rows a product with zeros and ones reads."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_modelbudget.equivalence.indicators import chosen_places, summed_axes


@pytest.mark.parametrize(
    ("rows", "is_counted", "places"),
    [
        pytest.param([[0, 1, 0], [1, 0, 0]], False, [0, 1], id="one_hot"),
        pytest.param([[0, 0.5, 0.5, 0]], False, [1, 2], id="a mean of two"),
        pytest.param([[0, -2, 0]], False, [1], id="a sign"),
        pytest.param([[0, 0, 0], [0, 0, 3]], False, [2], id="a row of nothing"),
        pytest.param([[0, 1, 2]], False, None, id="what a ReLU leaves"),
        pytest.param([[0, 1, 2]], True, [1, 2], id="counts of words"),
        pytest.param([[1, 1, 1], [1, 0, 0]], False, None, id="a first row of all"),
        pytest.param([[0, np.nan, 1]], False, None, id="NaN"),
        pytest.param([[0, 0, 0]], True, None, id="nothing at all"),
        pytest.param(np.zeros((0, 3)), True, None, id="no rows"),
    ],
)
def test_an_indicator_chooses_where_it_is_not_zero(rows: object, is_counted: bool, places: list[int] | None) -> None:
    """By rows or by columns; of other values nothing is known."""
    values = np.asarray(rows, np.float64)
    for given, axis in ((values, -1), (values.T, 0)):
        found = chosen_places(given, axis, is_counted=is_counted)
        assert (None if found is None else found.tolist()) == places


@pytest.mark.parametrize(
    ("equation", "axes"),
    [
        ("blv,vd->bld", (2, 0)),
        ("vd, blv -> bld", (0, 2)),
        ("ij,ij->i", (1, 1)),
        ("ij,kj->ijk", None),
        ("ijk,jk->i", None),
        ("...v,vd->...d", None),
        ("bv,vd", None),
        ("ij->i", None),
    ],
)
def test_an_einsum_of_two_sums_one_letter(equation: str, axes: tuple[int, int] | None) -> None:
    """Where it stands in each factor; of other sums nothing is known."""
    assert summed_axes(equation) == axes
