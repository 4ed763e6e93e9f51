"""What a quantiser owes when a lossy claim declares nothing itself."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import log10

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind

PER_BIT = 6.02  # dB: half the step is a quarter of the noise
MARGIN = 12.0  # dB: 20·log10(peak/σ) - 4.77 is 11 for weights whose peak is six deviations


def held_to_floor(claim: Claim, bits: int, layers: int) -> Claim:
    """The claim; one that is lossy and has no bounds gets SQNR ≥ 6.02·bits - 12 - 10·log10(layers).

    Each quantised layer adds noise of its own, of about the same power: 10·log10(layers).
    """
    if claim.kind is not Kind.LOSSY or claim.bounds or claim.of_output:
        return claim
    least = PER_BIT * bits - MARGIN - 10 * log10(max(layers, 1))
    return replace(claim, bounds={Bound.SQNR: Fraction(f"{least:.2f}")})
