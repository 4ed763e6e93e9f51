"""A script whose forward stayed in Python cannot be run from a file, and a module around it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget import SourceError, TensorSpec, measure

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's own, of quantisation and scripts

STEPS = [TensorSpec("float32", (5, 2, 8))]
MACS = 5 * 2 * 4 * 6 * (8 + 6)  # 5 steps of 2 rows, 4 gates of 6, each of 8 inputs and 6 of the state
QUANTISED = "LSTM as a script has no forward, which stayed in Python .torch.jit.ignore.: script a module that calls it"
OVERLOADED = "LSTM as a script has no forward, but overloads, of which torch calls none: script a module that calls it"


class Around(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(x)
        return out


def layer() -> nn.Module:
    return torch.ao.nn.quantized.dynamic.LSTM(8, 6).eval()


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize(("made", "words"), [(layer, QUANTISED), (lambda: nn.LSTM(8, 6), OVERLOADED)])
def test_a_script_without_a_forward_is_refused(
    made: Callable[[], nn.Module], words: str, is_saved: bool, tmp_path: Path
) -> None:
    """From memory and from a file, which torch itself does not run."""
    script = torch.jit.script(made())
    torch.jit.save(script, tmp_path / "layer.pt")
    with pytest.raises(AttributeError, match="forward"):
        torch.jit.load(tmp_path / "layer.pt")(torch.zeros(5, 2, 8))
    with pytest.raises(SourceError, match=words):
        measure(tmp_path / "layer.pt" if is_saved else script, STEPS)


def test_a_module_around_it_is_measured() -> None:
    found = measure(torch.jit.script(Around(layer())), STEPS)
    assert (found["macs"].value, found["macs"].complete) == (MACS, True)
