r"""The commit that a change is compared with, and files as they are there; through git only.

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
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import LFS_POINTER

# Set in git's hooks, where they would make every folder the top of a repository.
HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"})
TROUBLE = {
    "not a git repository": "run it in a clone of the project",
    "dubious ownership": "git config --global --add safe.directory, with that path, lets git read it",
    "promisor remote": "this clone is partial, and cannot fetch what it lacks: clone without --filter",
}
OPTION = "--model-budget-base"
TEST_MERGE = re.compile(r"refs/pull/\d+/merge")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
KINDS = {"refs/tags/": "a tag", "refs/heads/": "a branch", "refs/remotes/": "a remote's branch"}  # in git's own order
OF_NAME = re.compile(r"[~^:]|@\{")  # where the name in a revision ends: main~2, main@{1}
REMOTE = re.compile(r"^(refs/heads/|(refs/remotes/)?origin/)")
FOLDER = "040000"  # the mode of a folder
LINK = "120000"  # the mode of a symbolic link
SUBMODULE = "160000"  # the mode of a folder that is a repository of its own
MOST_LINKS = 40  # that a path may lead through, as on Linux
AT_ONCE = 256  # files that one run of git reads, all of them in memory
DEEPEN = "git fetch --unshallow in it, fetch-depth: 0 of actions/checkout, or GIT_SUBMODULE_DEPTH: 0 of GitLab"


class BaseError(BudgetError):
    """A base that cannot be compared with: it is not here, or this is no repository."""


class GitError(BaseError):
    """Git failed, or is not installed: nothing is known of what it was asked."""


class NowhereError(BaseError):
    """A link at the base that led nowhere in its repository: nothing was held by it there."""


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
    commit that is compared: HEAD, or of a host's test merge the change that it merges. told is what git has told of its
    files, and submodules the revisions of those within, each asked for once: a commit never changes.
    """

    asked: str
    commit: str = ""
    why_not: str = ""
    root: Path = Path()
    top: str = ""
    measured: str = ""
    told: dict[tuple[str, ...], bytes] = field(default_factory=dict, compare=False, repr=False)
    submodules: dict[Path, "BaseRevision"] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def entries(self) -> Mapping[str, tuple[str, str]]:
        """(mode, name in git) of all its files, links and submodules, by path; of the folders around them, no name."""
        listed = {path: (mode, name) for mode, name, path in _listed(self)}
        inside = {Path(path).parent for path in listed}
        return {folder.as_posix(): (FOLDER, "") for last in inside for folder in (last, *last.parents)} | listed

    def git(self, *words: str, sent: bytes = b"") -> bytes:
        """What git tells of this commit. Raises GitError where it fails."""
        key = (*words, sent.decode("utf-8", "surrogateescape"))
        if key not in self.told:
            self.told[key] = run_git(self.root, *words, sent=sent)
        return self.told[key]


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
        top = _git(root, "rev-parse", "--show-prefix").rstrip("\n")
        head = commit_named("HEAD", root)
        if not head:
            raise BaseError("there is no commit yet: commit, then compare")
        merge = _test_merge(head, root, environment)
        measured = merge[1] if merge else head
        commit = _base_commit(asked, head, merge, root, _Hints(environment))
        return BaseRevision(asked.name, commit, "", root, top, measured)
    except BaseError as error:
        return BaseRevision(asked.name, why_not=str(error), measured=measured)


def head_commit(root: Path) -> str:
    """The commit that is checked out in a project's root; "" where git cannot tell."""
    try:
        return commit_named("HEAD", root)
    except BaseError:
        return ""


NOT_TOLD = "not told"


def uncommitted(root: Path) -> str:
    """A SHA-256 of how the files that git knows differ from that commit; "" where they do not, or there is none.

    NOT_TOLD where there is a commit and git cannot compare with it.
    """
    if not head_commit(root):
        return ""
    try:
        changes = run_git(
            root, "diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "-O/dev/null", "HEAD"
        )
    except BaseError:
        return NOT_TOLD
    return sha256(changes).hexdigest() if changes else ""


def may_be_link(file: Path) -> bool:
    """Whether git keeps a file that lies there as a link, which it wrote out as text; true where git cannot tell."""
    try:
        return _git(file.parent, "--literal-pathspecs", "ls-files", "--stage", "--", file.name).startswith(LINK)
    except BaseError:
        return True


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
    return {top / name: commit for mode, commit, _, name in map(_fields, _lines(listed)) if mode == SUBMODULE}


def repository(base: BaseRevision) -> Path:
    """The folder of the repository that the base is of."""
    return Path(os.path.normpath(base.root / "/".join([".."] * base.top.count("/"))))


def is_within(base: BaseRevision, path: Path) -> bool:
    """Whether a path lies in the repository that the base is of."""
    return Path(os.path.abspath(path)).is_relative_to(repository(base))


def short(base: BaseRevision) -> str:
    """The base for people: "main (1a2b3c4)"."""
    return f"{base.asked} ({base.commit[:7]})" if base.commit else base.asked


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


def _listed(base: BaseRevision) -> Iterator[tuple[str, str, str]]:
    """(mode, name in git, path) of all files of the base, and of its submodules."""
    for mode, _, name, path in map(_fields, _lines(base.git("ls-tree", "-r", "-z", "--full-tree", base.commit))):
        yield mode, name, path


def _lines(listed: bytes) -> list[str]:
    return [line for line in listed.decode("utf-8", "surrogateescape").split("\0") if line]


def _fields(line: str) -> tuple[str, str, str, str]:
    """What git tells of a file in three words, and its path."""
    about, _, path = line.partition("\t")
    first, second, third = about.split()
    return first, second, third, path


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
    shared = _git(root, "merge-base", named, head, ends=(0, 1)).strip()
    if not shared:
        is_shallow = _git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
        why = f"this clone does not reach back to where {asked.name} and HEAD part"
        raise BaseError(f"{why}: {hints.fetch}" if is_shallow else f"{why}: they share nothing")
    return shared


def _must_be_one(revision: str, root: Path) -> None:
    """Raise BaseError for a name that a tag and a branch share: git takes the tag, and nobody meant to."""
    name = OF_NAME.split(revision)[0]
    words = ("for-each-ref", "--format=%(refname)", *(f"{kind}{name}" for kind in KINDS))
    there = _git(root, *words).splitlines() if name else []
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
    header = _git(root, "cat-file", "commit", head).partition("\n\n")[0]
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
            self.deepen = "give actions/checkout fetch-depth: 2"
            self.fetch = "give actions/checkout fetch-depth: 0, or on pull_request no ref: and fetch-depth: 2"
        elif environment.get("GITLAB_CI") == "true":
            self.fetch = self.deepen = "set the variable GIT_DEPTH: 0"


def commit_named(revision: str, folder: Path) -> str:
    """All digits of a commit's name; "" where it is not here."""
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return _git(folder, *asked, ends=(0, 1, 128)).strip()


def _git(folder: Path, *words: str, ends: tuple[int, ...] = (0,)) -> str:
    return run_git(folder, *words, ends=ends).decode("utf-8", "surrogateescape")


def run_git(folder: Path, *words: str, ends: tuple[int, ...] = (0,), sent: bytes = b"") -> bytes:
    """Run git; what it prints when it is sent this. Raises GitError where it fails, or is not installed."""
    kept = {name: value for name, value in os.environ.items() if name not in HOOK_VARIABLES}
    environment = {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
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
