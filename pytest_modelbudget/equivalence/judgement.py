"""Whether two models compute the same: the judgement, from arrays alone; no framework, no runs.

``exact_algebra`` takes two steps. Per output and input family, pooled over seeds and rows:

1. algebra, both models in float64: ‖y_t - y_o‖ ≤ 1e-10·‖y_o‖, and zero where y_o is zero;
2. precision, in the storage type, against the float64 original on the same rounded weights:
   rmse(y_t) ≤ (1 + √T)·rmse(y_o) + 8·√T·(u·rms(y_64) + η), where T is how many partial sums an
   output is rounded from, u the type's unit roundoff and η half its smallest number.

Step 1 proves structure in every type; step 2 guards rounding. ``lossy`` and ``custom`` hold the
figures that they declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from math import inf, isnan, sqrt
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind, Outcome
from pytest_modelbudget.equivalence.figures import (
    ALGEBRA,
    FEWEST,
    Divergence,
    Figures,
    LayerError,
    Worst,
    bands,
    figures,
    odd_kinds,
    reals,
    relative_error,
    rms,
    rmse,
    worst_element,
)
from pytest_modelbudget.units import several

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values


ALL_FAMILIES = "all"  # of what is pooled over every family: a layer on the way
# Unit roundoff, and half the smallest number: what rounding may be off by, relative and absolute.
ROUNDING: Mapping[str, tuple[float, float]] = {
    "float32": (2.0**-24, 2.0**-150),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
}


class Basis(str, Enum):
    """What step 1 was run on; a lossy or custom claim has its declared bounds instead."""

    NETWORK = "whole network"
    LAYERS = "layers only"
    NOTHING = "precision only"
    DECLARED = "declared bounds"
    NO_RUN = "no run"


@dataclass(frozen=True, eq=False)
class OutputPair:
    """One output of both models under one input family, rows of all seeds pooled.

    dtype is the type that the models store and compute it in. reference and algebra are the float64
    runs of the original and of the transformed model; algebra is None where step 1 cannot run.
    original and transformed are the runs in dtype, upcast exactly; None for a layer that only step
    1 looks at.
    """

    name: str
    family: str
    dtype: str
    reference: Values
    algebra: Values | None
    original: Values | None
    transformed: Values | None


UNITS = {Bound.SQNR: " dB"}


@dataclass(frozen=True, slots=True)
class Decision:
    """The declared bound that comes closest to its limit, or is furthest behind it."""

    bound: Bound
    value: float
    held: Fraction
    family: str

    @property
    def used(self) -> float:
        """The share of what is allowed that is used up: 1 at the limit, more behind it."""
        held, value = float(self.held), self.value
        if isnan(value):
            return inf
        if self.bound in (Bound.COSINE, Bound.TOP1):
            held, value = 1 - held, 1 - value
        elif self.bound.is_least:
            held, value = max(value, 0.0), held
        return value / held if held else (inf if value else 0.0)

    @property
    def measured(self) -> str:
        """The figure: "SQNR 44.6 dB"."""
        name = "SQNR" if self.bound is Bound.SQNR else self.bound.value
        digits = f"{self.value:.1f}" if self.bound is Bound.SQNR else f"{self.value:.4g}"
        return f"{name} {digits}{UNITS.get(self.bound, '')}"

    @property
    def allowed(self) -> str:
        """The bound: "30 dB"."""
        return f"{float(self.held):.6g}{UNITS.get(self.bound, '')}"

    @property
    def text(self) -> str:
        """Both, and under which inputs: "SQNR 44.6 dB, bound 30, family uniform"."""
        return f"{self.measured}, bound {float(self.held):.6g}, family {self.family}"


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """What was found about one output under one input family.

    algebra is the relative error of step 1, precision the error of step 2 as a share of what it may
    be; None where a step does not apply. decision is what decided of declared bounds.
    """

    name: str
    family: str
    dtype: str
    outcome: Outcome
    reason: str
    algebra: float | None
    precision: float | None
    figures: Figures
    worst: Worst | None
    decision: Decision | None = None

    @property
    def error(self) -> tuple[float, float, float]:
        """How far it is off: by step 1, then by step 2, then by declared bounds; the largest is the worst."""
        return self.algebra or 0.0, self.precision or 0.0, self.decision.used if self.decision else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Equivalence:
    """Whether two models are the same under a claim, and the evidence.

    reason is one line for people. weights is "as loaded" or "drawn, seed 0". first_divergence is
    the layer where the models part, where they do, and layers the error of each on one set of inputs.
    """

    outcome: Outcome
    kind: Kind
    reason: str
    weights: str = ""
    basis: Basis = Basis.NO_RUN
    seeds: tuple[int, ...] = SEEDS
    outputs: tuple[OutputRecord, ...] = ()
    first_divergence: Divergence | None = None
    layers: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        parts = f"; they part at {self.first_divergence.scope or 'the model itself'}" if self.first_divergence else ""
        return f"<Equivalence {self.outcome.value}, {self.kind.value}: {self.reason}{parts}>"

    @property
    def decision(self) -> Decision | None:
        """The declared bound that decided, of all outputs under all families."""
        decisions = [output.decision for output in self.outputs if output.decision]
        return max(decisions, key=lambda decision: decision.used, default=None)

    @property
    def furthest(self) -> OutputRecord | None:
        """The output that is furthest off, of those over whose elements can be compared."""
        over = [output for output in self.outputs if output.outcome is Outcome.OVER and output.worst]
        return max(over, key=lambda output: output.error, default=None)


def judged(
    claim: Claim,
    pairs: Iterable[OutputPair],
    *,
    structure: Sequence[str] = (),
    weights: str,
    basis: Basis = Basis.NETWORK,
    partial_sums: int = 1,
    notes: tuple[str, ...] = (),
) -> Equivalence:
    """Hold the outputs of two models to a claim.

    structure names every difference between the outputs' names, types, shapes and order.
    partial_sums is T, what an output is rounded from, as the transform declares it.
    """
    if claim.kind is not Kind.EXACT_ALGEBRA:
        basis = Basis.DECLARED
    records = tuple(_record(claim, pair, basis, partial_sums) for pair in pairs)
    outcome, reason = _verdict(claim, records, structure)
    return Equivalence(outcome, claim.kind, reason, weights, basis, claim.seeds, records, notes=notes)


def _verdict(claim: Claim, records: tuple[OutputRecord, ...], structure: Sequence[str]) -> tuple[Outcome, str]:
    if structure:
        return Outcome.OVER, f"the outputs are not the same: {'; '.join(structure)}"
    for outcome in (Outcome.OVER, Outcome.UNKNOWN):
        such = [record for record in records if record.outcome is outcome]
        if such:
            more = f" (and {len(such) - 1} more)" if len(such) > 1 else ""
            worst = max(such, key=lambda record: record.error)
            where = f"output '{worst.name}', {worst.family} inputs"
            if worst.family == ALL_FAMILIES:
                where = f"layer '{worst.name}'"
            return outcome, f"{where}: {worst.reason}{more}"
    if not records:
        return Outcome.UNKNOWN, "there is no output to compare"
    names = dict.fromkeys(record.name for record in records)
    absent = [name for name in claim.of_output if name not in names]
    if absent:
        there = ", ".join(map(repr, names))
        return Outcome.UNKNOWN, f"no output is called {absent[0]!r}, which has a bound: {there}"
    return Outcome.WITHIN, _all_within(records)


def _all_within(records: tuple[OutputRecord, ...]) -> str:
    algebra = [record.algebra for record in records if record.algebra is not None]
    precision = [record.precision for record in records if record.precision is not None]
    words = []
    if algebra:
        words.append(f"algebra {max(algebra):.1e} of {ALGEBRA:.0e}")
    if precision:
        words.append(f"precision {max(precision):.2f} of 1")
    decisions = [record.decision for record in records if record.decision]
    if decisions:
        words.append(max(decisions, key=lambda decision: decision.used).text)
    elif not words:
        words.append(f"SQNR {min(record.figures.sqnr for record in records):.1f} dB or more")
    names = len({record.name for record in records})
    families = len({record.family for record in records})
    words += [several(names, "output"), several(families, "input family", "input families")]
    return ", ".join(words)


# One output under one family.


def _record(claim: Claim, pair: OutputPair, basis: Basis, partial_sums: int) -> OutputRecord:
    is_exact = claim.kind is Kind.EXACT_ALGEBRA
    said = _exact(claim, pair, basis, partial_sums) if is_exact else _declared(claim, pair)
    return OutputRecord(
        pair.name,
        pair.family,
        pair.dtype,
        said.outcome,
        said.reason,
        said.algebra,
        said.precision,
        _figures(pair),
        worst_element(*_runs(pair)),
        said.decision,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    outcome: Outcome
    reason: str = ""
    algebra: float | None = None
    precision: float | None = None
    decision: Decision | None = None


def _runs(pair: OutputPair) -> tuple[Values, Values]:
    """The two runs that figures are about: in the storage type where there are such."""
    if pair.original is not None and pair.transformed is not None:
        return pair.original, pair.transformed
    assert pair.algebra is not None  # a pair without any run of the transformed model
    return pair.reference, pair.algebra


def _shown(pair: OutputPair) -> tuple[Values, Values]:
    """The same as numbers."""
    before, after = _runs(pair)
    return reals(before), reals(after)


def _figures(pair: OutputPair) -> Figures:
    distances = figures(*_shown(pair))
    # There is no largest complex number.
    return replace(distances, top1=None) if pair.reference.dtype.kind == "c" else distances


def _exact(claim: Claim, pair: OutputPair, basis: Basis, partial_sums: int) -> _Said:
    reference = reals(pair.reference)
    broken = _non_finite(claim, pair)
    if broken is not None:
        return broken
    if pair.reference.dtype.kind in "biu":
        return _whole_numbers(pair, partial_sums)
    algebra = None
    if pair.algebra is not None:
        algebra = relative_error(reference, reals(pair.algebra))
        if not algebra <= ALGEBRA:
            words = f"float64 outputs differ by {algebra:.1e} of their size, {ALGEBRA:.0e} allowed"
            return _Said(Outcome.OVER, words, algebra)
    elif basis is Basis.NOTHING and pair.dtype not in ("float32", "float64"):
        words = f"step 1 could not run, and {pair.dtype} alone proves nothing"
        return _Said(Outcome.UNKNOWN, words)
    if pair.original is None or pair.transformed is None or pair.dtype == "float64":
        if pair.algebra is None:  # a model that stores float64 is judged by step 1 on the runs it has
            assert pair.transformed is not None
            algebra = relative_error(reals(pair.reference), reals(pair.transformed))
            if not algebra <= ALGEBRA:
                return _Said(Outcome.OVER, f"float64 outputs differ by {algebra:.1e} of their size", algebra)
        return _Said(Outcome.WITHIN, "", algebra)
    return _precise(pair, partial_sums, algebra)


def _precise(pair: OutputPair, partial_sums: int, algebra: float | None) -> _Said:
    """Step 2: rounding may not be worse than the original's own, by more than T sums explain."""
    assert pair.original is not None
    assert pair.transformed is not None
    if pair.dtype not in ROUNDING:
        return _Said(Outcome.UNKNOWN, f"nothing is known about rounding in {pair.dtype}", algebra)
    share, error, allowed = _most_rounded(pair, partial_sums)
    if share <= 1:
        return _Said(Outcome.WITHIN, "", algebra, share)
    words = f"{pair.dtype} error {error:.1e}, {allowed:.1e} allowed: rounded more than it must be"
    return _Said(Outcome.OVER, words, algebra, share)


SPREAD = 16  # times as far off may fewer than FEWEST elements be below a mask


def _most_rounded(pair: OutputPair, partial_sums: int) -> tuple[float, float, float]:
    """The order of size that is rounded most, and its bound."""
    import numpy as np

    runs = [reals(run) for run in (pair.reference, pair.original, pair.transformed) if run is not None]
    *below, largest = bands(runs[0])
    held = [_rounding([run[largest] for run in runs], pair.dtype, partial_sums)]
    for band in below:  # a chance makes the error of few elements small in the original
        more = SPREAD if np.count_nonzero(runs[0][band]) < FEWEST else 1
        held.append(_rounding([run[band] for run in runs], pair.dtype, partial_sums, more))
    return max(held)


def _rounding(runs: Sequence[Values], dtype: str, partial_sums: int, more: int = 1) -> tuple[float, float, float]:
    """The error of elements of one order of size as a share of what it may be, itself, and that."""
    reference, original, transformed = runs
    allowed = more * precision_limit(rms(reference), rmse(reference, original), dtype, partial_sums)
    error = rmse(reference, transformed)
    return (error / allowed if allowed else (inf if error else 0.0)), error, allowed


def precision_limit(size: float, own_error: float, dtype: str, partial_sums: int) -> float:
    """What step 2 allows: ``(1 + √T)·rmse(y_o) + 8·√T·(u·rms(y_64) + η)``."""
    roundoff, smallest = ROUNDING[dtype]
    root = sqrt(max(partial_sums, 1))
    return (1 + root) * own_error + 8 * root * (roundoff * size + smallest)


def _same_integers(reference: Values, values: Values) -> _Said:
    wrong = _turned(reference, values)
    if wrong:
        return _Said(Outcome.OVER, f"{wrong:,} of {reference.size:,} integers differ")
    return _Said(Outcome.WITHIN, "", 0.0)


def _whole_numbers(pair: OutputPair, partial_sums: int) -> _Said:
    """Integers and truths are equal in float64, and in their own type but for those that rounding may turn."""
    # There is no rounding in them: float64 runs decide; where there are none, the others do.
    values = pair.algebra if pair.algebra is not None else pair.transformed
    assert values is not None
    said = _same_integers(pair.reference, values)
    if said.outcome is not Outcome.WITHIN or pair.original is None or pair.transformed is None:
        return said
    return _turned_by_rounding(pair, pair.original, pair.transformed, partial_sums)


def _turned_by_rounding(pair: OutputPair, original: Values, transformed: Values, partial_sums: int) -> _Said:
    """Whether no more integers are others than rounding may turn; those by one step are among more of them."""
    import numpy as np

    reference, own = reals(pair.reference), _turned(pair.reference, original)
    jumps = int(np.count_nonzero(np.abs(reals(transformed) - reference) > 1))
    steps = np.maximum(np.abs(reference), 1)
    held = []
    turned = (_turned(pair.reference, transformed), steps, ""), (jumps, np.ones_like(steps), " by more than one")
    for wrong, sizes, by in turned:
        allowed = turned_limit(sizes, own, pair.dtype, partial_sums)
        words = f"{wrong:,} of {reference.size:,} integers differ in {pair.dtype}{by}, {int(allowed):,} allowed"
        held.append((wrong / allowed if allowed else (inf if wrong else 0.0), words))
    if pair.dtype in ROUNDING and own >= max(FEWEST_TURNED, MOST_COUNTED * reference.size):
        share, error, limit = _most_rounded(pair, partial_sums)
        chance = 1 + 4 / sqrt(own)
        held.append((share / chance, f"integers differ by {error:.1e} in {pair.dtype}, {limit * chance:.1e} allowed"))
    share, words = max(held)
    return _Said(Outcome.WITHIN, "", 0.0) if share <= 1 else _Said(Outcome.OVER, words, 0.0, share)


def _turned(reference: Values, values: Values) -> int:
    """How many integers of a run are others than in float64."""
    import numpy as np

    return int(np.count_nonzero(reference != values))


# Where rounding turns many, as of large numbers that were floats, how far they are off is held as that of floats is.
FEWEST_TURNED = 8  # of fewer, how far they are off is chance
MOST_COUNTED = 1 / 8  # of all: where no more are turned, how many are says enough
NEAR = 64  # unit roundoffs: the share of values so near to a step that rounding turns them


def turned_limit(sizes: Values, own: int, dtype: str, partial_sums: int) -> float:
    """How many integers rounding may turn, where it turns ``own`` of the original: argmax, comparisons, rounding.

    With a = own + Σ min(64·u·size, 1), as many as are turned by chance: ``(1 + √T)·a + 4·√a``, four deviations of a
    count. The size is 1, or how large an integer is of which a neighbour may be given: its roundoff grows with it.
    """
    import numpy as np

    chance = own + float(np.minimum(NEAR * ROUNDING.get(dtype, (0.0, 0.0))[0] * sizes, 1.0).sum())
    return (1 + sqrt(max(partial_sums, 1))) * chance + 4 * sqrt(chance)


def _declared(claim: Claim, pair: OutputPair) -> _Said:
    """A lossy or custom claim: every figure that is declared must hold."""
    broken = _non_finite(claim, pair)
    if broken is not None:
        return broken
    bounds = claim.bounds_of(pair.name, pair.family)
    if not bounds:
        return _Said(Outcome.UNKNOWN, "the claim declares no bound for it")
    if pair.reference.dtype.kind in "biu" and Bound.MAX_ABS not in bounds:
        before, after = _shown(pair)
        return _same_integers(before, after)
    distances = _figures(pair)
    missed = "; ".join(_missed(bounds, distances))
    values = ((bound, getattr(distances, bound.value), held) for bound, held in bounds.items())
    decisions = [Decision(bound, value, held, pair.family) for bound, value, held in values if value is not None]
    decision = max(decisions, key=lambda decision: decision.used, default=None)
    return _Said(Outcome.OVER if missed else Outcome.WITHIN, missed, decision=decision)


def _missed(bounds: Mapping[Bound, Fraction], distances: Figures) -> Iterator[str]:
    for bound, held in bounds.items():
        value: float | None = getattr(distances, bound.value)
        if value is None:
            yield f"{bound.value} is not defined for it: rows have one element"
        elif isnan(value) or (value < held if bound.is_least else value > held):
            yield f"{bound.value} {value:.3g} {'<' if bound.is_least else '>'} {float(held):.6g}"


# NaN and Inf.


def _non_finite(claim: Claim, pair: OutputPair) -> _Said | None:
    """What NaN and Inf already decide, or None; those that are accepted are left to be equal."""
    if pair.reference.dtype.kind in "biu":
        return None
    odd = odd_kinds(pair.reference)
    if odd.any() and not claim.same_non_finite:
        words = f"the original itself gives {_count(odd):,} NaN or Inf in float64"
        return _Said(Outcome.UNKNOWN, words)
    stored = odd if pair.original is None else odd_kinds(pair.original)
    for values, own, run in ((pair.algebra, odd, "float64"), (pair.transformed, stored, pair.dtype)):
        if values is None:
            continue
        kinds = odd_kinds(values)
        more = (kinds > 0) & (own == 0)
        if more.any():
            words = f"{_count(more):,} NaN or Inf in {run} where the original has none"
            return _Said(Outcome.OVER, words)
        if ((kinds != own) & (odd > 0)).any():
            return _Said(Outcome.OVER, f"NaN or Inf of the original are others in {run}")
    if ((stored > 0) & (odd == 0)).any():
        return _Said(Outcome.UNKNOWN, f"the original itself overflows in {pair.dtype}")
    return None


def _count(odd: Values) -> int:
    return int((odd > 0).sum())


def algebra_error(pair: OutputPair) -> float:
    """What step 1 sees of one pair; 0 where it does not look, inf where NaN or Inf differ."""
    if pair.algebra is None or pair.reference.dtype.kind not in "fc":
        return 0.0
    if (odd_kinds(pair.reference) != odd_kinds(pair.algebra)).any():
        return inf
    return relative_error(reals(pair.reference), reals(pair.algebra))
