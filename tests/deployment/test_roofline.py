"""The least time of one operation, as exact fractions of a second, and what takes it."""

from dataclasses import replace
from fractions import Fraction

import pytest

from pytest_modelbudget.deployment.device import Device, Memory
from pytest_modelbudget.deployment.roofline import energies, times
from pytest_modelbudget.errors import UnmeasurableError

FLASH = Memory("flash", 1000, ("weights",), bandwidth=Fraction(3))
SRAM = Memory("sram", 1000, ("activations",), bandwidth=Fraction(10))
BOARD = Device("board", (FLASH, SRAM), macs={"int8": Fraction(7), "float32": Fraction(1, 2)})


@pytest.mark.parametrize(
    ("macs", "dtype", "weights", "activations", "seconds", "binds"),
    [
        pytest.param(70, "int8", 3, 10, Fraction(10), "compute", id="70 MACs at 7 a second"),
        pytest.param(7, "int8", 1, 10, Fraction(1), "compute", id="as long as a memory: compute is named"),
        pytest.param(7, "int8", 10, 10, Fraction(10, 3), "flash", id="10 B at 3 a second"),
        pytest.param(0, "", 0, 25, Fraction(5, 2), "sram", id="no MACs need no rate"),
        pytest.param(3, "float32", 1, 1, Fraction(6), "compute", id="the rate of its own type"),
        pytest.param(0, "", 0, 0, Fraction(0), "", id="nothing to do"),
    ],
)
def test_the_slowest_side_binds(
    macs: int, dtype: str, weights: int, activations: int, seconds: Fraction, binds: str
) -> None:
    bound = times(BOARD).of(macs=macs, dtype=dtype, weights=weights, activations=activations)
    assert (bound.seconds, bound.binds) == (seconds, binds)


def test_one_memory_moves_all_of_its_bytes() -> None:
    """4 + 6 B through a memory of 5 B/s that holds both."""
    one = Memory("dram", 1000, ("weights", "activations"), bandwidth=Fraction(5))
    bound = times(Device("phone", (one,))).of(macs=0, dtype="", weights=4, activations=6)
    assert bound.sides == {"dram": Fraction(2)}


@pytest.mark.parametrize(
    ("device", "why"),
    [
        pytest.param(Device("d", (FLASH, SRAM)), "d gives no rate of int8 MACs", id="rate"),
        pytest.param(Device("d", (FLASH,), BOARD.macs), "no memory of d holds activations", id="memory"),
        pytest.param(
            Device("d", (FLASH, Memory("sram", 9, ("activations",))), BOARD.macs),
            "d gives no bandwidth of its memory sram",
            id="bandwidth",
        ),
    ],
)
def test_a_figure_that_is_missing_is_named(device: Device, why: str) -> None:
    with pytest.raises(UnmeasurableError, match=why):
        times(device).of(macs=1, dtype="int8", weights=1, activations=1)


PRICED = Device(
    "board",
    (replace(FLASH, energy=Fraction(5)), replace(SRAM, energy=Fraction(1, 4))),
    energy={"int8": Fraction(1, 2), "float32": Fraction(3)},
)


@pytest.mark.parametrize(
    ("macs", "dtype", "weights", "activations", "sides"),
    [
        pytest.param(8, "int8", 3, 8, {"compute": 4, "flash": 15, "sram": 2}, id="8/2, 3·5 and 8/4"),
        pytest.param(8, "float32", 0, 0, {"compute": 24}, id="by the type of the operands"),
        pytest.param(0, "", 0, 2, {"sram": Fraction(1, 2)}, id="what only moves bytes takes no energy of products"),
    ],
)
def test_energy_is_worked_by_hand(
    macs: int, dtype: str, weights: int, activations: int, sides: dict[str, Fraction]
) -> None:
    assert energies(PRICED).of(macs=macs, dtype=dtype, weights=weights, activations=activations).sides == sides


@pytest.mark.parametrize(
    ("device", "why"),
    [
        pytest.param(replace(PRICED, energy={}), "board gives no energy of int8 MACs", id="of MACs"),
        pytest.param(replace(PRICED, memories=(FLASH, SRAM)), "no energy of its memory flash", id="of bytes"),
    ],
)
def test_a_silent_figure_of_energy_is_named(device: Device, why: str) -> None:
    with pytest.raises(UnmeasurableError, match=why):
        energies(device).of(macs=1, dtype="int8", weights=1, activations=1)
