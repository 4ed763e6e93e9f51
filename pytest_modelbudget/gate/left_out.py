"""What a checkout left out below some folders: submodules that are not there, and what is outside of a sparse checkout.

Submodules are read from their list, which needs no git; what a sparse checkout left out, and whether that is a budget,
only git's index knows. Nothing is fetched to tell.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from os.path import isdir, islink, lexists, normpath
from pathlib import Path
from typing import NamedTuple

from pytest_modelbudget.budget import SUFFIXES
from pytest_modelbudget.budget.git import LINK, SUBMODULE, BaseError, blob_contents, run_git
from pytest_modelbudget.budget.read_budget import is_budget

# Bare or between quotation marks, maybe behind its section's name, or with a comment behind it.
PATH = re.compile(
    r'^[ \t]*(?:\[[^\n]*?\][ \t]*)?path[ \t]*=[ \t]*(?:"([^"\n]*)"|([^"\n#;]*?))[ \t]*(?:[#;].*)?$',
    re.MULTILINE | re.IGNORECASE,
)
LIST = ".gitmodules"  # the list of submodules, which an archive has as well, without .git
NOT_THERE = (
    "a submodule that was not checked out: git submodule update --init --recursive; in GitHub Actions, give "
    "actions/checkout submodules: recursive"
)
SPARSE = (
    "a sparse checkout left it out: add its folder with git sparse-checkout add; in GitHub Actions, name that in "
    "sparse-checkout of actions/checkout"
)
SKIPPED = "S "  # how git ls-files marks what a checkout passes by
IS_SPARSE = re.compile(
    r"^[ \t]*(?:\[[^\n]*?\][ \t]*)?sparseCheckout[ \t]*(?:=[ \t]*(\S*).*)?$", re.MULTILINE | re.IGNORECASE
)
SAID_NO = {"false", "no", "off", "0"}
PLAIN_INDEX = b"DIRC\x00\x00\x00\x02"  # how an index begins in which no file has further marks
NO_FETCH = ("-c", "protocol.allow=never")  # of what a partial clone lacks


class LeftOut(NamedTuple):
    """A path that git keeps and a checkout left out, and why. is_budget: it is known to be one, not only perhaps."""

    path: Path
    why: str
    is_budget: bool = False


def left_out(folders: Collection[Path]) -> Iterator[LeftOut]:
    """All that a checkout left out at these paths, below or around them, and that is or may have budgets."""
    tops: dict[Path, list[Path]] = {}
    for folder in folders:
        around = (folder, *folder.parents)
        top = next((each for name in (".git", LIST) for each in around if (each / name).exists()), None)
        if top is not None:
            tops.setdefault(top, []).append(folder)
    for top, below in tops.items():
        for path in _absent_submodules(top):
            if any(path.is_relative_to(each) or each.is_relative_to(path) for each in below):
                yield LeftOut(path, NOT_THERE)
        yield from _outside_of_sparse(top, below)


def _absent_submodules(top: Path) -> Iterator[Path]:
    """Submodules of a repository that were not checked out, those of other submodules among them."""
    names: list[str] = []
    with suppress(OSError):
        names = [quoted or bare for quoted, bare in PATH.findall(_text(top / LIST))]
    for folder in (Path(normpath(top / name)) for name in names):
        if top not in folder.parents or islink(folder) or not isdir(folder):
            continue
        with suppress(OSError):  # pytest itself says which folders it cannot enter
            yield from _absent_submodules(folder) if any(folder.iterdir()) else [folder]


def _outside_of_sparse(top: Path, below: list[Path]) -> Iterator[LeftOut]:
    """Budgets at these paths that git keeps and was told not to write out, and what may have some."""
    names = [os.path.relpath(path, top) for path in below]
    try:
        listed = run_git(top, "--literal-pathspecs", "ls-files", "-t", "--stage", "-z", "--", *names)
    except BaseError as error:
        why = f"nobody can tell what a sparse checkout left out of it: {error}"
        yield from (LeftOut(path, why) for path in below if _may_be_sparse(top))
        return
    skipped: dict[Path, str] = {}  # what they hold, by name in git
    for line in listed.decode("utf-8", "surrogateescape").split("\0"):
        if line.startswith(SKIPPED):
            about, _, name = line.partition("\t")
            _, mode, blob, _ = about.split()
            is_file = mode not in (SUBMODULE, LINK)
            if (not is_file or name.endswith(SUFFIXES)) and not lexists(top / name):
                skipped[top / name] = blob if is_file else ""
    contents = _contents(top, {*skipped.values()} - {""})
    for path, blob in skipped.items():
        if blob not in contents or is_budget(contents[blob]):
            yield LeftOut(path, SPARSE, is_budget=blob in contents)


def _contents(top: Path, blobs: Collection[str]) -> Mapping[str, bytes]:
    """The contents of files by their names in git; empty where a partial clone lacks any of them."""
    try:
        return dict(blob_contents(top, blobs, *NO_FETCH))
    except BaseError:
        return {}


def _may_be_sparse(top: Path) -> bool:
    """Whether a checkout of which git tells nothing has the patterns of a sparse one, and no word that it is whole."""
    folder = top / ".git"
    with suppress(OSError):
        if folder.is_file():  # of a worktree, or a submodule
            folder = top / _text(folder).removeprefix("gitdir:").strip()
        if (folder / "info" / "sparse-checkout").is_file():
            return not (_is_said_to_be_whole(folder) and _skips_nothing(folder / "index"))
        return False
    return True


def _skips_nothing(index: Path) -> bool:
    """Whether an index has no room for the mark of a file that a checkout passes by: those of version 2 have none.

    git keeps the marks where its setting alone is switched off, by hand.
    """
    with index.open("rb") as opened:
        return opened.read(8) == PLAIN_INDEX


def _is_said_to_be_whole(folder: Path) -> bool:
    """Whether git's settings in a folder of its own say that no checkout is sparse: its patterns stay when it ends."""
    shared = folder / "commondir"  # of a worktree
    common = folder / _text(shared).strip() if shared.is_file() else folder
    files = [file for file in (common / "config", folder / "config.worktree") if file.is_file()]
    found = [value.lower() for file in files for value in IS_SPARSE.findall(_text(file))]
    return bool(found) and all(value in SAID_NO for value in found)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")
