"""Energy of AlexNet on a profile of 45 nm, with every element that moves written out."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

from pytest_modelbudget import measure

pytestmark = pytest.mark.needs_torch

PICO = Fraction(1, 10**12)
MACS, WEIGHTS = 714_188_480, 4 * 61_100_840
# Elements between operations, in their order; each operation reads what the one before it wrote.
FEATURES = (150_528, 193_600, 193_600, 46_656, 139_968, 139_968, 32_448, 64_896, 64_896, 43_264, 43_264, 43_264, 43_264,
            9_216, 9_216)  # fmt: skip
CLASSIFIER = (4_096, 4_096, 4_096, 4_096, 1_000)
MOVED = sum(before + after for before, after in pairwise((*FEATURES, *CLASSIFIER)))
AS_WRITTEN = {"dtype": "float32", "fold_batchnorm": False, "fuse_activations": []}


def test_alexnet_in_float32() -> None:
    """3.285 mJ of products and 40.59 mJ of DRAM."""
    found = measure("torchvision.models:alexnet", "float32 1x3x224x224", device="cmos_45nm", lower=AS_WRITTEN)["energy"]
    compute, dram = MACS * Fraction("4.6") * PICO, (WEIGHTS + 4 * MOVED) * 160 * PICO
    assert found.parts == {"compute": compute, "dram": dram}
    assert (round(float(compute) * 1e3, 3), round(float(dram) * 1e3, 2)) == (3.285, 40.59)
    assert found.value == compute + dram == sum(share.value for share in found.shares)
    assert found.complete


def test_alexnet_in_int8() -> None:
    """0.164 mJ of products; DRAM has each byte that moves."""
    found = measure("torchvision.models:alexnet", "float32 1x3x224x224", device="cmos_45nm", lower={"dtype": "int8"})
    energy, nbytes = found["energy"], int(found["bandwidth"].value)
    assert energy.parts == {"compute": MACS * Fraction("0.23") * PICO, "dram": nbytes * 160 * PICO}
    assert round(float(energy.parts["compute"]) * 1e3, 3) == 0.164
    assert energy.value < Fraction(15, 1000)


def test_a_type_without_a_figure_leaves_the_number_unknown() -> None:
    found = measure("torchvision.models:alexnet", "float32 1x3x224x224", device="cmos_45nm", lower={"dtype": "int16"})
    assert not found["energy"].complete
    assert "cmos_45nm gives no energy of int16 MACs" in {each.why for each in found["energy"].unmeasured}
