"""A limit on an operator's name holds a model in every form of torch, whatever that form calls the operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.budget.budget import OpsLimit, Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import tables

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")]
FORMS = ("module", "traced.pt", "scripted.pt", "exported.pt2", "decomposed.pt2")
NAMES = (
    "conv2d", "conv1d", "conv_transpose2d", "batch_norm", "layer_norm", "group_norm", "linear", "matmul", "softmax",
    "max_pool2d", "adaptive_avg_pool2d", "transpose", "absolute", "relu",
)  # fmt: skip


RENAMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pad": lambda x: F.pad(x, (1, 1)),
    "grid_sampler": lambda x: F.grid_sample(x, x[..., :2], align_corners=True),
    "embedding_bag": lambda x: F.embedding_bag(x.reshape(1, -1).long() * 0, x[0, 0]),
    "narrow": lambda x: x.narrow(1, 0, 1),
    "to": lambda x: x.to(torch.float16),
    "linalg_svd": lambda x: torch.linalg.svd(x)[1],
    "linalg_eigh": lambda x: torch.linalg.eigh(x)[0],
    "linalg_inv": torch.linalg.inv,
    "linalg_solve": lambda x: torch.linalg.solve(x, x),
    "linalg_cholesky": torch.linalg.cholesky,
    "linalg_det": torch.linalg.det,
    "linalg_slogdet": lambda x: torch.linalg.slogdet(x)[1],
}  # what an export calls by another name


class Renamed(nn.Module):
    def __init__(self, computed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.computed = computed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One operator."""
        return self.computed(x)


class Net(nn.Module):
    """One operator of each name, or of the name in place."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(True),
            nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(2), nn.Conv1d(4, 4, 3, padding=1),
        )  # fmt: skip
        self.rows = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of the image, and their products with themselves."""
        rows = self.rows(self.image(x).transpose(1, 2))
        return torch.absolute(torch.matmul(F.softmax(rows, -1), rows.transpose(1, 2)))


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, nn.Module | Path]:
    """The model, and files of it."""
    folder, net, x = tmp_path_factory.mktemp("forms"), Net().eval(), torch.randn(1, 3, 12, 12)
    torch.jit.trace(net, x).save(str(folder / "traced.pt"))
    torch.jit.script(net).save(str(folder / "scripted.pt"))
    exported = torch.export.export(net, (x,))
    torch.export.save(exported, folder / "exported.pt2")
    torch.export.save(exported.run_decompositions(), folder / "decomposed.pt2")
    return {"module": net, **{name: folder / name for name in FORMS[1:]}}


@cache
def measured(form: nn.Module | Path) -> MeasuredModel:
    """One form, once for all limits on it."""
    inputs = None if str(form).endswith("pt2") else "float32 1x3x12x12"
    source = model_source(form, inputs, registry=tables(), base=Path.cwd())
    assert isinstance(source, ModelSource)
    return measure_model(source, tables(), root=Path.cwd())


def verdict(form: nn.Module | Path, **limit: object) -> Verdict:
    """A limit on operators, held against one form."""
    return judge_limit(OpsLimit(Place("b.yaml", 3), **limit), measured(form))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_a_denied_name_is_found_in_every_form(forms: dict[str, nn.Module | Path], form: str) -> None:
    """Each of the operators that the model has, and none that it lacks."""
    for name in NAMES:
        assert verdict(forms[form], deny=(f"aten::{name}",)).outcome is Outcome.OVER, name
        assert verdict(forms[form], max={f"aten::{name}": 0}).outcome is Outcome.OVER, name
    lacked = ("aten::conv3d", "aten::conv_transpose1d", "aten::max_pool1d", "aten::gelu", "aten::mv", "aten::rms_norm")
    assert verdict(forms[form], deny=lacked).outcome is Outcome.WITHIN


@pytest.mark.parametrize("name", RENAMED)
def test_a_denied_name_is_found_in_an_export_of_it(name: str, tmp_path: Path) -> None:
    """The file has it under another name alone: what is allowed is the very name."""
    exported = torch.export.export(Renamed(RENAMED[name]), (torch.eye(4).expand(1, 2, 4, 4),)).run_decompositions()
    torch.export.save(exported, tmp_path / "decomposed.pt2")
    assert verdict(tmp_path / "decomposed.pt2", deny=(f"aten::{name}",)).outcome is Outcome.OVER
    assert verdict(tmp_path / "decomposed.pt2", allow=(f"aten::{name}",)).outcome is Outcome.OVER


def test_the_line_has_both_names_and_counts_those_of_the_name_alone(forms: dict[str, nn.Module | Path]) -> None:
    """A traced file calls three convolutions by one name, and one of them is two-dimensional."""
    found = verdict(forms["traced.pt"], deny=("aten::conv2d",))
    assert found.reason == "ops 1 aten::_convolution > 0   denied as aten::conv2d, first in image.0"
    assert verdict(forms["traced.pt"], max={"aten::conv2d": 1}).outcome is Outcome.WITHIN
    assert verdict(forms["traced.pt"], max={"aten::_convolution": 2}).reason.startswith("ops 3 aten::_convolution > 2")


def test_what_is_allowed_is_the_very_name(forms: dict[str, nn.Module | Path]) -> None:
    """A name that nobody wrote down is not allowed."""
    found = verdict(forms["traced.pt"], allow=("aten::conv2d",))
    assert "aten::_convolution > 0   not allowed" in found.reason
