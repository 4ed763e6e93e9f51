"""Questions about classes that are asked once: what holds of an object's class is then one look-up, and no call."""

import sys
from collections.abc import Callable
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

FRAMEWORKS = frozenset({"torch", "numpy", "builtins"})  # whose objects hold nothing of a model


class AskedOnce(dict[Any, bool]):
    """Whether something holds, by class: ``IS_TENSOR[type(value)]``."""

    def __init__(self, holds: Callable[[Any], bool]) -> None:
        super().__init__()
        self._holds = holds

    def __missing__(self, kind: Any) -> bool:
        self[kind] = holds = self._holds(kind)
        return holds


def _is_plain(kind: type) -> bool:
    """Whether objects of a class are looked into: somebody's own, with attributes in a dict."""
    home = kind.__module__.partition(".")[0]
    is_own = home not in FRAMEWORKS and home not in sys.stdlib_module_names
    is_apart = issubclass(kind, (torch.nn.Module, torch.Tensor, type, ModuleType, Enum))
    return (is_own or kind is SimpleNamespace) and not is_apart and kind.__dictoffset__ != 0


IS_PLAIN = AskedOnce(_is_plain)
