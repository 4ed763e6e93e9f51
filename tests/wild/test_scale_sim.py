"""The counts of a tile array are those of SCALE-Sim, whose simulation of each cycle runs beside them."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.deployment.array import DATAFLOWS, Array, Counts, Product, counts
from tests.builders.marks import needs

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore"), needs("scalesim", extra="wild")]

ARRAYS = ((4, 4), (8, 3), (5, 16))
# Smaller than an array, as large, one more, several times as large and ragged.
SIZES = (1, 4, 5, 17, 32)
SHAPES = (*product(SIZES, repeat=3), (300, 27, 16))


def simulated(shape: Product, array: Array) -> tuple[Counts, float]:
    """Counts and mapping as SCALE-Sim's trace of addresses has them: one row a cycle, -1 for none."""
    name = "systolic_compute_" + "".join(word[0] for word in array.dataflow.split("_"))
    system = getattr(import_module(f"scalesim.compute.{name}"), name)()
    config = import_module("scalesim.scale_config").scale_config()
    config.set_arr_dims(array.rows, array.columns)
    config.valid_conf_flag = True
    addresses = [
        np.arange(a * b).reshape(a, b) for a, b in ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))
    ]
    x, weight, out = addresses
    system.set_params(config_obj=config, ifmap_op_mat=x, filter_op_mat=weight, ofmap_op_mat=out)
    traces: tuple[Any, ...] = system.get_demand_matrices()
    cycles = {len(trace) for trace in traces}
    assert len(cycles) == 1
    used = [int((trace != -1).sum()) for trace in traces]
    return Counts(cycles.pop(), 0, 0, *used), system.get_avg_mapping_efficiency()


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize("size", ARRAYS, ids=str)
def test_the_counts_are_those_of_the_simulated_trace(size: tuple[int, int], dataflow: str) -> None:
    """126 shapes: cycles, elements read and written, and the share of cells that hold a value."""
    array = Array(*size, dataflow)
    for m, k, n in SHAPES:
        shape = Product(m, k, n)
        trace, mapped = simulated(shape, array)
        count = counts([shape], array)
        assert count._replace(folds=0, cells=0) == trace, shape
        assert count.cells / (count.folds * array.rows * array.columns) == pytest.approx(mapped), shape
