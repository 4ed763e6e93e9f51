"""Exceptions to limits: what they let pass, what is refused in their place, and how they leave a file."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest

from pytest_modelbudget.budget.budget import Budget, Level, Limit
from pytest_modelbudget.budget.changes import loosenings
from pytest_modelbudget.budget.lock_file import Baseline, Lock, LockedValue
from pytest_modelbudget.budget.update import Exempt, UpdateMode, update
from pytest_modelbudget.budget.verdict import NO_BASELINE, judge, with_exception
from pytest_modelbudget.budget.yaml_text import Edit, edited
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.metrics.measurement import Measurement, Share, UnmeasuredOp
from pytest_modelbudget.metrics.table import metric_table
from tests.builders.texts import Problems, Read

TODAY = date(2027, 1, 31)
WITHIN, OVER, UNKNOWN = Outcome.WITHIN, Outcome.OVER, Outcome.UNKNOWN
ACCEPTED, UNUSED = Outcome.ACCEPTED, Outcome.UNUSED
MODEL = "model_budget: 1\ndefaults: {{inputs: float32 1x3}}\nmodels:\n  net:\n    torch: a:b\n    {}\n"
GRANT = "waiver: {{to: {to}, reason: {reason}, until: {until}}}"


def grant(to: str, until: str = "2027-01-31", reason: str = "why") -> str:
    return GRANT.format(to=to, until=until, reason=reason)


def text(limit: str) -> str:
    """A budget whose limits stand on its line 6, from column 14 on."""
    return MODEL.format(f"limits: {{{limit}}}")


def limit_of(budget: Budget) -> Limit:
    (held,) = budget.held()
    assert isinstance(held.check, Limit)
    return held.check


JUDGED = [
    pytest.param(f"macs: {{max: 100, {grant('120')}}}", 101, ACCEPTED, id="1 over"),
    pytest.param(f"macs: {{max: 100, {grant('120')}}}", 120, ACCEPTED, id="at the amount"),
    pytest.param(f"macs: {{max: 100, {grant('120')}}}", 121, OVER, id="over the amount"),
    pytest.param(f"macs: {{max: 100, {grant('120')}}}", 100, UNUSED, id="at the limit"),
    pytest.param(f"macs: {{max: 100, {grant('120', '2027-02-01')}}}", 101, ACCEPTED, id="a day left"),
    pytest.param(f"macs: {{max: 100, {grant('120', '2027-01-30')}}}", 101, OVER, id="past since yesterday"),
    pytest.param(f"macs: {{max: 100, {grant('120', '2027-01-30')}}}", 100, UNUSED, id="past and not needed"),
    pytest.param(f"macs: {{max: 100, level: warn, {grant('120')}}}", 101, ACCEPTED, id="level warn"),
    pytest.param(f"macs: {{min: 100, {grant('80')}}}", 99, ACCEPTED, id="short by 1"),
    pytest.param(f"macs: {{min: 100, {grant('80')}}}", 80, ACCEPTED, id="short, at the amount"),
    pytest.param(f"macs: {{min: 100, {grant('80')}}}", 79, OVER, id="shorter than accepted"),
    pytest.param(f"macs: {{min: 100, {grant('80')}}}", 100, UNUSED, id="at the minimum"),
    pytest.param(f"macs: {{min: 100, max: 200, {grant('220')}}}", 210, ACCEPTED, id="both ends, over"),
    pytest.param(f"macs: {{min: 100, max: 200, {grant('220')}}}", 90, OVER, id="both ends, short of the other"),
    pytest.param(f"macs: {{min: 100, max: 200, {grant('80')}}}", 90, ACCEPTED, id="both ends, short"),
    pytest.param(f"macs: {{min: 100, max: 200, {grant('80')}}}", 210, OVER, id="both ends, over the other"),
    # 100 locked, and 10% of it: 110 is allowed
    pytest.param(f"macs: {{grow: 10%, {grant('120')}}}", 111, ACCEPTED, id="grown"),
    pytest.param(f"macs: {{grow: 10%, {grant('120')}}}", 121, OVER, id="grown over the amount"),
    pytest.param(f"macs: {{grow: 10%, {grant('120')}}}", 110, UNUSED, id="grown as allowed"),
    pytest.param(f"macs: {{grow: 10%, max: 200, {grant('120')}}}", 120, ACCEPTED, id="growth below the maximum"),
]


@pytest.mark.parametrize(("limit", "value", "outcome"), JUDGED)
def test_an_exception_reaches_to_its_amount_and_through_its_day(
    read: Read, limit: str, value: int, outcome: Outcome
) -> None:
    """Both are inclusive; beyond either, and where nothing is needed, it does not pass."""
    held = limit_of(read(text(limit)))
    verdict = judge(held, Measurement(value, "MAC"), baseline=Baseline(LockedValue(100, "MAC")))
    judged = with_exception(verdict, TODAY)
    assert judged.outcome is outcome
    assert judged.fails is (outcome in (OVER, UNUSED) and held.level is Level.ERROR)


def test_a_scope_is_accepted_by_its_own_number(read: Read) -> None:
    """Of 130, the scope has 70: over 60, within 75."""
    budget = read(MODEL.format(f"scopes: {{head.*: {{macs: {{max: 60, {grant('75')}}}}}}}"))
    number = Measurement(130, "MAC", (Share("body", 60), Share("head.0", 70)))
    assert with_exception(judge(limit_of(budget), number), TODAY).outcome is ACCEPTED


def test_a_fraction_of_a_byte_is_rounded_towards_the_limit(read: Read) -> None:
    """1.3 KiB are 1331.2 B: above a maximum 1331 pass, below a minimum 1332 do."""
    most = limit_of(read(text(f"weight_memory: {{max: 1 KiB, {grant('1.3 KiB')}}}")))
    least = limit_of(read(text(f"weight_memory: {{min: 2 KiB, {grant('1.3 KiB')}}}")))
    assert most.waiver is not None
    assert least.waiver is not None
    assert (most.waiver.to, least.waiver.to) == (1331, 1332)


def test_a_ratio_is_accepted_too(read: Read) -> None:
    """29.5 FLOP/B is short of 30, and not below 29."""
    held = limit_of(read(text(f"arithmetic_intensity: {{min: 30 FLOP/B, {grant('29 FLOP/B')}}}")))
    number = Measurement(Fraction(59, 2), "FLOP/B", unreduced=(59, 2))
    assert with_exception(judge(held, number), TODAY).outcome is ACCEPTED


FOO = UnmeasuredOp("aten::foo", 3, "head", "no rule")
NOT_COMPLETE = [
    pytest.param("", 90, UNKNOWN, id="unknown"),
    pytest.param("", 110, OVER, id="proven over"),
    pytest.param("allow_unmeasured: ['aten::foo'], ", 110, ACCEPTED, id="a bound that is allowed"),
]


@pytest.mark.parametrize(("allowed", "value", "outcome"), NOT_COMPLETE)
def test_what_is_not_measured_is_never_accepted(read: Read, allowed: str, value: int, outcome: Outcome) -> None:
    """110 or more may be more than 120; unless the budget takes the bound for the number."""
    held = limit_of(read(text(f"macs: {{max: 100, {allowed}{grant('120')}}}")))
    number = Measurement(value, "MAC", unmeasured=(FOO,))
    assert with_exception(judge(held, number, baseline=NO_BASELINE), TODAY).outcome is outcome


MAX, MIN = "macs: {{max: 9, {}}}".format, "macs: {{min: 9, {}}}".format
REFUSED = {
    "short form": (MAX("waiver: 12"), "expected an exception: {to:"),
    "no reason": (MAX("waiver: {to: 12, until: 2027-01-31}"), "an exception needs the key 'reason'"),
    "no amount": (MAX("waiver: {reason: a, until: 2027-01-31}"), "an exception needs the key 'to'"),
    "no day": (MAX("waiver: {to: 12, reason: a}"), "an exception needs the key 'until'"),
    "an empty reason": (MAX(grant("12", reason="''")), "macs: waiver: reason: no reason: write it in words"),
    "a long reason": (MAX(grant("12", reason="x" * 501)), "macs: waiver: reason: 501 characters: write at most 500"),
    "a reason in parts": (MAX(grant("12", reason="[a]")), "expected the reason in words, found a list"),
    "no date": (MAX(grant("12", "31.01.2027")), "until: '31.01.2027' is no date: write one such as 2027-01-31"),
    "no day of February": (MAX(grant("12", "2027-02-29")), "until: '2027-02-29' is no day of any calendar"),
    "an hour": (MAX(grant("12", "2027-01-31T10:00")), "until: '2027-01-31T10:00' is no date"),
    "other digits": (MAX(grant("12", "２０２７-01-31")), "is no date"),
    "long past": (MAX(grant("12", "0227-01-31")), "until: 0227-01-31 is before there were budgets: correct the year"),
    "below the limit": (MAX(grant("8")), "macs: waiver: to: 8 is not above max 9, and accepts nothing: correct it"),
    "at the limit": (MAX(grant("9")), "macs: waiver: to: 9 is not above max 9"),
    "at the minimum": (MIN(grant("9")), "macs: waiver: to: 9 is not below min 9"),
    "above the minimum": (MIN(grant("10")), "macs: waiver: to: 10 is not below min 9"),
    "between": (f"macs: {{min: 5, max: 9, {grant('7')}}}", "macs: waiver: to: 7 is not above max 9"),
    "another unit": (MAX(grant("12 MB")), "macs: waiver: to: '12 MB' counts B"),
    "auto": (f"macs: {{max: auto, {grant('9')}}}", "macs: waiver: there is no exception to 'auto'"),
    "beside nothing": (f"macs: {{{grant('9')}}}", "'macs' has none of the keys max, min, grow: give one"),
    "ops": (f"ops: {{deny: [lstm], {grant('9')}}}", "'waiver' is no key of a limit on ops: it takes an amount"),
    "beside a quantity": (
        f"macs: 9, {grant('12')}",
        "'waiver' is no key of limits: write it with the limit that it is for",
    ),
    "a typo": (MAX("waiver: {untill: 2027-01-31}"), "unknown key 'untill' in an exception: did you mean 'until'?"),
}


@pytest.mark.parametrize(("limit", "problem"), REFUSED.values(), ids=REFUSED)
def test_an_exception_that_says_too_little_is_refused_in_its_place(
    problems: Problems, limit: str, problem: str
) -> None:
    """One sentence: place, what, and the way out."""
    found = problems(text(limit))
    assert any(line.startswith("6:") and problem in line for line in found), found


@pytest.mark.parametrize("spelled", ["2027-01-31", "'2027-01-31'", '"2027-01-31"'])
def test_a_date_is_read_as_it_is_written(read: Read, spelled: str) -> None:
    """YAML's own timestamps play no part."""
    held = limit_of(read(text(f"macs: {{max: 9, {grant('12', spelled)}}}")))
    assert held.waiver is not None
    assert held.waiver.until == date(2027, 1, 31)


PLAIN, GRANTED, BOTH = "macs: 9", MAX(grant("12")), "macs: {{min: 5, max: 9, {}}}"
ADDED, RAISED, PROLONGED = (f"exception {word}" for word in ("added", "raised", "prolonged"))
COMPARED = [
    pytest.param(PLAIN, GRANTED, [ADDED], id="added"),
    pytest.param(GRANTED, MAX(grant("13")), [RAISED], id="raised"),
    pytest.param(GRANTED, MAX(grant("12", "2027-02-01")), [PROLONGED], id="prolonged"),
    pytest.param(GRANTED, MAX(grant("13", "2028-01-01")), [RAISED, PROLONGED], id="both"),
    pytest.param(GRANTED, MAX(grant("11")), [], id="lowered"),
    pytest.param(GRANTED, MAX(grant("12", "2027-01-30")), [], id="shortened"),
    pytest.param(GRANTED, MAX(grant("12", reason="other")), [], id="another reason"),
    pytest.param(GRANTED, PLAIN, [], id="removed"),
    pytest.param(MIN(grant("7")), MIN(grant("6")), [RAISED], id="a lower minimum"),
    pytest.param(MIN(grant("7")), MIN(grant("8")), [], id="a higher minimum"),
    pytest.param(BOTH.format(grant("12")), BOTH.format(grant("4")), [ADDED], id="the other end"),
    pytest.param("params: 9", f"params: 9, {GRANTED}", [ADDED], id="beside a new limit"),
]


@pytest.mark.parametrize(("before", "now", "expected"), COMPARED)
def test_what_counts_as_loosened(read: Read, before: str, now: str, expected: list[str]) -> None:
    """A new, a raised and a prolonged exception; no other change of one."""
    found = loosenings(read(text(before)), read(text(now)), metric_table())
    assert [change.what for change in found] == expected


def test_an_exception_of_a_new_budget_is_told(read: Read) -> None:
    """A file that the base does not know loosens no limit, but by its exceptions."""
    (change,) = loosenings(Budget("budgets/b.yaml", ()), read(text(f"params: 9, {GRANTED}")), metric_table())
    assert (change.what, change.text) == (
        "exception added",
        "budget loosened: macs accepted to 12 until 2027-01-31: why",
    )


BLOCK = """    limits:
      macs:
        max: 9  # for now
        waiver:   # by the board
          to: 12
          reason: >-
            two lines
            of words

          until: 2027-01-31   # a Sunday
      params: 3
"""
SPELLED = [
    pytest.param(f"{{max: 9, {grant('12')}}}", "{max: 9}", id="last"),
    pytest.param(f"{{{grant('12')}, max: 9}}", "{max: 9}", id="first"),
    pytest.param(f"{{max: 9, {grant('12')}, level: warn}}", "{max: 9, level: warn}", id="between"),
    pytest.param(f"{{max: 9 ,\n      {grant('12')} }}", "{max: 9 }", id="on two lines"),
]


@pytest.mark.parametrize(("before", "after"), SPELLED)
def test_an_exception_is_cut_out_of_a_flow(before: str, after: str) -> None:
    """With the comma beside it, and no other character."""
    keys = ("models", "net", "limits", "macs", "waiver")
    assert edited(text(f"macs: {before}"), "b.yaml", [Edit(keys, None)]) == text(f"macs: {after}")


@pytest.mark.parametrize("ending", ["\n", ""], ids=["a line's end", "the file's end"])
def test_an_exception_is_cut_out_of_a_block(ending: str) -> None:
    """Whole lines go, whatever comes after them."""
    keys = ("models", "net", "limits", "macs", "waiver")
    before = "models:\n  net:\n" + BLOCK.rstrip("\n") + ending
    after = "models:\n  net:\n    limits:\n      macs:\n        max: 9  # for now\n      params: 3" + ending
    assert edited(before, "b.yaml", [Edit(keys, None)]) == after
    last = before.partition("      params")[0]
    assert edited(last, "b.yaml", [Edit(keys, None)]) == after.partition("      params")[0]


LOCKED, CHECK = LockedValue(9, "MAC"), ("net", "macs")
NONE: frozenset[tuple[str, str]] = frozenset()
UPDATED = [
    pytest.param(UpdateMode.TRIM, 11, Exempt(NONE, frozenset({CHECK})), ["waiver None"], 9, id="trim, past"),
    pytest.param(UpdateMode.TRIM, 8, Exempt(NONE, frozenset({CHECK})), ["max 8", "waiver None"], 8, id="trim, unused"),
    pytest.param(UpdateMode.TRIM, 11, Exempt(frozenset({CHECK})), [], 9, id="trim, accepted"),
    pytest.param(UpdateMode.FIX, 11, Exempt(frozenset({CHECK})), [], 9, id="fix, accepted"),
    pytest.param(UpdateMode.FIX, 13, Exempt(), ["max 13", "waiver None"], 13, id="fix, over the amount"),
    pytest.param(UpdateMode.FIX, 8, Exempt(NONE, frozenset({CHECK})), [], 8, id="fix, unused"),
    pytest.param(UpdateMode.CREATE, 11, Exempt(frozenset({CHECK})), [], 9, id="create, accepted"),
]


@pytest.mark.parametrize(("mode", "value", "exempt", "edits", "lock"), UPDATED)
def test_what_updates_make_of_exceptions(
    read: Read, mode: UpdateMode, value: int, exempt: Exempt, edits: list[str], lock: int
) -> None:
    """An accepted number moves neither limit nor lock; trim drops what is idle, fix what it outgrows."""
    planned = update(
        mode, read(text(GRANTED)), {CHECK: LockedValue(value, "MAC")}, Lock({"net": {"macs": LOCKED}}),
        baseline=lambda model, check: NO_BASELINE, exempt=exempt,
    )  # fmt: skip
    assert [f"{edit.keys[-1]} {edit.quantity}" for edit in planned.edits] == edits
    locked = planned.lock.value(*CHECK)
    assert locked is not None
    assert locked.value == lock


HELD = f"{{macs: {GRANTED[6:]}}}"
STANDING = {
    "limits": f"limits: {HELD}",
    "scopes": f"scopes: {{head.*: {HELD}}}",
    "a variant": f"variants: {{b8: {{inputs: float32 8x3, limits: {HELD}}}}}",
    "a transform": f"transforms: {{tiled: {{tile_linear: {{tile: 8, edge: pad}}, limits: {HELD}}}}}",
}


@pytest.mark.parametrize("where", STANDING.values(), ids=STANDING)
def test_trim_finds_an_exception_wherever_its_limit_stands(read: Read, where: str) -> None:
    """What is left is the limit, without another byte changed."""
    before = MODEL.format(where)
    budget = read(before)
    (held,) = budget.held()
    planned = update(
        UpdateMode.TRIM, budget, {}, Lock(), baseline=lambda model, check: NO_BASELINE,
        exempt=Exempt(NONE, frozenset({held.key})),
    )  # fmt: skip
    after = edited(before, "b.yaml", planned.edits)
    assert after == before.replace(f", {grant('12')}", "")
    assert limit_of(read(after)).waiver is None
