"""What all tests share: the plugin for testing plugins, no sign of CI, and the switch for torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest import pytester as pytesters

import pytest_modelbudget.pytest_plugin.items  # noqa: F401  # pytester forgets what runs import anew
from pytest_modelbudget.formats import table as formats_table
from pytest_modelbudget.gate.pool import Pool
from tests.builders.marks import ALL_MODELS, marks_of
from tests.builders.project import LEAN, Project

pytest_plugins = ["pytester"]
if find_spec("hypothesis"):  # which ONNX alone is tested without
    from hypothesis import settings

    # Speed is measured in benchmarks/, never by a test on a machine that does other work besides.
    settings.register_profile("untimed", deadline=None, max_examples=100 if ALL_MODELS else 50)
    settings.load_profile("untimed")


# Frameworks register things with their C code as they are loaded, and cannot be loaded twice.
LOADED_ONCE = frozenset(
    {"numpy", "onnx", "onnxruntime", "onnxscript", "sympy", "torch", "torchvision", "transformers", "triton"}
)


class KeptFrameworks(pytesters.SysModulesSnapshot):
    """What pytester forgets after a run inside this process, but for frameworks."""

    def __init__(self, preserve: Callable[[str], bool] | None = None) -> None:
        super().__init__(
            lambda name: name.partition(".")[0] in LOADED_ONCE or (preserve is not None and preserve(name))
        )


pytesters.SysModulesSnapshot = KeptFrameworks  # type: ignore[misc]  # pytester has no setting for it


def read_once(read: Callable[[Distribution], Any]) -> property:
    """What an installed package says of itself, which each session that a test starts reads again, of some 200."""
    known: dict[str, Any] = {}

    def reading(package: Distribution) -> Any:
        path = str(getattr(package, "_path", ""))
        if not path.startswith(sys.prefix):  # a test's own, which may change
            return read(package)
        if path not in known:
            known[path] = read(package)
        return known[path]

    return property(reading)


for said in ("entry_points", "files"):
    setattr(Distribution, said, read_once(getattr(Distribution, said).fget))
SIGNS = ("CI", "BUILD_NUMBER", "TF_BUILD")
WITHOUT_TORCH = "MODELBUDGET_WITHOUT_TORCH" in os.environ
LEFT_OUT = pytest.StashKey[list[str]]()
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:
    # Each worker's torch would start a thread a core, and threads without a core wait by spinning.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))
# Else each session that a test starts compiles the package, and rewrites its asserts, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where torch must be absent, a module marked needs_torch is left out before its import fails.

    Nothing but the mark is looked at: a module without it is imported, and fails aloud.
    """
    if not WITHOUT_TORCH or not collection_path.match("test_*.py"):
        return None
    if "needs_torch" not in marks_of(collection_path):
        return None
    config.stash[LEFT_OUT].append(collection_path.name)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items stay until the end: no search for garbage looks at them, a fifth of this time, or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no worker is left with one when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that is done takes over what another has not begun: slow tests come first, and all on one."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """How many modules the switch left out; ``-m "not needs_torch"`` counts single tests itself."""
    names = config.stash[LEFT_OUT]
    return [f"without torch: {len(names)} modules marked needs_torch left out"] if names else []


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run alike on a desk and in CI: what the plugin does there, they say themselves."""
    for name in [each for each in os.environ if each in SIGNS or each.startswith("GITHUB_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test's own modules go with it: the next test may have a module of the same name in another folder."""
    known, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def lean_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are sessions that tests run by other means than a project."""
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(LEAN))


@pytest.fixture(autouse=True)
def warm_server(request: pytest.FixtureRequest, no_ci: None, lean_sessions: None) -> None:
    """One server forks the children of all sessions in this process: the first may have a model of another framework.

    A child that imports torch itself takes two seconds.
    """
    if "pytester" in request.fixturenames and "torch" in sys.modules:
        Pool(1).preload([name for name in ("onnx", "onnxruntime", "torch") if find_spec(name)])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project to run pytest in; the format that it adds is gone with it."""
    monkeypatch.setattr(formats_table, "FORMATS", formats_table.FORMATS)
    monkeypatch.setenv("COLUMNS", "400")  # failures and remarks are folded in a narrower terminal
    pytester.syspathinsert()
    return Project(pytester)
