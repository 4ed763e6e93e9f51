"""Hooks of the pytest plugin, a few lines each.

Everybody who installs the package pays for importing this file in every pytest run: so nothing of the project but its
options is imported before ``--model-budget`` is given, and the hooks live in ``Gate``, which is registered only then.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import pytest

from pytest_modelbudget.pytest_plugin import hookspecs
from pytest_modelbudget.pytest_plugin.options import SWITCH, add_options, idle_options, is_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pytest_modelbudget.pytest_plugin.fixture import BudgetedModel


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switch, the report files, lock files, and where budgets are looked for."""
    add_options(parser)


GATE = "modelbudget-gate"  # the name of the plugin that checks limits
ENDED_EARLY = (
    "nothing measured: something ended the session before its end, or switched it off, "
    "such as an exit() in a conftest.py: take it out"
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Let no conftest.py end the session with code 0 while it is imported, before there is one."""
    try:
        return (yield)
    except SystemExit as end:
        if end.code or not getattr(early_config.known_args_namespace, "model_budget", False):
            raise
        raise pytest.UsageError(ENDED_EARLY) from end


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that a conftest.py may implement."""
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Fail a session that something ended before its end."""
    is_asked = config.getoption("model_budget") and not is_idle(config) and not hasattr(config, "workerinput")
    code = yield  # in which hooks may change the options
    if code or not is_asked or getattr(config.pluginmanager.get_plugin(GATE), "is_finished", False):
        return code
    sys.stderr.write(f"ERROR: {ENDED_EARLY}\n")
    return pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and with the switch everything else."""
    config.addinivalue_line("markers", "model_budget: a limit on a model, from a budget file")
    if config.getoption("model_budget"):
        _register(config)
        return
    for option in idle_options(config):
        raise pytest.UsageError(f"{option} needs {SWITCH}: without it no budget is checked")


class AsCompiled(MetaPathFinder):
    """Finds this project's modules as they were compiled, ahead of pytest's finder, which rewrites assertions.

    Ours hold none that tells values, and rewriting them takes longer than measuring most models.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("pytest_modelbudget.") else None


def _register(config: pytest.Config) -> None:
    """Register what collects, listens and reports."""
    finder = AsCompiled()
    sys.meta_path.insert(0, finder)
    config.add_cleanup(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
    from pytest_modelbudget.gate.process_state import collection_paused

    with collection_paused():
        from pytest_modelbudget.pytest_plugin.gate import Gate
        from pytest_modelbudget.pytest_plugin.github import GitHub, is_on_github

    gate = Gate(config)
    for plugin, name in ((gate, GATE), (gate.shard, "modelbudget-shard")):
        if plugin is not None and config.pluginmanager.register(plugin, name) is None:
            raise pytest.UsageError(f"-p no:{name} lets nothing be measured: take it out")
    if hasattr(config, "workerinput"):
        return
    if is_on_github() and gate.shard is None:  # merging tells it once, of all shards
        config.pluginmanager.register(GitHub(config), "modelbudget-github")


@pytest.fixture
def model_budget(request: pytest.FixtureRequest) -> Iterator[Callable[..., BudgetedModel]]:
    """Budgets written in a test: ``model_budget(model, inputs).within(params="12 M")``."""
    from pytest_modelbudget.pytest_plugin.fixture import budgeted_models

    yield from budgeted_models(request)
