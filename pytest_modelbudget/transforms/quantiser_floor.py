"""What a quantiser owes when a lossy claim declares nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import log10

from pytest_modelbudget.equivalence.claim import Bound, Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.outcome import Outcome

PER_BIT = 6.02  # dB: half the step is a quarter of the noise
MARGIN = 12.0  # dB: 20·log10(peak/σ) - 4.77 is 11 for weights whose peak is six deviations
LEAST = 6.0  # dB: below it a floor hardly tells a quantiser from zeros, which have 0 dB


def verified_at_floor(
    claim: Claim, bits: int, layers: int, verify: Callable[[Claim], Equivalence]
) -> Equivalence:
    """What a verification says of a claim held to the floor; where there is none, the way out."""
    found = verify(held_to_floor(claim, bits, layers))
    floor = decibels(bits, layers)
    if not claim.is_held_to_floor or floor >= LEAST or found.outcome is not Outcome.UNKNOWN:
        return found
    words = f"{PER_BIT}·{bits} - {MARGIN:.0f} - 10·log10({layers}) = {floor:.2f} dB is no floor"
    return replace(found, reason=f"{found.reason}; {words}: declare one, such as sqnr: 10")


def held_to_floor(claim: Claim, bits: int, layers: int) -> Claim:
    """The claim; one that is lossy and has no bounds gets SQNR ≥ 6.02·bits - 12 - 10·log10(layers).

    Where that is below 6 dB the claim stays as it is: it declares no bound, and is unknown.
    """
    floor = decibels(bits, layers)
    if not claim.is_held_to_floor or floor < LEAST:
        return claim
    return replace(claim, bounds={Bound.SQNR: Fraction(f"{floor:.2f}")})


def decibels(bits: int, layers: int) -> float:
    """6.02·bits - 12 - 10·log10(layers): each layer adds noise of about the same power."""
    return PER_BIT * bits - MARGIN - 10 * log10(max(layers, 1))
