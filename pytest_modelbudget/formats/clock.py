"""The time that measuring takes, without importing frameworks and users' modules, which is done once a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_imports: list[float] = []  # seconds that each took


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
    """Seconds from any moment on, in which the clock stands still while something is imported."""
    return perf_counter() - import_seconds()
