"""Files as they were at the commit that a change is compared with, also behind links and in submodules."""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pytest_modelbudget.budget.git import (
    FOLDER,
    LINK,
    SUBMODULE,
    BaseError,
    blob_contents,
    commit_named,
    each_file,
    run_git,
)
from pytest_modelbudget.budget.revision import BaseRevision, repository, short
from pytest_modelbudget.formats.source import LFS_POINTER

MOST_LINKS = 40  # that a path may lead through, as on Linux
DEEPEN = "git fetch --unshallow in it, fetch-depth: 0 of actions/checkout, or GIT_SUBMODULE_DEPTH: 0 of GitLab"


class NowhereError(BaseError):
    """A link at the base that led nowhere in its repository: nothing was held by it there."""


def text_at(base: BaseRevision, path: Path) -> str | None:
    """The text of a file at the base, links followed as they were there; None where it was not there.

    Raises BaseError where git cannot tell, or it is no text.
    """
    content = content_at(base, path)
    if content is not None and content.startswith(LFS_POINTER):
        why = f"{path.name} is in Git LFS at {short(base)}, of which git has a pointer alone"
        raise BaseError(f"{why}: take it out of .gitattributes, and commit the file itself")
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BaseError(f"{path.name} at {short(base)} is not UTF-8") from error


def content_at(base: BaseRevision, path: Path) -> bytes | None:
    """The bytes of a file at the base, links followed as they were there; None where it was not there.

    Raises BaseError where git cannot tell.
    """
    within, name = _followed(base, _name_at(base, path), path)
    mode, blob = within.entries.get(name, ("", ""))
    if mode in (FOLDER, SUBMODULE):
        raise BaseError(f"{path.name} is a folder at {short(base)}")
    return within.git("cat-file", "blob", blob) if mode else None


def plain_contents(base: BaseRevision, paths: Collection[Path]) -> Iterator[tuple[Path, bytes]]:
    """(path, bytes) of those of these files that were no links at the base, also in submodules; in few runs of git.

    What cannot be read is left out, and is content_at()'s to tell.
    """
    waiting = set(paths)
    blobs: dict[str, list[Path]] = {}
    top = repository(base)
    for file, (mode, name) in base.entries.items() if waiting else ():
        if mode == SUBMODULE and (below := [path for path in waiting if path.is_relative_to(top / file)]):
            with suppress(BaseError):
                yield from plain_contents(_submodule(base, file, top / file), below)
        elif mode not in (FOLDER, LINK) and top / file in waiting:
            blobs.setdefault(name, []).append(top / file)
    with suppress(BaseError):
        for blob, content in blob_contents(base.root, blobs):
            yield from ((path, content) for path in blobs[blob])


def files_at(base: BaseRevision, path: Path) -> tuple[Path, ...]:
    """Every file that the base had at a path, or below it, also behind links to folders and in submodules.

    Those of a submodule whose commit cannot be read are only missed by a path around it. Raises BaseError else.
    """
    return tuple(_files_below(base, _name_at(base, path), path, frozenset()))


def _files_below(base: BaseRevision, name: str, shown: Path, around: frozenset[tuple[str, str]]) -> Iterator[Path]:
    """The same within folders that are known already: a link to one of them would never end."""
    within, name = _followed(base, name, shown)
    mode, _ = within.entries.get(name, ("", ""))
    if mode != FOLDER:
        yield from (shown,) if mode else ()
        return
    if (within.commit, name) in around:
        return
    around |= {(within.commit, name)}
    for path, (kind, _) in within.entries.items():
        if kind == FOLDER or not (name == "." or path.startswith(f"{name}/")):
            continue
        below = shown / (path if name == "." else path[len(name) + 1 :])
        if kind not in (LINK, SUBMODULE):
            yield below
            continue
        with suppress(BaseError):  # a link out of the repository, or nowhere; a submodule that cannot be read
            yield from _files_below(within, path, below, around)


def all_files_at(base: BaseRevision) -> Iterator[Path]:
    """Every file of the whole repository at the base, by the path that it would have today; none of a submodule."""
    top = repository(base)
    yield from (top / path for path, (mode, _) in base.entries.items() if mode not in (FOLDER, SUBMODULE))


def submodules_at(base: BaseRevision) -> dict[Path, str]:
    """The submodules that the repository had at the base, and the commit that each of them was at."""
    top = repository(base)
    return {top / path: commit for path, (mode, commit) in base.entries.items() if mode == SUBMODULE}


def submodules_now(base: BaseRevision) -> dict[Path, str]:
    """The same of the repository as its index has it."""
    top = repository(base)
    listed = run_git(top, "ls-files", "--stage", "-z")
    return {top / name: commit for mode, commit, _, name in each_file(listed) if mode == SUBMODULE}


def is_within(base: BaseRevision, path: Path) -> bool:
    """Whether a path lies in the repository that the base is of."""
    return Path(os.path.abspath(path)).is_relative_to(repository(base))


def _followed(base: BaseRevision, name: str, shown: Path) -> tuple[BaseRevision, str]:
    """Where a path led at the base: (the revision, also of a submodule, and the path in it, behind all links).

    Nothing may be there. Raises BaseError where it led out of the repository, or into a submodule that is not here,
    and NowhereError where links led to nothing.
    """
    place, waiting, links = "", name.split("/")[::-1], 0
    why = f"{shown.name} at {short(base)} is a link that leads out of the repository, or nowhere"
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == ".." and not place:
            raise BaseError(why)
        place = place.rpartition("/")[0] if part == ".." else f"{place}/{part}".removeprefix("/")
        mode, blob = base.entries.get(place, ("", ""))
        if mode == SUBMODULE:
            return _followed(_submodule(base, place, shown), "/".join(waiting[::-1]), shown)
        if mode != LINK:
            continue
        links += 1
        target = base.git("cat-file", "blob", blob).decode("utf-8", "surrogateescape")
        if target.startswith("/"):
            raise BaseError(why)
        place = place.rpartition("/")[0]
        waiting.extend(target.split("/")[::-1])
        if links > MOST_LINKS:
            raise NowhereError(why)
    if links and (place or ".") not in base.entries:
        raise NowhereError(why)
    return base, place or "."


def _name_at(base: BaseRevision, path: Path) -> str:
    """A path as git calls it from the top of the base's repository; "." is that itself."""
    name = os.path.normpath(os.path.join(base.top, os.path.relpath(path, base.root))).replace(os.sep, "/")
    if name == ".." or name.startswith("../"):
        raise BaseError(f"{path.name} lies outside of the repository of {base.root}: it has no base")
    return name


def _submodule(base: BaseRevision, folder: str, shown: Path) -> BaseRevision:
    """The commit that a submodule was at. Raises BaseError where that is not here."""
    top, where = repository(base) / folder, f"{shown.name} lies in a submodule at {short(base)}"
    _, commit = base.entries[folder]
    if top in base.submodules:
        return base.submodules[top]
    if not (top / ".git").exists():
        raise BaseError(f"{where}, which is gone: where that is meant, who may merge past this decides")
    if not commit_named(commit, top):
        raise BaseError(f"{where}, whose clone lacks its commit {commit[:7]}: {DEEPEN}")
    return base.submodules.setdefault(top, BaseRevision(base.asked, commit, root=top))
