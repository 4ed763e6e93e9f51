"""A model measured where it runs, apart from all that is computed: what is asked for, and what comes of it.

Two such figures differ from run to run and from machine to machine. Nothing compares them with anything but a limit
that was written for one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.units import percentage, readable, several

REPEATS, WARMUP, THREADS = 20, 3, 1
LATENCY, PEAK_MEMORY = "latency", "peak_memory"
MOST_OPERATORS = 8  # that a report lists

_imports: list[float] = []  # seconds that each import of a framework or of a user's module took


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure of a run that may be limited: its unit, what it is the most of, and an amount as an example."""

    unit: str
    about: str
    example: str


RUN_FIGURES: Mapping[str, RunFigure] = {
    LATENCY: RunFigure("s", "the largest median time of one call", "20 ms"),
    PEAK_MEMORY: RunFigure("B", "the most memory that one call may hold, weights and inputs among it", "60 MB"),
}


class Processor(str, Enum):
    """Where a model is measured."""

    CPU = "cpu"
    CUDA = "cuda"


class MissingDeviceError(ModelBudgetError):
    """A device that this machine has not, or that an installed framework does not run on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is measured: calls that are not counted, then so many that are, on threads of the CPU.

    memory asks for the peak as well, which one more call gives; trace is where a Chrome trace of yet another one goes.
    """

    device: Processor = Processor.CPU
    repeats: int = REPEATS
    warmup: int = WARMUP
    threads: int = THREADS
    memory: bool = False
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All calls of an operator in one call of a model, and the seconds in it alone, not in what it calls."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds that each counted call took, and the most bytes that one call used.

    operators are those of one more call, the slowest first, where the framework tells. machine names what it ran on.
    peak_memory is in bytes of the framework's own allocator: weights, inputs, and all that lives at once on the way;
    None where nobody asked.
    """

    seconds: tuple[float, ...]
    machine: str
    peak_memory: int | None = None
    operators: tuple[OperatorTime, ...] = ()

    @property
    def table(self) -> tuple[str, ...]:
        """A line for each of the slowest operators, and one for the others: what takes the time."""
        total = sum(each.seconds for each in self.operators)
        shown, others = self.operators[:MOST_OPERATORS], self.operators[MOST_OPERATORS:]
        rest = OperatorTime("others", sum(each.calls for each in others), sum(each.seconds for each in others))
        return tuple(
            f"  {each.name}: {several(each.calls, 'call')}, {readable(Fraction(each.seconds), 's')} of its own, "
            f"{percentage(Fraction(each.seconds) / Fraction(total))}"
            for each in (*shown, *([rest] if others else []))
        )

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, in seconds; 0 of a single call."""
        if len(self.seconds) < 2:
            return 0.0
        first, _, third = quantiles(self.seconds, n=4, method="inclusive")
        return third - first


@contextmanager
def importing() -> Iterator[None]:
    """Take the time inside this context out of every model's; one inside another counts for itself alone."""
    began = clock()
    try:
        yield
    finally:
        _imports.append(clock() - began)


def import_seconds() -> float:
    """The seconds that imports took in this process."""
    return sum(_imports)


def clock() -> float:
    """Seconds from any moment on, in which the clock stops while something is imported."""
    return perf_counter() - import_seconds()
