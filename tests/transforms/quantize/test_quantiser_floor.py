"""The noise that a quantiser may add where a claim is lossy and declares nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputPair, judged
from pytest_modelbudget.transforms.quantize.grid import floor_of

LOSSY = Claim(Kind.LOSSY)


@pytest.mark.parametrize(
    ("bits", "layers", "bounds"),
    [
        pytest.param(8, 1, {Bound.SQNR: Fraction("36.16")}, id="6.02·8 - 12"),
        pytest.param(8, 10, {Bound.SQNR: Fraction("26.16")}, id="ten layers, ten times the noise"),
        pytest.param(8, 1000, {Bound.SQNR: Fraction("6.16")}, id="a thousand"),
        pytest.param(8, 1100, {}, id="36.16 - 30.41 is below 6"),
        pytest.param(4, 4, {Bound.SQNR: Fraction("6.06")}, id="12.08 - 6.02"),
        pytest.param(4, 5, {}, id="12.08 - 6.99 is below 6"),
        pytest.param(4, 18, {}, id="12.08 - 12.55 is below 0"),
    ],
)
def test_the_floor(bits: int, layers: int, bounds: dict[Bound, Fraction]) -> None:
    """6.02 dB a bit, less 12, less 10·log10(products); none where it is below 6 dB."""
    assert floor_of(bits, layers).bound(LOSSY).bounds == bounds


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(Claim(), id="exact"),
        pytest.param(Claim(Kind.LOSSY, {Bound.COSINE: Fraction(1, 2)}), id="bounds of its own"),
        pytest.param(Claim(Kind.LOSSY, of_output={"y": {Bound.MSE: Fraction(1)}}), id="an output"),
    ],
)
def test_what_is_declared_stays(claim: Claim) -> None:
    """Only a lossy claim that declares nothing gets a floor."""
    assert floor_of(8, 3).bound(claim) is claim


def zeros_judged(claim: Claim) -> Equivalence:
    """An output of zeros where the original gives N(0, 1): SQNR is 0 dB."""
    drawn = np.random.default_rng(0).normal(size=(12, 10))
    pair = OutputPair("y", "normal", "float32", drawn, None, drawn, np.zeros_like(drawn))
    return judged(claim, [pair], weights="as loaded")


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 16, 17, 18, 54, 2000])
@pytest.mark.parametrize("bits", [8, 4])
def test_an_output_of_zeros_is_never_within(bits: int, layers: int) -> None:
    """Over where there is a floor; unknown where there is none, with the way out."""
    found = floor_of(bits, layers).verify(LOSSY, zeros_judged)
    if floor_of(bits, layers).bound(LOSSY).bounds:
        assert found.outcome is Outcome.OVER
        assert "declare" not in found.reason
    else:
        assert found.outcome is Outcome.UNKNOWN
        assert "declares no bound" in found.reason
        assert found.reason.endswith("dB is no floor: declare one, such as sqnr: 10")
