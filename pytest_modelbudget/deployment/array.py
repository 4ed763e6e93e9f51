"""An array of multipliers: exact cycles, use and traffic of matrix products under three dataflows.

R rows × C columns compute x (m, k) · w (k, n) → y (m, n). The counts are those of a systolic array without stalls:
Samajdar et al., "SCALE-Sim: Systolic CNN Accelerator Simulator", 2018, section 3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from pytest_modelbudget.errors import DeviceError, GraphError


@dataclass(frozen=True, slots=True)
class Product:
    """x (m, k) · w (k, n) → y (m, n), done ``count`` times: once for each group, head or image."""

    m: int
    k: int
    n: int
    count: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.k, self.n, self.count) < 0:
            raise GraphError(f"no product: {self.m}x{self.k}x{self.n}, {self.count} times")

    @property
    def macs(self) -> int:
        """One for each output element and contracted element."""
        return self.m * self.k * self.n * self.count


@dataclass(frozen=True, slots=True)
class Array:
    """R rows × C columns of multipliers. dataflow names what stays in place: a key of ``DATAFLOWS``."""

    rows: int
    columns: int
    dataflow: str = "weight_stationary"

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise DeviceError(f"an array of {self.rows} x {self.columns} cells computes nothing")
        if self.dataflow not in DATAFLOWS:
            raise DeviceError(f"there is no dataflow '{self.dataflow}': {', '.join(DATAFLOWS)}")


class Counts(NamedTuple):
    """What products cost on an array. folds are the passes over it; the rest of a row counts elements."""

    cycles: int = 0
    folds: int = 0
    cells: int = 0  # cells that hold a value, summed over folds
    inputs: int = 0
    weights: int = 0
    outputs: int = 0

    def __add__(self, other: object) -> "Counts":
        assert isinstance(other, Counts)
        return Counts(*map(sum, zip(self, other, strict=True)))

    def times(self, count: int) -> "Counts":
        return Counts(*(count * value for value in self))


def _folds(size: int, cells: int) -> int:
    return -(-size // cells)


def _weight_stationary(p: Product, rows: int, columns: int) -> Counts:
    """w stays: k over the rows, n over the columns, m streams through. Partial sums are written for each fold of k."""
    deep, wide = _folds(p.k, rows), _folds(p.n, columns)
    cycles = (2 * rows + columns + p.m - 2) * deep * wide
    return Counts(cycles, deep * wide, p.k * p.n, p.m * p.k * wide, p.k * p.n, p.m * p.n * deep)


def _output_stationary(p: Product, rows: int, columns: int) -> Counts:
    """y stays: m over the rows, n over the columns, k streams through."""
    tall, wide = _folds(p.m, rows), _folds(p.n, columns)
    cycles = (rows + columns + p.k - 2) * tall * wide
    return Counts(cycles, tall * wide, p.m * p.n, p.m * p.k * wide, p.k * p.n * tall, p.m * p.n)


def _input_stationary(p: Product, rows: int, columns: int) -> Counts:
    """x stays: k over the rows, m over the columns, n streams through."""
    deep, wide = _folds(p.k, rows), _folds(p.m, columns)
    cycles = (2 * rows + columns + p.n - 2) * deep * wide
    return Counts(cycles, deep * wide, p.m * p.k, p.m * p.k, p.k * p.n * wide, p.m * p.n * deep)


DATAFLOWS: Mapping[str, Callable[[Product, int, int], Counts]] = MappingProxyType(
    {
        "weight_stationary": _weight_stationary,
        "output_stationary": _output_stationary,
        "input_stationary": _input_stationary,
    }
)


def counts(products: Iterable[Product], array: Array) -> Counts:
    """What these products cost one after another; an empty product costs nothing."""
    count = DATAFLOWS[array.dataflow]
    total = Counts()
    for product in products:
        if product.macs:
            total += count(product, array.rows, array.columns).times(product.count)
    return total
