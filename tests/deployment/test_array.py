"""Cycles and traffic of matrix products on an array of multipliers, against a simulator's published trace."""

from fractions import Fraction

import pytest

from pytest_modelbudget.deployment.array import DATAFLOWS, Array, Counts, Product, counts
from pytest_modelbudget.errors import DeviceError


def test_the_golden_trace_of_scale_sim() -> None:
    """AlexNet's first convolution, 3025 x 363 x 96, on 32 x 32 cells, weight stationary."""
    product, array = Product(3025, 363, 96), Array(32, 32)
    count = counts([product], array)
    assert (count.cycles, count.inputs, count.weights, count.outputs) == (112_284, 3_294_225, 34_848, 3_484_800)
    # ⌈363/32⌉ · ⌈96/32⌉ = 12 · 3 folds of 2·32 + 32 + 3025 − 2 = 3119 cycles
    assert (count.folds, count.cycles) == (12 * 3, 36 * 3119)
    assert Fraction(count.cells, count.folds * 32 * 32) == Fraction("0.9453125")  # its mapping efficiency


@pytest.mark.parametrize(
    ("dataflow", "cycles", "inputs", "weights", "outputs"),
    [
        # m, k, n = 5, 9, 3 on 4 rows x 2 columns
        pytest.param("weight_stationary", (8 + 2 + 5 - 2) * 3 * 2, 5 * 9 * 2, 9 * 3, 5 * 3 * 3, id="weights stay"),
        pytest.param("output_stationary", (4 + 2 + 9 - 2) * 2 * 2, 5 * 9 * 2, 9 * 3 * 2, 5 * 3, id="outputs stay"),
        pytest.param("input_stationary", (8 + 2 + 3 - 2) * 3 * 3, 5 * 9, 9 * 3 * 3, 5 * 3 * 3, id="inputs stay"),
    ],
)
def test_counts_by_hand(dataflow: str, cycles: int, inputs: int, weights: int, outputs: int) -> None:
    count = counts([Product(5, 9, 3, count=2)], Array(4, 2, dataflow))
    assert count.cycles == 2 * cycles
    assert (count.inputs, count.weights, count.outputs) == (2 * inputs, 2 * weights, 2 * outputs)


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_an_array_that_the_product_fills_is_mapped_fully(dataflow: str) -> None:
    array, product = Array(8, 8, dataflow), Product(8, 8, 8)
    count = counts([product], array)
    assert (count.cells, count.folds) == (8 * 8, 1)
    assert counts([Product(8, 0, 8)], array) == Counts()


@pytest.mark.parametrize("size", [(0, 4, "weight_stationary"), (4, 4, "row_stationary")])
def test_arrays_that_are_none_are_refused(size: tuple[int, int, str]) -> None:
    with pytest.raises(DeviceError):
        Array(*size)
