"""A layer's weight cut into a grid of tiles, alike for every format and kind of layer.

With k contracted elements (inputs, or input channels) and n output elements a tile::

         ⌈K/k⌉ tiles, each column of which is summed up
    W = [W₀₀ W₀₁]
        [W₁₀ W₁₁]   ⌈N/n⌉ columns, which stand beside each other in the output
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.transform import LEFT_OUT, NOT, Changed
from pytest_modelbudget.units import several

ONE_CHANNEL = "one input channel a group"  # why a depthwise convolution has nothing to split


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of a tile: m rows (None for all of them), k contracted and n output elements.

    With pads, what is left at an edge is filled up with zeros to a whole tile; without, the last tile is smaller.
    """

    m: int | None
    k: int
    n: int
    pads: bool = False


def tile_of(settings: Mapping[str, object]) -> Tile:
    """The tile that ``tile`` and ``edge`` describe, or ``products``, one size of which is that of all three axes."""
    m, k, n = cast("tuple[int | None, int, int]", settings.get("products") or settings["tile"])
    return Tile(m or (k if "products" in settings else None), k, n, pads=settings["edge"] == "pad")


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis cut into tiles: their sizes, and how many zeros stand behind it."""

    sizes: tuple[int, ...]
    zeros: int = 0

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each tile lies."""
        ends = tuple(accumulate(self.sizes))
        return tuple(map(slice, (0, *ends), ends))

    @property
    def filled(self) -> tuple[int, ...]:
        """Sizes of the tiles without the zeros."""
        return (*self.sizes[:-1], self.sizes[-1] - self.zeros)

    @property
    def regions(self) -> tuple[tuple[int, int, int], ...]:
        """(start, number of tiles, tile) for the whole tiles, and for the remainder."""
        whole = self.sizes.count(self.sizes[0])
        regions = [(0, whole, self.sizes[0])]
        if whole < len(self.sizes):
            regions.append((whole * self.sizes[0], 1, self.sizes[-1]))
        return tuple(regions)


def cut(size: int, tile: int, *, pads: bool = False) -> Cut:
    """The tiles of an axis, the last one smaller or filled up with zeros; an empty axis is one empty tile."""
    if not size:
        return Cut((0,))
    whole, rest = divmod(size, tile)
    if pads:
        return Cut((tile,) * (whole + bool(rest)), -size % tile)
    return Cut((tile,) * whole + ((rest,) if rest else ()))


def tiles_along(size: int, tile: int | None) -> int:
    """How many tiles an axis has; one where it is not cut, or empty."""
    return max(1, -(-size // tile)) if tile else 1


def became(tile: Tile, k: int, n: int, *, rows: int = 1, groups: int = 1) -> str:
    """What a layer of k inputs and n outputs (in each of its groups) was changed into."""
    grid = tiles_along(k, tile.k) * tiles_along(n, tile.n) * tiles_along(rows, tile.m)
    count = groups * grid
    sizes = "x".join(str(size) for size in (tile.m, tile.k, tile.n) if size)
    return f"{count:,} {'product' if count == 1 else 'products'} of {sizes}"


MOST_NAMED = 8  # operations that are told with their reasons


def must_be_complete(
    changes: Sequence[Change], transform: str, operation: str, *, may_stay: Collection[str] = (LEFT_OUT,)
) -> None:
    """Raises TransformError where a selected operation stayed whole for none of these reasons, or none was changed."""
    whole = [each for each in changes if not each.became and not each.why.startswith(tuple(may_stay))]
    if whole:
        told = dict.fromkeys(f"'{each.scope}' ({each.operation}: {each.why})" for each in whole)
        named = "; ".join([*told][:MOST_NAMED])
        scopes = dict.fromkeys(scope_text(each.scope) for each in whole)
        way = ", ".join(f'"{NOT}{scope}"' for scope in scopes)
        raise TransformError(
            f"{transform} left {several(len(whole), operation)} whole: {named}: "
            f"leave them out with 'layers:', as in layers: [{way}]"
        )
    if not any(each.became for each in changes):
        reasons = "; ".join(sorted({each.why for each in changes}))
        stay = "stays as it is" if len(changes) == 1 else "stay as they are"
        seen = f"{several(len(changes), operation)} {stay} ({reasons})"
        why = seen if changes else f"the model has no {operation}s"
        raise TransformError(f"{transform} changed nothing: {why}")


def with_shares(changed: Changed, rules: OpTable) -> Changed:
    """The same, in which operations that stayed whole say their share of the changed model's MACs."""
    if all(each.became for each in changed.changes):
        return changed
    macs: Counter[tuple[str, str]] = Counter()
    for cost in CostedGraph(changed.model.graph, rules).costs:
        macs[cost.op.scope, cost.op.name] += cost.macs if isinstance(cost.macs, int) else 0
    total = macs.total() or 1
    changes = (
        each if each.became
        else replace(each, why=f"{each.why}, {macs[each.scope, each.operation] / total:.2%} of {total:,} MACs")
        for each in changed.changes
    )  # fmt: skip
    return replace(changed, changes=tuple(changes))
