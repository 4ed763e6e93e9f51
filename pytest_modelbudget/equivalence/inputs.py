"""The inputs that two models are run on: rows of every family and seed, stacked where that works.

A run takes arrays by name. What a model is, and how it runs, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Run
from pytest_modelbudget.formats.source import TensorSpec

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values


Specs = Mapping[str, TensorSpec]
FAMILIES = ("normal", "uniform", "large", "zeros")
ZEROS = "zeros"  # hides nothing but shows every bias
INTEGERS = "integers"  # of models that take nothing else
FLOATING = ("float", "bfloat", "complex")
GIVEN = "given"  # inputs that the claim brings
ROWS = 256  # of each family, where every output is piecewise constant
MOST_ELEMENTS = 2**20  # of all inputs of such rows
OUTLIERS = 0.01  # share of elements in the large family that are ten times as large again


@dataclass(frozen=True, slots=True)
class Scale:
    """How large floating inputs are: the normal and uniform families, and the large one."""

    ordinary: float = 1.0
    large: float = 100.0


# Taken one after the other, until the original itself does not overflow in its type.
SCALES = (
    Scale(), Scale(large=10.0), Scale(large=1.0), Scale(0.1, 0.1), Scale(0.01, 0.01),
    Scale(0.001, 0.001),
)  # fmt: skip


def scale_note(scale: Scale) -> tuple[str, ...]:
    """What a report says of inputs that had to be made smaller; nothing of ordinary ones."""
    if scale is SCALES[0]:
        return ()
    size = f"{scale.ordinary:g} and {scale.large:g} (large)"
    return (f"inputs of scale {size}: the original overflows on larger ones",)


def families_of(specs: list[TensorSpec], families: tuple[str, ...] = FAMILIES) -> tuple[str, ...]:
    """Those of some families that inputs of these types have; integers are drawn in one way."""
    families = tuple(family for family in families if family != GIVEN)
    floating = any(spec.dtype.startswith(FLOATING) for spec in specs)
    return families if floating or not families else (INTEGERS,)


def runs_of(families: tuple[str, ...], seeds: tuple[int, ...], specs: Specs, calls: int = 0) -> list[tuple[str, int]]:
    """(family, seed) of every run; always two at least, or no output could be seen to move.

    Each family has as many calls, if there are fewer seeds: those that follow them. One call of
    zeros is as good as many, unless integers beside them are drawn.
    """
    if len(families) * len(seeds) < 2:
        seeds = (*seeds, seeds[-1] + 1)
    more = tuple(range(max(seeds) + 1, max(seeds) + 1 + calls - len(seeds)))
    draws = any(not spec.dtype.startswith(FLOATING) for spec in specs.values())
    zeros = seeds if draws or len(families) < 2 else seeds[:1]
    return [(family, seed) for family in families for seed in (zeros if family == ZEROS else (*seeds, *more))]


def calls_for(rows: int, specs: Specs) -> int:
    """How many calls have so many rows."""
    size = max((spec.shape[0] for spec in specs.values() if spec.shape), default=1)
    return -(-rows // max(size, 1))


def affordable_rows(specs: Specs) -> int:
    """256 rows, or as many as have a million elements."""
    elements = sum(prod(spec.shape[1:]) for spec in specs.values())
    return min(ROWS, MOST_ELEMENTS // max(elements, 1))


def nudged(values: Values, roundoff: float = 0.0) -> Values:
    """The same numbers, floating ones two steps further: of their type, or of one that rounds by more."""
    import numpy as np

    if values.dtype.kind != "f" or values.dtype.isbuiltin != 1:  # of a package's types numpy tells no steps
        return values
    steps = 2 * max(1.0, 2 * roundoff / float(np.finfo(values.dtype).eps))
    return (values + steps * np.spacing(values)).astype(values.dtype)


def drawn_values(spec: TensorSpec, name: str, family: str, seed: int, *, scale: Scale = SCALES[0]) -> Values:
    """Values of one input, as float64 or int64: the same for one name, family and seed.

    Integers are those of the spec, else uniform in [low, high), 0 and 1 where it gives no range.
    """
    import numpy as np

    if spec.values is not None:
        return np.array(spec.values, bool if spec.dtype == "bool" else np.int64).reshape(spec.shape)
    generator = np.random.Generator(np.random.Philox([seed, crc32(f"{name}/{family}".encode())]))
    if "int" in spec.dtype or spec.dtype == "bool":
        low, high = spec.low or 0, spec.high if spec.high is not None else 2
        whole = generator.integers(low, high, spec.shape)
        return whole.astype(bool) if spec.dtype == "bool" else whole
    values = _family(family, spec.shape, generator, scale)
    if spec.dtype.startswith("complex"):
        return values + 1j * _family(family, spec.shape, generator, scale)
    return values


def _family(family: str, shape: tuple[int, ...], generator: Any, scale: Scale) -> Values:
    import numpy as np

    if family == ZEROS:
        return np.zeros(shape)
    if family == "uniform":
        return np.asarray(generator.uniform(-1.0, 1.0, shape)) * scale.ordinary
    values = np.asarray(generator.standard_normal(shape))
    if family == "large":
        outliers = generator.random(shape) < OUTLIERS
        return values * scale.large * np.where(outliers, 10.0, 1.0)
    return values * scale.ordinary


ALONE_TOO = (FAMILIES[0], ZEROS, INTEGERS, GIVEN)  # families of which a stacked row is run alone as well


Runner = Callable[["Arrays"], Run]  # a model on arrays, by name


@dataclass(frozen=True, slots=True)
class Row:
    """Which family of inputs, and which seed."""

    family: str
    seed: int


class UnstackableError(Exception):
    """Outputs that cannot be separated by rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of all rows under one set of specs.

    stacked holds them along the first axis, for one run in place of many; None where each row is
    run alone. Of the families in ALONE_TOO the first row is run alone, too: that is the shape which
    the specs declare, and the run that nothing else could hide in. Zeros then need no place among the
    others, where another row shows that each gives there what it gives alone.
    """

    drawn_rows: tuple[Row, ...]
    alone: tuple[Arrays, ...]
    stacked: Arrays | None

    @property
    def firsts(self) -> tuple[int, ...]:
        """Positions of the rows that are run alone, too."""
        return _firsts(self.drawn_rows)

    @property
    def together(self) -> tuple[int, ...]:
        """Positions of the rows that are stacked."""
        return _together(self.drawn_rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """What the results of ``run`` belong to."""
        if self.stacked is None:
            return self.drawn_rows
        return (*self.drawn_rows, *(self.drawn_rows[position] for position in self.firsts))

    def run(self, runner: Runner) -> list[Run]:
        """What a model returns for each of ``rows``; one that takes no stacked ones runs on each.

        Raises TransformError where it does not run on one row.
        """
        if self.stacked is None:
            return [runner(inputs) for inputs in self.alone]
        try:
            return self.run_together(runner)
        except (TransformError, UnstackableError):
            runs = [runner(inputs) for inputs in self.alone]
            return runs + [runs[position] for position in self.firsts]

    def run_together(self, runner: Runner) -> list[Run]:
        """The results of one run on stacked rows, then those of the rows that are run alone too.

        Raises TransformError where the model does not take them, UnstackableError where an output
        has no part for each row.
        """
        assert self.stacked is not None
        alone = {position: runner(self.alone[position]) for position in self.firsts}
        stacked = zip(self.together, _unstacked(runner(self.stacked), len(self.together)), strict=True)
        runs = {**alone, **dict(stacked)}
        return [*(runs[position] for position in range(len(self.alone))), *alone.values()]


def batch_of(specs: Specs, rows: Sequence[Row], scale: Scale, *, stacks: bool, given: Sequence[Arrays] = ()) -> Batch:
    """The inputs of all rows, drawn, then those given; stacked where that is asked for, and they are many."""
    alone = (*(drawn(specs, row, scale) for row in rows), *given)
    rows = (*rows, *(Row(GIVEN, at) for at in range(len(given))))
    together = _together(rows)
    return Batch(rows, alone, _stacked([alone[at] for at in together]) if stacks and len(together) > 1 else None)


def _firsts(rows: Sequence[Row]) -> tuple[int, ...]:
    families = [row.family for row in rows]
    return tuple(families.index(each) for each in ALONE_TOO if each in families)


def _together(rows: Sequence[Row]) -> tuple[int, ...]:
    firsts = _firsts(rows)
    apart = [at for at in firsts if rows[at].family == ZEROS and len(firsts) > 1]
    return tuple(at for at in range(len(rows)) if at not in apart)


def drawn(specs: Specs, row: Row, scale: Scale) -> Arrays:
    """Inputs of one family and seed, in the types that the specs name."""
    import numpy as np

    return {
        name: drawn_values(spec, name, row.family, row.seed, scale=scale).astype(np.dtype(spec.dtype))
        for name, spec in specs.items()
    }


def resized(specs: Specs, sizes: tuple[int, ...]) -> list[Specs]:
    """The specs as they are, or with each of these sizes as first dimension."""
    if not sizes:
        return [specs]
    return [{name: replace(spec, shape=(size, *spec.shape[1:])) for name, spec in specs.items()} for size in sizes]


def joined(parts: Sequence[Values]) -> Values:
    """Results of several runs, one after the other; floating values as float64."""
    import numpy as np

    parts = [part if part.dtype.kind in "biuc" else part.astype(np.float64) for part in parts]
    if len({part.shape[1:] for part in parts}) == 1 and parts[0].ndim:
        return np.concatenate(parts)
    return np.concatenate([part.ravel() for part in parts])


def _stacked(rows: Sequence[Arrays]) -> Arrays:
    import numpy as np

    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _unstacked(run: Run, rows: int) -> Iterator[Run]:
    """What each row gave; raises UnstackableError where an output has no part for each."""
    import numpy as np

    outputs = run.outputs
    for output in outputs:
        if output.values.ndim == 0 or output.values.shape[0] % rows:
            raise UnstackableError(output.name)
    parts = [np.split(output.values, rows) for output in outputs]
    for row in range(rows):
        yield replace(
            run, outputs=tuple(replace(output, values=part[row]) for output, part in zip(outputs, parts, strict=True))
        )
