"""Models in oneDNN's form, as ``optimize_for_inference`` and ``to_mkldnn`` make them: refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget import ModelBudgetError, measure

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),
]
WORDS = (
    r"torch\.jit\.optimize_for_inference left weights in oneDNN's form, which neither a file holds nor an operator "
    r"reads: give the script that it was made of, or torch\.jit\.freeze\(\) of that$"
)


class Net(nn.Module):
    """A convolution, whose optimised form is oneDNN's, and a layer that stays torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(torch.relu(self.conv(x)).mean((2, 3)))
        return y


class Around(nn.Module):
    """A script as a part of a module."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.part(x)
        return y


def optimised(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.optimize_for_inference(torch.jit.script(model.eval()))  # type: ignore[no-any-return,no-untyped-call]


def test_weights_that_no_file_holds_are_told_with_the_way_out(tmp_path: Path) -> None:
    """In memory, in the file that torch writes and cannot read, and as a part, whose convolution no operator shows."""
    script = optimised(Net())
    torch.jit.save(script, tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    inputs = "float32 1x3x8x8"
    for model, prefix in ((script, ""), (tmp_path / "net.pt", ""), (Around(script), "part: ")):
        with pytest.raises(ModelBudgetError, match=f"^{prefix}{WORDS}"):
            measure(model, inputs)
    macs = 6 * 6 * 8 * 3 * 9 + 8 * 4
    frozen = torch.jit.freeze(torch.jit.script(Net().eval()))  # type: ignore[no-untyped-call]
    assert measure(frozen, inputs)["macs"].value == macs  # the way out
    assert measure(Around(frozen), inputs)["macs"].value == macs


def test_an_optimised_script_without_such_weights_is_measured(tmp_path: Path) -> None:
    """Of linear layers: 8 x 4 + 4 parameters, and 2 rows of 8 x 4 MACs."""
    script = optimised(nn.Linear(8, 4))
    torch.jit.save(script, tmp_path / "layer.pt")  # type: ignore[no-untyped-call]
    for model in (script, tmp_path / "layer.pt", Around(script)):
        measured = measure(model, "float32 2x8")
        assert (measured["params"].value, measured["macs"].value) == (8 * 4 + 4, 2 * 8 * 4)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("inputs", ["float32 1x3x8x8", None])
def test_modules_whose_weights_are_buffers_of_onednn_are_refused(inputs: str | None) -> None:
    """Their params were 0, and complete: 8 filters of 3 x 9 weights and a bias, and 4 x 8 + 4 of the layer."""
    from torch.utils.mkldnn import to_mkldnn  # which declares deprecated methods of scripts as it is imported

    packed = to_mkldnn(Net().eval())  # type: ignore[no-untyped-call]
    for model, prefix in ((packed, ""), (Around(packed), r"part\.")):
        with pytest.raises(
            ModelBudgetError, match=rf"^{prefix}conv\.\w+ is in oneDNN's form, .*: give the model that it"
        ):
            measure(model, inputs)
    assert measure(Net(), inputs).params.value == 8 * 27 + 8 + 4 * 8 + 4
