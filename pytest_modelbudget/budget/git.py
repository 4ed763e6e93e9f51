"""Running git: commits by name, what differs from them, and files by their names in it."""

import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_modelbudget.errors import BudgetError

# Set in git's hooks, where they would make every folder the top of a repository.
HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"})
TROUBLE = {
    "not a git repository": "run it in a clone of the project",
    "dubious ownership": "git config --global --add safe.directory, with that path, lets git read it",
    "promisor remote": "this clone is partial, and cannot fetch what it lacks: clone without --filter",
}
LINK = "120000"  # the mode of a symbolic link
SUBMODULE = "160000"  # the mode of a folder that is a repository of its own
AT_ONCE = 256  # files that one run of git reads, all of them in memory


class BaseError(BudgetError):
    """A base that cannot be compared with: it is not here, or this is no repository."""


class GitError(BaseError):
    """Git failed, or is not installed: nothing is known of what it was asked."""


def commit_named(revision: str, folder: Path) -> str:
    """All digits of a commit's name; "" where it is not here."""
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return git_text(folder, *asked, ends=(0, 1, 128)).strip()


def blob_contents(folder: Path, names: Collection[str], *settings: str) -> Iterator[tuple[str, bytes]]:
    """(name in git, bytes) of files by these names, where git has them. Raises GitError where it fails."""
    ordered = sorted(names)
    for start in range(0, len(ordered), AT_ONCE):
        sent = "".join(f"{name}\n" for name in ordered[start : start + AT_ONCE]).encode()
        told = BytesIO(run_git(folder, *settings, "cat-file", "--batch", sent=sent))
        while head := told.readline().decode().split():
            if head[1] == "blob":
                yield head[0], told.read(int(head[2]))
                told.read(1)  # the line's end behind it


def run_git(
    folder: Path, *words: str, ends: tuple[int, ...] = (0,), sent: bytes = b"", index: Path | None = None
) -> bytes:
    """The output of git for these words and this input, perhaps on another index. Raises GitError if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in HOOK_VARIABLES}
    environment = {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"} | ({"GIT_INDEX_FILE": str(index)} if index else {})
    try:
        run = subprocess.run(["git", *words], cwd=folder, env=environment, input=sent, capture_output=True, check=False)
    except OSError as error:
        why = "install it before the checkout, which makes no clone without it"
        raise GitError(f"git cannot be run: {error.strerror or error}: {why}") from error
    # 128 is also how git ends that failed for another reason than that a revision is not here.
    told = run.stderr.decode("utf-8", "replace")
    way_out = next((f": {way}" for trouble, way in TROUBLE.items() if trouble in told), "")
    if run.returncode not in ends or (run.returncode == 128 and way_out):
        said = told.strip().splitlines() or ["no reason given"]
        command = next(word for word in words if not word.startswith("-") and "=" not in word)
        raise GitError(f"git {command}: {said[0].removeprefix('fatal: ')}{way_out}")
    return run.stdout


def git_text(folder: Path, *words: str, ends: tuple[int, ...] = (0,)) -> str:
    """The same as text."""
    return run_git(folder, *words, ends=ends).decode("utf-8", "surrogateescape")


@contextmanager
def checked_out(repository: Path, commit: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder with the files of a commit, removed afterwards. Raises GitError if git fails.

    git worktree would leave an entry in the repository if this process is killed, and copy a sparse checkout.
    """
    with TemporaryDirectory(dir=parent) as folder:
        files, index = Path(folder).resolve() / "base", Path(folder, "index")
        run_git(repository, "read-tree", commit, index=index)
        run_git(repository, "checkout-index", "--all", f"--prefix={files}/", index=index)
        yield files
