"""Budget files that the base held by its own settings of pytest, and that a session of today passes by.

The base's settings are read as text out of git, and none of its code is run. Only what is written out there is believed
to have passed a budget by: what nobody can tell without running it counts as dropped, with the doubt.
"""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from os.path import abspath, commonpath, realpath
from pathlib import Path

from pytest_modelbudget.budget import FOLDER, PATHS, SUFFIXES, revision
from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.gate.project import ReadText, configuration, configuration_in, text_of, words

# Folders that pytest itself passes by where norecursedirs is not set.
PASSED_BY = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")
IGNORE, IGNORE_GLOB = "--ignore", "--ignore-glob"
OVERRIDE = ("-o", "--override-ini")
LISTS = ("collect_ignore", "collect_ignore_glob")  # names of a conftest.py that ignore what they list
HOOK = "pytest_ignore_collect"
ENVIRONMENT = ("pyvenv.cfg", "conda-meta/history")  # files that make a folder a virtual environment
OF_FOLDER = ("conftest.py", *ENVIRONMENT)  # files by which pytest may pass by what lies below them


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of pytest that say by which budgets a session comes, as they are written."""

    paths: tuple[str, ...] = (FOLDER,)
    passed_by: tuple[str, ...] = PASSED_BY
    testpaths: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Words among the options that may be paths; the value of an option may be among them."""
        return tuple(word for word in self.options if not word.startswith("-"))


@dataclass(frozen=True, slots=True)
class Session:
    """A session of pytest, as far as it says which budgets it comes by.

    start is where it was started, root its rootdir. settings are its own, None where pytest cannot read them. roots are
    the paths under which it looked for budgets, collected the budgets that it found. paths, rootdir and file are what
    its command line itself names. has_toml: this pytest reads pytest.toml, and TOML's own types.
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
        yield from (PassedBy(path, doubt) for path in paths)
        return
    known = set()
    for path, top in _left(base, _tops(session, root, then), session):
        is_outside = not any(path.is_relative_to(each) for each in session.roots)
        is_same = (root, then) == (session.root, session.settings) and path.exists()
        if path in known or (is_same and (is_outside or _has_same_folders(path, root, base))):
            continue
        doubt = _doubt(path, root, then, base)
        if doubt or not _is_ignored(path, top, root, session.start, then, read):
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
    everywhere = (file for file in revision.all_files_at(base) if any(file.is_relative_to(root) for root in roots))
    linked: list[Path] = []
    for root in session.roots:
        with suppress(revision.BaseError):  # a folder of another repository, whose budgets have no base here
            linked += revision.files_at(base, root)
    for file in dict.fromkeys((*everywhere, *linked)):
        if file.suffix in SUFFIXES and not _is_budget_file(file) and is_budget_at(base, file):
            yield file


def _is_budget_file(path: Path) -> bool:
    """Whether a file can still be a budget: one that cannot be read fails by itself."""
    try:
        return path.is_file() and is_budget(path.read_bytes())
    except OSError:
        return True


def has_same_options(base: revision.BaseRevision, session: Session) -> bool:
    """Whether the base's own addopts are those of a session; not where nobody can tell."""
    try:
        _, then = _settings_at_base(session, _reader(base))
    except ModelBudgetError:
        return False
    return session.settings is not None and session.settings.options == then.options


def option_values(words: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """The values of options of these names among the words of a command line: --ignore=a, --ignore a, or -oa."""
    for word, following in pairwise((*words, "")):
        name, sign, value = word.partition("=")
        if name in names:
            yield value if sign and name.startswith("--") else following
        elif not word.startswith("--") and word[:2] in names:
            yield word[2:]


def is_named(path: Path, folder: Path, name: str) -> bool:
    """Whether a name, or a pattern of names, beside a folder means this file or one of the folders it lies in."""
    pattern = abspath(folder / name)
    return any(fnmatch(str(each), pattern) for each in (path, *path.parents) if folder in each.parents)


# The base's settings, and the budgets that it had.


def _reader(base: revision.BaseRevision) -> ReadText:
    """What reads the base's files; those outside of its repository are no change's."""

    def read(path: Path) -> str | None:
        with suppress(revision.NowhereError):
            return revision.text_at(base, path) if revision.is_within(base, path) else text_of(path)
        return None

    return read


def _settings_at_base(session: Session, read: ReadText) -> tuple[Path, Settings]:
    """The rootdir and the settings that a session would have had with the files that are read."""
    if session.file is not None:
        table = configuration_in(session.file, read) or {}
        return session.rootdir or session.file.parent, _settings(session.file, table)
    start = Path(commonpath(session.paths)) if session.paths else session.start
    start = start.parent if start.is_file() else start
    folders = (start, *start.parents)
    for folder in folders:
        found = configuration(folder, read, has_toml=session.has_toml)
        if found is not None:
            return session.rootdir or folder, _settings(*found)
    for name in ("pyproject.toml", "setup.py"):
        for folder in folders:
            if read(folder / name) is not None:
                return session.rootdir or folder, Settings()
    return session.rootdir or start, Settings()


def _settings(source: Path, table: Mapping[str, object]) -> Settings:
    """The settings of a table, with those that its own addopts overrides."""
    options = words(source, table, "addopts")
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
        with suppress(revision.BaseError):  # a folder of another repository, whose budgets have no base here
            files = revision.files_at(base, top)
        for path in files:
            if path.suffix not in SUFFIXES or path in session.collected or not is_budget_at(base, path):
                continue
            others = collected.get(realpath(path), ()) if path.exists() else ()
            if not any(_is_same_at(base, path, other) for other in others):
                yield path, top


def _is_same_at(base: revision.BaseRevision, path: Path, other: Path) -> bool:
    """Whether two files held the same at the base."""
    with suppress(revision.BaseError):  # of a link that leads elsewhere nobody knows
        return revision.content_at(base, path) == revision.content_at(base, other)
    return False


def is_budget_at(base: revision.BaseRevision, path: Path) -> bool:
    """Whether a file was a budget at the base, or may have been: a link that leads elsewhere is taken for one."""
    try:
        return is_budget(revision.content_at(base, path) or b"")
    except revision.NowhereError:
        return False
    except revision.BaseError:
        return True


# What the base passed by, too.


def _has_same_folders(path: Path, root: Path, base: revision.BaseRevision) -> bool:
    """Whether the folders around a file hold what they held at the base of what makes pytest pass by."""
    around = [folder / name for folder in path.parents if folder.is_relative_to(root) for name in OF_FOLDER]
    here = {file: file.read_bytes() if file.is_file() else None for file in around}
    return all(_same_lines(content, revision.content_at(base, file)) for file, content in here.items())


def _same_lines(here: bytes | None, there: bytes | None) -> bool:
    return here == there or (here is not None and there is not None and here.splitlines() == there.splitlines())


def _doubt(path: Path, root: Path, then: Settings, base: revision.BaseRevision) -> str:
    """Why nobody can tell what the base passed by around a file; "" where everything is written out."""
    for folder in path.parents:
        file = folder / "conftest.py"
        if not folder.is_relative_to(root):
            break
        try:
            text = revision.text_at(base, file)
        except revision.BaseError as error:
            return str(error)
        if text is not None and literal_lists(text) is None:
            name = file.relative_to(root).as_posix()
            return f"{name} at {revision.short(base)} says by code, or not in a plain list, what is ignored"
    return ""


def _is_ignored(path: Path, top: Path, root: Path, start: Path, then: Settings, read: ReadText) -> bool:
    """Whether the base passed a file by, too; what a session names itself it never does."""
    named = [*(root / name for name in (*then.paths, *then.testpaths)), *(start / name for name in then.arguments)]
    patterns = [Path(abspath(pattern)) for pattern in named]
    visited = [each for each in (path, *path.parents) if top in each.parents]
    for each in visited:
        if any(_leads_into(pattern, each) for pattern in patterns):
            continue
        if _is_ignored_by_options(each, start, then) or _is_listed(each, root, read):
            return True
        if each != path and (_is_environment(each, then, read) or _is_not_entered(each, then.passed_by)):
            return True
    return False


def _leads_into(pattern: Path, path: Path) -> bool:
    """Whether a path that pytest is given, or a pattern of paths, may mean this one, or one below it."""
    if "**" in pattern.parts:
        return True
    is_as_deep = len(pattern.parts) >= len(path.parts)
    return is_as_deep and all(fnmatch(name, part) for name, part in zip(path.parts, pattern.parts, strict=False))


def _is_ignored_by_options(path: Path, start: Path, then: Settings) -> bool:
    names = {abspath(start / name) for name in option_values(then.options, (IGNORE,))}
    patterns = [abspath(start / name) for name in option_values(then.options, (IGNORE_GLOB,))]
    return str(path) in names or any(fnmatch(str(path), pattern) for pattern in patterns)


def _is_environment(folder: Path, then: Settings, read: ReadText) -> bool:
    asked = "--collect-in-virtualenv" in then.options
    return not asked and any(read(folder / name) is not None for name in ENVIRONMENT)


def _is_not_entered(folder: Path, patterns: Sequence[str]) -> bool:
    """Whether norecursedirs means a folder: by its name, or with a slash by the end of its path."""
    return any(
        fnmatch(folder.as_posix(), f"*/{pattern}") if "/" in pattern else fnmatch(folder.name, pattern)
        for pattern in patterns
    )


def _is_listed(path: Path, root: Path, read: ReadText) -> bool:
    """Whether a conftest.py ignores a path: of each list the nearest one above it speaks, and no other."""
    for name in LISTS:
        for folder in path.parents:
            lists = literal_lists(read(folder / "conftest.py") or "") if folder.is_relative_to(root) else {}
            if not lists or name not in lists:
                continue
            paths = [abspath(folder / each) for each in lists[name]]
            if name == "collect_ignore" and str(path) in paths:
                return True
            if name == "collect_ignore_glob" and any(fnmatch(str(path), pattern) for pattern in paths):
                return True
            break
    return False


# What a conftest.py lists, by its text.


def literal_lists(text: str) -> Mapping[str, tuple[str, ...]] | None:
    """The lists of a conftest.py that say what pytest ignores; None where their values are not all written out.

    Believed are plain statements of the module that assign texts to such a list, or add them. Anything else that
    mentions one, a hook that ignores, or names that come from nobody knows where, may ignore more, or less.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    lists: dict[str, tuple[str, ...]] = {}
    read = [found for statement in module.body if (found := _listing(statement)) is not None]
    for name, is_new, texts in read:
        lists[name] = texts if is_new else (*lists.get(name, ()), *texts)
    mentions = [word for node in ast.walk(module) for word in _names_in(node) if word in (*LISTS, HOOK)]
    imports_all = any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(module))
    return lists if len(mentions) == len(read) and not imports_all else None


def _listing(statement: ast.stmt) -> tuple[str, bool, tuple[str, ...]] | None:
    """(name, whether it begins anew, texts) of a statement that assigns texts to a list of ours, or adds them."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value, is_new = statement.targets[0], statement.value, True
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value, is_new = statement.target, statement.value, True
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target, value, is_new = statement.target, statement.value, False
    else:
        return _added(statement)
    texts = _texts(value)
    if not isinstance(target, ast.Name) or target.id not in LISTS or texts is None:
        return None
    return target.id, is_new, texts


def _added(statement: ast.stmt) -> tuple[str, bool, tuple[str, ...]] | None:
    """The same of collect_ignore.append("a"), or .extend(["a"])."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1:
        return None
    method, value = call.func, call.args[0]
    if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Name) or method.value.id not in LISTS:
        return None
    ways = {"append": ast.List([value]), "extend": value}
    texts = _texts(ways[method.attr]) if method.attr in ways else None
    return None if texts is None else (method.value.id, False, texts)


def _texts(value: ast.expr) -> tuple[str, ...] | None:
    """The texts that a display of them holds; None of any other expression."""
    if not isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return None
    texts = [each.value for each in value.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return tuple(texts) if len(texts) == len(value.elts) else None


def _names_in(node: ast.AST) -> Iterator[str]:
    """Every word that a node itself holds: names, attributes, imports, and texts that may be a name."""
    for _, value in ast.iter_fields(node):
        yield from (word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str))
