"""Sums of products of tiles as nodes of an ONNX graph, whatever kind of layer they are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_modelbudget.transforms.onnx_rewriting import Replacement

# Part of x, tile of the weight, and their place (k, n) → their product
Product = Callable[[str, str, int, int], str]


def column_sums(
    into: Replacement,
    parts: Sequence[str],
    tiles: Sequence[Sequence[str]],
    product: Product,
    prefix: str = "",
) -> list[str]:
    """One tile's width of outputs after the other: its products, summed in the order of K.

    parts are those of x by tiles, tiles the weight's by column and then by row.
    """
    found = []
    for n, column in enumerate(tiles):
        total = ""
        for k, (part, weight) in enumerate(zip(parts, column, strict=True)):
            made = product(part, weight, k, n)
            total = into.node("Add", (total, made), f"{prefix}sum.k{k}.n{n}") if k else made
        found.append(total)
    return found


def split(
    into: Replacement, x: str, sizes: Sequence[int], part: str, *, axis: int
) -> tuple[str, ...]:
    """Parts of a value along one axis; one part is the value itself."""
    if len(sizes) == 1:
        return (x,)
    names = [f"{part}.{each}" for each in range(len(sizes))]
    return into.split_node("Split", (x, into.integers(sizes, f"{part}.sizes")), names, axis=axis)


def joined(into: Replacement, parts: Sequence[str], part: str, *, axis: int) -> str:
    """Parts beside each other along one axis; one part is the value itself."""
    return parts[0] if len(parts) == 1 else into.node("Concat", parts, part, axis=axis)


def first_along(into: Replacement, x: str, size: int, part: str, *, axis: int) -> str:
    """The first elements of a value along one axis."""
    bounds = {"starts": [0], "ends": [size], "axes": [axis]}
    names = [into.integers(values, f"{part}.{bound}") for bound, values in bounds.items()]
    return into.node("Slice", (x, *names), part)
