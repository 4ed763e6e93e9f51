"""Inputs that a claim is held on: four families for floating types, seeded; integers uniform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pytest_modelbudget.frontends.model_source import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAMILIES = ("normal", "uniform", "large", "zeros")
ZEROS = "zeros"  # hides nothing but shows every bias
INTEGERS = "integers"  # of models that take nothing else
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


def families_of(specs: list[TensorSpec]) -> tuple[str, ...]:
    """The families that inputs of these types have."""
    floating = any(spec.dtype.startswith(("float", "bfloat", "complex")) for spec in specs)
    return FAMILIES if floating else (INTEGERS,)


def runs_of(families: tuple[str, ...], seeds: tuple[int, ...]) -> list[tuple[str, int]]:
    """(family, seed) of every run; always two at least, or no output could be seen to move."""
    if len(families) * len(seeds) < 2:
        seeds = (*seeds, seeds[-1] + 1)
    return [(family, seed) for family in families for seed in seeds]


def drawn_values(
    spec: TensorSpec, name: str, family: str, seed: int, *, scale: Scale = SCALES[0]
) -> NDArray[Any]:
    """Values of one input, as float64 or int64: the same for one name, family and seed.

    Integers are uniform in [low, high), 0 and 1 where a spec gives no range.
    """
    import numpy as np

    generator = np.random.Generator(np.random.Philox([seed, crc32(f"{name}/{family}".encode())]))
    if spec.dtype == "bool":
        return generator.integers(0, 2, spec.shape).astype(bool)
    if "int" in spec.dtype:
        low, high = spec.low or 0, spec.high if spec.high is not None else 2
        return generator.integers(low, high, spec.shape)
    values = _family(family, spec.shape, generator, scale)
    if spec.dtype.startswith("complex"):
        return values + 1j * _family(family, spec.shape, generator, scale)
    return values


def _family(family: str, shape: tuple[int, ...], generator: Any, scale: Scale) -> NDArray[Any]:
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
