"""What models take beside their items: processes before the first one runs, memory until the last one ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from pytest_modelbudget.formats.source import names_attribute
from pytest_modelbudget.gate import forked, isolation
from pytest_modelbudget.pytest_plugin import items
from pytest_modelbudget.registry import Tables


def prepare_processes(session: pytest.Session) -> None:
    """Let processes start with what reads and changes the models that they are for, and with what these import."""
    formats: set[tuple[str, str]] = set()  # with transforms on models of them
    targets: set[str] = set()
    for item in session.items:
        node = item.parent
        owner = node.parent if isinstance(node, (items.TransformNode, items.DeploymentNode)) else node
        if isinstance(owner, items.ModelNode) and owner.process is not None:
            formats.add((owner.source.format, node.check.transform if isinstance(node, items.TransformNode) else ""))
            targets.add(str(owner.source.target))
    if formats:
        modules = _modules(items.models_of(session.config).registry, sorted(formats))
        own = sorted(target.partition(":")[0] for target in targets if names_attribute(target))
        isolation.load_first([*modules, *forked.installed_modules(own, session.config.rootpath)])


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

    def __init__(self, session_items: Iterable[pytest.Item]) -> None:
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
    """What measures for an item: its model, and before it the transform that it is about."""
    node = item.parent
    while node is not None:
        if isinstance(node, (items.ModelNode, items.TransformNode)):
            yield node
        if isinstance(node, items.ModelNode):
            return
        node = node.parent
