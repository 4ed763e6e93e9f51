r"""The commit that a change is compared with, and files as they are there; through git only.

A pull request is checked out as a merge, whose first parent is the base::

    main   A --- B --- C             HEAD = M: two parents, the base is M^1 = C
            \           \
    change   X --- Y --- M           HEAD = Y: the base is merge-base(main, Y) = A

What main has gained since (B, C) is then no growth of the change.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_modelbudget.errors import BudgetError

FETCH = "fetch it (in GitHub Actions: actions/checkout with fetch-depth: 2)"
DEEPEN = "fetch more of it (in GitHub Actions: check out the merge commit with fetch-depth: 2)"
# Set in git's hooks, where they would make every folder the top of a repository.
HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"})
TROUBLE = (b"not a git repository", b"dubious ownership")


class BaseError(BudgetError):
    """A base that cannot be compared with: it is not here, or this is no repository."""


@dataclass(frozen=True, slots=True)
class BaseRevision:
    """The revision to compare with: commit, all its digits; or why there is none.

    asked is how the user named it.
    """

    asked: str
    commit: str = ""
    why_not: str = ""


def asked_base(option: str | None, environment: Mapping[str, str]) -> str | None:
    """The revision that an option names, or that GitHub compares with; None outside of both."""
    if option:
        return option
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    event, branch = environment.get("GITHUB_EVENT_NAME"), environment.get("GITHUB_BASE_REF")
    if event == "merge_group":
        return "HEAD^1"
    return f"origin/{branch}" if event == "pull_request" and branch else None


def base_revision(asked: str, folder: Path) -> BaseRevision:
    """The commit that ``asked`` means for the commit checked out in a folder."""
    try:
        return BaseRevision(asked, _base_commit(asked, folder))
    except BaseError as error:
        return BaseRevision(asked, why_not=str(error))


def text_at(base: BaseRevision, path: Path) -> str | None:
    """The text of a file at the base; None where it was not there.

    Raises BaseError where git cannot tell, or it is no text.
    """
    folder = _existing(path.parent)
    name = "./" + path.relative_to(folder).as_posix()
    if not _git(folder, "ls-tree", base.commit, name):
        return None
    try:
        return _git_bytes(folder, "show", f"{base.commit}:{name}").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BaseError(f"{path.name} at {short(base)} is not UTF-8") from error


def files_at(base: BaseRevision, path: Path) -> tuple[Path, ...]:
    """Every file that the base had at a path, or below it."""
    folder = _existing(path)
    name = "." if folder == path else "./" + path.relative_to(folder).as_posix()
    listed = _git(folder, "ls-tree", "-r", "-z", "--name-only", base.commit, name)
    return tuple(folder / name for name in listed.split("\0") if name)


def short(base: BaseRevision) -> str:
    """The base for people: "main (1a2b3c4)"."""
    return f"{base.asked} ({base.commit[:7]})" if base.commit else base.asked


def _existing(folder: Path) -> Path:
    """The folder, or the one around it that is still there."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _base_commit(asked: str, folder: Path) -> str:
    """The first parent of a merge, else where the base and HEAD part.

    But where main was merged into the change, main as it was then: the first parent of such a merge is the change
    itself, and does not hold what it shares with main.
    """
    head = _commit("HEAD", folder)
    if not head:
        raise BaseError("there is no commit yet: commit, then compare")
    named = _commit(asked, folder)
    # Parents as the commit itself names them, whether or not a shallow clone has them.
    header = _git(folder, "cat-file", "commit", head).partition("\n\n")[0]
    parents = [line.split()[1] for line in header.splitlines() if line.startswith("parent ")]
    if len(parents) > 1:
        if not _commit(parents[0], folder):
            raise BaseError(f"the first parent of the merge commit HEAD is not in this clone: {DEEPEN}")
        shared = _merge_base(named, "HEAD", folder) if named else ""
        is_of_the_change = shared and _merge_base(shared, parents[0], folder) != shared
        return shared if is_of_the_change else parents[0]
    if not named:
        raise BaseError(f"the base {asked} is no commit in this clone: {FETCH}")
    shared = _merge_base(named, head, folder)
    if not shared:
        is_shallow = _git(folder, "rev-parse", "--is-shallow-repository").strip() == "true"
        why = f"this clone does not reach back to where {asked} and HEAD part"
        raise BaseError(f"{why}: {DEEPEN}" if is_shallow else f"{why}: they share nothing")
    return shared


def _commit(revision: str, folder: Path) -> str:
    """All digits of a commit's name; "" where it is not here."""
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return _git(folder, *asked, ends=(0, 1, 128)).strip()


def _merge_base(first: str, second: str, folder: Path) -> str:
    return _git(folder, "merge-base", first, second, ends=(0, 1)).strip()


def _git(folder: Path, *words: str, ends: tuple[int, ...] = (0,)) -> str:
    return _git_bytes(folder, *words, ends=ends).decode("utf-8", "surrogateescape")


def _git_bytes(folder: Path, *words: str, ends: tuple[int, ...] = (0,)) -> bytes:
    """Run git; what it prints. Raises BaseError where it fails, or is not installed."""
    kept = {name: value for name, value in os.environ.items() if name not in HOOK_VARIABLES}
    environment = {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        run = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, check=False)
    except OSError as error:
        raise BaseError(f"git cannot be run: {error.strerror or error}") from error
    # 128 is also how git ends that failed for another reason than that a revision is not here.
    is_trouble = run.returncode == 128 and any(trouble in run.stderr for trouble in TROUBLE)
    if run.returncode not in ends or is_trouble:
        said = run.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise BaseError(f"git {words[0]}: {said[0].removeprefix('fatal: ')}")
    return run.stdout
