"""Finding the file that a source names, and saying clearly what is wrong with it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.model_source import ModelSource


def existing_file(source: ModelSource, what: str) -> Path:
    """The source's path; raises SourceError where there is no readable, non-empty file."""
    path = source.base / str(source.target)
    if path.is_dir():
        raise SourceError(f"{source.target} is a folder, not {what}")
    if not path.is_file():
        raise SourceError(
            f"{source.target} does not exist: is it written before the gate runs, "
            "and the path relative to the budget file?"
        )
    if not path.stat().st_size:
        raise SourceError(f"{source.target} is empty, not {what}")
    return path


# What each kind of file is called, and how one gets what the budget asked for.
KINDS = {
    "torchscript": "a TorchScript file: write 'torchscript:'",
    "exported": "an exported program: write 'exported:'",
    "torch.save": "what torch.save writes, a state dict or a pickled module: write 'torch:' and "
    "name a callable that builds the model",
    "other": "no model file",
}


def must_be(path: Path, kind: str) -> None:
    """Raises SourceError, saying what the file is, unless it is of this kind."""
    found = kind_of_file(path)
    if found != kind:
        wanted = KINDS[kind].partition(":")[0]
        raise SourceError(f"{path.name} is not {wanted}; it is {KINDS[found]}")


def kind_of_file(path: Path) -> str:
    """What a file is, by the names inside its archive: a key of KINDS."""
    if not zipfile.is_zipfile(path):
        return "other"
    with zipfile.ZipFile(path) as archive:
        names = [name.rpartition("/")[2] for name in archive.namelist()]
    return _kind_by_names(names)


def _kind_by_names(names: Iterable[str]) -> str:
    inside = set(names)
    if "constants.pkl" in inside:
        return "torchscript"
    if "archive_format" in inside:
        return "exported"
    return "torch.save" if "data.pkl" in inside else "other"
