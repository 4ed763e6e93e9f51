"""Budget files that the base held by its own settings of pytest, and that a session of today passes by.

The base's settings are read as text out of git, and none of its code is run. Only what is written out there is believed
to have passed a budget by: what nobody can tell without running it counts as dropped, with the doubt.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from os.path import abspath, commonpath, isfile, realpath
from pathlib import Path

from pytest_modelbudget.budget import FOLDER, PATHS, SUFFIXES, committed_files, git, revision
from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.formats.source import LFS_POINTER
from pytest_modelbudget.gate.ignored_files import (
    HOOK,
    OF_FOLDER,
    OVERRIDE,
    PASSED_BY,
    Settings,
    is_ignored,
    literal_lists,
    option_values,
)
from pytest_modelbudget.gate.left_out import left_out
from pytest_modelbudget.gate.project import ReadText, configuration, configuration_in, text_of, with_files, words
from pytest_modelbudget.gate.python_files import names_in


@dataclass(frozen=True, slots=True)
class Session:
    """A session of pytest, as far as it says which budgets it comes by.

    start is where it was started, root its rootdir. settings are its own, None where pytest cannot read them. roots are
    the paths under which it looked for budgets, collected the budgets that it found. paths, rootdir and file are what
    its command line itself names. has_toml: this pytest reads pytest.toml, and TOML's own types. sources are the files
    of the plugins that it loaded and nobody installed, each conftest.py among them, with the modules that these import;
    has_hooks: one of these plugins implements a hook of pytest.
    """

    start: Path
    root: Path
    settings: Settings | None
    roots: tuple[Path, ...]
    collected: frozenset[Path]
    paths: tuple[Path, ...] = ()
    rootdir: Path | None = None
    file: Path | None = None
    has_toml: bool = True
    sources: frozenset[Path] = frozenset()
    has_hooks: bool = False


@dataclass(frozen=True, slots=True)
class PassedBy:
    """A budget file that a session passes by; doubt is why nobody can tell whether the base did, too."""

    path: Path
    doubt: str = ""


def passed_by(base: revision.BaseRevision, session: Session) -> Iterator[PassedBy]:
    """Budgets that the base held by its settings, and that were not collected, each once.

    What the base itself passed by is not among them. Raises BaseError where git cannot tell.
    """
    read = _reader(base)
    if session.file is not None and read(session.file) is None:
        return  # that command is not the base's
    try:
        root, then = _settings_at_base(session, read)
    except ModelBudgetError as error:
        doubt = f"settings at {revision.short(base)} cannot be read: {error}"
        paths = dict.fromkeys(path for path, _ in _left(base, [session.root], session))
        yield from (PassedBy(path, doubt) for path in _without_left_out([*paths], base))
        return
    left = [*_left(base, _tops(session, root, then), session)]
    there = {*_without_left_out([path for path, _ in left], base)}
    same_settings = (root, then) == (session.root, session.settings)
    same_plugins = bool(left) and has_same_plugins(base, session)
    known = set()
    for path, top in left:
        is_outside = not any(path.is_relative_to(each) for each in session.roots)
        is_same = same_settings and path.exists() and (is_outside or same_plugins)
        if path in known or path not in there or (is_same and (is_outside or _has_same_folders(path, root, base))):
            continue
        doubt = _doubt(path, root, session.sources, base)
        if doubt or not is_ignored(path, top, root, session.start, then, read):
            known.add(path)
            yield PassedBy(path, doubt)


def gone(base: revision.BaseRevision, session: Session) -> Iterator[Path]:
    """Budget files of the base that are none any more: deleted, renamed, emptied, or with another marker.

    They are looked for in the whole project, as it is and as it was: where budgets stand is the change's to say. Raises
    BaseError where git cannot tell.
    """
    roots = {session.root}
    with suppress(ModelBudgetError):  # of settings that nobody can read
        roots.add(_settings_at_base(session, _reader(base))[0])
    everywhere = (
        file for file in committed_files.all_files_at(base) if any(file.is_relative_to(root) for root in roots)
    )
    linked: list[Path] = []
    for root in session.roots:
        with suppress(git.BaseError):  # a folder of another repository, whose budgets have no base here
            linked += committed_files.files_at(base, root)
    files = (file for file in dict.fromkeys((*everywhere, *linked)) if file.suffix in SUFFIXES)
    found = _budgets_at(base, [file for file in files if not _is_budget_file(file)])
    yield from _without_left_out(found, base)


@dataclass(frozen=True, slots=True)
class Unread:
    """A submodule of the base that a change removed, or moved to another commit, and why nobody can read what it held.

    is_among_budgets: it stood where budgets are looked for, or has some; of a whole project nobody says that all do.
    """

    path: Path
    why: str
    is_among_budgets: bool


def unread_submodules(base: revision.BaseRevision, session: Session) -> Iterator[Unread]:
    """Those below or around the paths under which budgets are, or were, looked for.

    Raises BaseError where git cannot tell.
    """
    then = committed_files.submodules_at(base)
    if not then:
        return
    tops, surely = {*session.roots}, {*session.roots}
    with suppress(ModelBudgetError):  # of settings that nobody can read
        root, settings = _settings_at_base(session, _reader(base))
        tops |= {*_tops(session, root, settings)}
        surely |= {*_tops(session, root, replace(settings, options=()))}  # whose words may be values of options
    narrow = [top for top in surely if not session.root.is_relative_to(top)]
    held = {
        commit for folder, commit in committed_files.submodules_now(base).items() if _touches(folder, session.roots)
    }
    for folder, commit in then.items():
        if commit in held or not _touches(folder, tops):  # it is as it was, here or in another folder
            continue
        try:
            committed_files.files_at(base, folder)
        except git.BaseError as error:
            has_some = any(file.is_relative_to(folder) for file in session.collected)
            yield Unread(folder, str(error), has_some or _touches(folder, narrow))


def _touches(folder: Path, tops: Collection[Path]) -> bool:
    """Whether a folder lies at or below one of these paths, or around it."""
    return any(folder.is_relative_to(top) or top.is_relative_to(folder) for top in tops)


def _without_left_out(files: list[Path], base: revision.BaseRevision) -> Iterator[Path]:
    """Those that were not merely left out by a sparse checkout: what a change keeps it has not dropped."""
    are_there = all(file.exists() for file in files)
    kept = set() if are_there else {each.path for each in left_out([revision.repository(base)])}
    yield from (file for file in files if file not in kept)


def _is_budget_file(path: Path) -> bool:
    """Whether a file can still be a budget: one that cannot be read fails by itself."""
    try:
        return path.is_file() and is_budget(path.read_bytes())
    except OSError:
        return True


def is_chosen_at_base(base: revision.BaseRevision, session: Session) -> bool:
    """Whether the base left out what a session does: by the same addopts and plugins; not where nobody can tell.

    Without a hook of the project's own, what leaves out limits is an installed plugin, as its user asked.
    """
    try:
        _, then = _settings_at_base(session, _reader(base))
    except ModelBudgetError:
        return False
    is_same = session.settings is not None and session.settings.options == then.options
    return is_same and (not session.has_hooks or has_same_plugins(base, session))


def has_same_plugins(base: revision.BaseRevision, session: Session) -> bool:
    """Whether the base had the source of every plugin of the project's own that a session loaded, as it is now.

    And every file that these name, but for budgets: a hook may read there what it leaves out.
    """
    try:
        own = [file for file in session.sources if committed_files.is_within(base, file)]
        if not all(_same_lines(file.read_bytes(), committed_files.content_at(base, file)) for file in own):
            return False
        return all(_is_as_at_base(file, base) for file in _named_in(own, session, base))
    except (OSError, git.BaseError):  # gone since, or behind a link or in a submodule, of which nobody knows
        return False


def _named_in(own: Collection[Path], session: Session, base: revision.BaseRevision) -> set[Path]:
    """Files of the project that these name: any of the base whose path ends so, and new ones from the usual folders."""
    names = {Path(name) for file in own for name in names_in(file)}
    names |= {name.relative_to(name.anchor) for name in names}  # what f"{folder}/list.txt" has behind a folder
    ends = {tuple(part for part in name.parts if part not in (".", "..")) for name in names}
    lengths = {len(end) for end in ends}
    known = {file for file in committed_files.all_files_at(base) if any(file.parts[-at:] in ends for at in lengths)}
    folders = {session.root, session.start, *(file.parent for file in own)}
    new = {Path(abspath(folder / name)) for folder in folders for name in names}
    return known | {
        file for file in new if committed_files.is_within(base, file) and isfile(file)
    }  # none of too long a name


def _is_as_at_base(file: Path, base: revision.BaseRevision) -> bool:
    """Whether a file holds what it held at the base, or is a budget, whose changes are told by themselves."""
    here, there = file.read_bytes() if file.is_file() else None, committed_files.content_at(base, file)
    return _same_lines(here, there) or (file.suffix in SUFFIXES and is_budget(here or there or b""))


def is_named(path: Path, folder: Path, name: str) -> bool:
    """Whether a name, or a pattern of names, beside a folder means this file or one of the folders it lies in."""
    pattern = abspath(folder / name)
    return any(fnmatch(str(each), pattern) for each in (path, *path.parents) if folder in each.parents)


# The base's settings, and the budgets that it had.


def _reader(base: revision.BaseRevision) -> ReadText:
    """What reads the base's files; those outside of its repository are no change's."""

    def read(path: Path) -> str | None:
        with suppress(committed_files.NowhereError):
            return committed_files.text_at(base, path) if committed_files.is_within(base, path) else text_of(path)
        return None

    return read


def _settings_at_base(session: Session, read: ReadText) -> tuple[Path, Settings]:
    """The rootdir and the settings that a session would have had with the files that are read."""
    if session.file is not None:
        table = configuration_in(session.file, read) or {}
        return session.rootdir or session.file.parent, _settings(session.file, table, session.start, read)
    start = Path(commonpath(session.paths)) if session.paths else session.start
    start = start.parent if start.is_file() else start
    folders = (start, *start.parents)
    for folder in folders:
        found = configuration(folder, read, has_toml=session.has_toml)
        if found is not None:
            return session.rootdir or folder, _settings(*found, session.start, read)
    for name in ("pyproject.toml", "setup.py"):
        for folder in folders:
            if read(folder / name) is not None:
                return session.rootdir or folder, Settings()
    return session.rootdir or start, Settings()


def _settings(source: Path, table: Mapping[str, object], start: Path, read: ReadText) -> Settings:
    """The settings of a table, with those that its own addopts overrides."""
    options = tuple(with_files(words(source, table, "addopts"), start, read))
    written = (value.partition("=") for value in option_values(options, OVERRIDE))
    table = {**table, **{name.strip(): value for name, _, value in written}}
    return Settings(
        words(source, table, PATHS, FOLDER),
        words(source, table, "norecursedirs") if "norecursedirs" in table else PASSED_BY,
        words(source, table, "testpaths"),
        options,
    )


def _tops(session: Session, root: Path, then: Settings) -> list[Path]:
    """The paths under which a session would have looked for budgets at the base."""
    names = [*(root / name for name in then.paths), *(session.start / name for name in then.arguments)]
    return [Path(abspath(path)) for path in (session.paths or names)]


def _left(base: revision.BaseRevision, tops: Collection[Path], session: Session) -> Iterator[tuple[Path, Path]]:
    """(path, top) of the base's budgets under these paths that the session did not collect.

    One that was collected under another name, by a link, was compared under that: it counts where the base had the same
    there.
    """
    collected: dict[str, list[Path]] = {}
    for each in session.collected:
        collected.setdefault(realpath(each), []).append(each)
    for top in tops:
        files: tuple[Path, ...] = ()
        with suppress(git.BaseError):  # a folder of another repository, whose budgets have no base here
            files = committed_files.files_at(base, top)
        uncollected = [path for path in files if path.suffix in SUFFIXES and path not in session.collected]
        for path in _budgets_at(base, uncollected):
            others = collected.get(realpath(path), ()) if path.exists() else ()
            if not any(_is_same_at(base, path, other) for other in others):
                yield path, top


def _is_same_at(base: revision.BaseRevision, path: Path, other: Path) -> bool:
    """Whether two files held the same at the base."""
    with suppress(git.BaseError):  # of a link that leads elsewhere nobody knows
        return committed_files.content_at(base, path) == committed_files.content_at(base, other)
    return False


def _budgets_at(base: revision.BaseRevision, files: Collection[Path]) -> list[Path]:
    """Those of these files that were budgets at the base, or may have been."""
    known = {path: _was_budget(path, content) for path, content in committed_files.plain_contents(base, files)}
    return [path for path in files if (known[path] if path in known else is_budget_at(base, path))]


def is_budget_at(base: revision.BaseRevision, path: Path) -> bool:
    """Whether a file was a budget at the base, or may have been: a link that leads elsewhere is taken for one."""
    try:
        return _was_budget(path, committed_files.content_at(base, path) or b"")
    except committed_files.NowhereError:
        return False
    except git.BaseError:
        return True


def _was_budget(path: Path, content: bytes) -> bool:
    """Whether a file of these bytes at the base is taken for a budget; a pointer of Git LFS is, if its file is gone."""
    return is_budget(content) or (content.startswith(LFS_POINTER) and not path.exists())


# What the base passed by, too.


def _has_same_folders(path: Path, root: Path, base: revision.BaseRevision) -> bool:
    """Whether the folders around a file hold what they held at the base of what makes pytest pass by."""
    around = [folder / name for folder in path.parents if folder.is_relative_to(root) for name in OF_FOLDER]
    here = {file: file.read_bytes() if file.is_file() else None for file in around}
    return all(_same_lines(content, committed_files.content_at(base, file)) for file, content in here.items())


def _same_lines(here: bytes | None, there: bytes | None) -> bool:
    return here == there or (here is not None and there is not None and here.splitlines() == there.splitlines())


def _doubt(path: Path, root: Path, sources: Collection[Path], base: revision.BaseRevision) -> str:
    """Why nobody can tell what the base passed by around a file; "" where everything is written out."""
    for folder in path.parents:
        file = folder / "conftest.py"
        if not folder.is_relative_to(root):
            break
        try:
            text = committed_files.text_at(base, file)
        except git.BaseError as error:
            return str(error)
        if text is not None and literal_lists(text) is None:
            name = file.relative_to(root).as_posix()
            return f"{name} at {revision.short(base)} says by code, or not in a plain list, what is ignored"
    for file in sorted(sources):
        with suppress(git.BaseError):  # of what lies elsewhere no change speaks
            if HOOK in (committed_files.text_at(base, file) or ""):
                return f"{file.name} at {revision.short(base)} says by code what is ignored"
    return ""
