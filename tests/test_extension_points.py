"""Every axis of change has one table: a dummy joins it in one entry and comes out in JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pytest_modelbudget.pytest_plugin.items
from pytest_modelbudget import measure
from pytest_modelbudget import registry as check
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.transform_forms import settings_texts
from pytest_modelbudget.errors import BudgetError, ExtensionError
from pytest_modelbudget.formats.model import LoadedModel, Model
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.measurement import Measurement, Metric, Stage
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.registry import installed_extensions
from pytest_modelbudget.reports import table as report_table
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.table import FileReport
from pytest_modelbudget.transforms.transform import Change, Changed, Setting, SettingForm, Transform
from tests.builders.graphs import tensor

BUDGET = """
model_budget: 1
models:
  one:
    dummy: one.dummy
    inputs: float32 1x6
    limits: {macs: {max: 6 MAC, allow_unmeasured: [dummy::mystery]}}
"""
# For one session: what the user's conftest.py returns as extensions.
JOINED: list[object] = []
CONFTEST = """
import extension_of_this_test

def pytest_model_budget_extensions(config):
    return extension_of_this_test.JOINED
"""


def load(source: object, rules: object) -> LoadedModel:
    """A model of one operation that no rule of the project knows, on six elements."""
    x, y = tensor("x", 1, 6), tensor("y", 1, 6)
    return LoadedModel(Graph((Op("dummy::mystery", (x,), (y,), scope="only"),), (x,), (y,)), "dummy")


def render(report: Report) -> str:
    """A report that is the number of models."""
    return str(len(report.models))


def mystery_macs(*, x: Tensor) -> int:
    return x.elements


RULE = OpRule("mystery", {"dummy::mystery": ("x",)}, "one per element", macs=mystery_macs)
METRIC = Metric("op_count", "op", "operations", lambda costed: Measurement(len(costed.costs), "op"))
CANNOT_RUN = (
    "a dummy model can be measured and not run, so that its outputs cannot be compared: leave out 'equivalence'"
)
FORMAT = Format("dummy", "path of a dummy file", __name__, suffixes=(".dummy",))


@pytest.fixture
def report(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the gate over the dummy model with these extensions; the JSON report."""
    this_file = ModuleType("extension_of_this_test")
    monkeypatch.setitem(sys.modules, this_file.__name__, this_file)
    pytester.mkdir("budgets").joinpath("one.dummy").touch()
    (pytester.path / "budgets" / "one.yaml").write_text(BUDGET)
    pytester.makeconftest(CONFTEST)

    def run(*extensions: object, args: tuple[str, ...] = ()) -> Any:
        this_file.JOINED = (SimpleNamespace(FORMATS=(FORMAT,)), *extensions)  # type: ignore[attr-defined]
        pytester.runpytest_inprocess(
            "--model-budget", "--model-budget-workers=0", "--model-budget-report=json:out.json", *args
        )
        return json.loads((pytester.path / "out.json").read_text())

    return run


def test_a_format_is_one_entry(report: Any) -> None:
    """A format needs its key, its suffixes and a module with ``load``."""
    (model,) = report()["models"]
    assert model["format"] == "dummy"
    assert model["ops"] == [{"kind": "unknown", "name": "dummy::mystery", "count": 1}]
    assert model["metrics"]["macs"]["unmeasured"] == [
        {"op": "dummy::mystery", "count": 1, "scope": "only", "why": "no rule"}
    ]
    assert model["checks"][0]["lower_bound"] is True


def test_an_op_rule_is_one_entry(report: Any) -> None:
    """A formula for a foreign name makes the number complete."""
    (model,) = report(SimpleNamespace(OPS=(RULE,)))["models"]
    assert model["ops"] == [{"kind": "mystery", "name": "dummy::mystery", "count": 1}]
    macs = model["metrics"]["macs"]
    assert (macs["value"], macs["complete"]) == (6, True)


def test_a_metric_is_one_entry(report: Any) -> None:
    """A metric has its key in the report, and may be limited by it."""
    (model,) = report(SimpleNamespace(METRICS=(METRIC,)))["models"]
    assert model["metrics"]["op_count"] == {
        "value": 1, "unit": "op", "complete": True, "shares": []
    }  # fmt: skip


def test_a_metric_that_raises_is_unknown_and_spares_the_others(report: Any) -> None:
    """An extension's mistake is told under its key."""
    broken = Metric("broken", "op", "raises", lambda costed: Measurement(1 // 0, "op"))
    (model,) = report(SimpleNamespace(METRICS=(broken,)))["models"]
    assert "measuring broken raised ZeroDivisionError" in model["metrics"]["broken"]["error"]
    assert model["checks"][0]["actual"] == 0


def test_a_limit_on_a_metric_that_raises_has_its_unit(report: Any, pytester: pytest.Pytester) -> None:
    """Five things, and not five of nothing: a table shows it without decimals."""
    broken = Metric("broken", "op", "raises", lambda costed: Measurement(1 // 0, "op"))
    path = pytester.path / "budgets" / "one.yaml"
    path.write_text(BUDGET.replace("limits: {", "limits: {broken: 5, "))
    (model,) = report(SimpleNamespace(METRICS=(broken,)), args=("--model-budget-report=summary:summary.md",))["models"]
    (check,) = (check for check in model["checks"] if check["metric"] == "broken")
    assert (check["outcome"], check["limit"], check.get("unit")) == ("unknown", 5, "op")
    assert "| 5 |" in (pytester.path / "summary.md").read_text()


def apply(model: Model, settings: Mapping[str, object]) -> Changed:
    """The dummy model as it is, which only says what it was asked for."""
    return Changed(model, (Change("only", "mystery", f"itself {settings['times']} times"),))


@pytest.mark.parametrize(
    ("written", "value", "spelled"),
    [
        ("0.10", Fraction(1, 10), "0.1"),
        ("50%", Fraction(1, 2), "0.5"),
        ("-2.5e-3", Fraction(-1, 400), "-0.0025"),
        ("3", Fraction(3), "3"),
        ("{}", Fraction(1, 4), "0.25"),
    ],
)
def test_a_number_is_a_setting(tmp_path: Path, written: str, value: Fraction, spelled: str) -> None:
    """It is exactly what is written, and has one spelling; no float comes between."""
    share = Setting("share", SettingForm.NUMBER, "how much", default=Fraction(1, 4))
    entry = Transform("thin", "thins", engines={"dummy": __name__}, settings=(share,))
    registry = check.tables([SimpleNamespace(FORMATS=(FORMAT,), TRANSFORMS=(entry,))])
    path = tmp_path / "one.yaml"
    settings = written if written == "{}" else f"{{share: {written}}}"
    path.write_text(f"{BUDGET}    transforms: {{thinned: {{thin: {settings}, limits: {{params: 0}}}}}}\n")
    (thinned,) = read_budget(path, registry, root=tmp_path).models[0].transforms
    assert thinned.made.settings == {"share": value}
    assert settings_texts(thinned.made, {entry.key: entry}) == {"share": {"": spelled}}
    path.write_text(path.read_text().replace(settings, "{share: half}"))
    with pytest.raises(BudgetError, match=r"expected share: a number such as 0\.5, found 'half'"):
        read_budget(path, registry, root=tmp_path)


def test_a_transform_is_one_entry(report: Any, pytester: pytest.Pytester) -> None:
    """A transform needs its key, its settings, and for each format a module with its function."""
    entry = Transform(
        "leave",
        "leaves everything",
        engines={"dummy": __name__},
        settings=(Setting("times", SettingForm.INTEGER, "how often", default=2),),
    )
    path = pytester.path / "budgets" / "one.yaml"
    path.write_text(BUDGET + "    transforms: {left: {leave: {}, equivalence: exact_algebra}}\n")
    (model,) = report(SimpleNamespace(TRANSFORMS=(entry,)))["models"]
    (transform,) = model["transforms"]
    assert (transform["name"], transform["transform"]) == ("left", "leave")
    assert transform["changes"][0]["became"] == "itself 2 times"
    assert transform["equivalence"]["outcome"] == "unknown"
    assert transform["equivalence"]["reason"] == CANNOT_RUN


def test_a_report_is_one_entry(report: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report file needs its option and a module with ``render``."""
    entry = FileReport("count", "count.txt", "the number of models", __name__)
    monkeypatch.setattr(report_table, "FILE_REPORTS", (*report_table.FILE_REPORTS, entry))
    report(args=("--model-budget-report=count:count.txt",))
    assert (pytester.path / "count.txt").read_text() == "1"


def test_installed_extensions_are_read_by_every_way_of_measuring(monkeypatch: pytest.MonkeyPatch, report: Any) -> None:
    """The entry point group joins pytest's tables as it joins those of measure()."""
    module = ModuleType("an_installed_extension")
    module.METRICS = (METRIC,)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint("one", module.__name__, check.EXTENSIONS)]
    monkeypatch.setattr(check, "entry_points", lambda group: points)
    assert "op_count" in check.tables().metrics
    assert "op_count" in report()["models"][0]["metrics"]


def test_measure_knows_a_format_by_its_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of an installed extension's format needs no more than its path; six multiply-adds."""
    module = ModuleType("an_extension_with_a_format")
    module.FORMATS, module.OPS = (FORMAT,), (RULE,)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint("one", module.__name__, check.EXTENSIONS)]
    monkeypatch.setattr(check, "entry_points", lambda group: points)
    assert measure("one.dummy", "float32 1x6")["macs"].value == 6


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        pytest.param("steps", "no steps: it is measured where it is asked for, with training='adam'", id="not asked"),
        pytest.param("step", "there is no metric 'step': did you mean 'steps'?", id="a typo"),
        pytest.param("op_cont", "there is no metric 'op_cont': did you mean 'op_count'?", id="a typo of one measured"),
        pytest.param("nodes", "there is no metric 'nodes': did you mean 'op_count'?", id="a synonym"),
    ],
)
def test_an_extension_s_metric_that_is_not_there_says_why(
    monkeypatch: pytest.MonkeyPatch, metric: str, says: str
) -> None:
    """As one of the project's own."""
    module = ModuleType("an_extension_with_metrics")
    steps = replace(METRIC, key="steps", stage=Stage.TRAINED)
    module.FORMATS, module.METRICS = (FORMAT,), (replace(METRIC, also=("nodes",)), steps)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint("one", module.__name__, check.EXTENSIONS)]
    monkeypatch.setattr(check, "entry_points", lambda group: points)
    with pytest.raises(KeyError, match=re.escape(says)):
        measure("one.dummy", "float32 1x6")[metric]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        pytest.param(SimpleNamespace(OPS=(RULE, RULE)), None, id="one rule twice is one rule"),
        pytest.param(SimpleNamespace(METRICS=[METRIC]), "METRICS must be a tuple", id="list"),
        pytest.param(SimpleNamespace(OPS=(METRIC,)), "OPS must be a tuple of OpRule", id="kind"),
        pytest.param(SimpleNamespace(METRICS=(METRIC, METRIC)), "declared twice", id="key"),
        pytest.param(SimpleNamespace(FORMATS=(METRIC,)), "FORMATS must be a tuple of Format", id="no format"),
        pytest.param(
            SimpleNamespace(FORMATS=(Format("onnx", "mine", "mine"),)),
            "the format 'onnx' is declared twice",
            id="format",
        ),
        pytest.param(
            SimpleNamespace(OPS=(OpRule("mine", {"aten::linear": ("x",)}, "mine"),)),
            "aten::linear is claimed by two rules",
            id="name",
        ),
    ],
)
def test_double_claims_and_wrong_entries_are_refused(module: object, says: str | None) -> None:
    """Two answers to one question are an error, and not a matter of order."""
    if says is None:
        assert "dummy::mystery" in check.tables([module]).ops
        return
    with pytest.raises(ExtensionError, match=says):
        check.tables([module])


def test_an_extension_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the entry point and the cause."""
    points = [EntryPoint("gone", "no_such_extension", check.EXTENSIONS)]
    monkeypatch.setattr(check, "entry_points", lambda group: points)
    with pytest.raises(ExtensionError, match=r"extension 'gone' \(no_such_extension\) raised"):
        check.tables()


assert pytest_modelbudget.pytest_plugin.items  # loaded before pytester, which forgets what runs import


def test_an_extension_that_is_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are read once while nothing on the path was written to, and anew when something was."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = installed_extensions()
    (tmp_path / "later_extension.py").write_text("OPS = ()\n")
    (tmp_path / "later-1.0.dist-info").mkdir()
    (tmp_path / "later-1.0.dist-info" / "METADATA").write_text("Name: later\nVersion: 1.0\n")
    (tmp_path / "later-1.0.dist-info" / "entry_points.txt").write_text(
        "[modelbudget.extensions]\nz = later_extension\n"
    )
    assert len(installed_extensions()) == len(before) + 1
