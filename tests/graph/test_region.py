"""Regions count each element once, as a brute-force walk over indices does."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.graph.tensor import (
    DType,
    Storage,
    StorageKind,
    Tensor,
    contiguous_strides,
    distinct_elements,
    distinct_nbytes,
    distinct_values,
    region,
)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def walked(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> set[int]:
    """Every element a tensor touches, by walking all its indices."""
    return {
        offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in product(*map(range, shape))
    }


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """A slice of a permuted, possibly broadcast dense tensor: what views are in practice."""
    shape = draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    full = contiguous_strides(tuple(size + draw(st.integers(0, 2)) for size in shape))
    strides = tuple(draw(st.sampled_from((full[axis], full[axis], 0))) for axis in order)
    return draw(st.integers(0, 3)), tuple(shape[axis] for axis in order), strides


@given(layouts())
def test_a_view_touches_what_walking_its_indices_touches(layout: tuple[int, tuple[int, ...], tuple[int, ...]]) -> None:
    """Broadcast dimensions once, whatever the order of the others."""
    assert region(*layout).elements == len(walked(*layout))


@given(shapes)
def test_a_transposed_tensor_is_the_same_region(shape: tuple[int, ...]) -> None:
    """x and x.T are one region, so that x @ x.T reads x once."""
    strides = contiguous_strides(shape)
    assert region(0, shape, strides) == region(0, shape[::-1], strides[::-1])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=5))
def test_dense_regions_are_joined_exactly(pieces: list[tuple[int, int]]) -> None:
    """Overlapping, touching, nested and separate intervals add up to their union."""
    regions = [region(offset, (size,), (1,)) for offset, size in pieces]
    union = set().union(*(walked(offset, (size,), (1,)) for offset, size in pieces))
    assert distinct_elements(regions) == len(union)


@given(st.lists(layouts(), min_size=1, max_size=3))
def test_any_union_is_exact(pieces: list[tuple[int, tuple[int, ...], tuple[int, ...]]]) -> None:
    """Strided regions that overlap in part count each common element once."""
    regions = [region(*piece) for piece in pieces]
    assert distinct_elements(regions) == len(set().union(*(walked(*piece) for piece in pieces)))


def test_a_giant_of_single_elements_is_bounded() -> None:
    """Beyond 2¹⁸ intervals a union is no more than its parts, and no more than its span."""
    columns = [region(0, (1 << 18,), (2,)), region(1, (1 << 18,), (2,))]
    assert distinct_elements(columns) == 1 << 19


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [
        pytest.param((4, 3), (1, 1), 6, id="overlapping windows are bounded by their span"),
        pytest.param((5,), (0,), 1, id="an expanded scalar is one element"),
        pytest.param((), (), 1, id="a scalar is one element"),
        pytest.param((0, 7), (7, 1), 0, id="nothing is nothing"),
    ],
)
def test_corner_cases(shape: tuple[int, ...], strides: tuple[int, ...], elements: int) -> None:
    """Figures from the definition."""
    assert region(0, shape, strides).elements == elements


def test_a_strided_part_of_a_dense_whole_adds_nothing() -> None:
    """x and x[:, 0] together touch x."""
    whole, column = region(0, (4, 5), (5, 1)), region(0, (4,), (5,))
    assert distinct_elements([whole, column]) == 4 * 5


WIDTHS = {"int4": 4, "int8": 8, "float16": 16, "float32": 32, "complex64": 64}
typed = st.lists(st.tuples(layouts(), st.sampled_from(sorted(WIDTHS))), min_size=1, max_size=3)
MEMORY = Storage("memory", 1 << 16, StorageKind.PARAMETER)


@given(typed)
def test_types_of_any_width_share_bytes(pieces: list[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], str]]) -> None:
    """Each half byte once; values are the smallest that begin there."""
    tensors = []
    bits: dict[str, set[int]] = {name: set() for name in WIDTHS}
    for (offset, shape, strides), name in pieces:
        tensors.append(Tensor("part", shape, DType(name, WIDTHS[name]), MEMORY, offset, strides))
        step = WIDTHS[name] // 4
        bits[name] |= {at * step + unit for at in walked(offset, shape, strides) for unit in range(step)}
    union: set[int] = set().union(*bits.values())
    assert distinct_nbytes(tensors) == -(-len(union) // 2)
    values, counted = 0, set[int]()
    for name in sorted(WIDTHS, key=lambda name: WIDTHS[name]):
        new = len(bits[name] - counted)
        values += -(-new // (WIDTHS[name] // 4))
        counted |= bits[name]
    assert distinct_values(tensors) == values
