"""A language model in service as text: what fills a memory, and what other types and sizes of it would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from pytest_modelbudget.graph.tensor import DType, nbytes_of
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.fit import bar
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.units import exact, percentage, readable

MEMORY = "serving_memory"
TYPES = (DType("float32", 32), DType("bfloat16", 16), DType("int8", 8), DType("int4", 4))


def serving_text(title: str, numbers: Mapping[str, Measurement], room: int | None, found: Mapping[str, int]) -> str:
    """The verdict, a bar for each part of the memory, MACs, the same weights in other types, and what fits."""
    memory = numbers[MEMORY]
    parts, total = dict(memory.parts), int(memory.value)
    shares = [
        (name, nbytes, Fraction(nbytes, room or total or 1)) for name, nbytes in (*parts.items(), ("total", total))
    ]
    rows = [(name, bar(share), exact(nbytes, "B"), percentage(share)) for name, nbytes, share in shares]
    macs = [(key, exact(numbers[key].value, "MAC")) for key in ("prefill_macs", "decode_macs") if key in numbers]
    needed = ("" if memory.complete else ">= ") + readable(total, "B")
    words = {True: "it fits", False: "it does not fit", None: "whether it fits is unknown"}[fits(memory, room)]
    verdict = f"needs {needed}" if room is None else f"{words}, {needed} of {readable(room, 'B')}"
    types = aligned("  {:<}  {:>}  {:>}  {}", list(_in_types(numbers["params"], memory, room)))
    lines = [f"{title}: {verdict}", "", *aligned("  {:<}  {}  {:>}  {:>}", rows), "", *aligned("  {:<}  {:>}", macs)]
    lines += ["", "  the weights alone in other types, and all of it:", *types]
    return "\n".join([*lines, *(f"  {what}: {most:,}" for what, most in found.items())])


def fits(memory: Measurement, room: int | None) -> bool | None:
    """Whether it fits; None where that is not known, or no memory is named."""
    if room is not None and int(memory.value) > room:
        return False
    return True if memory.complete and room is not None else None


def _in_types(params: Measurement, memory: Measurement, room: int | None) -> Iterator[tuple[str, ...]]:
    """Values of each type alone, without scales; cache and activations as they are. A lower bound never fits."""
    rest = sum(nbytes for name, nbytes in memory.parts.items() if name != "weights")
    under = "fits" if params.complete and memory.complete else "unknown"
    for dtype in TYPES:
        weights = nbytes_of(int(params.value), dtype)
        fit = "" if room is None else under if weights + rest <= room else "does not fit"
        yield dtype.name, readable(weights, "B"), readable(weights + rest, "B"), fit
