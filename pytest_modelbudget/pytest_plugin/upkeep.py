"""The processes of a session, from the preloaded server to the release of each model.

The server loads frameworks while pytest collects, requests are carried out ahead of their items, and the answers of a
model are released when its last item ran.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.formats.table import FORMATS
from pytest_modelbudget.gate.pool import ModelProcess
from pytest_modelbudget.gate.preload import installed_modules
from pytest_modelbudget.gate.worker import Request
from pytest_modelbudget.pytest_plugin import items
from pytest_modelbudget.pytest_plugin.session_models import models_of, pool_of
from pytest_modelbudget.transforms.table import TRANSFORMS

KEY = re.compile(r"(?:^|[{,\s])['\"]?(\w+)['\"]?:")  # a key of YAML, in whichever style
TARGET = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]")  # "package.module" of "package.module:callable"


def preload(config: pytest.Config, budget_files: Iterable[Path]) -> None:
    """Let the server of the session load what the text of budgets names, while pytest collects.

    Budgets are scanned and not parsed: a word too many costs the server an import, one too few costs each child that
    import.
    """
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


def plan(session: pytest.Session) -> None:
    """Let the pool carry out what the items of a session will ask for, each model in a process of its own.

    An xdist worker knows of no item that it will run before it does.
    """
    limits = [item for item in session.items if isinstance(item, items.BudgetItem) and item.getparent(items.ModelNode)]
    if not limits:
        return
    models_of(session.config).prepare()
    planned: dict[ModelProcess, dict[str, Request[object]]] = {}
    for item in limits if not hasattr(session.config, "workerinput") else ():
        model = item.getparent(items.ModelNode)
        assert model is not None, "limits are below a model"
        runner = model.runner
        if isinstance(runner, ModelProcess) and not item.is_idle:
            requests = planned.setdefault(runner, {})
            requests.update((repr(request), request) for request in items.requests_of(item))
    if planned:
        models_of(session.config).pool.plan((runner, [*requests.values()]) for runner, requests in planned.items())


class OpenItems:
    """The items of a session that have not run yet, by the models that keep graphs and numbers for them.

    Each model lets go when its last item ran. In a worker of xdist that another one took items from, that is never: it
    keeps the numbers of the models that both measured.
    """

    def __init__(self, session_items: Collection[pytest.Item]) -> None:
        self._open: defaultdict[items.ModelNode, set[pytest.Item]] = defaultdict(set)
        for item in session_items:
            if model := item.getparent(items.ModelNode):
                if model not in self._open:
                    model.expect()
                self._open[model].add(item)

    def close(self, item: pytest.Item) -> None:
        """Note that an item ran, as often as it had to."""
        model = item.getparent(items.ModelNode)
        if model is None:
            return
        left = self._open.get(model, set())
        left.discard(item)
        if not left and self._open.pop(model, None) is not None:
            model.release()
