"""Who a growth is due to: parts by name, the rest in a sum, all of it together the growth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.metrics.growth import MOST_DIFFERENCES, Part, blame

VALUES = st.dictionaries(st.sampled_from("abcdefghijklmn"), st.integers(1, 10**6), max_size=14)


def parts(values: dict[str, int]) -> list[Part]:
    return [Part(scope, value) for scope, value in values.items()]


@given(VALUES, VALUES, st.integers(0, 5))
def test_deltas_add_up_to_the_growth(before: dict[str, int], after: dict[str, int], cut: int) -> None:
    """Named and unnamed together are the difference of the two numbers, cut parts or none."""
    total = sum(after.values()) - sum(before.values())
    kept = dict(sorted(before.items(), key=lambda item: -item[1])[: len(before) - cut])
    found = blame(parts(kept), parts(after), total=total, cut=len(before) - len(kept))
    assert sum(each.delta for each in found.differences) + found.rest == total
    assert len(found.differences) <= MOST_DIFFERENCES
    sizes = [abs(each.delta) for each in found.differences]
    assert sizes == sorted(sizes, reverse=True)


@given(VALUES, VALUES)
def test_a_named_difference_is_a_true_one(before: dict[str, int], after: dict[str, int]) -> None:
    """Then and now are what the two sides say; None is new, or gone."""
    total = sum(after.values()) - sum(before.values())
    for each in blame(parts(before), parts(after), total=total).differences:
        assert each.before == before.get(each.scope)
        assert each.after == after.get(each.scope)


def test_what_may_have_been_cut_is_not_called_new() -> None:
    """A file that keeps the largest does not know the rest: that is told in the sum."""
    found = blame([Part("a", 9)], [Part("a", 9), Part("b", 4)], total=1, cut=1)
    assert found.differences == ()
    assert (found.rest, found.others) == (1, 1)
