"""Submodules that were not checked out: empty folders, of which nobody knows what they hold."""

import re
from collections.abc import Iterator
from contextlib import suppress
from os.path import normpath
from pathlib import Path

PATH = re.compile(r'^[ \t]*path[ \t]*=[ \t]*"?([^"\n]*?)"?[ \t]*$', re.MULTILINE)
CHECK_OUT = "git submodule update --init --recursive; in GitHub Actions, give actions/checkout submodules: recursive"


def absent_submodules(folder: Path) -> Iterator[Path]:
    """Submodules at a folder or below it that were not checked out, those of other submodules among them."""
    top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if top is not None:
        yield from (each for each in _absent(top) if each.is_relative_to(folder))


def _absent(top: Path) -> Iterator[Path]:
    """The same of a whole repository."""
    names: list[str] = []
    with suppress(OSError, ValueError):
        names = PATH.findall((top / ".gitmodules").read_text(encoding="utf-8"))
    for folder in (Path(normpath(top / name)) for name in names):
        if top not in folder.parents or folder.is_symlink() or not folder.is_dir():
            continue
        if any(folder.iterdir()):
            yield from _absent(folder)
        else:
            yield folder
