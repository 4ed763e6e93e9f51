"""Modules of this project as they were compiled, in a session that measures.

Pytest rewrites every module of every package that brings a plugin, so that a failed ``assert`` in it tells values. Ours
hold no such assertion, and rewriting them takes longer than measuring most models, wherever nothing keeps the result:
in each job of a CI, and where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    import pytest

OURS = "pytest_modelbudget."


class AsCompiled(MetaPathFinder):
    """Finds this project's modules, ahead of the finder that rewrites."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module of ours is; None for all others."""
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith(OURS) else None


def import_as_compiled(config: pytest.Config) -> None:
    """Import modules of ours without rewriting them, until the session ends."""
    finder = AsCompiled()
    sys.meta_path.insert(0, finder)
    config.add_cleanup(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
