"""What ``measure()`` gives, as a notebook and a script use it: attributes, tables, plain values and HTML."""

from __future__ import annotations

import copy
import json
import pickle
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pytest_modelbudget
from pytest_modelbudget import Measurement, Measurements, ModelBudgetError, TensorSpec, check_equivalence, measure
from pytest_modelbudget.formats.source import InputSpecs, ModelSource
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.metrics.measurement import UnmeasuredOp
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports.draft_budget import draft_text
from pytest_modelbudget.reports.layer_table import LayerTable

pytestmark = pytest.mark.needs_torch

ASKED = "it is measured where it is asked for, with"
HIDDEN = 4 * 8 + 8
NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Page(HTMLParser):
    """The texts of a fragment, and whether every element that is opened is closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


UNSEEN = (UnmeasuredOp("aten::x", 1, "", "no rule"),)


def test_a_measurement_is_a_number() -> None:
    """U19: 4 x 8 + 8 x 2 products for each of two rows, which print in one line."""
    macs = measure(NET, (2, 4)).macs
    assert macs == 96
    assert 95 < macs <= 96
    assert (int(macs), float(macs), [*range(macs)][-1]) == (96, 96.0, 95)
    assert macs >= measure(NET, (1, 4)).macs
    assert repr(macs) == str(macs) == "<Measurement 96 MAC>"
    assert macs != "96"
    with pytest.raises(TypeError):
        macs > measure(NET, (2, 4)).params  # noqa: B015  # products are no parameters


@pytest.mark.parametrize(
    ("number", "least", "most"),
    [
        pytest.param(Measurement(40, "B", at_least=30), 30, 40, id="nobody has proved it"),
        pytest.param(Measurement(40, "B", unmeasured=UNSEEN), 40, float("inf"), id="unseen"),
    ],
)
def test_a_bound_is_compared_as_far_as_it_is_known(number: Measurement, least: int, most: float) -> None:
    """What is unknown passes no comparison, and is no number."""
    assert number > least - 1
    assert not number < least
    assert number <= most
    assert number != 40
    for ask in (lambda: number > least, lambda: number <= (least + 40) / 2, lambda: int(number)):
        with pytest.raises(ModelBudgetError, match="bound"):
            ask()


@pytest.mark.parametrize(
    ("number", "sign"),
    [
        pytest.param(Measurement(40, "B"), "", id="exact"),
        pytest.param(Measurement(40, "B", at_least=30), "<= ", id="nobody has proved it"),
        pytest.param(Measurement(40, "B", unmeasured=(UnmeasuredOp("aten::x", 1, "", "no rule"),)), ">= ", id="unseen"),
    ],
)
def test_a_bound_has_its_sign(number: Measurement, sign: str) -> None:
    """In the text that Python prints; a draft has no limit for either kind of bound."""
    model = MeasuredModel("torch", measurements={"peak_activation": number})
    metrics = {metric.key: metric for metric in METRICS}
    assert f"peak_activation: {sign}40 B" in repr(Measurements.of(model, LayerTable(()), metrics))
    source = ModelSource("torch", "nets:net", InputSpecs())
    draft = draft_text("net", source, "nets:net", metrics, model.measurements, headroom=Fraction(0))
    limit = next(line.strip() for line in draft.splitlines() if "peak_activation" in line)
    assert ("40" in limit) == (not sign)
    assert limit.startswith("# peak_activation: no limit") == bool(sign)


def test_every_metric_is_an_attribute() -> None:
    """And is listed where an editor completes; copies and pickles keep it."""
    numbers = measure(NET, TensorSpec("float32", (3, 4)))
    for same in (numbers, copy.deepcopy(numbers), pickle.loads(pickle.dumps(numbers))):
        assert same.macs.value == 3 * (4 * 8 + 8 * 2)
        assert all(getattr(same, key) is same[key] for key in same)
    assert {*numbers} < {*dir(numbers)}


@pytest.mark.parametrize("name", ["macs", "notes", "mac", "_measurements"])
def test_what_was_measured_is_nobodys_to_change(name: str) -> None:
    """A report is evidence: neither a number nor anything beside it is written or removed."""
    numbers = measure(NET, (1, 4))
    with pytest.raises(AttributeError, match=f"cannot assign to field '{name}'"):
        setattr(numbers, name, 3)
    with pytest.raises(AttributeError, match=f"cannot delete field '{name}'"):
        delattr(numbers, name)
    assert numbers.macs.value == 4 * 8 + 8 * 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("mac", "there is no metric 'mac': did you mean 'macs'?", id="a typo"),
        pytest.param(
            "peak_memory", "there is no metric 'peak_memory': did you mean 'peak_activation'?", id="a synonym"
        ),
        pytest.param("training_macs", f"no training_macs: {ASKED} training='adam'", id="training"),
        pytest.param("activation_arena", f"no activation_arena: {ASKED} device=NAME", id="device"),
    ],
)
def test_what_is_not_there_says_why(name: str, says: str) -> None:
    """As a key and as an attribute; ``get`` and ``in`` answer as those of any mapping."""
    numbers = measure(NET, (3, 4))
    with pytest.raises(AttributeError) as by_attribute:
        getattr(numbers, name)
    with pytest.raises(KeyError) as by_key:
        numbers[name]
    assert str(by_attribute.value) == by_key.value.args[0] == says
    assert numbers.get(name) is None
    assert name not in numbers


def test_the_layers_are_a_table() -> None:
    """Its rows add up to the totals; its text is what ``modelbudget show`` prints."""
    table = measure(NET, (3, 4)).table()
    assert [(row.scope, row.type, row.params, row.macs) for row in table.rows] == [
        ("", "Sequential", None, None),
        ("0", "Linear", HIDDEN, 3 * 4 * 8),
        ("1", "ReLU", 0, 0),
        ("2", "Linear", 8 * 2 + 2, 3 * 8 * 2),
    ]
    assert str(table).splitlines()[-1].split() == ["Total", "58", "144", "216"]  # 3 x (8 + 8 + 2) floats of 4 bytes


def test_all_of_it_as_plain_values() -> None:
    """Everything is JSON."""
    found = json.loads(json.dumps(measure(NET, (3, 4)).to_dict()))
    assert found["totals"] == {"params": 58, "macs": 144, "output_bytes": 216}
    assert found["metrics"]["macs"]["value"] == 144
    assert [layer["type"] for layer in found["layers"]] == ["Sequential", "Linear", "ReLU", "Linear"]


HOSTILE = "<script>alert(1)</script>&\"'"


def test_a_notebook_shows_totals_and_folded_layers() -> None:
    """Every element is closed, names are text, and nothing else than tables and a fold is there."""
    net = nn.Sequential()
    net.add_module(HOSTILE, nn.Linear(4, 2))
    numbers = measure(net, (1, 4))
    page = Page(numbers._repr_html_())
    assert {*page.tags} == {"table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    assert f"  {HOSTILE} Linear" in page.texts
    assert "2 layers" in page.texts
    at = page.texts.index("macs")
    assert page.texts[at : at + 3] == ["macs", "8 MAC", "8 MAC"]
    assert Page(numbers.table()._repr_html_()).tags[0] == "details"


def test_a_notebook_shows_notes_and_bounds() -> None:
    """What is only a lower bound is shown as one."""

    class Far(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, x)

    numbers = measure(Far(), (2, 8))
    assert not numbers.macs.complete
    page = Page(numbers._repr_html_())
    at = page.texts.index("macs")
    assert page.texts[at + 1].startswith("≥ ")
    assert any("not run" in text for text in Page(measure(NET)._repr_html_()).texts)


def test_an_equivalence_is_one_line() -> None:
    """Outcome, claim and reason; where the models part, if they do."""
    other = copy.deepcopy(NET)
    assert repr(check_equivalence(NET, other, (4, 4))).startswith(
        "<Equivalence within, exact_algebra: algebra 0.0e+00 of 1e-10"
    )
    with torch.no_grad():
        other[2].weight += 1
    found = repr(check_equivalence(NET, other, (4, 4), seeds=(0,)))
    assert found.startswith("<Equivalence over, exact_algebra: ")
    assert found.endswith("; they part at 2>")
    assert "\n" not in found


def test_a_lower_bound_is_shown_as_one() -> None:
    """A product in an operator without a formula: the linear layer's 2 x 8 x 8 alone are known."""
    weight = torch.library.Library("shown", "DEF")
    weight.define("half(Tensor x) -> Tensor")
    weight.impl("half", lambda x: x / 2, "CompositeExplicitAutograd")

    class Half(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.shown.half(super().forward(x))

    shown = repr(measure(Half(8, 8), (2, 8)))
    assert ", macs: >= 128 MAC, " in shown
    assert "params: 72 param, " in shown


def test_outputs_without_inputs_are_not_compared() -> None:
    """Nothing was run, so that nothing is within."""
    with pytest.raises(pytest_modelbudget.InputError, match="no inputs are given: give inputs "):
        check_equivalence(NET, copy.deepcopy(NET))


def test_errors_are_public() -> None:
    """One of them catches all."""
    errors = [name for name in pytest_modelbudget.__all__ if name.endswith("Error")]
    assert len(errors) > 3
    assert all(issubclass(getattr(pytest_modelbudget, name), ModelBudgetError) for name in errors)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        pytest.param([1, 3, 4], "for a tensor of these sizes write float32 1x3x4", id="a list of sizes"),
        pytest.param(np.array([1, 3, 4]).tolist(), "write float32 1x3x4", id="a list of an array"),
        pytest.param([*np.array([1, 3, 4])], "write float32 1x3x4", id="a list of numpy's integers"),
        pytest.param({"dtype": "int64"}, "an input needs the key 'shape'", id="half a spec"),
        pytest.param({"x": {"dtype": "int46", "shape": [1]}}, "did you mean 'int64'", id="a typo"),
        pytest.param({"x": object()}, "an object is no input: give ", id="an object"),
    ],
)
def test_what_is_no_input(inputs: object, says: str) -> None:
    """As budgets say it."""
    with pytest.raises(pytest_modelbudget.InputError, match=says):
        measure(NET, inputs)


WRONG_SPECS = [
    pytest.param("float32", (1, "a"), {}, r"'a' in \(1, 'a'\) is no size: write a whole number, 0 to", id="a word"),
    pytest.param("float32", (1, -4), {}, r"-4 in \(1, -4\) is no size", id="below zero"),
    pytest.param("float32", (1, 4.0), {}, r"4.0 in \(1, 4.0\) is no size", id="a float"),
    pytest.param("float32", (True, 4), {}, r"True in \(True, 4\) is no size", id="a truth"),
    pytest.param("float32", (1, 2**63), {}, "is no size", id="too large"),
    pytest.param("float32", "1x4", {}, "'1x4' is no shape: write sizes", id="one word"),
    pytest.param("float32", 4, {}, "4 is no shape", id="one number"),
    pytest.param("float32", None, {}, "None is no shape", id="nothing"),
    pytest.param("int64", (1,), {"low": "a"}, "low='a' is no bound of integers", id="low"),
    pytest.param("int64", (1,), {"low": 0, "high": 2.5}, "high=2.5 is no bound of integers", id="high"),
]


@pytest.mark.parametrize(("dtype", "shape", "bounds", "says"), WRONG_SPECS)
def test_a_spec_is_refused_where_it_is_written(dtype: str, shape: Any, bounds: Any, says: str) -> None:
    """Before any model is loaded, which is not to blame."""
    with pytest.raises(pytest_modelbudget.InputError, match=says):
        TensorSpec(dtype, shape, **bounds)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(TensorSpec("float32", tuple(np.array([2, 4]))), id="a spec"),
        pytest.param(TensorSpec("float32", [2, 4]), id="a list"),  # type: ignore[arg-type]  # as many write it
        pytest.param(TensorSpec(torch.float32, torch.Size([2, 4])), id="torch's words"),  # type: ignore[arg-type]
        pytest.param((np.int64(2), np.int32(4)), id="a tuple"),
        pytest.param({"dtype": "float32", "shape": [*np.array([2, 4])]}, id="a mapping"),
    ],
)
def test_sizes_of_other_libraries_are_sizes(inputs: Any) -> None:
    """2 rows of 4 values through NET."""
    assert measure(NET, inputs).macs.value == 2 * (4 * 8 + 8 * 2)
    if isinstance(inputs, TensorSpec):
        assert inputs == TensorSpec("float32", (2, 4))
        assert {type(size) for size in inputs.shape} == {int}
