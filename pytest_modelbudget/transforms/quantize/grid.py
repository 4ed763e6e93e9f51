"""The integers that ``quantize_weights`` may store for a weight, alike for every format.

w ≈ s·(q - z) with integers q of b bits. Symmetric: z = 0, s = max|w| / (2ᵇ⁻¹ - 1). Otherwise the
grid spans [min(w, 0), max(w, 0)], with 0 on it: s = (max - min) / (2ᵇ - 1),
z = round(-2ᵇ⁻¹ - min/s). A scale is stored in the weight's own type, rounded up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log10
from typing import cast

from pytest_modelbudget.equivalence.changed import Floor
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.transform import is_chosen

BITS = (8, 4)


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers of some bits, one scale for a tensor or for each output channel."""

    bits: int = 8
    per_channel: bool = True
    symmetric: bool = True
    layers: tuple[str, ...] = ("*",)

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        high: int = 2 ** (self.bits - 1) - 1
        return (-high if self.symmetric else -high - 1), high

    @property
    def most_steps_off(self) -> float:
        """How far s·(q - z) may lie from a weight: half a step, and a rounded zero's half."""
        return (0.5 if self.symmetric else 1.0) * (1 + 1e-9)  # s·(q - z) itself is rounded

    @property
    def text(self) -> str:
        """What becomes of a weight: "int8, a scale per channel"."""
        return f"int{self.bits}, a scale per {'channel' if self.per_channel else 'tensor'}"

    def selects(self, scope: str) -> bool:
        return is_chosen(scope, self.layers)


def grid_of(settings: Mapping[str, object]) -> Grid:
    """The grid that a budget asks for; raises TransformError for bits that nothing stores."""
    bits = settings["bits"]
    if bits not in BITS:
        raise TransformError(f"quantize_weights: bits is {bits}: write 8 or 4")
    layers = cast("tuple[str, ...]", settings["layers"])
    return Grid(int(str(bits)), settings["per"] == "channel", bool(settings["symmetric"]), layers)


PER_BIT = 6.02  # dB: half the step is a quarter of the noise
MARGIN = 12.0  # dB: 20·log10(peak/σ) - 4.77 is 11 for weights whose peak is six deviations


def floor_of(bits: int, products: int) -> Floor:
    """6.02·bits - 12 - 10·log10(products): each adds noise of about the same power, by one weight or by several."""
    decibels = PER_BIT * bits - MARGIN - 10 * log10(max(products, 1))
    return Floor(decibels, f"{PER_BIT}·{bits} - {MARGIN:.0f} - 10·log10({products})")
