"""Load, measure, judge: what ``measure()`` takes, and what it says when it cannot."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pytest_modelbudget
from pytest_modelbudget import measure
from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import ModelBudgetError, SourceError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec, names_attribute
from pytest_modelbudget.gate.from_python import input_specs
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.gate.process_state import collection_paused
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.registry import tables

pytestmark = pytest.mark.needs_torch

PLACE = Place("budgets/a.yaml", 3)
ONE_INPUT = InputSpecs((TensorSpec("float32", (1, 4)),))


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


class ByName(nn.Module):
    """Adds two inputs of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        both: torch.Tensor = self.fc(left) + self.fc(right)
        return both


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param("float32 3x4", id="text"),
        pytest.param(["float32[3, 4]"], id="list"),
        pytest.param(TensorSpec("float32", (3, 4)), id="spec"),
        pytest.param(torch.zeros(3, 4), id="tensor"),
        pytest.param((torch.zeros(3, 4),), id="tensors"),
        pytest.param({"input": torch.zeros(3, 4)}, id="by name"),
    ],
)
def test_inputs_may_be_specs_or_tensors(inputs: object) -> None:
    """Whichever way an input is given, it is the same 3 x 4 floats."""
    measurements = measure(net(), inputs)
    assert measurements["macs"].value == 3 * (4 * 8 + 8 * 2)
    assert measurements["params"].value == 4 * 8 + 8 + 8 * 2 + 2


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        pytest.param(torch.tensor([[3, 7], [5, -1]]), -1, 7 + 1, id="integers"),
        pytest.param(torch.tensor([200, 255], dtype=torch.uint8), 200, 255 + 1, id="bytes"),
        pytest.param(torch.tensor([[3, 7], [5, -1]]).numpy(), -1, 7 + 1, id="array"),
        pytest.param(torch.tensor([0.5, 2.5]), None, None, id="floats"),
        pytest.param(torch.tensor([True, False]), None, None, id="booleans"),
        pytest.param(torch.empty(0, dtype=torch.int64), None, None, id="empty"),
        pytest.param(torch.empty(2, dtype=torch.int64, device="meta"), None, None, id="meta"),
    ],
)
def test_integer_tensors_say_which_values_fit(given: torch.Tensor, low: int | None, high: int | None) -> None:
    """Token ids must stay inside the vocabulary when others are drawn in their place."""
    (spec,) = input_specs(given, tables()).positional
    assert isinstance(spec, TensorSpec)
    assert (spec.shape, spec.low, spec.high) == (tuple(given.shape), low, high)


def test_several_inputs_go_in_order_or_by_name() -> None:
    """A mapping is keywords, a list is positions."""
    for inputs in (["float32 1x4", "float32 5x4"], {"right": "float32 5x4", "left": "float32 1x4"}):
        assert measure(ByName, inputs)["macs"].value == (1 + 5) * 4 * 2


def test_a_factory_takes_args_and_kwargs() -> None:
    """A class or function is called; "module:callable" names one."""
    for given in ({"args": (16,)}, {"kwargs": {"width": 16}}):
        assert measure(net, "float32 1x4", **given)["macs"].value == 4 * 16 + 16 * 2
    linear = measure("torch.nn:Linear", "float32 1x4", args=(4, 2))
    assert linear["params"].value == 4 * 2 + 2


def test_measurements_are_a_mapping_of_every_metric() -> None:
    """Values, units, shares and what is unmeasured, under the keys of a budget."""
    measurements = measure(net(), "float32 1x4")
    assert list(measurements)[:2] == ["params", "trainable_params"]
    asked = {key for key, metric in tables().metrics.items() if metric.stage is Stage.WRITTEN}
    assert set(measurements) == asked
    macs = measurements["macs"]
    assert (macs.unit, macs.complete, macs.unmeasured) == ("MAC", True, ())
    assert [(share.scope, share.value) for share in macs.shares] == [("0", 4 * 8), ("2", 8 * 2)]
    assert "macs: 48 MAC" in repr(measurements)


@pytest.mark.parametrize(
    ("source", "inputs", "says"),
    [
        pytest.param("no_such_module:net", "float32 1x4", "no module 'no_such_module'", id="module"),
        pytest.param("torch.nn:Liner", "float32 1x4", "did you mean 'Linear'", id="attribute"),
        pytest.param("net.mlmodel", None, "is a Core ML file: give the torch module", id="format"),
        pytest.param("net.pb", None, r": write ONNX under onnx:, or convert it: python -m tf2onnx\.convert", id="pb"),
        pytest.param("missing.pt2", None, "does not exist", id="file"),
        pytest.param(net, "float32 1x5", "running the model raised", id="shape"),
        pytest.param(net, 3, "an int is no input", id="no input"),
        pytest.param(net, "flaot32 1x4", "did you mean 'float32'", id="type"),
        pytest.param(lambda: 3, "float32 1x4", "returned int, not a torch.nn", id="no model"),
    ],
)
def test_what_cannot_be_measured_says_why(source: object, inputs: object, says: str) -> None:
    """Every failure of a user's model is one of the project's errors, with cause and way out."""
    with pytest.raises(ModelBudgetError, match=says):
        measure(source, inputs)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ts", ".torchscript", ".jit", ".ptl"])
def test_scripts_have_many_names(suffix: str, tmp_path: Path) -> None:
    """A path ends as its author likes: 3 rows · 4 · 8, then 8 · 2."""
    path = tmp_path / f"net{suffix}"
    torch.jit.script(net()).save(str(path))
    assert measure(path, "float32 3x4")["macs"].value == 3 * (4 * 8 + 8 * 2)


def test_public_names_are_lazy_and_listed() -> None:
    """An unknown name is an AttributeError, as of any module."""
    assert "measure" in dir(pytest_modelbudget)
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = pytest_modelbudget.mesure


def test_a_failed_model_makes_every_limit_unknown(tmp_path: Path) -> None:
    """The verdict carries the cause; nothing is raised."""
    source = ModelSource("torch", "no_such_module:net")
    verdict = judge_limit(Limit("params", PLACE, max=1), measure_model(source, tables(), root=tmp_path))
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.fails
    assert "no_such_module" in verdict.reason


@pytest.mark.parametrize(
    ("text", "is_attribute"),
    [
        ("torch.nn:Linear", True),
        ("nets:Family.small", True),
        ("C:\\nets\\model.pt", False),
        ("nets/model.pt2", False),
        ("nets:", False),
        (":net", False),
        ("nets.small", False),
        ("nets:small\n", False),
    ],
)
def test_what_reads_as_module_and_callable(text: str, is_attribute: bool) -> None:
    """Budgets, ``measure()`` and the command line ask the same question."""
    assert names_attribute(text) == is_attribute


def test_a_measured_model_lets_its_graph_go(tmp_path: Path) -> None:
    """Counting references frees it, so that many models need the memory of one."""

    def alive() -> int:
        return sum(type(each) is CostedGraph for each in gc.get_objects())

    gc.collect()
    before = alive()
    with collection_paused():
        model = measure_model(ModelSource("torch", net(), ONE_INPUT), tables(), root=tmp_path)
        assert alive() == before
    assert model.measurements["macs"].value == 4 * 8 + 8 * 2


def test_rootdir_stands_first_on_the_path_while_loading(tmp_path: Path) -> None:
    """A project's own module is found before others, and the path is as it was afterwards."""
    (tmp_path / "nets_of_this_project.py").write_text(
        "import sys\nfrom torch import nn\nFIRST = sys.path[0]\n"
        "def net(): return nn.Linear(4, 2)\n"
        "def broken(): raise ValueError\n"
    )
    before = list(sys.path)
    good, bad = (
        measure_model(ModelSource("torch", f"nets_of_this_project:{name}", inputs), tables(), root=tmp_path)
        for name, inputs in (("net", ONE_INPUT), ("broken", InputSpecs()))
    )
    assert sys.path == before
    assert str(tmp_path) == sys.modules.pop("nets_of_this_project").FIRST
    assert good.failure is None
    assert isinstance(bad.failure, SourceError)
