"""The laws of the tree: who may import whom, where frameworks live, and how long things are."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_modelbudget"
ORDER = (
    "errors", "units", "quantities", "ir", "ops", "metrics", "frontends", "equivalence",
    "transforms", "budget", "verdict", "reports", "check", "cli", "pytest_hookspecs",
    "pytest_options", "pytest_limits", "pytest_transforms", "pytest_items", "pytest_fixture",
    "pytest_locks", "pytest_budget_paths", "pytest_gate", "pytest_github", "pytest_progress",
    "pytest_plugin",
)  # fmt: skip
VERSION = "pytest_modelbudget.__version__"
# Framework -> where it may be imported, as globs from the package's root.
HOMES = {
    "torch": ("frontends/torch_*", "equivalence/*torch*", "transforms/*torch*"),
    "torchvision": ("frontends/torch_*",),
    "transformers": (),
    "onnx": ("frontends/onnx_*", "equivalence/*onnx*", "transforms/*onnx*"),
    "onnxruntime": ("frontends/onnx_*", "equivalence/*onnx*", "transforms/*onnx*"),
    "onnx_ir": ("frontends/onnx_*", "equivalence/*onnx*", "transforms/*onnx*"),
    "yaml": ("budget/*",),
    "ruamel": ("budget/*",),
    "pytest": ("pytest_*",),
    "jinja2": ("reports/html_*",),
    "_pytest": (),
}
HEAVY = ("torch", "onnx", "numpy", "yaml")
VAGUE = {"util", "utils", "helper", "helpers", "common", "core", "manager", "handler", "info",
         "data", "misc", "base"}  # fmt: skip
TORCH = {"torch", "torchvision", "transformers"}
MOST_LINES, MOST_FUNCTION_LINES = 400, 50

SOURCES = sorted(PACKAGE.rglob("*.py"))
ALL_SOURCES = sorted(
    path
    for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    for path in folder.rglob("*.py")
)


def from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a piece of code imports; "a.b" of ``from a import b`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def position(path: Path) -> int:
    """Place of a file's top-level name in the order."""
    return ORDER.index(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


@pytest.mark.parametrize("path", SOURCES, ids=from_root)
def test_names_are_imported_from_the_left_only(path: Path) -> None:
    """Every module imports its own name's and those left of it in the order; __init__ none."""
    inside = (name for name in imports(syntax(path)) if name.split(".")[0] == PACKAGE.name)
    own = [name for name in inside if name != VERSION]
    if path == PACKAGE / "__init__.py":
        eager = [node for node in syntax(path).body if not is_lazy(node)]
        assert not [name for node in eager for name in imports(node) if name in own]
        return
    wrong = [name for name in own if ORDER.index(name.split(".")[1]) > position(path)]
    assert not wrong, f"{from_root(path)} imports from its right: {wrong}"


def is_lazy(node: ast.stmt) -> bool:
    """Whether importing the module leaves this statement's body alone."""
    typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return typing_only or isinstance(node, ast.FunctionDef)


@pytest.mark.parametrize("path", SOURCES, ids=from_root)
def test_frameworks_stay_at_home(path: Path) -> None:
    """A framework is imported only by the files that may know it."""
    relative = path.relative_to(PACKAGE)
    astray = [
        name
        for name in imports(syntax(path))
        if name.split(".")[0] in HOMES
        and not any(relative.match(home) for home in HOMES[name.split(".")[0]])
    ]
    assert not astray, f"{from_root(path)} imports {astray}"


@pytest.mark.parametrize("path", SOURCES, ids=from_root)
def test_numpy_is_imported_inside_functions(path: Path) -> None:
    """numpy costs 0.4 s, so no module imports it by being imported."""
    top = [node for node in syntax(path).body if not is_lazy(node)]
    assert not [name for node in top for name in imports(node) if name.split(".")[0] == "numpy"]


@pytest.mark.parametrize("module", ["pytest_modelbudget", "pytest_modelbudget.pytest_plugin"])
def test_importing_brings_in_nothing_heavy(module: str) -> None:
    """The package and its plugin cost a test session that has no budgets next to nothing."""
    code = f"import pytest, sys, {module}; print(*set(sys.modules).intersection({HEAVY}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not run.stdout.split()


@pytest.mark.parametrize("path", ALL_SOURCES, ids=from_root)
def test_files_and_functions_stay_short(path: Path) -> None:
    """A file holds one concept, and a function fits on a screen."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(syntax(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    ]
    assert not long


@pytest.mark.parametrize("path", ALL_SOURCES, ids=from_root)
def test_file_names_promise_something(path: Path) -> None:
    """No file is called after what could be anything."""
    assert not VAGUE & set(path.stem.split("_"))


@pytest.mark.parametrize("path", ALL_SOURCES, ids=from_root)
def test_every_file_says_what_it_is(path: Path) -> None:
    """A one-sentence docstring opens every file that holds anything."""
    if not path.read_text(encoding="utf-8").strip():
        return
    docstring = ast.get_docstring(syntax(path))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", "?"))


@pytest.mark.parametrize("path", [*(ROOT / "tests").rglob("*onnx*.py")], ids=from_root)
def test_tests_named_after_onnx_need_no_torch(path: Path) -> None:
    """The README's onnx command takes tests by that name; they build on neighbours of that name."""
    nodes = [node for node in ast.walk(syntax(path)) if isinstance(node, ast.ImportFrom)]
    neighbours = [node.module or "" for node in nodes if node.level]
    absolute = [node.module or "" for node in nodes if not node.level]
    named = [alias.name for node in ast.walk(syntax(path)) if isinstance(node, ast.Import)
             for alias in node.names]  # fmt: skip
    assert not [name for name in neighbours if "onnx" not in name]
    assert not {name.split(".")[0] for name in (*absolute, *named)} & TORCH
