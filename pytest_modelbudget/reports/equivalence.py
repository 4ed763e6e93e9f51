"""The entries of a claim about outputs: what each output was held to, how far it is off, and where two models part.

{"outcome": "over", "kind": "lossy", "basis": "declared bounds", "decided": "SQNR 12.1 dB, bound 30, family normal",
 "outputs": [{"name": "out0", "family": "normal", "dtype": "float32", "outcome": "over", "sqnr": "12.1", ...}],
 "first_divergence": {"scope": "fc", "error": "0.25", "worst": {"index": [0, 3], ...}}}
"""

from dataclasses import dataclass

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.reports.typed_json import Entry, rare


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement(Entry):
    """The element that is furthest off, and what each model gives there."""

    index: tuple[int, ...]
    original: str
    transformed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDivergence(Entry):
    """The first layer whose float64 outputs differ, by how much of their size, and where most."""

    scope: str
    error: str
    worst: WorstElement | None = rare(None)
    repeat: str = rare("")
    reservation: str = rare("")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerErrorReport(Entry):
    """How far a changed model is from one layer of its original; no sqnr of one that it has not."""

    scope: str
    of_its_size: str
    sqnr: str | None = rare(None)
    max_abs: str | None = rare(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport(Entry):
    """One output under one family of inputs; every figure that is known, as a decimal string.

    decided is the declared bound that came closest to its limit, or is furthest behind it; furthest says that no other
    output over its limits is further off.
    """

    name: str
    family: str
    dtype: str
    outcome: Outcome
    reason: str = rare("")
    algebra: str | None = rare(None)
    precision: str | None = rare(None)
    max_abs: str | None = rare(None)
    mse: str | None = rare(None)
    sqnr: str | None = rare(None)
    cosine: str | None = rare(None)
    top1: str | None = rare(None)
    p99_abs: str | None = rare(None)
    decided: str = rare("")
    worst: WorstElement | None = rare(None)
    furthest: bool = rare(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceReport(Entry):
    """Whether a transformed model computes the same under a claim, and the evidence.

    decided is the declared bound that decided, of all outputs under all families.
    """

    outcome: Outcome
    kind: str
    reason: str = ""
    weights: str = ""
    basis: str = ""
    seeds: tuple[int, ...] = ()
    outputs: tuple[OutputReport, ...] = ()
    decided: str = rare("")
    notes: tuple[str, ...] = rare(())
    first_divergence: FirstDivergence | None = rare(None)
    layers: tuple[LayerErrorReport, ...] = rare(())
