"""What a file imports is told from its source, and what of it is installed from where it stands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import pytest_modelbudget
from pytest_modelbudget.formats.user_modules import is_installed
from pytest_modelbudget.gate.preload import installed_modules, top_imports


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import a.b, c as d", ["a.b", "c"], id="modules"),
        pytest.param("from a.b import c, d as e", ["a.b"], id="names of a module"),
        pytest.param("from .b import c\nfrom . import d", [], id="siblings"),
        pytest.param("import a\ndef f():\n    import b\n", ["a"], id="inside a function: it may never happen"),
        pytest.param("import (", [], id="no Python"),
    ],
)
def test_imports_at_the_top(tmp_path: Path, text: str, expected: list[str]) -> None:
    """As Python would resolve them; a file that is none, or is not there, has none."""
    file = tmp_path / "a.py"
    file.write_text(text)
    assert list(top_imports(file)) == expected
    assert list(top_imports(tmp_path / "absent.py")) == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param(json.__file__, True, id="Python's"),
        pytest.param("built-in", True, id="inside Python"),
        pytest.param(pytest.__file__, True, id="a package's"),
        pytest.param("/usr/lib/python3/dist-packages/yaml/__init__.py", True, id="a distribution's"),
        pytest.param(pytest_modelbudget.__file__, True, id="this project's"),
        pytest.param(os.path.join(os.sep, "home", "me", "nets.py"), False, id="a user's"),
    ],
)
def test_what_is_installed(file: str, expected: bool) -> None:
    """Whatever nobody writes who works on a model."""
    assert is_installed(file) is expected


def test_the_installed_modules_behind_a_model(tmp_path: Path) -> None:
    """Of nets.py, which imports a sibling that imports pytest; of Python's own modules those that are files."""
    (tmp_path / "nets.py").write_text("import blocks_of_this_test\nimport json, sys\n")
    (tmp_path / "blocks_of_this_test.py").write_text("from pytest import fixture\n")
    assert installed_modules(["nets", "_pytest.config"], [], tmp_path) == ["_pytest.config", "pytest"]
