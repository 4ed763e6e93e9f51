"""Exceptions to limits: ``waiver: {to: 12.4 M, reason: "...", until: 2027-01-31}`` read, and held against a day.

A limit that is broken passes up to the amount and through the day, for a reason that every report shows. An exception
that is past, or that its limit does not need, fails: nobody forgets one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Acceptance, Limit
from pytest_modelbudget.budget.grammar import Field, Form, Grammar, Reading, Schema, Values
from pytest_modelbudget.budget.yaml_text import Text, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.units import quantity, readable

DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DAY_PATTERN = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
EARLIEST = date(2020, 1, 1)  # no budget is older: a slip of the pen in the year
MOST_WORDS = 500  # characters of a reason, which stands in one line of every report
KEY = "waiver"


def day(text: str) -> date:
    """The day that a text names; raises BudgetError where it names none."""
    try:
        if DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError as error:
        raise BudgetError(f"{shown(text)} is no day of any calendar: write one such as 2027-01-31") from error
    raise BudgetError(f"{shown(text)} is no date: write one such as 2027-01-31")


def _until(word: Text, key: str, reading: Reading) -> date:
    last = day(word.text)
    if last < EARLIEST:
        raise BudgetError(f"{last} is before there were budgets: correct the year")
    return last


def _words(word: Text, key: str, reading: Reading) -> str:
    words = " ".join(word.text.split())
    if not words:
        raise BudgetError(f"no {key}: write it in words")
    if len(words) > MOST_WORDS:
        raise BudgetError(f"{len(words)} characters: write at most {MOST_WORDS}, and link to the rest")
    return words


_WORDS: Schema = {"type": "string", "pattern": r"\S", "maxLength": MOST_WORDS}


def acceptance_form(key: str, unit: str, amounts: Schema) -> Form[Acceptance]:
    """The form of an exception to a limit on a metric; amounts are its quantities, for editors."""
    lead = f"{key}: {KEY}: "
    amount = grammar.spelled(
        f"a quantity of {unit}",
        lambda word, _, reading: (quantity(word.text, unit), word.text.strip()),
        amounts,
        lead=f"{lead}to: ",
    )
    days: Schema = {"type": "string", "pattern": DAY_PATTERN}
    until = grammar.spelled("a date such as 2027-01-31", _until, days, lead=f"{lead}until: ")
    table = Grammar(
        "an exception",
        (
            Field("to", amount, "the amount that is accepted, itself included", required=True),
            Field("reason", _spelled("the reason in words", f"{lead}reason: "), "why, for every report", required=True),
            Field("until", until, "the last day on which it holds, in UTC", required=True),
            Field("by", _spelled("the name of who granted it", f"{lead}by: "), "who granted it", default=""),
        ),
        expected="an exception: {to: ..., reason: ..., until: 2027-01-31}",
    )
    return table.form(_acceptance)


def _spelled(expected: str, lead: str) -> Form[str]:
    return grammar.spelled(expected, _words, _WORDS, lead=lead)


def _acceptance(values: Values, reading: Reading) -> Acceptance | None:
    """The exception of a mapping that has all it needs; what it lacks is refused already."""
    if not (values["to"] and values["reason"] and values["until"]):
        return None
    amount, written = values["to"]
    return Acceptance(values.key.place, amount, values["reason"], values["until"], values["by"], written)


def beside(limit: Limit, asked: Acceptance, unit: str) -> Acceptance:
    """A waiver with the limit that it belongs to: beyond its maximum, or below its minimum.

    Raises BudgetError where it accepts nothing that the limit does not.
    """
    if limit.auto:
        raise BudgetError(
            f"{limit.metric}: {KEY}: there is no exception to 'auto', which sets no limit yet: fill it in first"
        )
    has_most = limit.max is not None or limit.grow is not None
    if limit.min is not None and (not has_most or asked.to < limit.min):
        least = quantity(asked.written, unit, round_up=True)
        end = readable(limit.min, unit) if has_most else limit.written
        _must_reach(least < limit.min, limit, asked, f"below min {end}")
        return replace(asked, to=least, end="min")
    if limit.max is not None and limit.grow is None:  # growth may be accepted below the maximum
        _must_reach(asked.to > limit.max, limit, asked, f"above max {limit.written}")
    return asked


def _must_reach(is_beyond: bool, limit: Limit, asked: Acceptance, way: str) -> None:
    if not is_beyond:
        why = f"{asked.written} is not {way}, and accepts nothing"
        raise BudgetError(f"{limit.metric}: {KEY}: to: {why}: correct it, or remove 'waiver'")
