"""Inputs that a claim brings: arrays of a .npy or .npz file, or what a callable yields.

A file holds an array for each input, under the input's name; along the first axis it may hold as
many rows as it likes, whole calls of the model each: 300 rows of a model of 1x3x224x224 are 300
calls. A callable gives such mappings one after the other. Nothing that could run code is loaded.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.errors import InputError, SourceError, user_code
from pytest_modelbudget.formats.source import TensorSpec, names_attribute, resolved
from pytest_modelbudget.units import with_article

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values

    Rows = Sequence[Arrays]

SUFFIXES = (".npy", ".npz")
MOST_BYTES = 2**31  # of a file's arrays
MOST_CALLS = 1024  # that are taken from what yields them
ALONE = "the only input"  # the name of an array that is given without one


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """Where given inputs come from: a file below base, "package.module:callable", or Python values."""

    source: object
    base: Path = Path()

    @property
    def text(self) -> str:
        is_named = isinstance(self.source, (str, Path))
        return str(self.source) if is_named else with_article(type(self.source).__name__)


def given_rows(given: GivenInputs, specs: Mapping[str, TensorSpec]) -> tuple[Rows, tuple[str, ...]]:
    """The inputs of every call, each in the shapes and types of the specs, and notes."""
    rows: list[Arrays] = []
    calls, notes = calls_of(given)
    for arrays in calls:
        rows.extend(cut(matched(arrays, specs, given.text), specs, given.text))
    if not rows:
        raise InputError(f"inputs: {given.text} holds no inputs: write one row or more")
    return rows, notes


def calls_of(given: GivenInputs) -> tuple[list[Arrays], tuple[str, ...]]:
    """The arrays of each call, by name, and a note where there were more."""
    source = given.source
    if isinstance(source, Path) or (isinstance(source, str) and not names_attribute(source)):
        return [file_arrays(given.base / source, given.text)], ()
    with user_code(f"reading inputs from {given.text}", InputError):
        if isinstance(source, str):
            try:
                source = resolved(source)
            except SourceError as error:
                raise InputError(f"inputs: {error}") from error
        values = source() if callable(source) else source
        several = [values] if isinstance(values, Mapping) or _is_array(values) else values
        if not isinstance(several, Iterable) or isinstance(several, (str, bytes)):
            raise InputError(f"inputs: {given.text} gives {with_article(type(values).__name__)}: {WANTED}")
        calls = [named(call, given.text) for call in islice(several, MOST_CALLS + 1)]
    note = f"inputs: the first {MOST_CALLS:,} calls of {given.text}"
    return calls[:MOST_CALLS], (note,) if len(calls) > MOST_CALLS else ()


WANTED = "give mappings of input names to arrays, or arrays where there is one input"


def _is_array(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def named(call: object, text: str) -> Arrays:
    """One call as arrays by name; a sequence is in the order of the inputs."""
    if isinstance(call, Mapping):
        return {str(name): array_of(value, f"'{name}' of {text}") for name, value in call.items()}
    if isinstance(call, (list, tuple)) and all(map(_is_array, call)):
        return {f"\0{at}": array_of(value, f"{at} of {text}") for at, value in enumerate(call)}
    return {ALONE: array_of(call, text)}


def array_of(value: Any, what: str) -> Values:
    """An array, or a tensor as one."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which numpy has not; exact in float32
            value = value.float()
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        raise InputError(f"inputs: {what} is {with_article(type(value).__name__)}: {WANTED}")
    return value


def file_arrays(path: Path, text: str) -> Arrays:
    """The arrays of a file by name; raises InputError for what cannot be read."""
    import numpy as np

    if path.suffix not in SUFFIXES:
        raise InputError(f"inputs: {text} is no .npz or .npy file, and no package.module:callable")
    if not path.is_file():
        raise InputError(f"{text} does not exist: a path starts at the budget's folder, in Python at the current one")
    with user_code(f"reading the inputs of {text}", InputError):
        nbytes = path.stat().st_size
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                nbytes = sum(member.file_size for member in archive.infolist())
        if nbytes > MOST_BYTES:
            raise InputError(f"inputs: {text} holds {nbytes:,} bytes of arrays: give 2 GiB at most")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {ALONE: loaded}
        with loaded:
            return {name: array_of(loaded[name], f"'{name}' of {text}") for name in loaded.files}


def matched(arrays: Arrays, specs: Mapping[str, TensorSpec], text: str) -> Arrays:
    """Arrays by the names of the inputs, in their order, of their types and without NaN or Inf."""
    import numpy as np

    names = list(specs)
    if set(arrays) == {ALONE} and len(names) == 1:
        arrays = {names[0]: arrays[ALONE]}
    if all(name.startswith("\0") for name in arrays) and len(arrays) == len(names):
        arrays = dict(zip(names, arrays.values(), strict=True))
    for name in arrays:
        if name not in specs:
            close = get_close_matches(name, names, 1)
            guess = f"did you mean '{close[0]}'?" if close else f"the model takes {', '.join(map(repr, names))}"
            raise InputError(f"inputs: {text} has {name.lstrip(chr(0))!r}, which is no input: {guess}")
    for name, spec in specs.items():
        if name not in arrays:
            raise InputError(f"inputs: {text} has no array for input '{name}': add one")
        array = arrays[name]
        if array.dtype.name != spec.dtype:
            way = f"write array.astype('{spec.dtype}')"
            raise InputError(
                f"inputs: '{name}' of {text} is {array.dtype.name}, and the model takes {spec.dtype}: {way}"
            )
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise InputError(f"inputs: '{name}' of {text} holds NaN or Inf: write finite values")
    return {name: arrays[name] for name in names}


def cut(arrays: Arrays, specs: Mapping[str, TensorSpec], text: str) -> Iterator[Arrays]:
    """Whole calls: pieces of the declared size along the first axis of every input."""
    counts = set()
    for name, spec in specs.items():
        array, shape = arrays[name], spec.shape
        size = shape[0] if shape else 0
        fits = array.shape[1:] == shape[1:] and array.ndim == len(shape)
        if not fits or (size and array.shape[0] % size) or (size == 0 and array.shape != shape):
            raise InputError(
                f"inputs: '{name}' of {text} is {_sizes(array.shape)}, and the model takes {_sizes(shape)}: "
                "give that, or a multiple of its first size"
            )
        counts.add(array.shape[0] // size if size else 1)
    if len(counts) > 1:
        raise InputError(f"inputs: arrays of {text} hold different numbers of rows: give as many of each")
    for at in range(*counts):
        yield {
            name: array[at * size : (at + 1) * size] if (size := (specs[name].shape or (0,))[0]) else array
            for name, array in arrays.items()
        }


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
