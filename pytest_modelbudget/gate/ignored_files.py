"""Whether pytest passes a file by, as its settings and each conftest.py are written: none of it is run."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from os.path import abspath
from pathlib import Path

from pytest_modelbudget.budget import FOLDER
from pytest_modelbudget.gate.project import ReadText

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


def option_values(words: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """The values of options of these names among the words of a command line: --ignore=a, --ignore a, or -oa."""
    for word, following in pairwise((*words, "")):
        name, sign, value = word.partition("=")
        if name in names:
            yield value if sign and name.startswith("--") else following
        elif not word.startswith("--") and word[:2] in names:
            yield word[2:]


def is_ignored(path: Path, top: Path, root: Path, start: Path, then: Settings, read: ReadText) -> bool:
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
