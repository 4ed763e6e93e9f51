"""Times are a model's own: without imports, once for models that share a source, with comparisons of outputs."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_modelbudget.formats.benchmark import clock, import_seconds, importing
from tests.builders.project import Project


def test_the_clock_stands_still_while_something_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven seconds four are an import's, which raises: three are the model's."""
    moments = iter([10.0, 11.0, 15.0, 17.0])
    monkeypatch.setattr("pytest_modelbudget.formats.benchmark.perf_counter", lambda: next(moments))
    began, imported = clock(), import_seconds()
    with pytest.raises(ModuleNotFoundError), importing():
        raise ModuleNotFoundError
    assert clock() - began == 17 - 10 - (15 - 11)
    assert import_seconds() - imported == 15 - 11


def test_an_import_that_imports_is_taken_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten seconds six are an import's, two of them those of one inside it: four are the model's."""
    moments = iter([10.0, 11.0, 13.0, 15.0, 17.0, 20.0])
    monkeypatch.setattr("pytest_modelbudget.formats.benchmark.perf_counter", lambda: next(moments))
    began, imported = clock(), import_seconds()
    with importing(), importing():
        pass
    assert clock() - began == 20 - 10 - (17 - 11)
    assert import_seconds() - imported == 17 - 11


def test_models_of_one_source_are_measured_once(project: Project) -> None:
    """The second took no time; the time of each JUnit case adds up to what was measured."""
    shared = "{widths: net.widths, limits: {params: 48, macs: 48 MAC}}"
    project.budget(f"  net: {shared}\n  twin: {shared}\n")
    project.run("--model-budget-report=json:out.json", "--model-budget-report=junit:out.xml")
    timings = json.loads((project.path / "out.json").read_text())["timings"]
    assert timings["budgets/a.yaml::twin"] == "0.000"
    suite = ElementTree.parse(project.path / "out.xml").getroot()
    times = [float(case.get("time", "")) for case in suite.iter("testcase")]
    assert sum(times) == pytest.approx(sum(map(float, timings.values())))
