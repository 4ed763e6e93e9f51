"""Reads files as git has them: as they were at the base, and what a checkout lacks of the index."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pytest_modelbudget.budget import SUFFIXES
from pytest_modelbudget.budget.git import LINK, SUBMODULE, BaseError, blob_contents, run_git
from pytest_modelbudget.budget.read_budget import MARKED, is_for_the_gate
from pytest_modelbudget.budget.revision import BaseRevision, short
from pytest_modelbudget.formats.source import LFS_POINTER

IN_LFS = "is in Git LFS, and git has only its pointer: take it out of .gitattributes, and commit the file itself"
NOT_COMPARED = {
    SUBMODULE: "is in a submodule that the change touches: compare it with a base in its own repository",
    LINK: "is behind a link: name the folder of the file itself in model_budget_paths",
}
SPARSE = (
    "a sparse checkout left it out: add its folder with git sparse-checkout add; in GitHub Actions, name that in "
    "sparse-checkout of actions/checkout"
)
NOT_THERE = (
    "a submodule that was not checked out: git submodule update --init --recursive; in GitHub Actions, give "
    "actions/checkout submodules: recursive"
)
AS_TEXT = "git wrote a link out as text: git config core.symlinks true, and check it out again"


def text_at(base: BaseRevision, path: Path) -> str | None:
    """The text of a file at the base; None where it was not there.

    git has no text of a file in a submodule or in Git LFS: it is today's where the change leaves it as it was. Raises
    BaseError for another one, for a file behind a link, for one outside of the repository, and where git fails.
    """
    name = os.path.normpath(os.path.join(base.top, os.path.relpath(path, base.root))).replace(os.sep, "/")
    if name == ".." or name.startswith("../"):
        raise BaseError(f"{path.name} lies outside of the repository of {base.root}: it has no base")
    place = next((each for each in (name, *map(str, PurePosixPath(name).parents)) if each in base.entries), name)
    mode, blob = base.entries.get(place, ("", ""))
    if not mode or (place != name and mode not in NOT_COMPARED):
        return None
    content: bytes | None = b"" if mode in NOT_COMPARED else base.content(blob)
    if why := NOT_COMPARED.get(mode) or (IN_LFS if content and content.startswith(LFS_POINTER) else ""):
        words = ("diff", "--name-only", "--ignore-submodules=untracked", base.commit, "--", f":(top,literal){place}")
        if mode == LINK or run_git(base.root, *words):  # a file or submodule that is changed today
            raise BaseError(f"{path.name} at {short(base)} {why}")
        content = path.read_bytes() if path.is_file() else None
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BaseError(f"{path.name} at {short(base)} is not UTF-8") from error


def absent_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """(path, why) of what git has at or below a folder and the checkout lacks; nothing where git cannot tell.

    These are budgets outside of a sparse checkout, submodules, and links that were written out as text.
    """
    start = next(each for each in (folder, *folder.parents) if each.is_dir())
    words = ("--literal-pathspecs", "ls-files", "-t", "--stage", "-z", "--", os.path.relpath(folder, start))
    listed = b""
    with suppress(BaseError):
        listed = run_git(start, *words)
    skipped: dict[Path, str] = {}  # YAML files by the names of their contents
    for line in filter(None, listed.decode("utf-8", "surrogateescape").split("\0")):
        about, _, name = line.partition("\t")
        (tag, mode, blob, _), path = about.split(), start / name
        if tag == "S" and name.endswith(SUFFIXES) and not os.path.lexists(path):
            skipped[path] = blob
        elif mode == SUBMODULE and path.is_dir() and not any(path.iterdir()):
            yield path, NOT_THERE
        elif mode == LINK and path.is_file() and not path.is_symlink():
            yield path, AS_TEXT
    contents: Mapping[str, bytes] = {}
    with suppress(BaseError):  # of a partial clone that cannot fetch: each may be a budget
        contents = dict(blob_contents(start, {*skipped.values()}))
    yield from ((path, SPARSE) for path, blob in skipped.items() if is_for_the_gate(contents.get(blob, MARKED)))
