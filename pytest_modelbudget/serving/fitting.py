"""The largest amount whose memory fits."""

from collections.abc import Callable

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.metrics.measurement import Measurement


def longest_fitting(memory: Callable[[int], Measurement], room: int, most: int) -> int:
    """The most tokens, up to so many, whose memory is at most room; 0 where one is too many.

    Memory grows with tokens. Each try lies on the line between the two nearest known ones, or in their middle where
    the last line helped little: a memory that is a line takes four tries. Raises UnmeasurableError where a memory is a
    lower bound, so that what fits is not known.
    """
    least, least_bytes, over, over_bytes, halves = 0, 0, most + 1, 0, False
    while over - least > 1:
        if over > most:
            tokens = most  # which mostly fits
        elif halves:
            tokens = (least + over) // 2
        else:
            part = (room - least_bytes) * (over - least) // max(1, over_bytes - least_bytes)
            tokens = min(max(least + part, least + 1), over - 1)
        needed = memory(tokens)
        if not needed.complete:
            raise UnmeasurableError("serving_memory is a lower bound: what fits is not known")
        before = over - least
        if int(needed) <= room:
            least, least_bytes = tokens, int(needed)
        else:
            over, over_bytes = tokens, int(needed)
        halves = before <= most and not halves and 2 * (over - least) > before
    return least
