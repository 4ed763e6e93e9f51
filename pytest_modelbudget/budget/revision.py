r"""The commit that a change is compared with; through git only.

A host builds a pull request as a test merge of its own, whose first parent is the base::

    main   A --- B --- C             HEAD = M, made by the host: the base is M^1 = C
            \           \
    change   X --- Y --- M           HEAD = Y: the base is merge-base(main, Y) = A

What main has gained since (B, C) is then no growth of the change. A merge that the author made ("update branch") looks
the same and is not: its first parent is the change itself. So only the host's word makes a first parent the base.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.git import BaseError, commit_named, git_text, run_git

OPTION = "--model-budget-base"
TEST_MERGE = re.compile(r"refs/pull/\d+/merge")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
KINDS = {"refs/tags/": "a tag", "refs/heads/": "a branch", "refs/remotes/": "a remote's branch"}  # in git's own order
OF_NAME = re.compile(r"[~^:]|@\{")  # where the name in a revision ends: main~2, main@{1}
REMOTE = re.compile(r"^(refs/heads/|(refs/remotes/)?origin/)")


@dataclass(frozen=True, slots=True)
class AskedBase:
    """A revision to compare with: its name for people, and what git may know it by, the best first.

    is_exact: it is the base itself, and not a branch that the base is to be looked for on. is_target: it is the branch
    that the change goes to, for which a host's test merge speaks. why_not says that the host names none.
    """

    name: str
    revisions: tuple[str, ...]
    is_exact: bool = False
    is_target: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class BaseRevision:
    """The revision to compare with: commit, all its digits; or why there is none.

    asked is how the user named it. top is where the project stands in its repository ("team/", or ""). measured is the
    commit that is compared: HEAD, or of a host's test merge the change that it merges. contents are those of its files
    that were read, by their names in git.
    """

    asked: str
    commit: str = ""
    why_not: str = ""
    root: Path = Path()
    top: str = ""
    measured: str = ""
    contents: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def entries(self) -> Mapping[str, tuple[str, str]]:
        """(mode, name in git) of all its files, links and submodules, by path."""
        listed = run_git(self.root, "ls-tree", "-r", "-z", "--full-tree", self.commit)
        lines = (line.partition("\t") for line in listed.decode("utf-8", "surrogateescape").split("\0") if line)
        return {path: (about.split()[0], about.split()[2]) for about, _, path in lines}

    def content(self, blob: str) -> bytes:
        """The bytes of a file by its name in git. Raises GitError where git fails."""
        if blob not in self.contents:
            self.contents[blob] = run_git(self.root, "cat-file", "blob", blob)
        return self.contents[blob]


def asked_base(option: str | None, environment: Mapping[str, str]) -> AskedBase | None:
    """The revision that an option names, or that GitHub compares with; None outside of both."""
    if option:
        return AskedBase(option, (option,), is_target=_is_target(option, environment))
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    name, branch = environment.get("GITHUB_EVENT_NAME"), environment.get("GITHUB_BASE_REF")
    event = _event(environment)
    if name == "merge_group":
        commit, queued = _text(event, "merge_group", "base_sha"), _text(event, "merge_group", "base_ref")
        why_not = f"the file GITHUB_EVENT_PATH names no merge_group.base_sha: name the base with {OPTION}"
        shown = queued.removeprefix("refs/heads/") or "the merge queue's base"
        return AskedBase(shown, (commit,), is_exact=True, why_not="" if commit else why_not)
    if name == "pull_request" and branch:
        known = (f"refs/remotes/origin/{branch}", _text(event, "pull_request", "base", "sha"))
        return AskedBase(f"origin/{branch}", tuple(filter(None, known)), is_target=True)
    return None


def _is_target(option: str, environment: Mapping[str, str]) -> bool:
    """Whether an option names what the host says that the change goes to: its branch, or the commit it is at.

    All digits of a commit are taken for a host's variable where the host's own word is not known.
    """
    base = _text(_event(environment), "pull_request", "base", "sha")
    commits = [*filter(None, (base, environment.get("CI_MERGE_REQUEST_DIFF_BASE_SHA")))]
    branches = environment.get("GITHUB_BASE_REF"), environment.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
    is_said = option in commits if commits else COMMIT.fullmatch(option) is not None
    return is_said or REMOTE.sub("", option) in branches


def base_revision(asked: AskedBase, root: Path, environment: Mapping[str, str]) -> BaseRevision:
    """The commit that ``asked`` means for the commit checked out in the project's root."""
    measured = ""
    try:
        top = git_text(root, "rev-parse", "--show-prefix").rstrip("\n")
        head = commit_named("HEAD", root)
        if not head:
            raise BaseError("there is no commit yet: commit, then compare")
        merge = _test_merge(head, root, environment)
        measured = merge[1] if merge else head
        commit = _base_commit(asked, head, merge, root, _Hints(environment))
        return BaseRevision(asked.name, commit, "", root, top, measured)
    except BaseError as error:
        return BaseRevision(asked.name, why_not=str(error), measured=measured)


def repository(base: BaseRevision) -> Path:
    """The folder of the repository that the base is of."""
    return Path(os.path.normpath(base.root / "/".join([".."] * base.top.count("/"))))


def short(base: BaseRevision) -> str:
    """The base for people: "main (1a2b3c4)"."""
    return f"{base.asked} ({base.commit[:7]})" if base.commit else base.asked


# Which commit is the base.


def _base_commit(asked: AskedBase, head: str, merge: tuple[str, str] | None, root: Path, hints: "_Hints") -> str:
    """The first parent of a host's test merge; the very commit that a merge queue names; else where base and HEAD part.

    A test merge speaks for the branch that its change goes to, and for no other revision that somebody names. Of a
    merge that the author made, base and HEAD part at the base branch as it was when it was merged.
    """
    if asked.why_not:
        raise BaseError(asked.why_not)
    if merge and asked.is_target:
        if not commit_named(merge[0], root):
            raise BaseError(f"the first parent of the merge commit HEAD is not in this clone: {hints.deepen}")
        return merge[0]
    for revision in asked.revisions:
        _must_be_one(revision, root)
    named = next(filter(None, (commit_named(revision, root) for revision in asked.revisions)), "")
    if not named:
        raise BaseError(f"the base {asked.name} is no commit in this clone: {hints.fetch}")
    if asked.is_exact:
        return named
    shared = git_text(root, "merge-base", named, head, ends=(0, 1)).strip()
    if not shared:
        is_shallow = git_text(root, "rev-parse", "--is-shallow-repository").strip() == "true"
        why = f"this clone does not reach back to where {asked.name} and HEAD part"
        raise BaseError(f"{why}: {hints.fetch}" if is_shallow else f"{why}: they share nothing")
    return shared


def _must_be_one(revision: str, root: Path) -> None:
    """Raise BaseError for a name that a tag and a branch share: git takes the tag, and nobody meant to."""
    name = OF_NAME.split(revision)[0]
    words = ("for-each-ref", "--format=%(refname)", *(f"{kind}{name}" for kind in KINDS))
    there = git_text(root, *words).splitlines() if name else []
    known = [kind for kind in KINDS if f"{kind}{name}" in there]
    if len(known) > 1 and len({commit_named(f"{kind}{name}", root) for kind in known}) > 1:
        kinds = " and of ".join(KINDS[kind] for kind in known)
        raise BaseError(f"{name} is the name of {kinds}: say which, as {' or '.join(kind + name for kind in known)}")


def _test_merge(head: str, root: Path, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The parents (base, change) of HEAD, where the host says that it made this merge to test a change.

    GITHUB_REF alone does not say so: it stays refs/pull/N/merge where a step has checked out the change's own commit.
    """
    changes = {environment.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA")}  # GitLab's, in pipelines of merged results
    is_made_by_host = False
    if environment.get("GITHUB_ACTIONS") == "true":
        change, built = _text(_event(environment), "pull_request", "head", "sha"), environment.get("GITHUB_SHA")
        changes.add(change)
        is_a_ref = TEST_MERGE.fullmatch(environment.get("GITHUB_REF", "")) is not None
        is_made_by_host = is_a_ref and (built == head if built else not change)
    if not is_made_by_host and not any(changes):
        return None
    # Parents as the commit itself names them, whether or not a shallow clone has them.
    header = git_text(root, "cat-file", "commit", head).partition("\n\n")[0]
    parents = [line.split()[1] for line in header.splitlines() if line.startswith("parent ")]
    if len(parents) != 2:
        return None
    return (parents[0], parents[1]) if is_made_by_host or parents[1] in changes else None


def _event(environment: Mapping[str, str]) -> Any:
    """GitHub's own words on what a run is for; None where they cannot be read."""
    try:
        return json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_bytes())
    except (KeyError, OSError, ValueError, RecursionError):
        return None


def _text(record: Any, *keys: str) -> str:
    """The text that keys lead to; "" where there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, str) else ""


class _Hints:
    """What to do about a commit that is not in the clone, in the words of the host that made it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.fetch = "correct its name, or fetch it: git fetch --unshallow, or git fetch origin"
        self.deepen = "fetch it: git fetch --unshallow"
        if environment.get("GITHUB_ACTIONS") == "true":
            self.deepen = "set fetch-depth: 2 in actions/checkout"
            self.fetch = "set fetch-depth: 0 in actions/checkout; or, on pull_request, fetch-depth: 2 without ref:"
        elif environment.get("GITLAB_CI") == "true":
            self.fetch = self.deepen = "set the variable GIT_DEPTH: 0"


CI_VARIABLES = ("CI", "BUILD_NUMBER", "TF_BUILD")
NOT_SET = ("", "0", "false")


def is_ci() -> bool:
    """Whether this machine only checks what people wrote."""
    return any(os.environ.get(name, "").lower() not in NOT_SET for name in CI_VARIABLES)
