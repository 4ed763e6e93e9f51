"""Lists the budget files of a base, the models in them, and where each of these models is today.

Git answers: ``grep`` finds the files that carry the marker at the base, ``cat-file`` reads them. Code of the base
runs for the growth of timed runs alone. "The contract with a base" in docs/lock-files.md has the rules.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pytest_modelbudget.budget import SUFFIXES
from pytest_modelbudget.budget.budget import TimedRun, names_of
from pytest_modelbudget.budget.git import LINK, SUBMODULE, BaseError, blob_contents, checked_out, run_git
from pytest_modelbudget.budget.kinds import Observation
from pytest_modelbudget.budget.lock_file import (
    UPDATE,
    Baseline,
    FoundLock,
    LockedModel,
    LockError,
    lock_path,
    read_lock,
)
from pytest_modelbudget.budget.read_budget import MARKED, MARKER, is_budget, is_for_the_gate, read_budget
from pytest_modelbudget.budget.revision import BaseRevision, repository, short
from pytest_modelbudget.budget.yaml_text import BudgetFileError, entries_of, node_at, tree
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.formats.benchmark import Plan, Timing
from pytest_modelbudget.formats.source import FETCH_LFS, LFS_POINTER, ModelSource
from pytest_modelbudget.formats.user_modules import is_installed
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.runners.paired import Growth, Side, paired

SETTINGS = (
    "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py",
)  # fmt: skip
DECIDES = "ignore|norecurse|testpaths|addopts|model_budget|pytest_plugins"  # what is collected
GREP = ("grep", "--files-with-matches", "--null", "--fixed-strings", "--no-color", "--no-recurse-submodules")


class Move(NamedTuple):
    """A model that was in the budget file home at the base, and is in the file path today."""

    model: str
    home: Path
    path: Path


class BaseInventory:
    """The budget files of a base by the paths that they have in the working tree, and their models by name."""

    def __init__(self, base: BaseRevision) -> None:
        self.base = base
        self._then: dict[Path, frozenset[str]] = {}
        self._now: dict[Path, frozenset[str]] = {}
        self._homes: dict[tuple[Path, str], tuple[Path, ...]] = {}

    @cached_property
    def texts(self) -> Mapping[Path, str]:
        """The text of each budget file of the repository; none of a submodule.

        Raises GitError where git fails.
        """
        top = repository(self.base)
        listed = run_git(top, *GREP, "-e", MARKER, self.base.commit, "--", "*.yaml", "*.yml", ends=(0, 1))
        found = filter(None, listed.decode("utf-8", "surrogateescape").split("\0"))
        blobs = {name: self.base.entries[name][1] for name in (each.partition(":")[2] for each in found)}
        self.base.contents.update(blob_contents(top, {*blobs.values()}))
        texts = {top / name: self.base.content(blob).decode("utf-8", "replace") for name, blob in blobs.items()}
        return {path: text for path, text in texts.items() if is_budget(text)}

    def models(self, budget: Path) -> frozenset[str]:
        """The models that a budget file contained. Raises BaseError where it is not compared."""
        if budget not in self._then:
            text = (text_at(self.base, budget) or "") if budget not in self.texts else self.texts[budget]
            self._then[budget] = models_in(text) if is_budget(text) else frozenset()
        return self._then[budget]

    def models_today(self, budget: Path) -> frozenset[str]:
        """The models that a budget file contains in the working tree; none where it is gone, or cannot be read."""
        if budget not in self._now:
            content = _content_today(budget)
            self._now[budget] = models_in(content.decode("utf-8-sig", "replace")) if is_budget(content) else frozenset()
        return self._now[budget]

    def homes(self, budget: Path, model: str) -> tuple[Path, ...]:
        """The files that contained a model: the budget file itself, else those that the model has left since.

        Files of the same name count first. A model without a home is a new one, and has its own file alone. Raises
        BaseError where the budget file is not compared, or git fails.
        """
        key = budget, model
        if key not in self._homes:
            left: list[Path] = []
            for home, text in self.texts.items() if model not in self.models(budget) else ():
                may_have = model in text or "\\" in text  # spares parsing the others; a name may have escapes
                if may_have and model in self.models(home) and model not in self.models_today(home):
                    left.append(home)
            same = [home for home in left if home.name.casefold() == budget.name.casefold()]
            self._homes[key] = tuple(same or left or [budget])
        return self._homes[key]

    def moves(self, models: Mapping[Path, Collection[str]]) -> Iterator[Move]:
        """The models of today's files that had one home elsewhere; of several nobody can tell which it was."""
        for path, names in models.items():
            with suppress(BaseError):  # of a file that is not compared
                for model in sorted(set(names) - self.models(path)):
                    homes = self.homes(path, model)
                    if len(homes) == 1 and homes != (path,):
                        yield Move(model, homes[0], path)

    def dropped(self, tops: Collection[Path], collected: Collection[Path], *, is_whole: bool) -> Iterator[Path]:
        """The budget files below some paths that are none any more, or that the change's settings leave out.

        collected are those that a session collected, or knows of. is_whole: its command line leaves none out. Raises
        GitError where git fails.
        """
        left = [path for path in self.texts if path not in collected and any(map(path.is_relative_to, tops))]
        is_sparse = any(not path.exists() for path in left)
        kept = {path for top in tops for path, _ in absent_files(top)} if is_sparse else set()
        for path in left:
            if is_budget(_content_today(path)):
                yield from [path] if is_whole and self.changed_settings else []
            elif path not in kept:
                yield path
        for name, (mode, _) in self.base.entries.items():
            path = repository(self.base) / name
            if mode in NOT_COMPARED and any(map(path.is_relative_to, tops)) and not path.exists():
                yield path

    @cached_property
    def changed_settings(self) -> tuple[str, ...]:
        """The files in which the change since the base touches a setting that decides what pytest collects."""
        words = ("diff", "--name-only", "-z", "-G", DECIDES, self.base.commit, "--")
        listed = run_git(repository(self.base), *words, *(f":(glob)**/{name}" for name in SETTINGS))
        return tuple(filter(None, listed.decode("utf-8", "surrogateescape").split("\0")))


def _content_today(path: Path) -> bytes:
    """The bytes of a file; none of one that is gone, or cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def models_in(text: str) -> frozenset[str]:
    """The names of the models in the text of a budget file; broken YAML has none."""
    try:
        node = tree(text, "")
    except BudgetFileError:
        return frozenset()
    return frozenset(key.text for key, _ in entries_of(node_at(node, ("models",))))


def _looked_up(text_of: Callable[[], str | None], name: str) -> FoundLock:
    """The lock whose text is looked up, under its name for people."""
    try:
        text = text_of()
        return FoundLock(name, None) if text is None else FoundLock(name, read_lock(text, name), True)
    except (LockError, BaseError) as error:
        return FoundLock(name, None, True, str(error))
    except (OSError, UnicodeDecodeError) as error:
        return FoundLock(name, None, True, f"{name} cannot be read: {error}")


class Baselines:
    """The locks of a session's budgets: those of the working tree, and those of the base."""

    def __init__(self, root: Path, base: BaseRevision | None = None) -> None:
        self.root = root
        self.base = base
        self.inventory = BaseInventory(base) if base is not None and base.commit else None
        self._here: dict[Path, FoundLock] = {}
        self._there: dict[Path, FoundLock] = {}

    def of(self, budget: Path, model: str, check: str) -> Baseline:
        """The baseline that one check of a budget file is compared with.

        That is the base's number. A model, or a limit, that the base does not know is compared
        with the working tree's: what is new has not grown.
        """
        base = self.base
        if base is not None and not base.commit:
            return Baseline(why_none=f"the base is not known: {base.why_not}")
        if base is not None:
            try:
                there = self.model_at_base(budget, model, check)
            except BaseError as error:
                return Baseline(why_none=str(error))
            if check in there:
                return Baseline(there[check], revision=base.commit, model=there)
        here = self.in_working_tree(budget)
        known = here.lock.models.get(model, {}) if here.lock else {}
        if check in known:
            return Baseline(known[check], model=known)
        lacks = f"{here.name} has no {check} of {model}" if here.is_there else f"there is no {here.name}"
        return Baseline(why_none=here.problem or f"{lacks}: {UPDATE}=create writes it")

    def knows(self, budget: Path, model: str) -> bool:
        """Whether any lock holds a number of this model, to see growth by."""
        locks = [self.in_working_tree(budget)]
        if self.base is not None and self.base.commit:
            with suppress(BaseError):  # which leaves growth unknown
                locks.extend(self.at_base(home) for home in self.homes(budget, model))
        return any(known.lock is not None and model in known.lock.models for known in locks)

    def model_at_base(self, budget: Path, model: str, check: str) -> LockedModel:
        """The base's numbers of a model that has one of this check, also of a model that was in another file there.

        Of several files that it may have come from the least number counts. Raises BaseError where it is unclear.
        """
        found: list[LockedModel] = []
        for home in self.homes(budget, model):
            there = self.at_base(home)
            if there.problem:
                raise BaseError(there.problem)
            locked = there.lock.models.get(model, {}) if there.lock else {}
            if check in locked:
                found.append(locked)
        return min(found, key=lambda locked: locked[check].value, default={})

    def homes(self, budget: Path, model: str) -> tuple[Path, ...]:
        """The budget files that contained a model at the base. Raises BaseError where git cannot tell."""
        assert self.inventory is not None  # only asked for where there is a base
        return self.inventory.homes(budget, names_of(model)[0])

    def in_working_tree(self, budget: Path) -> FoundLock:
        path = lock_path(budget)
        if budget not in self._here:
            self._here[budget] = _looked_up(lambda: self._text(path), self.shown(path))
        return self._here[budget]

    def _text(self, path: Path) -> str | None:
        if not path.exists():
            return None
        content = path.read_bytes()
        if content.startswith(LFS_POINTER):
            raise LockError(f"{self.shown(path)} is a pointer of Git LFS: {FETCH_LFS}")
        return content.decode("utf-8-sig")

    def at_base(self, budget: Path) -> FoundLock:
        """The lock file of a budget file at the base, which must be known."""
        base, path = self.base, lock_path(budget)
        assert base is not None  # only asked for where there is one
        if budget not in self._there:
            self._there[budget] = _looked_up(lambda: text_at(base, path), f"{self.shown(path)} at {short(base)}")
        return self._there[budget]

    def shown(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.root)).as_posix()


# Files as git has them.

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
    """(path, why) of what git has at or below a folder and the checkout lacks; nothing where git cannot tell."""
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
    contents: Mapping[str, bytes] = {}
    with suppress(BaseError):  # of a partial clone that cannot fetch: each may be a budget
        contents = dict(blob_contents(start, {*skipped.values()}))
    yield from ((path, SPARSE) for path, blob in skipped.items() if is_for_the_gate(contents.get(blob, MARKED)))


# The growth of timed runs.


@dataclass(frozen=True, slots=True)
class ModelAtBase:
    """A model at the base: its budget file of today, its path in that, and the parent folder of the base's files."""

    base: BaseRevision
    budget: Path
    model: str
    folder: Path | None = None

    def source(self, files: Path, source: ModelSource, registry: Tables) -> ModelSource | None:
        """The model's source in a folder with the base's files; None if it is new. Raises ModelBudgetError."""
        inventory, name = BaseInventory(self.base), names_of(self.model)[0]
        home = inventory.homes(self.budget, name)[0]
        if name not in inventory.models(home):
            return None
        known = read_budget(self.moved(home, files), registry, root=self.moved(self.base.root, files)).models
        roots = tuple(tuple(self.moved(root, files) for root in group) for group in source.import_roots)
        return next((replace(each.made, import_roots=roots) for each in known if each.path == self.model), None)

    def moved(self, path: Path, files: Path) -> Path:
        """The same path in a folder with the base's files; installed packages, and what is elsewhere, stay."""
        top, real = repository(self.base).resolve(), path.resolve()  # links may lead into the repository
        is_moved = real.is_relative_to(top) and not is_installed(f"{real}/")
        return files / real.relative_to(top) if is_moved else path


def growth_since(
    known: ModelAtBase | None, source: ModelSource, run: TimedRun, registry: Tables, root: Path,
    time: Callable[[ModelSource, Path, Plan], Observation[Timing]],
) -> Observation[Growth]:  # fmt: skip
    """How much longer a call takes than at the base, whose model is loaded from the files of its commit."""
    why_none = known.base.why_not if known else "no base is named: give --model-budget-base=BRANCH"
    try:
        if known is None or why_none:
            raise BaseError(f"nothing to grow from: {why_none}")
        top, base, here = repository(known.base), short(known.base), Path.cwd()
        with checked_out(top, known.base.commit, known.folder) as files:
            earlier = known.source(files, source, registry)
            if earlier is None:
                return Observation(Growth((), f"{known.model} is new since {base}: what is new has not grown"))
            path = [str(known.moved(Path(each), files)) for each in sys.path]
            then = Side(base, partial(time, earlier, known.moved(root, files)), known.moved(here, files), path, top)
            now = Side("the change", partial(time, source, root), here, sys.path)
            return Observation(paired(now, then, run.plan, run.grow or 0))
    except ModelBudgetError as error:
        return Observation(failure=str(error))
