"""``check_equivalence()``: whether two models compute the same, for Python code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from pytest_modelbudget.budget.problem import suggestion
from pytest_modelbudget.budget.read_claims import amount_of, wanted_for
from pytest_modelbudget.check.measuring import first_on_path
from pytest_modelbudget.check.python_values import model_source
from pytest_modelbudget.check.tables import tables
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.errors import InputError, ModelBudgetError, SourceError, TransformError
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.transforms.transform import Job

NO_BOUNDS: Mapping[str, float] = MappingProxyType({})
COMPARE = "compare"


def check_equivalence(
    original: object,
    transformed: object,
    inputs: object = None,
    *,
    kind: str = "exact_algebra",
    seeds: Sequence[int] = SEEDS,
    bounds: Mapping[str, float] = NO_BOUNDS,
) -> Equivalence:
    """Whether two models give the same outputs, as a budget's ``compare:`` would say.

    original and transformed: modules, factories without arguments, "package.module:callable" or
    paths of model files. inputs: what ``measure()`` takes; files may bring their own. Neither model
    is changed: what is run is a copy. bounds are those of "lossy" and "custom": {"sqnr": 30}.

    ``.outcome`` is "within", "over" or "unknown"; ``.reason`` says why, ``.outputs`` how far each
    output is apart, ``.first_divergence`` in which layer the two part. Raises ModelBudgetError
    where either model cannot be loaded, and InputError for a kind, seeds or bounds that hold
    nothing.
    """
    using, here = tables(), Path.cwd()
    claim = _claim(kind, seeds, bounds)
    first = model_source(original, inputs, using=using, base=here)
    second = model_source(transformed, inputs, using=using, base=here)
    with first_on_path(here):
        job = Job(first, {COMPARE: second}, using.ops)
        applied = using.transforms[COMPARE].applied(job)
        try:
            with user_code("comparing the outputs", TransformError):
                found = applied.verify(claim)
        except (SourceError, InputError):
            raise  # the original or its inputs cannot be read; the other model was read above
        except ModelBudgetError as error:
            return Equivalence(Outcome.UNKNOWN, claim.kind, str(error), seeds=claim.seeds)
    if found.first_divergence is None:
        return found
    repeat = f"check_equivalence(original, transformed, inputs, seeds={tuple(claim.seeds)})"
    return replace(found, first_divergence=found.first_divergence.repeated_by(repeat))


def _claim(kind: str, seeds: Sequence[int], bounds: Mapping[str, float]) -> Claim:
    kinds = [each.value for each in Kind]
    if kind not in kinds:
        raise InputError(f"{kind!r} is no kind of claim: {suggestion(str(kind), kinds)}")
    names = [each.value for each in Bound]
    if not isinstance(bounds, Mapping):
        raise InputError(f"bounds are {bounds!r}: write a mapping such as {{'sqnr': 30}}")
    for name in bounds:
        if name not in names:
            raise InputError(f"{name!r} is no bound: {suggestion(str(name), names)}")
    if not isinstance(seeds, Sequence) or any(type(s) is not int or s < 0 for s in seeds):
        raise InputError(f"seeds are {seeds!r}: write whole numbers from 0, such as (0, 1, 2)")
    if not seeds:
        raise InputError("no seeds: the outputs of no run can be compared")
    held = {Bound(name): _amount(Bound(name), value) for name, value in bounds.items()}
    if held and kind == Kind.EXACT_ALGEBRA.value:
        raise InputError("exact_algebra has a criterion of its own: bounds belong to lossy, custom")
    return Claim(Kind(kind), held, seeds=tuple(seeds))


def _amount(bound: Bound, value: float) -> Fraction:
    """The exact amount that a number is written as, where a budget takes it too."""
    amount = amount_of(bound, str(value))
    if amount is None:
        wanted = wanted_for(bound)
        raise InputError(f"{bound.value} is {value!r}, which holds nothing: write {wanted}")
    return amount
