"""What models take beside their items: processes before the first one runs, memory until the last one ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import pytest

from pytest_modelbudget.formats.source import names_attribute
from pytest_modelbudget.gate import forked, own_process
from pytest_modelbudget.pytest_plugin import items
from pytest_modelbudget.pytest_plugin.session_models import models_of
from pytest_modelbudget.registry import Tables


def prepare_processes(session: pytest.Session) -> None:
    """Let processes start with what reads and changes the models that they are for, and with what these import."""
    formats: set[tuple[str, str]] = set()  # with transforms on models of them
    targets: set[str] = set()
    for item in session.items:
        model, changed = item.getparent(items.ModelNode), item.getparent(items.TransformNode)
        if model is not None and model.process is not None:
            formats.add((model.source.format, changed.check.transform if changed is not None else ""))
            targets.add(str(model.source.target))
    if formats:
        modules = _modules(models_of(session.config).registry, sorted(formats))
        own = sorted(target.partition(":")[0] for target in targets if names_attribute(target))
        own_process.load_first([*modules, *forked.installed_modules(own, session.config.rootpath)])


def _modules(registry: Tables, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """The modules that read some formats, and those that change models of them."""
    modules = []
    for key, transform in wanted:
        format = registry.formats[key]
        modules.append(format.module)
        if transform:
            modules += [registry.transforms[transform].module_for(format), *format.compared_with]
    return list(dict.fromkeys(modules))


class OpenItems:
    """The items of a session that have not run yet, by what holds graphs and numbers for them.

    Each lets go when its last item ran. In a worker that another one took items from, that is never: it keeps numbers
    of the models that were cut in two.
    """

    def __init__(self, session_items: Collection[pytest.Item]) -> None:
        self._open: defaultdict[items.ModelNode | items.TransformNode, set[pytest.Item]] = defaultdict(set)
        for item in session_items:
            for holder in _holders(item):
                if isinstance(holder, items.ModelNode) and holder not in self._open:
                    holder.expect()
                self._open[holder].add(item)

    def close(self, item: pytest.Item) -> None:
        """Note that an item ran, as often as it had to."""
        for holder in _holders(item):
            left = self._open.get(holder, set())
            left.discard(item)
            if not left and self._open.pop(holder, None) is not None:
                holder.release()


def _holders(item: pytest.Item) -> Iterator[items.ModelNode | items.TransformNode]:
    """What measures for an item: the transform that it is about, and its model."""
    nodes = item.getparent(items.TransformNode), item.getparent(items.ModelNode)
    yield from (node for node in nodes if node is not None)
