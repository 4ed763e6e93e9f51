"""Questions about classes that are asked once: what holds of an object's class is then one look-up, and no call."""

from collections.abc import Callable
from typing import Any


class AskedOnce(dict[Any, bool]):
    """Whether something holds, by class: ``IS_TENSOR[type(value)]``."""

    def __init__(self, holds: Callable[[Any], bool]) -> None:
        super().__init__()
        self._holds = holds

    def __missing__(self, kind: Any) -> bool:
        self[kind] = holds = self._holds(kind)
        return holds
