"""Finding the file that a source names, and saying clearly what is wrong with it."""

from __future__ import annotations

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
