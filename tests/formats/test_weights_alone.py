"""A file of weights alone: what it stores is exact, and nothing of what it computes is known."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from pytest_modelbudget import registry
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.registry import tables
from tests.builders.graphs import parameter, tensor
from tests.builders.project import Project

WHY = "a weights file holds no operations"
MATRICES = (parameter("body.weight", 8, 4), parameter("head.weight", 2, 8))
WEIGHTS = tuple(Weight(matrix, trainable=True) for matrix in MATRICES)
STORED = {"params": 48, "trainable_params": 48, "weight_memory": 192, "model_size": 192}  # 8*4 + 2*8, 4 bytes each
EXTENSION = f"""
from pytest_modelbudget.formats.table import Format

FORMATS = (Format("weights", "path of a weights file", "{__name__}", suffixes=(".weights",)),)
"""
CONFTEST = """
import weights_extension

def pytest_model_budget_extensions(config):
    return weights_extension
"""


def load(source: object, rules: object) -> LoadedModel:
    """Two matrices, (8, 4) and (2, 8)."""
    return LoadedModel(Graph((), (), (), WEIGHTS, operations_unknown=WHY), "weights")


@pytest.fixture
def weights(project: Project) -> Project:
    """A project with such a model."""
    project.write("weights_extension.py", EXTENSION)
    project.write("budgets/net.weights", "")
    project.configure(CONFTEST)
    return project


def limits_of(project: Project, limits: str) -> dict[str, dict[str, object]]:
    """The checks of a budget for it, by metric and scope."""
    project.budget(f"  net:\n    weights: net.weights\n{limits}")
    (model,) = project.report()["models"]
    return {f"{check['metric']} {check.get('scope') or ''}".strip(): check for check in model["checks"]}


def test_what_is_stored_is_exact_and_all_else_unknown(weights: Project) -> None:
    """Under the loosest limits; the reason stands once, and no operator is there to be accepted."""
    metrics = tables().metrics.items()
    units = {key: metric.unit for key, metric in metrics if metric.stage is Stage.WRITTEN and not metric.by_kind}
    limits = "".join(f"      {key}: 1000 {unit}\n" for key, unit in units.items())
    checks = limits_of(weights, f"    limits:\n{limits}")
    for key, check in checks.items():
        assert check["outcome"] == ("within" if key in STORED else "unknown"), key
        if key not in STORED:
            assert str(check["reason"]).count(WHY) == 1, key
            assert "allow_unmeasured" not in str(check["reason"]), key
    assert {key: checks[key]["actual"] for key in STORED} == STORED
    assert {*checks} == {*units}


@pytest.mark.parametrize(
    "selection",
    ["deny: [onnx::Conv]", "max: {onnx::Conv: 3}", "allow: [linear]", "deny: [linear], allow_unmeasured: [a::b]"],
)
def test_no_operator_is_known_to_be_absent(weights: Project, selection: str) -> None:
    """Not even one that is denied by its foreign name; in a scope neither."""
    ops = f"{{ops: {{{selection}}}}}"
    checks = limits_of(weights, f"    limits: {ops}\n    scopes: {{head: {ops}}}")
    assert [(check["outcome"], check["reason"]) for check in checks.values()] == [
        ("unknown", f"{key} unknown: {WHY}") for key in ("ops", "ops of head")
    ]


def test_every_scope_lacks_what_the_model_lacks(weights: Project) -> None:
    """Its parameters are exact: 2*8 of the head."""
    checks = limits_of(weights, "    scopes: {head: {params: 16, macs: 9 MAC, bandwidth: 9 B}}")
    assert {key: check["outcome"] for key, check in checks.items()} == {
        "params head": "within", "macs head": "unknown", "bandwidth head": "unknown"
    }  # fmt: skip


def test_show_claims_no_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Columns are those of what is stored, and one line gives the reason for all other numbers."""
    extension = ModuleType("weights_extension")
    exec(EXTENSION, vars(extension))
    known = registry.tables([extension])
    monkeypatch.setattr("pytest_modelbudget.cli.models.tables", lambda: known)
    monkeypatch.chdir(tmp_path)
    Path("net.weights").touch()
    assert main(["show", "net.weights", "--input", "float32 1"]) == 0
    shown = capsys.readouterr().out
    rows = {
        line.split()[0]: re.findall(r"(?:>= )?\b[\d,]+(?=  |$)", line) for line in shown.splitlines() if line.strip()
    }
    assert rows["Total"] == ["48", "192"]
    assert "MACs" not in shown
    assert " ".join(shown.split()).count(WHY) == 1
    assert main(["explain", "macs", "net.weights", "head", "--input", "float32 1"]) == 1
    assert WHY in capsys.readouterr().out


def test_a_graph_with_operations_knows_them() -> None:
    """Both at once is a mistake of the format."""
    x, y = tensor("x", 1), tensor("y", 1)
    with pytest.raises(GraphError, match="1 operations of a graph that knows none: no idea"):
        Graph((Op("aten::relu", (x,), (y,)),), (x,), (y,), operations_unknown="no idea")
