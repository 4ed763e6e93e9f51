"""Submodules that were not checked out: empty folders, of which nobody knows what they hold."""

import re
from collections.abc import Iterator
from contextlib import suppress
from os.path import isdir, islink, normpath
from pathlib import Path

# Bare or between quotation marks, maybe with a comment behind it.
PATH = re.compile(
    r'^[ \t]*path[ \t]*=[ \t]*(?:"([^"\n]*)"|([^"\n#;]*?))[ \t]*(?:[#;].*)?$', re.MULTILINE | re.IGNORECASE
)
CHECK_OUT = "git submodule update --init --recursive; in GitHub Actions, give actions/checkout submodules: recursive"


def absent_submodules(folder: Path) -> Iterator[Path]:
    """Submodules at a folder or below it that were not checked out, those of other submodules among them."""
    top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if top is not None:
        yield from (each for each in _absent(top) if each.is_relative_to(folder))


def _absent(top: Path) -> Iterator[Path]:
    """The same of a whole repository."""
    names: list[str] = []
    with suppress(OSError):
        text = (top / ".gitmodules").read_text(encoding="utf-8", errors="surrogateescape")
        names = [quoted or bare for quoted, bare in PATH.findall(text)]
    for folder in (Path(normpath(top / name)) for name in names):
        if top not in folder.parents or islink(folder) or not isdir(folder):
            continue
        with suppress(OSError):  # pytest itself says which folders it cannot enter
            yield from _absent(folder) if any(folder.iterdir()) else [folder]
