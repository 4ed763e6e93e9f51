"""Locks at random, for properties: counts with their parts, and ratios as the pairs that they were made from."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from pytest_modelbudget.budget.lock_file import Lock, LockedValue
from pytest_modelbudget.metrics.growth import Part

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: "<<<<<<<" not in text
)
COUNTS = st.integers(min_value=0, max_value=2**70)
SHAPES = st.none() | st.lists(COUNTS, max_size=4).map(tuple)
PARTS = st.builds(Part, NAMES, COUNTS, st.none() | NAMES, SHAPES)
WHOLE = st.builds(
    LockedValue,
    COUNTS,
    NAMES,
    st.lists(PARTS, max_size=3).map(tuple),
    st.integers(0, 5),
    versions=st.dictionaries(NAMES, NAMES, max_size=2),
)
RATIOS = st.tuples(COUNTS, st.integers(1, 2**70)).map(
    lambda pair: LockedValue(Fraction(*pair), "FLOP/B", unreduced=pair)
)
LOCKS = st.builds(Lock, st.dictionaries(NAMES, st.dictionaries(NAMES, WHOLE | RATIOS, max_size=3), max_size=3))
