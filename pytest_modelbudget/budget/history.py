"""Reads from ``git log`` when locked numbers changed, by how much, and in which commit.

A number that grew once, drawn once::

    Series("budgets/vision.yaml", "net", "params", points=(
        Point(Commit("1a2b...", date(2026, 1, 3), "Add a budget"), 3_500_000, "param"),
        Point(Commit("9f8e...", date(2026, 2, 1), "Widen the head"), 3_729_047, "param")))

A step is what a commit changed compared with its first parent, so that a merge is one step, like a squash. A lock file
that git sees renamed is followed; a model under another name, or in another file, has a series of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from pathlib import Path, PurePosixPath

from pytest_modelbudget.budget.budget import path_of
from pytest_modelbudget.budget.git import BaseError, blob_contents, commit_named, git_text, run_git
from pytest_modelbudget.budget.lock_file import HEAD, SCHEMA, SUFFIX, LockedValue, LockError, budgets_of, read_lock
from pytest_modelbudget.units import Number

# First parents, so that each commit is the branch as it was; a merge is shown by what it brought.
LOG = (
    "-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8",
    "-c", "log.showRoot=true", "-c", "log.diffMerges=separate",
    "log", "-z", "--raw", "--no-abbrev", "-M", "--first-parent", "-m", "--reverse", "--relative", "--no-color",
    "-O/dev/null", "--format=tformat:%H%x00%ct%x00%s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by all digits of its name, the day of it in UTC, and its first line."""

    digits: str
    day: date
    subject: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """A lock file after a commit: the name of its content, "" where it is gone, and the path that it had before."""

    commit: Commit
    path: str
    blob: str
    renamed_from: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A number from a commit on; None where it is locked no more."""

    commit: Commit
    value: Number | None
    unit: str


@dataclass(frozen=True, slots=True)
class Series:
    """All changes of one number. Of one that is cut, the first point is the value before the first change."""

    file: str
    model: str
    check: str
    points: tuple[Point, ...]
    is_cut: bool = False

    @property
    def id(self) -> str:
        return path_of(self.file, self.model, self.check)

    def since(self, commits: frozenset[str]) -> Series | None:
        """The changes of some commits, after the last value before them; None without any."""
        changed = [place for place, point in enumerate(self.points) if point.commit.digits in commits]
        if not changed:
            return None
        start = max(0, changed[0] - 1)
        return replace(self, points=self.points[start:], is_cut=self.is_cut or changed[0] > 0)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A lock file that could not be read at one commit, and why."""

    commit: Commit
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """All series by file, model and check, and the lock files that were skipped, oldest first.

    depth is the number of commits of a shallow clone, None of a whole one. asked are the commits since a revision, the
    current one included; None where none was named.
    """

    series: tuple[Series, ...]
    skipped: tuple[Skipped, ...] = ()
    depth: int | None = None
    asked: frozenset[str] | None = None


def branch_history(folder: Path, revision: str = "", *, newest: int | None = None) -> History:
    """The history of all lock files below a folder, up to HEAD.

    newest reads so many commits that changed one, and no more. Raises BaseError where this is no repository, has no
    commit, or git knows no such revision.
    """
    if not commit_named("HEAD", folder):
        raise BaseError("there is no commit yet: commit a lock file, then ask for its history")
    bound = [f"--max-count={newest}"] if newest else []
    changes = list(_changes(run_git(folder, *LOG, *bound, "HEAD", "--", f"*{SUFFIX}").decode("utf-8", "replace")))
    blobs = {change.blob for change in changes} - {""}
    contents = {blob: _content(content) for blob, content in blob_contents(folder, blobs)}
    for blob in sorted(blobs - contents.keys()):
        raise BaseError(f"this clone lacks the content {blob[:7]} of a lock file: fetch it without a filter")
    series, skipped = _series(changes, contents)
    asked = None
    if revision:
        if not commit_named(revision, folder):
            raise BaseError(f"{revision} is no commit in this clone: correct its name, or fetch it")
        asked = _commits(folder, "--end-of-options", f"{revision}..HEAD", "--")
    if git_text(folder, "rev-parse", "--is-shallow-repository").strip() != "true":
        return History(series, skipped, asked=asked)
    oldest = _commits(folder, "--max-parents=0", "HEAD")  # which may have brought its numbers, or only kept them
    series = tuple(replace(each, is_cut=each.points[0].commit.digits in oldest) for each in series)
    return History(series, skipped, len(_commits(folder, "HEAD")), asked)


def _commits(folder: Path, *words: str) -> frozenset[str]:
    return frozenset(git_text(folder, "rev-list", "--first-parent", *words).split())


def _changes(log: str) -> Iterator[FileChange]:
    """The changes of git's log: name, time and first line of a commit, then its raw changes, all between zeros.

    :100644 100644 3c27... 9a1f... M<0>budgets/a.lock.json<0>, and of a rename R087<0>old<0>new<0>
    """
    words = iter(log.split("\0"))
    word = next(words, "").lstrip("\n")
    while word:
        day = datetime.fromtimestamp(int(next(words)), timezone.utc).date()
        commit = Commit(word, day, next(words))
        while (word := next(words, "").lstrip("\n")).startswith(":"):
            _, mode, _, blob, status = word.split(" ")
            path = next(words)
            old, path = (path, next(words)) if status[0] in "RC" else ("", path)
            yield FileChange(commit, path, blob if mode.startswith("100") else "", old if status[0] == "R" else "")


@dataclass(frozen=True, slots=True)
class Content:
    """The numbers of one content of a file by model and check; or why it cannot be read."""

    numbers: Mapping[tuple[str, str], LockedValue] = field(default_factory=dict)
    why_not: str = ""


def _content(content: bytes) -> Content:
    """The numbers of a lock file, without their parts; none of another tool's file."""
    if SCHEMA.encode() not in content[:HEAD]:
        return Content()
    try:
        numbers = read_lock(content.decode("utf-8-sig"), "it").numbers
    except UnicodeDecodeError:
        return Content(why_not="it is not UTF-8")
    except LockError as error:  # without the fix, which no commit takes any more
        why, _, fix = str(error).rpartition(": ")
        return Content(why_not=re.sub(r"^it:(\d+)", r"line \1", why or fix))
    return Content({key: replace(value, parts=()) for key, value in numbers.items()})


def _series(
    changes: Iterable[FileChange], contents: Mapping[str, Content]
) -> tuple[tuple[Series, ...], tuple[Skipped, ...]]:
    """The series of all numbers, from changes in their order, the oldest first; contents by the name of a blob."""
    current: dict[str, dict[tuple[str, str], list[Point]]] = {}  # by lock file, then by model and check
    skipped: list[Skipped] = []
    for change in changes:
        if change.renamed_from in current:
            current[change.path] = current.pop(change.renamed_from)
        content = contents[change.blob] if change.blob else Content()
        if content.why_not:
            skipped.append(Skipped(change.commit, change.path, content.why_not))
            continue
        known = current.setdefault(change.path, {})
        for key in {**known, **content.numbers}:
            points, locked = known.setdefault(key, []), content.numbers.get(key)
            value, unit = (locked.value, locked.unit) if locked else (None, points[-1].unit)
            if not points or (points[-1].value, points[-1].unit) != (value, unit):
                points.append(Point(change.commit, value, unit))
    series = (
        Series(str(budgets_of(PurePosixPath(path))[0]), *key, tuple(points))
        for path, numbers in sorted(current.items())
        for key, points in sorted(numbers.items())
    )
    return tuple(series), tuple(skipped)
