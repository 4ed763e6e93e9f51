"""Lock files as the commits of a branch have them: read out of git in a few calls, however many commits there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path

from pytest_modelbudget.budget.git import BaseError, commit_named, run_git
from pytest_modelbudget.budget.history import (
    Commit,
    CommitStep,
    Content,
    FileChange,
    History,
    content_of,
    cut_at,
    history,
)
from pytest_modelbudget.budget.lock_file import LARGEST, SUFFIX

# First parents, so that each commit is the branch as it was; a merge is shown by what it brought.
LOG = (
    "-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8",
    "-c", "log.showRoot=true", "-c", "log.diffMerges=separate",
    "log", "-z", "--raw", "--no-abbrev", "-M", "--first-parent", "-m", "--reverse", "--relative", "--no-color",
    "-O/dev/null", "--format=tformat:%H%x00%ct%x00%s",
)  # fmt: skip
AT_ONCE = 64  # blobs of one call: what is held in memory at a time


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
    blobs = {change.blob for step in steps for change in step.changes if change.blob}
    walked = history(steps, dict(_contents(folder, sorted(blobs))))
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


def _contents(folder: Path, blobs: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """Each blob and what it holds."""
    for start in range(0, len(blobs), AT_ONCE):
        some = blobs[start : start + AT_ONCE]
        told = run_git(folder, "cat-file", "--batch", sent="".join(f"{blob}\n" for blob in some).encode())
        answer = BytesIO(told)
        for blob in some:
            fields = answer.readline().split()
            if len(fields) != 3:  # "1a2b... missing"
                raise BaseError(f"this clone lacks the content {blob[:7]} of a lock file: fetch it without a filter")
            yield blob, _content(answer.read(int(fields[2])))
            answer.read(1)


def _content(content: bytes) -> Content:
    if len(content) > LARGEST:
        return Content(None, f"it has more than {LARGEST:,} bytes", is_lock=False)
    try:
        return content_of(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Content(None, "it is not UTF-8", is_lock=False)
