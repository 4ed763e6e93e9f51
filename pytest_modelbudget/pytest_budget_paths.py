"""Where a session looks for budgets: the paths given, else the configured ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_modelbudget.budget.grammar import SUFFIXES
from pytest_modelbudget.budget.read_yaml import is_budget, misspelt_marker
from pytest_modelbudget.pytest_options import DEFAULT_PATHS, PATHS, absolute


class BudgetPaths:
    """Files and directories that may hold budgets; configured ones become pytest arguments.

    missing are configured paths that do not exist; remarks say which files look like budgets and
    are none. Raises pytest.UsageError where somebody
    configured such a path, and did not merely leave the default.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.missing: list[Path] = []
        self.remarks: list[str] = []
        self.found = self._found()

    def claims(self, path: Path) -> bool:
        """Whether a file is a budget of this session: named itself, or found and marked."""
        if path.suffix not in SUFFIXES:
            return False
        if path in self.found:
            return True
        if not any(path.is_relative_to(each) for each in self.found):
            return False
        if is_marked(path):
            return True
        self.remarks.extend(filter(None, [unmarked(path)]))
        return False

    def why_nothing(self) -> str:
        """What to say where no budget was found."""
        if self.missing:
            names = ", ".join(str(path) for path in self.missing)
            return f"{names} does not exist: write a budget there, or set ini {PATHS}"
        names = ", ".join(str(path) for path in self.found) or "the paths given"
        return f"no YAML file with the key model_budget under {names}"

    def _found(self) -> tuple[Path, ...]:
        config = self.config
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            given = (arg.partition("::")[0] for arg in config.args)
            return tuple(absolute(config.invocation_params.dir, path) for path in given)
        names = config.getini(PATHS)
        paths = [absolute(config.rootpath, name) for name in names]
        self.missing = [path for path in paths if not path.exists()]
        if self.missing and names != DEFAULT_PATHS:
            raise pytest.UsageError(
                f"{PATHS} names {self.missing[0]}, which does not exist: "
                f"create it, or correct {config.inipath or 'the configuration'}"
            )
        found = tuple(path for path in paths if path not in self.missing)
        config.args.extend(str(path) for path in found if not self._is_visited(path))
        return found

    def _is_visited(self, path: Path) -> bool:
        """Whether pytest comes by this path anyway.

        Beside the directory that pytest was started in, pytest 8.0 to 8.4 drop it when more
        arguments are added, so nothing may be added that lies inside.
        """
        start = self.config.invocation_params.dir
        return any(path.is_relative_to(absolute(start, arg)) for arg in self.config.args)


def is_marked(path: Path) -> bool:
    """Whether a YAML file says that it is a budget; one that cannot be read may be one."""
    try:
        return is_budget(path.read_bytes())
    except OSError:
        return True


def unmarked(path: Path) -> str | None:
    """What to say of a file that must be meant for a budget and does not carry the marker."""
    key = misspelt_marker(path.read_bytes())
    return None if key is None else f"{path.name} is not held: its key '{key}' is not model_budget"
