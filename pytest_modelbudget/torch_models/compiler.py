"""Torch's compiler stays unloaded where it is only told to compile nothing: loading it takes as long as torch itself.

``torch._compile._disable_dynamo`` guards the Python kernels of elementwise operators and some functions of torch. The
first call of each imports the compiler, and asks it for the function to call instead. What was never loaded compiles
nothing, so that the function itself is that.
"""

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pytest_modelbudget.torch_models.patches import replaced

COMPILER, GUARDS = "torch._dynamo", "torch._compile"
ANSWER = "__dynamo_disable"  # where a guarded function keeps what is called instead


@contextmanager
def unloaded() -> Iterator[None]:
    """Guards call what they guard; afterwards they ask the compiler again. Whoever else imports it, has it."""
    imported, guarded = builtins.__import__, []

    def disable(function: Callable[..., Any], *rest: Any, **options: Any) -> Callable[..., Any]:
        guarded.append(function)
        return function

    torch_of_guards = SimpleNamespace(_dynamo=SimpleNamespace(disable=disable))

    def importing(name: str, globals: Any = None, *rest: Any, **options: Any) -> Any:
        is_asked = name == COMPILER and (globals or {}).get("__name__") == GUARDS
        if is_asked and COMPILER not in sys.modules:
            return torch_of_guards
        return imported(name, globals, *rest, **options)

    try:
        with replaced([(builtins, "__import__", importing)]):
            yield
    finally:
        for function in guarded:
            if hasattr(function, ANSWER):  # which a built-in function has no place for
                delattr(function, ANSWER)
