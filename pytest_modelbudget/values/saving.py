"""Values in a .npz file, an array for each layer: written call by call, so that no more than one lies in memory."""

from __future__ import annotations

import os
import shutil
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import LayerValue

NUMPY_HAS = frozenset(
    {"float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)


@dataclass(slots=True)
class _Array:
    """One array while its rows come, and the file that they lie in."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    rows: int = 0


class SavedValues(AbstractContextManager["SavedValues"]):
    """Collects values next to a .npz file, which is complete when the context ends without an error.

    The calls of a layer follow each other along the first axis; what has no axis gets one. A type that numpy has not,
    such as bfloat16, becomes float32.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        self._arrays: dict[str, _Array] = {}

    def take(self, value: LayerValue) -> None:
        """Add what one call gave. Raises TransformError where its shape is not that of the calls before."""
        dtype = value.dtype if value.dtype in NUMPY_HAS else "float32"
        values: Any = value.values.astype(dtype)
        values = values.reshape(values.shape or (1,))
        number = len(self._arrays)
        own = self._arrays.setdefault(value.name, _Array(Path(self._folder.name, str(number)), dtype, values.shape[1:]))
        if own.shape != values.shape[1:]:
            was, now = list(own.shape), list(values.shape[1:])
            raise TransformError(f"'{value.name}' gives rows of {now} after rows of {was}: no one array holds both")
        own.rows += values.shape[0]
        with own.file.open("ab") as file:
            file.write(values.tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the file, where nothing went wrong, and leave nothing else."""
        with self._folder:
            if error is None:
                self._write(Path(self._folder.name, "whole.npz"))

    def _write(self, unnamed: Path) -> None:
        import numpy as np

        with zipfile.ZipFile(unnamed, "w") as archive:
            for name, array in self._arrays.items():
                header = {
                    "descr": np.dtype(array.dtype).str,
                    "fortran_order": False,
                    "shape": (array.rows, *array.shape),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member, array.file.open("rb") as rows:
                    np.lib.format.write_array_header_2_0(member, header)
                    shutil.copyfileobj(rows, member)
        os.replace(unnamed, self._path)
