"""Finds the budget files of a session, and those that pytest did not collect."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_modelbudget.budget import PATHS, SUFFIXES
from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.base_inventory import absent_files
from pytest_modelbudget.budget.budget import Address
from pytest_modelbudget.budget.read_budget import may_be_budget, yaml_files
from pytest_modelbudget.pytest_plugin import items, options
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.text import printed_line

NOT_COLLECTED = (
    "pytest did not collect it: let no norecursedirs, --ignore of addopts, collect_ignore or hook leave it out, "
    "or give --ignore on the command line"
)

DRAFT = "\n  modelbudget init nets:Net --input 1x3x32x32 --output budgets/net.yaml"
IGNORED = "--ignore of the command line leaves it out"


class BudgetPaths:
    """Files and directories that may hold budgets; configured ones become pytest arguments.

    missing are configured paths that do not exist. uncollected are the budgets below the paths that pytest left out,
    unfit are those of them that fail the session, with the reason. Raises pytest.UsageError where somebody configured
    a missing path, and did not merely leave the default.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.missing: list[Path] = []
        self.remarks: list[str] = []
        self.uncollected: set[Path] = set()
        self.unfit: dict[str, str] = {}
        self.outside = ""  # a sentence on a budget outside of rootdir
        self.roots = self._configured()
        self._must_differ()

    def claims(self, path: Path) -> bool:
        """True for a budget of this session: a file that is named itself, or below the paths and for the gate."""
        if path.suffix not in SUFFIXES or not self._is_printable(path):
            return False
        return path in self.roots or (any(map(path.is_relative_to, self.roots)) and may_be_budget(path))

    def note_uncollected(self, collected: Collection[str]) -> None:
        """Note the budgets below the paths that were not collected: an error, unless the command line ignores them.

        Where the whole project is searched, a remark: folders such as build/ may hold copies.
        """
        root = Path(os.path.realpath(self.config.rootpath))
        narrow = [each for each in self.roots if not root.is_relative_to(os.path.realpath(each))]
        left_out = {path: why for folder in (*narrow, *self.missing) for path, why in absent_files(folder)}
        for path in yaml_files(self.roots):
            if str(path) not in collected and path not in left_out and may_be_budget(path):
                left_out[path] = self._why(path)
        self.uncollected = {*left_out}
        ignored = options.ignored_by_command_line(self.config)
        for path, why in left_out.items():
            is_ignored = any(fnmatch(str(each), name) for name in ignored for each in (path, *path.parents))
            shown = printed_line(os.path.relpath(path, self.config.rootpath))
            reason = IGNORED if is_ignored else why
            self.remarks.append(f"{shown} is not checked: {reason}")
            if not is_ignored and any(map(path.is_relative_to, (*narrow, *self.missing))):
                self.unfit[shown] = why

    def broken(self) -> Iterator[record.BrokenFile]:
        """The entries of reports for budgets that were not collected."""
        for file, why in self.unfit.items():
            name = file.replace(os.sep, "/")
            yield record.BrokenFile(id=budgets.path_of(name, items.BROKEN), problems=(f"{name}:1: {why}",))

    def why_nothing(self) -> str:
        """A sentence where no budget was found; "" where a remark has said why one that was found is not checked."""
        if self.uncollected:
            return ""
        names = ", ".join(map(str, self.missing or self.roots)) or "the paths given"
        why = f"{names} does not exist" if self.missing else f"no YAML file with the key model_budget under {names}"
        write = f"set ini {PATHS}, or write a budget" if self.missing else "or write one"
        return f"{why}: name another folder, {write}, such as with{DRAFT}"

    def _why(self, path: Path) -> str:
        """The reason why pytest did not collect a budget."""
        if not path.exists():
            return "it is a link that leads nowhere"
        if path.suffix not in SUFFIXES:
            return f"let its name end in {path.suffix.lower()}"
        return NOT_COLLECTED if self._is_printable(path) else "no terminal can show such a name: rename the file"

    def _is_printable(self, path: Path) -> bool:
        """True for a name that writes no more than a name wherever it is shown."""
        return os.path.relpath(path, self.config.rootpath).isprintable()

    def _configured(self) -> tuple[Path, ...]:
        config = self.config
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            files = (Address.parse(arg).file for arg in config.args)
            return tuple(options.absolute(config.invocation_params.dir, file) for file in files)
        names = config.getini(PATHS)
        if not names:
            where = config.inipath or "the configuration"
            raise pytest.UsageError(f"{PATHS} names nothing: name folders with budgets, or remove it from {where}")
        paths = options.configured_paths(config)
        self.missing = [path for path in paths if not path.exists()]
        if self.missing and names != options.DEFAULT_PATHS:
            correct = f"create it, or correct {config.inipath or 'the configuration'}"
            fix = next((why for _, why in absent_files(self.missing[0])), correct)
            raise pytest.UsageError(f"{PATHS} names {self.missing[0]}, which does not exist: {fix}")
        existing = tuple(path for path in paths if path not in self.missing)
        config.args.extend(str(path) for path in existing if not self._is_visited(path))
        return existing

    def _must_differ(self) -> None:
        """Refuse budgets that pytest would give one id: those outside of rootdir it names by their file alone."""
        top = self.config.rootpath
        outside = [root for root in self.roots if not root.is_relative_to(top)]
        known = {path.name: path for path in (top.iterdir() if outside else ()) if self.claims(path)}
        around = os.path.relpath(os.path.commonpath([top, *outside]), self.config.invocation_params.dir)
        for path in yaml_files(outside):
            if path.is_relative_to(top) or not self.claims(path):
                continue
            lies_outside = f"{path} lies outside of pytest's rootdir {top}, where"
            if known.setdefault(path.name, path) != path:
                other = known[path.name]
                raise pytest.UsageError(f"{lies_outside} it could not be read from {other}: give --rootdir={around}")
            self.outside = f"{lies_outside} its limits go by other ids than from the project: give --rootdir={around}"

    def _is_visited(self, path: Path) -> bool:
        """True for a path that pytest collects anyway.

        Beside the directory that pytest was started in, pytest 8.0 to 8.4 drop it when more
        arguments are added, so nothing may be added that lies inside.
        """
        start = self.config.invocation_params.dir
        return any(path.is_relative_to(options.absolute(start, arg)) for arg in self.config.args)
