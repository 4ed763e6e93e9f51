"""The models of a session: what measures them, in which process, and the lock files that they are compared with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget import revision
from pytest_modelbudget.budget.base_inventory import Baselines
from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.errors import ExtensionError, IsolationError, user_code
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import FORMATS
from pytest_modelbudget.formats.user_modules import Roots, import_roots, is_installed
from pytest_modelbudget.gate import watch
from pytest_modelbudget.gate.pool import Bounds, InSession, ModelProcess, Pool, usable_cores
from pytest_modelbudget.gate.preload import installed_modules
from pytest_modelbudget.gate.worker import ModuleFile, SessionSetup, Worker
from pytest_modelbudget.pytest_plugin import options
from pytest_modelbudget.registry import Tables, installed_extensions, joined_tables
from pytest_modelbudget.reports.table import FILE_REPORTS
from pytest_modelbudget.transforms.table import TRANSFORMS

KEY = re.compile(r"(?:^|[{,\s])['\"]?(\w+)['\"]?:")  # a key of YAML, in whichever style
TARGET = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]")  # "package.module" of "package.module:callable"


def preload(config: pytest.Config, budget_files: Iterable[Path]) -> None:
    """Let the server of the session load what the text of budgets names, while pytest collects."""
    pool = pool_of(config)
    if not pool.workers or (config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")):
        return  # with xdist its workers measure
    text = ""
    for file in budget_files:
        with suppress(OSError):
            content = file.read_bytes()
            text += content.decode("utf-8", "replace") if is_budget(content) else ""
    keys, targets = set(KEY.findall(text)), set(TARGET.findall(text))
    formats = [format for format in FORMATS if format.key in keys]
    modules = [format.module for format in formats]
    for transform in (each for each in TRANSFORMS if each.key in keys):
        modules += [transform.module_for(format) for format in formats if transform.takes(format)]
    if "equivalence" in keys:
        modules += [module for format in formats for module in format.compared_with]
    plugins = (getattr(each, "__file__", None) for each in config.pluginmanager.get_plugins())
    conftests = [Path(file) for file in plugins if file and Path(file).name == "conftest.py"]
    pool.preload(dict.fromkeys([*modules, *installed_modules(targets, conftests, config.rootpath)]))


BASELINES = pytest.StashKey[Baselines]()
UNWRITTEN = pytest.StashKey[list[str]]()  # why a page that nobody asked for by an option could not be written
WATCH = pytest.StashKey[watch.Watch]()
_MODELS = pytest.StashKey["SessionModels"]()
_ROOTS = pytest.StashKey[dict[Path, Roots]]()


class SessionModels:
    """The models of a session, measured in processes of a pool or in the session's own.

    A source that was expected is measured once, and forgotten when all who expected it have released it.
    """

    def __init__(self, config: pytest.Config) -> None:
        with user_code("the hook pytest_model_budget_extensions", ExtensionError):
            given: tuple[object, ...] = tuple(_flat(config.hook.pytest_model_budget_extensions(config=config)))
            self._extensions = (*installed_extensions(), *given)
            self.registry: Tables = joined_tables(self._extensions)
        self.root = config.rootpath
        asked = FILE_REPORTS if options.asked_shard(config) else [report for report, _ in options.report_files(config)]
        profiles = [report.profile for report in asked if report.profile]  # any may be merged from a shard
        self.profile = import_module(profiles[0]).profile if profiles else None
        self._config = config
        self.pool = pool_of(config)
        self.pool.in_session = self._worker
        self._runners: dict[tuple[str, Bounds | None], ModelProcess | InSession] = {}
        self._expected: Counter[tuple[str, Bounds | None]] = Counter()

    def runner(self, source: ModelSource, isolation: budgets.Isolation) -> ModelProcess | InSession:
        """The process that answers requests about a source."""
        bounds = self._bounds(isolation)
        key = repr(source), bounds
        if key not in self._runners:
            in_session = InSession(self._worker(), self.pool.turns)
            self._runners[key] = in_session if bounds is None else self.pool.process(bounds, source.searched(self.root))
        return self._runners[key]

    def expect(self, source: ModelSource, isolation: budgets.Isolation) -> None:
        """Note that requests about a source will come, until it is released."""
        self._expected[repr(source), self._bounds(isolation)] += 1

    def release(self, source: ModelSource, isolation: budgets.Isolation) -> None:
        """Forget a source, unless it is still expected."""
        key = repr(source), self._bounds(isolation)
        self._expected[key] -= 1
        if self._expected[key] <= 0:
            del self._expected[key]
            if runner := self._runners.pop(key, None):
                runner.release()

    def _bounds(self, isolation: budgets.Isolation) -> Bounds | None:
        """The most that the process of a model may take; None in the session's process."""
        if not self.pool.workers or isolation.isolate is False:
            return None
        timeout = isolation.timeout or options.value_of(self._config, options.TIMEOUT)
        return Bounds(timeout, isolation.memory or options.value_of(self._config, options.MEMORY))

    def _worker(self) -> Worker:
        return Worker(self.registry, root=self.root, profile=self.profile)

    def prepare(self) -> None:
        """Note the state of the session that every child takes over, before any item changes it for itself."""
        try:
            plugins = tuple(map(ModuleFile.of, _own_plugins(self._config)))
            extensions = tuple(map(ModuleFile.of, self._extensions))
            self.pool.setup = SessionSetup(self.root, plugins, extensions, self.profile).of_this_process()
        except IsolationError as error:
            self.pool.setup = error


def models_of(config: pytest.Config) -> SessionModels:
    """The models of this session, measured with all installed and given extensions.

    Raises ExtensionError, at every call, where an extension is broken.
    """
    if _MODELS not in config.stash:
        config.stash[_MODELS] = SessionModels(config)
    return config.stash[_MODELS]


_POOL = pytest.StashKey[Pool]()


def pool_of(config: pytest.Config) -> Pool:
    """The processes of this session."""
    if _POOL not in config.stash:
        asked, is_xdist = options.asked_workers(config), hasattr(config, "workerinput")
        workers = asked if asked is not None else 1 if is_xdist else usable_cores()
        config.stash[_POOL] = Pool(workers)
    return config.stash[_POOL]


def _flat(returned: Iterable[object]) -> Iterator[object]:
    """The extensions that hooks returned, one by one or in lists."""
    for extension in returned:
        if isinstance(extension, (list, tuple)):
            yield from extension
        elif extension is not None:
            yield extension


def _own_plugins(config: pytest.Config) -> Iterator[object]:
    """The plugins of a session that are files and not installed, each conftest.py among them."""
    files = ((each, getattr(each, "__file__", None)) for each in config.pluginmanager.get_plugins())
    found = {str(file): each for each, file in files if file and not is_installed(file)}
    yield from (found[file] for file in sorted(found, key=lambda file: (file.count("/"), file)))


def roots_of(config: pytest.Config, folder: Path) -> Roots:
    """The folders that the modules of budgets in a folder are imported from."""
    known = config.stash.setdefault(_ROOTS, {})
    if folder not in known:
        known[folder] = import_roots(folder, config.rootpath, map(Path, config.getini("pythonpath")))
    return known[folder]


def baselines_of(config: pytest.Config) -> Baselines:
    """The lock files that checks are compared with."""
    return config.stash.setdefault(BASELINES, Baselines(config.rootpath))


def keeps_parts(config: pytest.Config, path: Path, budget_path: str, subject: budgets.Subject[Any]) -> bool:
    """Whether the parts of a model's numbers are needed: a lock knows it, there or on a device, or is to be written."""
    paths = (budget_path, *(budgets.path_of(budget_path, part.name) for part in subject.deployments))
    is_written = config.getoption(options.UPDATE) or adds_locks(config)
    return bool(is_written) or any(baselines_of(config).knows(path, each) for each in paths)


def adds_locks(config: pytest.Config) -> bool:
    """Whether a session adds numbers that lock files lack: a whole one on a person's machine, without a base."""
    others = (config.getoption(name) for name in (options.LOCK, options.UPDATE, options.BASE))
    return not (revision.is_ci() or any(others) or options.asked_shard(config))
