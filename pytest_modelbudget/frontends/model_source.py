"""Where a model comes from and what it is run on, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def names_attribute(target: str) -> bool:
    """Whether this reads "package.module:callable"; no path does, with a drive letter or not."""
    return _ATTRIBUTE.fullmatch(target) is not None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input: its type and shape, and for integers the range [low, high) of its values."""

    dtype: str
    shape: tuple[int, ...]
    low: int | None = None
    high: int | None = None


InputSpec = Union[TensorSpec, "tuple[InputSpec, ...]"]


@dataclass(frozen=True, slots=True)
class InputSpecs:
    """Inputs of a model: positional ones, or by name; none where the file brings its own.

    A tuple in place of a spec is one argument that takes a list of tensors, as detectors do.
    """

    positional: tuple[InputSpec, ...] = ()
    named: Mapping[str, InputSpec] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.positional or self.named)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from, and what it is run on.

    format is a key of the front-end table. target is "module:attribute" (called with args and
    kwargs), a file path (relative to base), or, from Python code, a module or factory itself.
    dtype converts the model's floating-point parameters and buffers; dims binds symbols.
    """

    format: str
    target: object
    inputs: InputSpecs = InputSpecs()
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    dtype: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    base: Path = Path()
