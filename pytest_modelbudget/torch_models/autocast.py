"""``torch.autocast`` around and within a forward pass: what it casts is seen, or said."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.patching import replaced

# Every way to ask for autocast, or to switch it on; torch.autocast goes through them.
SWITCHES: tuple[tuple[Any, str], ...] = (
    (torch, "set_autocast_enabled"),
    (torch, "set_autocast_cpu_enabled"),
    (torch, "is_autocast_enabled"),
    (torch, "get_autocast_dtype"),
    (torch._C, "_is_autocast_available"),
)


class Switches:
    """Refuses autocast of the CPU on tensors without memory, whose operators it does not cast, and notes any other.

    What is asked about meta, which has no autocast, is refused too: in a run it is asked about the CPU.
    """

    def __init__(self, notes: list[str], way: str) -> None:
        self._notes = notes
        self._is_on_meta = way == "meta"
        self.refused: TraceError | None = None

    def refuse(self) -> None:
        """Raise TraceError on meta."""
        if self._is_on_meta:
            words = "the forward pass casts under torch.autocast, which tensors without memory do not see"
            self.refused = TraceError(words)
            raise self.refused

    def watched(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        """The switch of this name behind a watch."""

        def switch(*which: Any, **named: Any) -> Any:
            given = (*which, *named.values())
            if "meta" in given or (True in given and ("cpu" in given or "cpu" in name)):
                self.refuse()
            elif name == "set_autocast_enabled" and isinstance(given[0], str) and given[0] != "cpu":
                self._notes.append(f"torch.autocast of {given[0]} casts nothing here: counted as in a run on a CPU")
            return own(*which, **named)

        return switch


@contextmanager
def autocast_watched(notes: list[str], way: str) -> Iterator[None]:
    """A forward pass in this context is seen with the casts that a run on a CPU has.

    Raises TraceError on meta where the CPU's autocast is on or is switched on, also where the pass has caught that:
    what it did then is no pass of the model.
    """
    switches = Switches(notes, way)
    if torch.is_autocast_enabled("cpu"):
        switches.refuse()
    with replaced((owner, name, switches.watched(name, getattr(owner, name))) for owner, name in SWITCHES):
        yield
    if switches.refused is not None:
        raise switches.refused
