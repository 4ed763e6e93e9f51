"""Laws of the tree that no linter holds: what importing brings in, names of files, ONNX alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "onnx", "numpy", "yaml")
VAGUE = {"util", "utils", "helper", "helpers", "common", "core", "manager", "handler", "info",
         "data", "misc", "base"}  # fmt: skip
TORCH = {"torch", "torchvision", "transformers"}
SOURCES = sorted(
    path
    for folder in ("pytest_modelbudget", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


def from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("module", ["pytest_modelbudget", "pytest_modelbudget.pytest_plugin"])
def test_importing_brings_in_nothing_heavy(module: str) -> None:
    """The package and its plugin cost a test session that has no budgets next to nothing."""
    code = f"import pytest, sys, {module}; print(*set(sys.modules).intersection({HEAVY}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not run.stdout.split()


def test_file_names_promise_something() -> None:
    """No file is called after what could be anything."""
    assert not [from_root(path) for path in SOURCES if VAGUE & set(path.stem.split("_"))]


@pytest.mark.parametrize("path", [*(ROOT / "tests").rglob("*onnx*.py")], ids=from_root)
def test_tests_named_after_onnx_need_no_torch(path: Path) -> None:
    """The README's onnx command takes tests by that name; they build on neighbours of that name."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    neighbours = [name for name in modules if name.startswith("tests.")]
    assert not [name for name in neighbours if "onnx" not in name]
    assert not {name.split(".")[0] for name in modules} & TORCH


@pytest.mark.parametrize("path", [*(ROOT / "tests").rglob("*.py")], ids=from_root)
def test_what_tests_share_is_no_test(path: Path) -> None:
    """Builders stand in tests/builders, and fixtures reach a test by their name."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    neighbours = [name for name in modules if name.split(".")[0] == "tests"]
    assert [name for name in neighbours if not name.startswith("tests.builders")] == []
