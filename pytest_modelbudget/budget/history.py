"""How locked numbers went from commit to commit: a walk over what git has of lock files.

A number of one model that grew once, drawn once::

    Series("budgets/vision.yaml", "net", "params", places={("budgets/vision.yaml", "net")}, points=(
        Point(Commit("1a2b...", date(2026, 1, 3), "Add a budget"), 3_500_000, "param", "net"),
        Point(Commit("9f8e...", date(2026, 2, 1), "Widen the head"), 3_729_047, "param", "net")))

A step is what a commit changed beside its first parent, so that a merge is one step, like a squash.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from pathlib import Path, PurePosixPath

from pytest_modelbudget.budget.budget import names_of, path_of
from pytest_modelbudget.budget.git import BaseError, blob_contents, commit_named, run_git
from pytest_modelbudget.budget.lock_file import (
    HEAD,
    LARGEST,
    SCHEMA,
    SUFFIX,
    Lock,
    LockedModel,
    LockError,
    budgets_of,
    read_lock,
)
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

    path: str
    blob: str
    renamed_from: str = ""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """One commit and the lock files that it changed."""

    commit: Commit
    changes: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A number from a commit on, under the name that its model had then; None where it is locked no more."""

    commit: Commit
    value: Number | None
    unit: str
    model: str


@dataclass(frozen=True, slots=True)
class Series:
    """One number's way: the budget file and the model's path as they are called last, and every change of it.

    places are the files and paths that it ever stood under. Of one that is cut, the first point is what it was before.
    """

    file: str
    model: str
    check: str
    points: tuple[Point, ...]
    places: frozenset[tuple[str, str]]
    is_cut: bool = False

    @property
    def id(self) -> str:
        """The node id of its check: "budgets/vision.yaml::net::params"."""
        return path_of(self.file, self.model, self.check)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A lock file that could not be read at one commit, and why."""

    commit: Commit
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """All series by file, model and check, and what was skipped, the oldest first."""

    series: tuple[Series, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """One content of a file: its numbers, without their parts; or why there are none. is_lock tells others' files."""

    lock: Lock | None
    why_not: str = ""
    is_lock: bool = True


def content_of(text: str) -> Content:
    """What a text holds that stands where a lock file may."""
    is_lock = SCHEMA in text[:HEAD]
    try:
        lock = read_lock(text, "it")
    except LockError as error:  # without the way out, which no commit takes any more
        why, _, way_out = str(error).rpartition(": ")
        return Content(None, re.sub(r"^it:(\d+)", r"line \1", why or way_out), is_lock)
    models = {
        path: {name: replace(value, parts=()) for name, value in model.items()} for path, model in lock.models.items()
    }
    return Content(Lock(models), "", is_lock)


Group = tuple[str, str]  # a lock file, and a model's own name, for all that stands below it
Groups = Mapping[Group, Mapping[str, LockedModel]]
Key = tuple[str, str, str]  # of a number: the lock file, the path of its model, the name of its check


def history(steps: Iterable[CommitStep], contents: Mapping[str, Content]) -> History:
    """The history of all numbers, from steps in their order, the oldest first; contents by the name of a blob."""
    steps = list(steps)
    walk = _Walk(_own_files(steps, contents))
    for step in steps:
        walk.take(step, contents)
    series = [
        Series(_budget_of(file), model, check, tuple(way.points), way.reported_places())
        for (file, model, check), way in sorted((*walk.ended, *walk.ways.items()), key=lambda known: known[0])
    ]
    return History(tuple(series), tuple(walk.skipped))


def _budget_of(lock: str) -> str:
    return str(budgets_of(PurePosixPath(lock))[0])


def _own_files(steps: Iterable[CommitStep], contents: Mapping[str, Content]) -> frozenset[str]:
    """The paths at which a lock file of ours ever stood: others end in .lock.json, too."""
    changes = (change for step in steps for change in step.changes)
    return frozenset(change.path for change in changes if change.blob and contents[change.blob].is_lock)


@dataclass(slots=True)
class _Way:
    """One number so far: its points, and the lock files and paths that it stood under."""

    points: list[Point] = field(default_factory=list)
    places: set[tuple[str, str]] = field(default_factory=set)

    def stands_under(self, key: Key) -> _Way:
        self.places.add(key[:2])
        return self

    def reported_places(self) -> frozenset[tuple[str, str]]:
        return frozenset((_budget_of(file), model) for file, model in self.places)


@dataclass(slots=True)
class _Walk:
    """The locks as they are after some steps, and the way of each number so far."""

    own: frozenset[str]
    locks: dict[str, Mapping[str, LockedModel]] = field(default_factory=dict)
    ways: dict[Key, _Way] = field(default_factory=dict)
    ended: list[tuple[Key, _Way]] = field(default_factory=list)  # whose key another number has taken
    skipped: list[Skipped] = field(default_factory=list)

    def take(self, step: CommitStep, contents: Mapping[str, Content]) -> None:
        """One step: files renamed, models moved, then the numbers that are others."""
        changes = [change for change in step.changes if change.path in self.own or change.renamed_from in self.own]
        for change in changes:
            if change.renamed_from in self.locks:
                self.locks[change.path] = self.locks.pop(change.renamed_from)
                self._rename({key: (change.path, *key[1:]) for key in self.ways if key[0] == change.renamed_from})
        before = {change.path: self.locks.get(change.path, {}) for change in changes}
        for change in changes:
            self._read(step.commit, change, contents)
        after = {change.path: self.locks.get(change.path, {}) for change in changes}
        moves = _moves(_groups(before), _groups(after))
        self._rename({key: _moved(key, moves) for key in self.ways if _group(key) in moves})
        for file in after:
            self._note(step.commit, file)

    def _read(self, commit: Commit, change: FileChange, contents: Mapping[str, Content]) -> None:
        """The lock of a file as the commit has it; as it was where that cannot be read, which is said."""
        if not change.blob:
            self.locks.pop(change.path, None)
            return
        content = contents[change.blob]
        if content.lock is None:
            self.skipped.append(Skipped(commit, change.path, content.why_not))
        else:
            self.locks[change.path] = content.lock.models

    def _rename(self, renamed: Mapping[Key, Key]) -> None:
        """Let numbers stand under their new keys."""
        taken = set(renamed.values()) & (self.ways.keys() - renamed.keys())
        self.ended += [(key, self.ways.pop(key)) for key in sorted(taken)]
        self.ways = {renamed.get(key, key): way for key, way in self.ways.items()}
        for key in renamed.values():
            self.ways[key].stands_under(key)

    def _note(self, commit: Commit, file: str) -> None:
        """A point for each number of a file that is another one, or gone."""
        numbers = {
            (file, path, name): value
            for path, model in self.locks.get(file, {}).items()
            for name, value in model.items()
        }
        for key, value in numbers.items():
            points = self.ways.setdefault(key, _Way()).stands_under(key).points
            if not points or (points[-1].value, points[-1].unit) != (value.value, value.unit):
                points.append(Point(commit, value.value, value.unit, key[1]))
        for key, way in self.ways.items():
            if key[0] == file and key not in numbers and way.points[-1].value is not None:
                way.points.append(replace(way.points[-1], commit=commit, value=None))


def _group(key: Key) -> Group:
    """The model that a number belongs to, whichever variant or transform of it."""
    return key[0], names_of(key[1])[0]


def _groups(locks: Mapping[str, Mapping[str, LockedModel]]) -> dict[Group, dict[str, LockedModel]]:
    """The numbers of each model with its variants and transforms, by what stands below its own name."""
    groups: dict[Group, dict[str, LockedModel]] = {}
    for file, models in locks.items():
        for path, numbers in models.items():
            name, *below = names_of(path)
            groups.setdefault((file, name), {})[path_of(*below)] = numbers
    return groups


def _moves(before: Groups, after: Groups) -> dict[Group, Group]:
    """Models that are gone, and where each stands now: under its name in one other file, else with all its numbers.

    Where there are several that it may be, nobody can tell.
    """
    gone = {key for key in before if key not in after}
    new = {key for key in after if key not in before}
    same_name = {(old, now) for old in gone for now in new if old[1] == now[1]}
    moves = _one_to_one(same_name)
    gone, new = gone - moves.keys(), new - set(moves.values())
    same_numbers = {(old, now) for old in gone for now in new if before[old] == after[now]}
    return moves | _one_to_one(same_numbers)


def _one_to_one(pairs: Iterable[tuple[Group, Group]]) -> dict[Group, Group]:
    """The pairs whose sides stand in no other pair."""
    pairs = list(pairs)
    olds, news = Counter(old for old, _ in pairs), Counter(now for _, now in pairs)
    return {old: now for old, now in pairs if olds[old] == news[now] == 1}


def _moved(key: Key, moves: Mapping[Group, Group]) -> Key:
    """A number's key after some moves."""
    file, name = moves[_group(key)]
    return file, path_of(name, *names_of(key[1])[1:]), key[2]


def since(series: Iterable[Series], commits: frozenset[str]) -> Iterator[Series]:
    """Series with the points of some commits alone, and the last one before them to tell the change from."""
    for each in series:
        first = next((place for place, point in enumerate(each.points) if point.commit.digits in commits), None)
        if first is not None:
            yield replace(each, points=each.points[max(0, first - 1) :], is_cut=each.is_cut or first > 0)


def cut_at(walked: History, commits: frozenset[str]) -> History:
    """A history whose commits before these are not known: what they hold may be from long before."""
    series = (replace(each, is_cut=each.points[0].commit.digits in commits) for each in walked.series)
    return replace(walked, series=tuple(series))


# Lock files as the commits of a branch have them, in a few runs of git, however many commits there are.


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """The history of all lock files below a folder; depth is how many commits a shallow clone has, None in a whole one.

    asked are the commits since a revision, the current one included; None where none was named.
    """

    history: History
    depth: int | None = None
    asked: frozenset[str] | None = None


def branch_history(folder: Path, revision: str = "", *, newest: int | None = None) -> BranchHistory:
    """What the commits up to HEAD have in lock files below a folder.

    newest reads so many commits that changed one, and no more. Raises BaseError where this is no repository, has no
    commit, or git knows no such revision.
    """
    if not commit_named("HEAD", folder):
        raise BaseError("there is no commit yet: commit a lock file, then ask for its history")
    depth = _depth(folder)
    bound = [f"--max-count={newest}"] if newest else []
    steps = list(_steps(run_git(folder, *LOG, *bound, "HEAD", "--", f"*{SUFFIX}").decode("utf-8", "replace")))
    asked = None
    if revision:
        if not commit_named(revision, folder):
            raise BaseError(f"{revision} is no commit in this clone: correct its name, or fetch it")
        listed = run_git(folder, "rev-list", "--first-parent", "--end-of-options", f"{revision}..HEAD", "--")
        asked = frozenset(listed.decode("ascii").split())
    walked = history(steps, _contents(folder, {change.blob for step in steps for change in step.changes} - {""}))
    if depth is not None:
        walked = cut_at(walked, _ends(folder))
    return BranchHistory(walked, depth, asked)


def _depth(folder: Path) -> int | None:
    if run_git(folder, "rev-parse", "--is-shallow-repository").strip() != b"true":
        return None
    return int(run_git(folder, "rev-list", "--count", "--first-parent", "HEAD"))


def _ends(folder: Path) -> frozenset[str]:
    """The commits whose parents a shallow clone lacks."""
    file = run_git(folder, "rev-parse", "--git-path", "shallow").decode("utf-8", "surrogateescape")
    return frozenset((folder / file.rstrip("\n")).read_text(encoding="ascii").split())


def _steps(log: str) -> Iterator[CommitStep]:
    """Steps out of git's log: name, time and first line of a commit, then its raw changes, all between zeros.

    :100644 100644 3c27... 9a1f... M<0>budgets/a.lock.json<0>, and of a rename R087<0>old<0>new<0>
    """
    words = iter(log.split("\0"))
    word = next(words, "").lstrip("\n")
    while word:
        digits, seconds, subject = word, int(next(words)), next(words)
        day = datetime.fromtimestamp(seconds, timezone.utc).date()
        changes = []
        while (word := next(words, "").lstrip("\n")).startswith(":"):
            _, mode, _, blob, status = word.split(" ")
            path = next(words)
            old, path = (path, next(words)) if status[0] in "RC" else ("", path)
            is_file = mode.startswith("100")
            changes.append(FileChange(path, blob if is_file else "", old if status[0] == "R" else ""))
        yield CommitStep(Commit(digits, day, subject), tuple(changes))


def _contents(folder: Path, blobs: frozenset[str] | set[str]) -> Mapping[str, Content]:
    """The contents of lock files by their names in git."""
    contents = {blob: _content(content) for blob, content in blob_contents(folder, blobs)}
    for blob in sorted(blobs - contents.keys()):
        raise BaseError(f"this clone lacks the content {blob[:7]} of a lock file: fetch it without a filter")
    return contents


def _content(content: bytes) -> Content:
    if len(content) > LARGEST:
        return Content(None, f"it has more than {LARGEST:,} bytes", is_lock=False)
    try:
        return content_of(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Content(None, "it is not UTF-8", is_lock=False)
