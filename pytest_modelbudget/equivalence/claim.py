"""What a transform claims about the outputs, and the runs that the claim applies to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction

from pytest_modelbudget.equivalence.inputs import FAMILIES, GIVEN
from pytest_modelbudget.equivalence.user_inputs import GivenInputs


class Kind(str, Enum):
    """Which test a claim is put to; there is no single tolerance."""

    EXACT_ALGEBRA = "exact_algebra"
    LOSSY = "lossy"
    CUSTOM = "custom"


class Bound(str, Enum):
    """A figure that a lossy or custom claim declares, and which end of it is checked."""

    MAX_ABS = "max_abs"
    MSE = "mse"
    SQNR = "sqnr"
    COSINE = "cosine"
    TOP1 = "top1"
    P99_ABS = "p99_abs"

    @property
    def is_least(self) -> bool:
        """Whether it is a minimum: more is better."""
        return self in (Bound.SQNR, Bound.COSINE, Bound.TOP1)


SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: its kind, the bounds it declares, and the runs it is held on.

    bounds hold for every output under every family; of_family those for one family of inputs, and
    of_output those for one output, by name, in their place. batches are sizes of the first
    dimension of every input beside those that the model's inputs give. families are those that are
    run, all where none is named; rows how many rows each has, None where seeds decide. given are
    inputs beside the drawn ones. same_non_finite accepts NaN and Inf at identical positions.
    """

    kind: Kind = Kind.EXACT_ALGEBRA
    bounds: Mapping[Bound, Fraction] = field(default_factory=dict)
    of_output: Mapping[str, Mapping[Bound, Fraction]] = field(default_factory=dict)
    of_family: Mapping[str, Mapping[Bound, Fraction]] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    rows: int | None = None
    given: GivenInputs | None = None
    seeds: tuple[int, ...] = SEEDS
    batches: tuple[int, ...] = ()
    same_non_finite: bool = False

    @property
    def is_held_to_floor(self) -> bool:
        """Whether it is lossy and declares nothing, so that a transform says what may be lost."""
        return self.kind is Kind.LOSSY and not self.declares_bounds

    @property
    def declares_bounds(self) -> bool:
        """Whether it declares any, of all outputs, of one, or of one family."""
        return bool(self.bounds or self.of_output or self.of_family)

    @property
    def run_families(self) -> tuple[str, ...]:
        """The families that are run; given inputs are one of them."""
        return self.families or (*FAMILIES, *((GIVEN,) if self.given else ()))

    @property
    def exact(self) -> Claim:
        """The claim of exact algebra on the same runs."""
        return replace(self, kind=Kind.EXACT_ALGEBRA, bounds={}, of_output={}, of_family={})

    def bounds_of(self, output: str, family: str) -> Mapping[Bound, Fraction]:
        """The bounds of one output under one family of inputs."""
        return self.of_output.get(output, self.of_family.get(family, self.bounds))

    def is_weaker_than(self, other: Claim) -> bool:
        """Whether it lets anything pass that the other does not.

        Another kind counts as weaker, unless it is exact algebra, which asks for most. So do any
        bounds in place of a transform's own, which a lossy claim without bounds is held to.
        """
        if self.kind is not other.kind:
            return self.kind is not Kind.EXACT_ALGEBRA
        if other.is_held_to_floor and not self.is_held_to_floor:
            return True
        outputs = {"", *self.of_output, *other.of_output}
        families = {"", *self.of_family, *other.of_family} & {"", *other.run_families}
        looser = any(
            _is_looser(self.bounds_of(output, family), other.bounds_of(output, family))
            for output in outputs
            for family in families
        )
        return self._runs_less(other) or looser or (self.same_non_finite and not other.same_non_finite)

    def _runs_less(self, other: Claim) -> bool:
        """Whether any run of the other is not made, or may not be: given inputs may be any."""
        pairs = ((other.seeds, self.seeds), (other.batches, self.batches), (other.run_families, self.run_families))
        is_fewer = any(set(theirs) - set(mine) for theirs, mine in pairs)
        return is_fewer or (other.rows or 0) > (self.rows or 0) or (other.given not in (None, self.given))


def _is_looser(bounds: Mapping[Bound, Fraction], than: Mapping[Bound, Fraction]) -> bool:
    """Whether any bound of ``than`` is gone, or holds less."""
    return any(
        bound not in bounds or (bounds[bound] < value if bound.is_least else bounds[bound] > value)
        for bound, value in than.items()
    )


class Outcome(str, Enum):
    """Within, over, or unknown, which is never green; of a limit with an exception also accepted.

    UNUSED is an exception that its limit does not need: the limit is kept.
    """

    WITHIN = "within"
    OVER = "over"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    UNUSED = "unused"
