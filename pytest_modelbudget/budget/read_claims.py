"""``equivalence:`` of a transform: a kind alone, or what it declares and which runs hold it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from pytest_modelbudget.budget.budget import EquivalenceCheck
from pytest_modelbudget.budget.plain_values import flag, integer
from pytest_modelbudget.budget.problem import shown, suggestion
from pytest_modelbudget.budget.reading import Entry, Reading
from pytest_modelbudget.budget.transform_grammar import CLAIM, OUTPUT
from pytest_modelbudget.budget.yaml_nodes import Block, Listing, Node
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.transforms.transform import Transform

SHARES = (Bound.COSINE, Bound.TOP1)  # which no output has more of than 1
UNDECIDED = "declares no bound: give one, such as sqnr: 30 or max_abs: 1e-3"


def read_equivalence(
    entry: Entry, transform: Transform, reading: Reading
) -> EquivalenceCheck | None:
    """A kind alone, or {kind, seeds, batch, bounds}."""
    if not isinstance(entry.value, Block):
        kind = _kind(entry.value, reading)
        claim = Claim(kind) if kind is not None else None
    else:
        claim = _claim(entry, reading)
    if claim is None:
        return None
    has_bounds = bool(claim.bounds or claim.of_output)
    if claim.kind is Kind.EXACT_ALGEBRA and has_bounds:
        message = "exact_algebra has a criterion of its own: bounds belong to lossy and custom"
        reading.refuse(entry.key.place, message)
    brings_bounds = claim.kind is Kind.LOSSY and transform.claims is Kind.LOSSY
    if claim.kind is not Kind.EXACT_ALGEBRA and not has_bounds and not brings_bounds:
        reading.refuse(entry.key.place, f"'{claim.kind.value}' {UNDECIDED}")
    return EquivalenceCheck(entry.key.place, claim)


def _claim(entry: Entry, reading: Reading) -> Claim | None:
    given = reading.fields(entry.value, CLAIM)
    kind = _kind(given["kind"].value, reading) if "kind" in given else None
    if kind is None:
        return None
    return Claim(
        kind,
        _bounds(given, reading),
        _outputs(given, reading),
        seeds=_numbers(given, "seeds", reading, least=0) or SEEDS,
        batches=_numbers(given, "batch", reading, least=1),
        same_non_finite="same_non_finite" in given
        and flag(given["same_non_finite"].value, "same_non_finite", reading) is True,
    )


def _kind(node: Node, reading: Reading) -> Kind | None:
    kinds = [kind.value for kind in Kind]
    text = reading.text(node, f"a kind of claim: {', '.join(kinds)}")
    if text is None:
        return None
    if text.text in kinds:
        return Kind(text.text)
    guess = suggestion(text.text, kinds)
    reading.refuse(text.place, f"{shown(text.text)} is no kind of claim: {guess}")
    return None


def _bounds(given: Mapping[str, Entry], reading: Reading) -> dict[Bound, Fraction]:
    found = {
        bound: _number(bound, given[bound.value].value, reading)
        for bound in Bound
        if bound.value in given
    }
    return {bound: number for bound, number in found.items() if number is not None}


def _outputs(given: Mapping[str, Entry], reading: Reading) -> dict[str, Mapping[Bound, Fraction]]:
    if "outputs" not in given:
        return {}
    entries = reading.named(given["outputs"].value, "outputs: a mapping of names to bounds")
    return {
        entry.key.text: _bounds(reading.fields(entry.value, OUTPUT), reading) for entry in entries
    }


def _number(bound: Bound, node: Node, reading: Reading) -> Fraction | None:
    text = reading.text(node, wanted_for(bound))
    if text is None:
        return None
    number = amount_of(bound, text.text)
    if number is None:
        reading.refuse(text.place, f"expected {wanted_for(bound)}, found {shown(text.text)}")
    return number


def wanted_for(bound: Bound) -> str:
    """What may be written for a bound."""
    return "a number from 0 to 1" if bound in SHARES else "a number such as 1e-3"


def amount_of(bound: Bound, written: str) -> Fraction | None:
    """A decimal number, or a percentage, exactly; None where the bound can be no such thing."""
    digits = written.strip()
    try:
        number = Decimal(digits.removesuffix("%"))
    except InvalidOperation:
        return None
    if not number.is_finite() or number < 0 or abs(number.adjusted()) > 300:
        return None
    amount = Fraction(number) / (100 if digits.endswith("%") else 1)
    return None if bound in SHARES and amount > 1 else amount


def _numbers(
    given: Mapping[str, Entry], key: str, reading: Reading, *, least: int
) -> tuple[int, ...]:
    if key not in given:
        return ()
    items = reading.items(given[key].value, f"{key}: a list of whole numbers")
    if isinstance(given[key].value, Listing) and not items:
        reading.refuse(given[key].value.place, f"{key} is empty: name at least one")
    found = [integer(item, f"{key}: a whole number", reading) for item in items]
    for item, number in zip(items, found, strict=True):
        if number is not None and not least <= number < 2**31:
            reading.refuse(item.place, f"{key} of {number}: it must be at least {least}")
    return tuple(dict.fromkeys(number for number in found if number is not None))
