"""What could not be measured is placed at the line that says what failed; a broken limit at its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

from tests.builders.project import Project

ALONE = ("-p", "no:pytest_github_actions_annotate_failures")
BUDGET = """\
model_budget: 1
defaults:
  inputs: float32 1x4  # defaults::params
models:
  source:
    limits:
      params: 48
    widths: broken.widths  # source::params
  inputs:
    limits: {params: 48}
    widths: refusing.widths
    inputs: float32 1x8  # inputs::params
  defaults:
    limits: {params: 48}
    widths: refusing.widths
  variants:
    widths: refusing.widths
    variants:
      batch8:
        limits: {params: 48}
        inputs: float32 8x8  # variants::batch8::params
  dims:
    limits: {params: 0}
    onnx: net.onnx
    dims:  # dims::params
      nosuch: 2
  compared:
    transforms:
      other:
        equivalence: exact_algebra
        compare:  # compared::other::equivalence
          onnx: away.onnx
      nothing:
        limits: {params: 0}
        fold_batchnorm: {}  # compared::nothing::params
    limits:
      params: 0
      macs: {min: 1 MAC}  # compared::macs
    onnx: net.onnx
  missing:
    transforms:
      other:
        equivalence: exact_algebra
        fold_batchnorm: {}
    onnx: away.onnx  # missing::other::equivalence
"""
LINES = {line.rpartition("# ")[2]: number for number, line in enumerate(BUDGET.splitlines(), 1) if "#" in line}


@pytest.fixture
def failing(project: Project) -> Project:
    """The budget above, beside an ONNX file of one Relu."""
    project.write("budgets/broken.widths", "raise")
    project.write("budgets/refusing.widths", "refuse")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), str(project.path / "budgets" / "net.onnx"))
    project.write("budgets/a.yaml", BUDGET)
    return project


FAILURE = re.compile(r"^_+ model budget: (.+) _+\n(?:\[gw.*\n)?.+   budgets/a.yaml:(\d+)$", re.MULTILINE)


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["one process", "a worker"])
def test_a_failure_names_the_line_that_says_what_failed(failing: Project, page: Path, workers: tuple[str, ...]) -> None:
    """On the terminal, in JSON, in JUnit and in annotations alike."""
    files = ("--model-budget-report=json:out.json", "--model-budget-report=junit:junit.xml")
    result = failing.run(*workers, *ALONE, *files)
    found = {title.replace(" / ", "::"): int(line) for title, line in FAILURE.findall(result.stdout.str())}
    assert found == LINES

    cases = ElementTree.parse(failing.path / "junit.xml").iter("testcase")
    places = {case.get("name", "").replace(" / ", "::"): int(case.get("line", 0)) for case in cases}
    del places["compared::params"]  # within
    assert places == LINES

    subjects = {name.rpartition("::")[0]: line for name, line in LINES.items()}
    annotations = [re.match(r"::error file=budgets/a.yaml,line=(\d+),title=(.+?)::", line) for line in result.outlines]
    titles = {found[2].replace(" / ", "::"): int(found[1]) for found in annotations if found}
    assert titles.pop("compared::macs") == subjects.pop("compared")  # a broken limit is annotated for itself
    assert titles == subjects

    models = json.loads((failing.path / "out.json").read_text(encoding="utf-8"))["models"]
    reported = [subject for model in models for subject in (model, *model["transforms"]) if "error" in subject]
    subjects["missing"] = subjects["missing::other"]  # the model itself, of which the transform is made
    assert {subject["id"].partition("::")[2]: subject["error_line"] for subject in reported} == subjects


def test_a_variant_that_does_not_run_fails_at_what_it_changes(project: Project) -> None:
    """At its inputs, where it says some; a model that does not run, and a variant without inputs, at the source."""
    project.write("budgets/failing.widths", "fail")
    lines = [
        "model_budget: 1",
        "models:",
        "  net:",
        "    limits: {params: 48}",
        "    widths: failing.widths",
        "    inputs: float32 1x4",
        "    variants:",
        "      batch8:",
        "        limits: {params: 48}",
        "        inputs: float32 8x4",
        "      same: {limits: {params: 50}}",
    ]
    project.write("budgets/a.yaml", "\n".join(lines))
    found = FAILURE.findall(project.run(*ALONE).stdout.str())
    assert found == [("net / params", "5"), ("net / batch8 / params", "10"), ("net / same / params", "5")]
