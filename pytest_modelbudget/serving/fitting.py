"""The largest amount whose memory fits."""

from collections.abc import Callable

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.metrics.measurement import Measurement


def longest_fitting(memory: Callable[[int], Measurement], room: int, most: int) -> int:
    """The most tokens, up to so many, whose memory is at most room, by bisection; 0 where one is too many.

    Raises UnmeasurableError where a memory is a lower bound, so that what fits is not known.
    """
    least, over = 0, most + 1
    while over - least > 1:
        middle = most if over > most else (least + over) // 2  # the whole first, which mostly fits
        needed = memory(middle)
        if not needed.complete:
            raise UnmeasurableError("serving_memory is a lower bound: what fits is not known")
        least, over = (middle, over) if int(needed) <= room else (least, middle)
    return least
