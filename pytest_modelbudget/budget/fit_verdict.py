"""The answer to ``fits: true``: every memory of a device, one check."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.budget.budget import FITS, DeploymentCheck
from pytest_modelbudget.budget.verdict import distance, named_ops
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.metrics.fitting import Fitting, MemoryUse
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.units import readable, readable_pair

NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """Whether a model fits: a line for people, and the fullest memory beside its size.

    fitting is None where nothing was measured.
    """

    check: DeploymentCheck
    outcome: Outcome
    reason: str
    fitting: Fitting | None = None
    measured: str = NOT_KNOWN
    allowed: str = NOT_KNOWN

    @property
    def fails(self) -> bool:
        """Whether the gate must be red."""
        return self.outcome is not Outcome.WITHIN


def judge_fit(check: DeploymentCheck, model: DeployedModel) -> FitVerdict:
    """Hold every memory against its size without what is reserved; exactly full is within.

    A memory that is too full even by a lower bound is over; what else is not known leaves it unknown.
    """
    fit = model.fitting
    if fit is None:
        return FitVerdict(check, Outcome.UNKNOWN, f"{FITS} unknown: {model.measured.failure}")
    over = [use for use in fit.uses if use.headroom < 0]
    unknown = list(_unknown(check, fit))
    outcome = Outcome.OVER if over else Outcome.UNKNOWN if unknown else Outcome.WITHIN
    words = [_full(use) for use in over] or unknown or [_full(use) for use in fit.uses]
    reason = f"{FITS} unknown: " * (outcome is Outcome.UNKNOWN) + "; ".join(words)
    if model.measured.reservation and outcome is not Outcome.WITHIN:
        reason = f"{reason}   {model.measured.reservation}"
    fullest = min(fit.uses, key=lambda use: Fraction(use.headroom, use.memory.size), default=None)
    if fullest is None:
        return FitVerdict(check, outcome, reason, fit)
    used, held = readable_pair(fullest.used, fullest.memory.room, "B")
    return FitVerdict(check, outcome, reason, fit, f"{fullest.memory.name} {used}", held)


def _full(use: MemoryUse) -> str:
    """One memory: "sram 1.51 MB < 1.97 MB   457,216 B left (23.3%)"."""
    used, held = readable_pair(use.used, use.memory.room, "B")
    sign = ">" if use.headroom < 0 else "=" if not use.headroom else "<"
    words = distance(use.used, use.memory.room, "B", over=use.headroom < 0)
    more = " or more" if use.unmeasured else ""
    return f"{use.memory.name} {used}{more} {sign} {held}   {words}"


def _unknown(check: DeploymentCheck, fit: Fitting) -> Iterator[str]:
    device = check.deployment.device
    if fit.lacking:
        yield f"{device.name} names no memory that holds {' or '.join(fit.lacking)}: add one to its memories"
    for use in fit.uses:
        if use.unmeasured:
            yield (
                f"{use.memory.name} holds {readable(use.used, 'B')} or more   unmeasured: {named_ops(use.unmeasured)}"
            )
