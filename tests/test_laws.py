"""Laws of the tree that no linter holds: what importing brings in, names of files, ONNX alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.builders.marks import marks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "onnx", "numpy", "yaml")
VAGUE = {"util", "utils", "helper", "helpers", "common", "core", "manager", "handler", "info",
         "data", "misc"}  # fmt: skip
TORCH = {"torch", "torchvision", "transformers"}
BUILDERS = {f"tests.builders.{path.stem}" for path in (ROOT / "tests" / "builders").glob("*.py")}
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


@pytest.mark.parametrize("path", [*(ROOT / "tests").rglob("test_*.py")], ids=from_root)
def test_what_imports_torch_is_marked(path: Path) -> None:
    """The README's onnx command imports every test module that is not marked needs_torch."""
    if "needs_torch" not in marks_of(path):
        assert not reached(path) & TORCH


def reached(path: Path) -> set[str]:
    """The packages that importing a file of tests imports, through builders too."""
    names = imported(path)
    builders = [ROOT / f"{name.replace('.', '/')}.py" for name in names if name in BUILDERS]
    return {name.split(".")[0] for name in names}.union(*map(reached, builders))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imported(path: Path) -> list[str]:
    """The modules that a file names in its imports, wherever they stand."""
    nodes = nodes_of(path)
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return modules + [n.name for node in nodes if isinstance(node, ast.Import) for n in node.names]


@pytest.mark.parametrize("path", [*(ROOT / "tests").rglob("*.py")], ids=from_root)
def test_what_tests_share_is_no_test(path: Path) -> None:
    """Builders stand in tests/builders, and fixtures reach a test by their name."""
    neighbours = [name for name in imported(path) if name.split(".")[0] == "tests"]
    assert [name for name in neighbours if not name.startswith("tests.builders")] == []


PACKAGE = ROOT / "pytest_modelbudget"
MAY_BE_PRIVATE = [
    PACKAGE / place for place in ("torch_models/versions.py", "torch_models/recording.py", "onnx_models/versions.py")
]
FOREIGN = {"torch", "torchvision", "onnx", "onnxruntime"}
NOT_OF_FRAMEWORKS = {"_replace", "_make", "_fields", "_getframe"}  # Python's
NOT_OF_FRAMEWORKS |= {"_from_config"}  # of transformers: the one way to a class that no Auto class has
MEAN_ANOTHER = {"_dynamo", "_type"}  # where they are quoted: a module that is loaded early; the end of a name
PRIVATE = re.compile(r"_(?!_)\w+")


def private_names(path: Path) -> set[str]:
    """The names beginning with _ that a file imports, or reads from something other than what it defines itself."""
    nodes = nodes_of(path)
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in nodes if isinstance(node, ast.Name)}
    read = [node for node in nodes if isinstance(node, ast.Attribute)]
    own |= {node.attr for node in read if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    names = {
        node.attr for node in read if not ast.unparse(node).startswith("torch.ops.")
    } - own  # no names of operators
    names |= {word for name in imported(path) if not name.startswith("pytest") for word in name.split(".")}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    names |= {each.name for node in froms for each in node.names}
    return {*filter(PRIVATE.fullmatch, names)} - NOT_OF_FRAMEWORKS


def quoted(path: Path) -> set[str]:
    """The words that a file quotes alone, and the parts of dotted ones."""
    nodes = nodes_of(path)
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {
        word for text in texts if re.fullmatch(r"[\w.]+", text) for word in text.split(".") if PRIVATE.fullmatch(word)
    }


def listed_internals() -> list[set[str]]:
    """The private names of each row of CONTRIBUTING's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Internals of torch\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    words = ([word for code in re.findall("`([^`]+)`", row) for word in code.split(".")] for row in rows)
    return [{*filter(PRIVATE.fullmatch, row)} for row in words]


def test_private_names_of_frameworks_stand_in_one_place() -> None:
    """A new version of torch or ONNX Runtime may break versions.py and the recorder, and nothing else."""
    listed = set().union(*listed_internals()) - MEAN_ANOTHER
    using = [path for path in PACKAGE.rglob("*.py") if {name.split(".")[0] for name in imported(path)} & FOREIGN]
    others = [path for path in using if path not in MAY_BE_PRIVATE]
    found = {from_root(path): private_names(path) | quoted(path) & listed for path in others}
    assert {place: names for place, names in found.items() if names} == {}


def test_contributing_lists_the_private_names_that_are_used() -> None:
    rows = listed_internals()
    used = set().union(*map(private_names, MAY_BE_PRIVATE), *map(quoted, MAY_BE_PRIVATE))
    assert used == set().union(*rows)
    assert len(rows) <= 25
    assert len(used) <= 59  # of modules, too, on the way to what is used


TRIED = ("torch", "onnx", "export", "html", "tflite", "test")  # the extras
FRAMEWORKS = {"torch", "torchvision", "onnx", "onnxruntime", "onnxscript", "transformers"}  # of .ci/versions
WHOLE_SUITE = {"onnx", "onnxruntime"}  # in CI not at their bounds, but at the lowest with which all ONNX tests pass
PYTHON = {"python_version": "3.11"}


def test_the_lowest_versions_that_are_tried_are_those_that_are_asked_for() -> None:
    """CI installs .ci/lowest.txt on Python 3.11; whoever moves a bound moves it there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(each for extra in TRIED for each in project["optional-dependencies"][extra])]
    there = [each for each in map(Requirement, listed) if not each.marker or each.marker.evaluate(PYTHON)]
    asked = {each.name: each.specifier for each in there if each.name not in {*FRAMEWORKS, project["name"]}}
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    tried = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {each.name for each in tried} == {*asked, *WHOLE_SUITE}
    for each in tried:
        if each.name in asked:
            (exact,), (least,) = each.specifier, asked[each.name]
            assert Version(exact.version) == Version(least.version), each.name
