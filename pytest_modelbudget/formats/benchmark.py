"""Timed runs of a model: the plan of a run, and its result.

Times differ from run to run and from machine to machine, so they are compared with a limit for one device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.metrics.measurement import Measurement

REPEATS, WARMUP, THREADS = 20, 3, 1
PROFILED = 5  # calls in a trace
CALL, MODULE = "model_run", "module "  # the events of a trace that are a call, and a module's part of it

_imports: list[float] = []  # seconds that each import of a framework or of a user's module took


class Processor(str, Enum):
    """Where a model is measured."""

    CPU = "cpu"
    CUDA = "cuda"


class MissingDeviceError(ModelBudgetError):
    """A device that this machine has not, or that an installed framework does not run on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of timed calls: the device, calls that count, calls before them that do not, and threads of the CPU.

    memory adds a call for the peak, trace PROFILED calls for a Chrome trace in that file. hardware is this machine's
    profile, for the roof.
    """

    device: Processor = Processor.CPU
    repeats: int = REPEATS
    warmup: int = WARMUP
    threads: int = THREADS
    memory: bool = False
    trace: Path | None = None
    hardware: Device | None = None

    def timed(self, call: Callable[[], float]) -> tuple[float, ...]:
        """The seconds of each counted call."""
        return tuple(call() for _ in range(self.repeats))


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All calls of an operator for one module in one call of a model.

    ns is its self time, nbytes the bytes that it allocated itself less those that it freed. share is its part of the
    call's time, roof_share the module's bound ÷ the module's time; both are decimals, "" if unknown.
    """

    name: str
    module: str
    calls: int
    ns: int
    nbytes: int = 0
    share: str = ""
    roof_share: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds that each counted call took, and the most bytes that one call used.

    machine names the processor. peak_memory is in bytes of the framework's allocator: weights, inputs and activations
    that live at once; None if the plan has no memory. operators are those of one traced call, the slowest first. roof
    is the least time by the hardware profile, or why it is unknown.
    """

    seconds: tuple[float, ...]
    machine: str
    peak_memory: int | None = None
    operators: tuple[OperatorTime, ...] = ()
    roof: Measurement | str = ""

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
