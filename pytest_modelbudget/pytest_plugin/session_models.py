"""The models of a session: how they are measured, in which process, and the lock files that they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget import lock_file
from pytest_modelbudget.errors import ExtensionError, user_code
from pytest_modelbudget.gate import measuring, python_files, reuse, watch
from pytest_modelbudget.gate.in_own_process import Extension, SessionSetup, as_the_session
from pytest_modelbudget.gate.own_process import Bounds, OwnProcess
from pytest_modelbudget.pytest_plugin.options import (
    ISOLATE,
    ISOLATE_INI,
    MEMORY,
    MEMORY_INI,
    NO_CACHE,
    TIMEOUT,
    TIMEOUT_INI,
    UPDATE,
    asked_shard,
    report_files,
)
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.table import FILE_REPORTS

BASELINES = pytest.StashKey[lock_file.Baselines]()
UNWRITTEN = pytest.StashKey[list[str]]()  # why a page that nobody asked for by an option could not be written
REUSED = pytest.StashKey[reuse.ReusedModels]()
WATCH = pytest.StashKey[watch.Watch]()
_MODELS = pytest.StashKey[measuring.MeasuredModels]()
_EXTENSIONS = pytest.StashKey[tuple[object, ...]]()


def models_of(config: pytest.Config) -> measuring.MeasuredModels:
    """The models of this session, measured with all installed and given extensions.

    Raises ExtensionError, at every call, where an extension is broken.
    """
    if _MODELS not in config.stash:
        with user_code("the hook pytest_model_budget_extensions", ExtensionError):
            extensions: tuple[object, ...] = tuple(_flat(config.hook.pytest_model_budget_extensions(config=config)))
            registry = tables(extensions)
        asked = FILE_REPORTS if asked_shard(config) else [report for report, _ in report_files(config)]
        profiles = [report.profile for report in asked if report.profile]  # any may be merged from a shard
        profile = import_module(profiles[0]).profile if profiles else None
        store = _store(config, extensions)
        config.stash[_MODELS] = measuring.MeasuredModels(registry, root=config.rootpath, profile=profile, store=store)
        config.stash[_EXTENSIONS] = extensions
    return config.stash[_MODELS]


def _flat(returned: Iterable[object]) -> Iterator[object]:
    """The extensions that hooks returned, one by one or in lists."""
    for extension in returned:
        if isinstance(extension, (list, tuple)):
            yield from extension
        elif extension is not None:
            yield extension


def _store(config: pytest.Config, extensions: tuple[object, ...]) -> reuse.ReusedModels | None:
    """The measurements of earlier sessions, in pytest's cache; None without one."""
    cache = getattr(config, "cache", None)
    if cache is None or config.getoption(NO_CACHE):
        return None
    with suppress(OSError):  # a cache that nobody can write to
        folder = Path(cache.mkdir("model-budget"))
        config.stash[REUSED] = reuse.ReusedModels(
            folder, lambda: (*extensions, *_own_plugins(config)), root=config.rootpath
        )
    return config.stash.get(REUSED, None)


def _own_plugins(config: pytest.Config) -> Iterator[object]:
    """The plugins of a session that are files and that nobody installed, each conftest.py among them."""
    files = ((each, getattr(each, "__file__", None)) for each in config.pluginmanager.get_plugins())
    yield from (each for each, file in files if file and not python_files.is_installed(file))


class OwnPlugins(NamedTuple):
    """The files of those plugins, with the modules of the project's own that they import.

    has_hooks: one of them implements a hook of pytest, or names further plugins: else it leaves out nothing itself.
    """

    files: tuple[str, ...] = ()
    has_hooks: bool = False


def own_plugins(config: pytest.Config) -> OwnPlugins:
    """What a session has of those plugins."""
    plugins = [*_own_plugins(config)]
    hooked = (config.pluginmanager.get_hookcallers(each) or hasattr(each, "pytest_plugins") for each in plugins)
    return OwnPlugins(tuple(sorted(map(str, reuse.sources_of(plugins)))), any(hooked))


def baselines_of(config: pytest.Config) -> lock_file.Baselines:
    """The lock files that checks are compared with."""
    return config.stash.setdefault(BASELINES, lock_file.Baselines(config.rootpath))


def keeps_parts(
    config: pytest.Config, path: Path, budget_path: str, on_devices: Iterable[budgets.DeploymentCheck]
) -> bool:
    """Whether the parts of a model's numbers are needed: a lock knows it, there or on a device, or is to be written."""
    paths = (budget_path, *(budgets.path_of(budget_path, check.name) for check in on_devices))
    return bool(config.getoption(UPDATE)) or any(baselines_of(config).knows(path, each) for each in paths)


def own_process(config: pytest.Config, budget: budgets.ModelBudget) -> OwnProcess | None:
    """A process for one model, where its budget or the session asks for one; not yet started."""
    bounds = isolation_bounds(config, budget.isolation)
    return OwnProcess(bounds, lambda: _setup(config)) if bounds else None


def isolation_bounds(config: pytest.Config, asked: budgets.Isolation = budgets.SAYS_NOTHING) -> Bounds | None:
    """The most that the process of a model may take; None where it has none of its own."""
    by_session = bool(config.getoption(ISOLATE) or config.getini(ISOLATE_INI))
    by_budget = asked.isolate or asked.timeout is not None or asked.memory is not None
    if asked.isolate is False or not (by_session or by_budget):
        return None
    timeout = asked.timeout or config.getoption(TIMEOUT) or config.getini(TIMEOUT_INI)
    memory = asked.memory or config.getoption(MEMORY) or config.getini(MEMORY_INI)
    return Bounds(timeout, memory)


def _setup(config: pytest.Config) -> SessionSetup:
    """What a process needs to measure as this one would."""
    models = models_of(config)
    modules = config.stash[_EXTENSIONS]
    extensions = tuple(Extension.of(module) for module in modules)
    return as_the_session(SessionSetup(config.rootpath, extensions, models.profile))
