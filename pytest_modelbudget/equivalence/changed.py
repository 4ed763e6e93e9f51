"""What a change made of a model, as the comparison takes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from pytest_modelbudget.equivalence.claim import Bound, Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.model import Change, Model

LEAST = 6.0  # dB: below it a floor hardly tells a quantiser from zeros, which have 0 dB


@dataclass(frozen=True, slots=True)
class Floor:
    """The SQNR in dB that a change which loses something promises, and how it is worked out."""

    decibels: float
    formula: str

    def bound(self, claim: Claim) -> Claim:
        """The claim; one that is lossy and has no bounds gets the floor, where that says anything.

        Below 6 dB the claim stays as it is: it declares no bound, and is unknown.
        """
        if not claim.is_held_to_floor or self.decibels < LEAST:
            return claim
        return replace(claim, bounds={Bound.SQNR: Fraction(f"{self.decibels:.2f}")})

    def verify(self, claim: Claim, judge: Callable[[Claim], Equivalence]) -> Equivalence:
        """The judgement on a claim against the floor; where there is none, the way out."""
        result = judge(self.bound(claim))
        is_held = not claim.is_held_to_floor or self.decibels >= LEAST
        if is_held or result.outcome is not Outcome.UNKNOWN:
            return result
        words = f"{self.formula} = {self.decibels:.2f} dB is no floor"
        return replace(result, reason=f"{result.reason}; {words}: declare one, such as sqnr: 10")


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed model, and what is known of the change.

    - partial_sums: the largest number of sums per output that are rounded to the storage type.
    - upcasts: its float64 twin is the changed model itself, upcast; none of its weights is worked out anew.
    - follows: it can be made again of the original with redrawn weights.
    - made_apart: its weights may have been rounded on another way than the original's.
    - by_position: inputs and outputs are matched by their order, not by name.
    - stacks: it takes stacked rows where the original does.
    - floor: what a lossy claim without bounds is held to.
    - held_to: judges a claim with another first model, with both of which it calls its second argument.
    - is_last: another change would lose it, since no stored tensor and no code has it.
    """

    model: Model
    changes: tuple[Change, ...] = ()
    partial_sums: int = 1
    upcasts: bool = False
    follows: bool = True
    made_apart: bool = False
    by_position: bool = False
    stacks: bool = True
    floor: Floor | None = None
    held_to: Callable[[Claim, Callable[..., Equivalence]], Equivalence] | None = None
    is_last: bool = False
    notes: tuple[str, ...] = ()

    def then(self, second: "Changed") -> "Changed":
        """Both changes as one; second was made to what the first gave."""
        floors = [each.floor for each in (self, second) if each.floor]
        return replace(
            second,
            changes=(*self.changes, *second.changes),
            partial_sums=max(self.partial_sums, second.partial_sums),
            upcasts=self.upcasts and second.upcasts,
            follows=self.follows and second.follows,
            made_apart=self.made_apart or second.made_apart,
            by_position=self.by_position or second.by_position,
            stacks=self.stacks and second.stacks,
            floor=floors[0] if len(floors) == 1 else None,
            notes=(*self.notes, *second.notes),
        )


Remake = Callable[[Model], Changed]  # the same change, made to a model or to a copy of it
