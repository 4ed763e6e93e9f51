"""``torch.autocast`` around and within a forward pass: its casts are seen, or said."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.patching import replaced

SWITCHES = ("set_autocast_enabled", "set_autocast_cpu_enabled")  # torch.autocast goes through the first
UNSEEN = "the forward pass casts under torch.autocast, which tensors on kernels of meta do not see"


@contextmanager
def autocast_watched(notes: list[str], way: str) -> Iterator[None]:
    """A forward pass in this context is seen with the casts that a run on a CPU has.

    On the way "fake", raises TraceError where the CPU's autocast is on or is switched on, also where the pass has
    caught that; torch's own fake mode casts.
    """
    refused: list[TraceError] = []

    def refuse() -> None:
        if way == "fake":
            refused.append(TraceError(UNSEEN))
            raise refused[-1]

    def watched(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def switch(*which: Any, **named: Any) -> Any:
            given = (*which, *named.values())
            if True in given and ("cpu" in given or "cpu" in name):
                refuse()
            elif isinstance(given[0], str) and given[0] != "cpu":
                notes.append(f"torch.autocast of {given[0]} casts nothing here: counted as in a run on a CPU")
            return own(*which, **named)

        return switch

    if torch.is_autocast_enabled("cpu"):
        refuse()
    with replaced((torch, name, watched(name, getattr(torch, name))) for name in SWITCHES):
        yield
    if refused:
        raise refused[0]
