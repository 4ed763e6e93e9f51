"""Limits of transforms are locked, grow, are updated and are loosened like any others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

WIDEN = """
import sys
from pytest_modelbudget.transforms.transform import Transform

TRANSFORMS = (Transform("widen", "a wider twin", {"widths": "wide_engine"}),)

def pytest_model_budget_extensions(config):
    return sys.modules[__name__]
"""
ENGINE = """
from pathlib import Path
import widths_format
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.transforms.transform import Change, Changed

WIDE = ModelSource(
    "widths", "wide.widths", InputSpecs((TensorSpec("float32", (1, 4)),)), base=Path("budgets")
)

def apply(model, settings):
    return Changed(widths_format.load(WIDE, None), (Change("layer0", "linear", "wider"),))
"""
BUDGET = """  net:
    widths: net.widths
    limits: {params: 48}
    transforms:
      wide:
        widen: {}
        limits: {params: 50, macs: {grow: 0%}}
"""


@pytest.fixture
def repository(project: Project) -> Repository:
    """A net of 48 parameters; its twin has 9 x 4 + 2 x 9 = 54, over its limit of 50."""
    project.configure(WIDEN)
    project.write("wide_engine.py", ENGINE)
    project.write("budgets/wide.widths", "4 9 2")
    project.budget(BUDGET)
    return Repository(project)


def checks(report: Any) -> dict[str, Any]:
    (model,) = report["models"]
    (transform,) = model["transforms"]
    return {check["metric"]: check for check in transform["checks"]}


def test_a_transforms_limits_are_updated_in_place(repository: Repository) -> None:
    """The scalar below the transform, and a lock entry under the transform's own path."""
    project = repository.project
    project.run("--model-budget-update=create")
    result = project.run("--model-budget-update=fix")
    result.stdout.fnmatch_lines(["accepted  net::wide::params 50 → 54   budgets/a.yaml:10"])
    text = (project.path / "budgets" / "a.yaml").read_text()
    assert text.endswith(BUDGET.replace("{params: 50,", "{params: 54,"))
    locks = json.loads((project.path / "budgets" / "a.lock.json").read_text())["models"]
    assert locks["net::wide"]["macs"]["value"] == 54
    assert project.run("--model-budget-lock=check").ret == 0


def test_a_transforms_growth_names_the_layer(repository: Repository) -> None:
    """54 -> 60: the widened layers of the twin, against the base's lock."""
    repository.project.run("--model-budget-update=create")
    repository.commit()
    repository.branch("change")
    repository.write("budgets/wide.widths", "4 10 2")
    found = checks(repository.project.report("--model-budget-base=main"))["macs"]
    assert (found["baseline"], found["actual"], found["outcome"]) == (54, 60, "over")
    assert [(each["scope"], each["delta"]) for each in found["blame"]] == [
        ("layer0", 4), ("layer1", 2)
    ]  # fmt: skip
    assert found["blame"][0]["shape_after"] == [1, 10]


def test_a_dropped_transform_and_its_raised_limit_are_loosened(repository: Repository) -> None:
    """A limit below a transform, and the transform itself."""
    repository.commit()
    repository.branch("change")
    repository.project.budget(BUDGET.replace("params: 50", "params: 60"))
    (found,) = repository.project.report("--model-budget-base=main")["loosened"]
    assert (found["id"], found["percent"]) == ("budgets/a.yaml::net::wide::params", "+20.0")
    repository.project.budget(BUDGET.partition("    transforms:")[0])
    (found,) = repository.project.report("--model-budget-base=main")["loosened"]
    assert (found["what"], found["line"]) == ("transform dropped", 4)
    assert found["text"] == "budget loosened: transform net::wide dropped with 2 limits"
