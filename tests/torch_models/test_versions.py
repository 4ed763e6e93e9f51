"""Where a version of torch lacks a name, what is lost is said, and nothing else is."""

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.versions import asks, compiler_choice

pytestmark = pytest.mark.needs_torch


class Choosing(nn.Module):
    """One of two linear layers, as data decide."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one, lambda x: self.other(x) + 1, (x,))


class Ragged(nn.Module):
    """A linear layer over rows whose lengths it cannot take."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(torch.nested.nested_tensor([x[:1], x[1:, :2]], layout=torch.jagged))


def test_a_body_that_no_mode_sees_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.10 dispatch modes are not called for torch.cond: no body is counted as 0 MACs."""
    monkeypatch.setattr(versions, "SEES_BODIES", False)
    with pytest.raises(TraceError, match=r"^following cond needs torch ≥ 2\.10; here is \d+\.\d+"):
        measure(Choosing(), "float32 2x4")


def test_a_jagged_tensor_whose_parts_no_operator_shows_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.15 its code fails, or reads what no operator made: neither is the model's fault."""
    monkeypatch.setattr(versions, "SEES_JAGGED", False)
    with pytest.raises(TraceError, match=r"^following jagged tensors needs torch ≥ 2\.15; here is \d+\.\d+"):
        measure(Ragged(), "float32 4x16")


def test_compiled_code_runs_as_written_in_every_version() -> None:
    """Its 4·4 products for each of 2 rows are counted, by a compiler that would fail."""

    def fails(*_: object) -> None:
        raise AssertionError("nothing is compiled")

    model = nn.Sequential(torch.compile(nn.Linear(4, 4), backend=fails))
    assert measure(model, "float32 2x4")["macs"].value == 2 * 4 * 4


@pytest.mark.parametrize("name", ["_maybe_set_eval_frame", "set_eval_frame"])
def test_without_stances_the_compiler_is_set_to_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch 2.5 and 2.4: the setter is called with None whatever the compiler is."""
    from torch._dynamo import eval_frame

    given: list[object] = []
    for each in ("_callback_from_stance", "_maybe_set_eval_frame", "set_eval_frame"):
        monkeypatch.delattr(eval_frame, each, raising=False)
    monkeypatch.setattr(eval_frame, name, given.append, raising=False)
    _, _, chosen_by, choose = compiler_choice()
    choose(len)
    assert (chosen_by, given) == (name, [None])


def test_a_parameter_is_asked_for_by_its_name() -> None:
    """As the arguments that later versions of a function have."""
    assert asks(torch.export.ExportedProgram.module, "self")
    assert not asks(torch.export.ExportedProgram.module, "no_such_argument")
