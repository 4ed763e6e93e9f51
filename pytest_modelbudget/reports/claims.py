"""The entries of a claim about outputs: what each output was held to, how far it is off, and where two models part.

{"outcome": "over", "kind": "lossy", "basis": "declared bounds", "decided": "SQNR 12.1 dB, bound 30, family normal",
 "outputs": [{"name": "out0", "family": "normal", "dtype": "float32", "outcome": "over", "sqnr": "12.1", ...}],
 "first_divergence": {"scope": "fc", "error": "0.25", "worst": {"index": [0, 3], ...}}}
"""

from dataclasses import fields
from typing import Any

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import Figures, Worst
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputRecord
from pytest_modelbudget.reports.json_records import Record, always, like


class WorstElement(Record, frozen=True, kw_only=True):
    """The element that is furthest off, and what each model gives there."""

    index: tuple[int, ...]
    original: str
    transformed: str


class FirstDivergence(Record, frozen=True, kw_only=True):
    """The first layer whose float64 outputs differ, by how much of their size, and where most."""

    scope: str
    error: str
    worst: WorstElement | None = None
    repeat: str = ""
    reservation: str = ""


class LayerErrorReport(Record, frozen=True, kw_only=True):
    """How far a changed model is from one layer of its original; no sqnr of one that it has not."""

    scope: str
    of_its_size: str
    sqnr: str | None = None
    max_abs: str | None = None


class OutputReport(Record, frozen=True, kw_only=True):
    """One output under one family of inputs; every figure that is known, as a decimal string.

    decided is the declared bound that came closest to its limit, or is furthest behind it; furthest says that no other
    output over its limits is further off.
    """

    name: str
    family: str
    dtype: str
    outcome: Outcome
    reason: str = ""
    algebra: str | None = None
    precision: str | None = None
    max_abs: str | None = None
    mse: str | None = None
    sqnr: str | None = None
    cosine: str | None = None
    top1: str | None = None
    p99_abs: str | None = None
    decided: str = ""
    worst: WorstElement | None = None
    furthest: bool = False


class EquivalenceReport(Record, frozen=True, kw_only=True):
    """Whether a transformed model computes the same under a claim, and the evidence.

    decided is the declared bound that decided, of all outputs under all families.
    """

    outcome: Outcome
    kind: str
    reason: str = always("")
    weights: str = always("")
    basis: str = always("")
    seeds: tuple[int, ...] = always(())
    outputs: tuple[OutputReport, ...] = always(())
    decided: str = ""
    notes: tuple[str, ...] = ()
    first_divergence: FirstDivergence | None = None
    layers: tuple[LayerErrorReport, ...] = ()


# Made of what was compared.

OF_LAYERS = ("of_its_size", "sqnr", "max_abs")


def equivalence_report(equivalence: Equivalence) -> EquivalenceReport:
    """The evidence: every output under every family."""
    divergence, furthest = equivalence.first_divergence, equivalence.furthest
    return like(
        EquivalenceReport,
        equivalence,
        kind=equivalence.kind.value,
        basis=equivalence.basis.value,
        outputs=[_output(output, is_furthest=output is furthest) for output in equivalence.outputs],
        layers=[
            like(LayerErrorReport, layer, **_decimals({key: getattr(layer, key) for key in OF_LAYERS}))
            for layer in equivalence.layers
        ],
        decided=equivalence.decision.text if equivalence.decision else "",
        first_divergence=divergence
        and like(FirstDivergence, divergence, error=decimal(divergence.error), worst=_worst(divergence.worst)),
    )


def _output(output: OutputRecord, *, is_furthest: bool) -> OutputReport:
    figures = {figure.name: getattr(output.figures, figure.name) for figure in fields(Figures)}
    figures |= {"algebra": output.algebra, "precision": output.precision}
    decided = output.decision.text if output.decision else ""
    worst = _worst(output.worst)
    return like(OutputReport, output, **_decimals(figures), decided=decided, worst=worst, furthest=is_furthest)


def _worst(worst: Worst | None) -> WorstElement | None:
    if worst is None:
        return None
    original, transformed = two_numbers(worst.original, worst.transformed)
    return like(WorstElement, worst, original=original, transformed=transformed)


def two_numbers(before: float, after: float) -> tuple[str, str]:
    """Two numbers as ``decimal`` has them, or in as many more digits as it takes to see a difference."""
    pairs = [(f"{before:.{digits}g}", f"{after:.{digits}g}") for digits in range(4, 18)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def _decimals(figures: dict[str, float | None]) -> dict[str, Any]:
    return {name: None if figure is None else decimal(figure) for name, figure in figures.items()}


def decimal(value: float) -> str:
    """A float as a short decimal string: rounding differs from machine to machine behind it."""
    return f"{value:.4g}"
