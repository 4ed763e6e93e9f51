"""Verdicts: what is within, over and unknown, and the one line that says so."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.budget.budget import Level, Limit, OpsLimit, Place
from pytest_modelbudget.budget.verdict import Verdict, judge, judge_ops, known_scopes
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import BudgetError, ExtensionError
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.measurement import PROGRAM, Measurement, Share, UnmeasuredOp

PLACE = Place("budgets/b.yaml", 8)
WITHIN, OVER, UNKNOWN = Outcome.WITHIN, Outcome.OVER, Outcome.UNKNOWN
FOO = UnmeasuredOp("aten::foo", 3, "head", "no rule")
BAR = UnmeasuredOp("aten::bar", 1, "", "no rule")
SCOPED = Measurement(
    17,
    "MAC",
    shares=(Share("layer4.0.conv1", 7), Share("layer4.1", 2), Share("layer40", 5), Share("fc", 3)),
    unmeasured=(FOO,),
)


def most(value: int, **more: object) -> Limit:
    return Limit("macs", PLACE, max=value, **more)  # type: ignore[arg-type]  # a test's shorthand


def least(value: int, **more: object) -> Limit:
    return Limit("macs", PLACE, min=value, **more)  # type: ignore[arg-type]  # a test's shorthand


def macs(value: int, *unmeasured: UnmeasuredOp) -> Measurement:
    return Measurement(value, "MAC", unmeasured=unmeasured)


@pytest.mark.parametrize(
    ("value", "outcome", "reason"),
    [
        (100 - 1, WITHIN, "macs 99 MAC < 100 MAC (1.0% left)"),
        (100, WITHIN, "macs 100 MAC = 100 MAC"),
        (100 + 1, OVER, "macs 101 MAC > 100 MAC (+1.0%)"),
    ],
)
def test_maximum(value: int, outcome: Outcome, reason: str) -> None:
    """A maximum is inclusive: broken by one more, kept at the limit itself."""
    verdict = judge(most(100), macs(value))
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("value", "outcome", "reason"),
    [
        (100 - 1, OVER, "macs 99 MAC < 100 MAC (-1.0%)"),
        (100, WITHIN, "macs 100 MAC = 100 MAC"),
        (100 + 1, WITHIN, "macs 101 MAC > 100 MAC (1.0% left)"),
    ],
)
def test_minimum(value: int, outcome: Outcome, reason: str) -> None:
    """A minimum is inclusive too."""
    verdict = judge(least(100), macs(value))
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


@pytest.mark.parametrize(("value", "outcome"), [(9, OVER), (10, WITHIN), (15, WITHIN), (20, WITHIN), (21, OVER)])
def test_both_ends(value: int, outcome: Outcome) -> None:
    """A limit with both ends is kept between them."""
    assert judge(Limit("macs", PLACE, max=20, min=10), macs(value)).outcome is outcome


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(5, "macs 5 MAC < 10 MAC (-50.0%)", id="10 - 5 of 10 below the minimum"),
        pytest.param(10, "macs 10 MAC < 20 MAC (50.0% left)", id="at the minimum the maximum is named"),
        pytest.param(15, "macs 15 MAC < 20 MAC (25.0% left)", id="20 - 15 of 20 are left"),
        pytest.param(21, "macs 21 MAC > 20 MAC (+5.0%)", id="21 - 20 of 20 above the maximum"),
    ],
)
def test_of_two_ends_the_line_names_the_broken_one_else_the_maximum(value: int, reason: str) -> None:
    """A number is never shown beside an end that it was not judged by."""
    assert judge(Limit("macs", PLACE, max=20, min=10), macs(value)).reason == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (99, "macs 99 MAC or more < 100 MAC   lower bound: 3 aten::foo in head (no rule)"),
        (101, "macs 101 MAC or more > 100 MAC (+1.0%)   lower bound: 3 aten::foo in head (no rule)"),
    ],
)
def test_a_lower_bound_tells_a_distance_only_where_it_proves_one(value: int, reason: str) -> None:
    """One more operation could take what seems to be left of a maximum."""
    assert judge(most(100, allow_unmeasured=("aten::foo",)), macs(value, FOO)).reason == reason


@pytest.mark.parametrize(
    ("count", "end"), [(2, "my::op1 (no rule)"), (3, "my::op2 (no rule)"), (4, "op2 (no rule), and 1 more")]
)
def test_three_offenders_are_named_and_the_rest_is_counted(count: int, end: str) -> None:
    """Of three nothing is left to count."""
    ops = tuple(UnmeasuredOp(f"my::op{number}", 1, "", "no rule") for number in range(count))
    named = judge(most(100), macs(3, *ops)).reason.partition("; allow_unmeasured")[0]
    assert named.endswith(end)


def test_every_operator_may_be_accepted_wherever_its_name_stands_in_the_alphabet() -> None:
    """Only what stands for a whole program, of which nothing is known, may not."""
    late = UnmeasuredOp("zoo::op", 1, "", "no rule")
    assert judge(most(100), macs(3, late)).reason.endswith("; allow_unmeasured: [zoo::op] accepts a lower bound")
    assert "allow_unmeasured" not in judge(most(100), macs(3, replace(late, op=PROGRAM))).reason


def test_kinds_are_compared_as_words() -> None:
    """A kind that a file spells is another string than the rule's, and the same word."""
    spelt = "".join(("convo", "lution"))
    verdict = judge_ops(OpsLimit(PLACE, deny=(spelt,)), Measurement(2, "op"), [OpCount("convolution", "Conv", 2)])
    assert verdict.outcome is OVER


def test_reason() -> None:
    """The line has the number first, the bound, and by how much it is broken."""
    limit = Limit("params", PLACE, max=3_510_000)
    verdict = judge(limit, Measurement(3_510_000 + 219_047, "param"))
    assert verdict.reason == "params 3.729 M > 3.510 M (+6.2%)"


def test_exact_where_rounded_look_alike() -> None:
    """One byte over 46.8 MB is shown to the byte."""
    verdict = judge(Limit("weight_memory", PLACE, max=46_800_000), Measurement(46_800_001, "B"))
    assert verdict.reason == ("weight_memory 46,800,001 B > 46,800,000 B (<+0.1%)")


def test_maximum_of_zero() -> None:
    """Of a limit of nothing there is no percentage."""
    assert judge(most(0), macs(2)).reason == "macs 2 MAC > 0 MAC"


def test_ratio() -> None:
    """ResNet-18 does 2 * 1,814,073,344 FLOP over 116,950,592 B = 31.02 FLOP/B."""
    pair = (2 * 1_814_073_344, 116_950_592)
    measured = Measurement(Fraction(*pair), "FLOP/B", unreduced=pair)
    limit = Limit("arithmetic_intensity", PLACE, min=Fraction(35))
    verdict = judge(limit, measured)
    assert verdict.outcome is OVER
    assert verdict.reason == ("arithmetic_intensity 31.02 FLOP/B < 35.00 FLOP/B (-11.4%)")


@pytest.mark.parametrize(
    ("limit", "value", "outcome"),
    [
        pytest.param(most(100), 100 + 1, OVER, id="a lower bound above a maximum breaks it"),
        pytest.param(most(100), 100, UNKNOWN, id="at a maximum it says nothing"),
        pytest.param(most(100), 0, UNKNOWN, id="below a maximum it says nothing"),
        pytest.param(least(100), 100, WITHIN, id="at a minimum it keeps it"),
        pytest.param(least(100), 100 - 1, UNKNOWN, id="below a minimum it says nothing"),
        pytest.param(Limit("macs", PLACE, 100, 50), 101, OVER, id="above both"),
        pytest.param(Limit("macs", PLACE, 100, 50), 60, UNKNOWN, id="between"),
    ],
)
def test_lower_bound(limit: Limit, value: int, outcome: Outcome) -> None:
    """An incomplete measurement is a lower bound and proves what a lower bound can."""
    verdict = judge(limit, macs(value, FOO))
    assert verdict.outcome is outcome
    assert not verdict.marked
    assert "3 aten::foo in head (no rule)" in verdict.reason
    assert " or more" in verdict.reason


@pytest.mark.parametrize(
    ("limit", "value", "outcome"),
    [
        (most(100, allow_unmeasured=("aten::foo",)), 100, WITHIN),
        (most(100, allow_unmeasured=("aten::foo",)), 101, OVER),
        (least(100, allow_unmeasured=("aten::foo",)), 99, OVER),
    ],
)
def test_allowed(limit: Limit, value: int, outcome: Outcome) -> None:
    """Accepted ops turn the number into a marked lower bound that is judged like any other."""
    verdict = judge(limit, macs(value, FOO))
    assert (verdict.outcome, verdict.marked) == (outcome, True)
    assert "lower bound: 3 aten::foo in head (no rule)" in verdict.reason


def test_allowed_in_part() -> None:
    """One op that is not accepted keeps the number unknown, and only that op is asked for."""
    verdict = judge(most(100, allow_unmeasured=("aten::foo",)), macs(3, FOO, BAR))
    assert verdict.outcome is UNKNOWN
    assert "1 aten::bar (no rule); allow_unmeasured: [aten::bar]" in verdict.reason


def test_many_unmeasured() -> None:
    """One line names three ops and counts the others."""
    ops = [UnmeasuredOp(f"my::op{number}", 1, "", "no\nrule") for number in range(5)]
    reason = judge(most(1), macs(0, *ops)).reason
    assert "1 my::op2 (no rule), and 2 more" in reason
    assert "\n" not in reason


@pytest.mark.parametrize("allowed", [(), ("aten::foo",)])
@pytest.mark.parametrize("bound", [{"max": Fraction(1)}, {"min": Fraction(1)}])
def test_ratio_over_unmeasured(allowed: tuple[str, ...], bound: dict[str, Fraction]) -> None:
    """A ratio over unmeasured ops is no bound of anything, and always unknown."""
    limit = Limit("arithmetic_intensity", PLACE, **bound, allow_unmeasured=allowed)
    verdict = judge(limit, Measurement(Fraction(5), "FLOP/B", unmeasured=(FOO,)))
    assert (verdict.outcome, verdict.marked) == (UNKNOWN, False)


@pytest.mark.parametrize(
    ("value", "unmeasured", "level", "fails"),
    [
        (101, (), Level.ERROR, True),
        (101, (), Level.WARN, False),
        (100, (), Level.ERROR, False),
        (100, (FOO,), Level.ERROR, True),
        (100, (FOO,), Level.WARN, True),
    ],
)
def test_fails(value: int, unmeasured: tuple[UnmeasuredOp, ...], level: Level, fails: bool) -> None:
    """Level warn softens over only; unknown fails at any level."""
    assert judge(most(100, level=level), macs(value, *unmeasured)).fails is fails


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("layer4.*", 7 + 2),
        ("layer4", 7 + 2),
        ("layer4.0", 7),
        ("*.conv1", 7),
        ("layer*", 7 + 2 + 5),
        ("fc", 3),
        ("*", 7 + 2 + 5 + 3),
    ],
)
def test_scope(glob: str, value: int) -> None:
    """A scope's value is the sum of the shares in it, or in a module that the glob names."""
    at = judge(most(value, scope=glob, allow_unmeasured=("aten::foo",)), SCOPED)
    above = judge(most(value - 1, scope=glob, allow_unmeasured=("aten::foo",)), SCOPED)
    assert (at.outcome, above.outcome) == (WITHIN, OVER)
    assert at.measurement is not None
    assert at.measurement.value == value
    assert at.reason.startswith(f"macs of {glob} {value} MAC")


def test_unmeasured_elsewhere() -> None:
    """An op that could not be measured in another part of the model is no matter here."""
    assert judge(most(3, scope="fc"), SCOPED).outcome is WITHIN
    assert judge(most(3, scope="head"), SCOPED).outcome is UNKNOWN


def test_scope_that_is_not_there() -> None:
    """A glob that names no module is a typo, and never green."""
    verdict = judge(most(9, scope="layr4.*", level=Level.WARN), SCOPED)
    assert (verdict.outcome, verdict.fails) == (UNKNOWN, True)
    assert "no module of the model matches 'layr4.*': did you mean 'layer4'?" in verdict.reason


def test_scope_without_a_share() -> None:
    """A module that costs nothing is within, where the model says that it exists."""
    others = known_scopes([Measurement(1, "op", shares=(Share("relu", 1),))])
    assert judge(most(0, scope="relu"), SCOPED, scopes=others).outcome is WITHIN


def test_ratio_of_a_scope() -> None:
    """A ratio has no part for a scope."""
    measured = Measurement(Fraction(5), "FLOP/B", shares=(Share("fc", Fraction(5)),))
    assert judge(Limit("x", PLACE, max=9, scope="fc"), measured).outcome is UNKNOWN


CONV = OpCount("convolution", "aten::conv2d", 3, (("a", 1), ("b", 2)))
LSTM = OpCount("lstm", "aten::lstm", 1, (("rnn", 1),))
UNRULED = OpCount("unknown", "aten::foo", 3, (("head", 3),))
SHARES = (Share("a", 1), Share("b", 2), Share("rnn", 1))


def verdict_on_ops(*, unruled: bool = False, **limit: object) -> Verdict:
    """The verdict on three convolutions and an LSTM, and with unruled three ops more."""
    counts = (CONV, LSTM, UNRULED) if unruled else (CONV, LSTM)
    measured = Measurement(
        sum(row.count for row in counts),
        "op",
        shares=(*SHARES, Share("head", 3)) if unruled else SHARES,
        unmeasured=(FOO,) if unruled else (),
    )
    asked = OpsLimit(PLACE, **limit)  # type: ignore[arg-type]  # a test's shorthand
    return judge_ops(asked, measured, counts)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"deny": ("lstm",)}, "ops 1 aten::lstm > 0   denied, first in rnn"),
        ({"deny": ("aten::lstm",)}, "ops 1 aten::lstm > 0   denied, first in rnn"),
        ({"allow": ("convolution",)}, "ops 1 aten::lstm > 0   not allowed, first in rnn"),
        ({"max": {"convolution": 2}}, "ops 3 convolution > 2, the last in b"),
        ({"max": {"aten::conv2d": 0}}, "ops 3 aten::conv2d > 0, the last in b"),
        ({"max": {"convolution": 0}, "scope": "a"},
         "ops of a 1 convolution > 0, the last in a"),
        ({"deny": ("lstm", "convolution")},
         "ops 3 aten::conv2d > 0   denied, first in a; 1 aten::lstm > 0   denied, first in rnn"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unruled", [False, True])
def test_ops_over(limit: dict[str, object], reason: str, unruled: bool) -> None:
    """A census breaks a limit in one line that names op, count and place."""
    verdict = verdict_on_ops(unruled=unruled, **limit)
    assert (verdict.outcome, verdict.reason) == (OVER, reason)


@pytest.mark.parametrize(
    ("limit", "known", "unruled"),
    [
        ({"deny": ("gru",)}, WITHIN, UNKNOWN),
        ({"deny": ("aten::gru",)}, WITHIN, WITHIN),
        ({"allow": ("convolution", "lstm")}, WITHIN, UNKNOWN),
        ({"max": {"convolution": 3}}, WITHIN, UNKNOWN),
        ({"max": {"aten::conv2d": 3}}, WITHIN, WITHIN),
        ({"deny": ("lstm",), "scope": "a"}, WITHIN, WITHIN),
        ({"deny": ("lstm",), "scope": "nowhere"}, UNKNOWN, UNKNOWN),
    ],
)
def test_ops_within(limit: dict[str, object], known: Outcome, unruled: Outcome) -> None:
    """An op that no rule knows could be of any kind, but not of any name."""
    assert verdict_on_ops(**limit).outcome is known
    assert verdict_on_ops(unruled=True, **limit).outcome is unruled


@pytest.mark.parametrize("form", ["deny", "max"])
@pytest.mark.parametrize(
    ("names", "runs", "outcome"),
    [
        (["aten::conv2d"], "onnx::Conv", Outcome.UNKNOWN),
        (["onnx::Conv"], "aten::conv2d", Outcome.UNKNOWN),
        (["com.microsoft::FusedConv"], "aten::conv2d", Outcome.UNKNOWN),
        (["onnx::Softmax"], "tflite::SOFTMAX", Outcome.UNKNOWN),
        (["aten::lstm"], "aten::conv2d", Outcome.WITHIN),
        (["onnx::LSTM"], "com.microsoft::FusedConv", Outcome.WITHIN),
        (["aten::lstm", "onnx::LSTM"], "aten::conv2d", Outcome.WITHIN),
        (["lab::mystery"], "aten::conv2d", Outcome.WITHIN),
        (["lstm"], "aten::conv2d", Outcome.WITHIN),
    ],
)
def test_ops_of_another_format_are_never_seen(form: str, names: list[str], runs: str, outcome: Outcome) -> None:
    """A name that this model's format lacks refuses nothing: that is said, unless one of the format stands beside."""
    limit = OpsLimit(PLACE, deny=tuple(names)) if form == "deny" else OpsLimit(PLACE, max=dict.fromkeys(names, 0))
    verdict = judge_ops(limit, Measurement(2, "op"), [OpCount("convolution", runs, 2)])
    assert verdict.outcome is outcome
    assert outcome is Outcome.WITHIN or f"{names[0]} is no operator of this model's format" in verdict.reason


def test_ops_allowed_unmeasured() -> None:
    """An op that the budget accepts without a rule is of no denied kind."""
    verdict = verdict_on_ops(unruled=True, allow=("convolution", "lstm"),
                             allow_unmeasured=("aten::foo",))  # fmt: skip
    assert (verdict.outcome, verdict.marked) == (WITHIN, True)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.booleans())
def test_judgement_is_comparison(value: int, bound: int, complete: bool) -> None:
    """Over is exactly value > maximum, and an incomplete number is never within one."""
    verdict = judge(most(bound), macs(value, *([] if complete else [FOO])))
    assert (verdict.outcome is OVER) == (value > bound)
    assert (verdict.outcome is WITHIN) == (complete and value <= bound)
    assert len(verdict.reason.splitlines()) == 1


@given(st.lists(st.tuples(st.sampled_from(["a", "a.b", "a.b.c", "d"]), st.integers(0, 99))))
def test_scopes_partition(contributions: list[tuple[str, int]]) -> None:
    """The parts under a and under d make up the whole."""
    shares = tuple(Share(scope, value) for scope, value in contributions)
    measured = Measurement(sum(share.value for share in shares), "MAC", shares=shares)
    parts = [judge(most(0, scope=glob), measured, scopes=("a", "d")) for glob in ("a", "d")]
    values = [part.measurement.value for part in parts if part.measurement]
    assert sum(values) == measured.value


def test_a_number_without_shares_has_no_part_for_a_scope() -> None:
    """An extension's metric that tells no shares is not zero inside a scope: it is unknown."""
    verdict = judge(most(1, scope="layer4.*"), macs(150), scopes=("layer4.0",))
    assert (verdict.outcome, "no shares by module" in verdict.reason) == (UNKNOWN, True)


def test_a_limit_has_an_end() -> None:
    """Neither a maximum nor a minimum is no limit."""
    with pytest.raises(BudgetError, match=r"budgets/b.yaml:8: .* neither max nor min"):
        Limit("macs", PLACE)


def test_shares_that_do_not_add_up_are_refused() -> None:
    """A measurement is validated at birth."""
    with pytest.raises(ExtensionError, match="do not add up"):
        Measurement(5, "MAC", shares=(Share("a", 2),))
