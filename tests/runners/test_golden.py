"""Golden outputs: what a file of them lets pass, what it names, and where a reader finds that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget.onnx_models.reading import write_model
from pytest_modelbudget.runners import golden
from tests.builders.onnx_linears import network
from tests.builders.project import Project

CREATE = "--model-budget-update=create"
BUDGET = "model_budget: 1\nmodels:\n  net: {{onnx: net.onnx, golden: {golden}}}\n"
KEY = "budgets/a.yaml::net::golden::equivalence"


@pytest.fixture
def written(project: Project) -> Project:
    """A project whose network has golden outputs."""
    write_model(network("float32"), project.path / "budgets" / "net.onnx")
    budget(project)
    result = project.run(CREATE, "budgets")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["golden: net.golden.npz is written"])
    result.stdout.no_fnmatch_line("*nothing to create*")
    assert (project.path / "budgets" / "net.golden.npz").is_file()
    return project


def budget(project: Project, text: str = "net.golden.npz") -> None:
    """A budget with these golden outputs."""
    project.write("budgets/a.yaml", BUDGET.format(golden=text))


def change(project: Project, edit: Callable[[onnx.ModelProto], object]) -> None:
    """Another network in the same file."""
    path = project.path / "budgets" / "net.onnx"
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)


def edited(project: Project, edit: Callable[[dict[str, Any], dict[str, Any]], object], *, seals: bool = True) -> None:
    """Another record in the golden file, whose digest is that of the change where it is sealed."""
    path = project.path / "budgets" / "net.golden.npz"
    with np.load(path) as loaded:
        arrays = dict(loaded)
    digest, said = arrays.pop(golden.DIGEST), json.loads(str(arrays[golden.META]))
    edit(said, arrays)
    arrays[golden.META] = np.array(json.dumps(said, sort_keys=True))
    np.savez(path, **arrays, **{golden.DIGEST: np.array(golden._digest(arrays)) if seals else digest})


def nudge(name: str, by: float, at: int = 0) -> Callable[[onnx.ModelProto], object]:
    """Add to one element of a weight."""

    def edit(model: onnx.ModelProto) -> None:
        weight = next(each for each in model.graph.initializer if each.name == name)
        values = numpy_helper.to_array(weight).copy()
        values.flat[at] += values.dtype.type(by)
        weight.CopyFrom(numpy_helper.from_array(values, name))

    return edit


def test_the_same_model_is_within_again_and_again(written: Project) -> None:
    before = (written.path / "budgets" / "net.golden.npz").read_bytes()
    for options in ((), (), (CREATE,)):
        result, report = written.run_and_report(*options, "budgets")
        assert result.ret == 0
        assert report["models"][0]["transforms"][0]["equivalence"]["basis"] == "whole network"
    assert (written.path / "budgets" / "net.golden.npz").read_bytes() == before  # create writes what is not there


def test_without_a_file_the_claim_is_red_and_nothing_is_written(project: Project) -> None:
    write_model(network("float32"), project.path / "budgets" / "net.onnx")
    budget(project)
    result = project.run("budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*there is no net.golden.npz: --model-budget-update=create writes it*"])
    assert not (project.path / "budgets" / "net.golden.npz").exists()


@pytest.mark.parametrize("name", ["w0", "b0", "w1", "b1", "w2", "b2"])
def test_a_changed_weight_is_red_and_named_in_every_report(written: Project, name: str) -> None:
    change(written, nudge(name, 1e-3))
    reports = ("junit:out.xml", "html:out.html")
    result, report = written.run_and_report(*(f"--model-budget-report={each}" for each in reports), "budgets")
    note = f"golden: 1 of 6 stored tensors changed: '{name}'"
    assert result.ret == 1
    result.stdout.fnmatch_lines(["equivalence over: *", f"*{note}", f"*{KEY}*"])
    (changed,) = report["models"][0]["transforms"]
    assert changed["equivalence"]["outcome"] == "over"
    fix = "golden: to accept that, delete net.golden.npz, and write it again with --model-budget-update=create"
    assert {note, fix} <= {*changed["equivalence"]["notes"]}
    case = ElementTree.parse(written.path / "out.xml").find(".//testcase[failure]")  # our own
    assert case is not None
    assert note in "".join(case.itertext())
    assert "stored tensors changed" in (written.path / "out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{file: net.golden.npz, seeds: [0, 1, 4]}", "written with seeds 0, 1, 2, and not 0, 1, 4"),
        ("{file: net.golden.npz, families: [normal]}", "families normal, uniform, large, zeros, and not normal"),
        ("{file: net.golden.npz, rows: 7}", "written with rows none, and not 7"),
        ("{file: net.golden.npz, batch: [2]}", "written with batch sizes none, and not 2"),
    ],
)
def test_other_runs_are_named(written: Project, text: str, named: str) -> None:
    budget(written, text)
    result = written.run("budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"equivalence unknown: *{named}: restore them, or delete it, *"])


def other_values(said: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Calls on inputs of other values."""
    said["calls"] = {key[:-1] + "x": call for key, call in said["calls"].items()}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], bool, str]] = {
    "an output": (lambda said, arrays: next(iter(arrays.values())).flat.__setitem__(0, 9), False,
                  "net.golden.npz was changed after it was written"),
    "a version of the file": (lambda said, arrays: said.update(version=7), True, "is of version 7, and version 1"),
    "values of inputs": (other_values, True, "the inputs have other values"),
    "a version of a package": (lambda said, arrays: said["versions"].update(numpy="1.0"), True,
                               "was written with numpy 1.0, and this is "),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_what_was_changed_is_named(written: Project, what: str) -> None:
    edit, seals, named = DAMAGE[what]
    edited(written, edit, seals=seals)
    result = written.run("-vv", "budgets")
    assert result.ret == (0 if what == "a version of a package" else 1)
    result.stdout.fnmatch_lines([f"*{named}*"])


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\3\4 cut"])
def test_what_is_no_such_file_is_said(written: Project, content: bytes) -> None:
    (written.path / "budgets" / "net.golden.npz").write_bytes(content)
    result = written.run("budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*net.golden.npz holds no golden outputs, or is damaged: fetch it (git lfs pull), *"])


def test_the_file_of_another_model_is_red_for_its_limit_alone(written: Project) -> None:
    """Another width of the inputs, and another number of outputs."""
    wide = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    nodes = [helper.make_node("Relu", ["x"], ["fc2"])]
    out = helper.make_tensor_value_info("fc2", TensorProto.FLOAT, [3, 4])
    other = helper.make_model(helper.make_graph(nodes, "g", [wide], [out]))
    onnx.save(other, written.path / "budgets" / "net.onnx")
    written.write("budgets/b.yaml", "model_budget: 1\nmodels:\n  net: {onnx: net.onnx, limits: {params: 0}}\n")
    result = written.run("budgets")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*written with inputs x float32 *, and not x float32 3x4: restore them*"])


def test_a_row_that_no_input_reads_is_not_lost(project: Project) -> None:
    """Most rows of a table are unread: their change shows in no output."""
    table = np.random.default_rng(0).normal(size=(5000, 3)).astype("float32")
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])
    graph = helper.make_graph(nodes, "g", [ids], [y], [numpy_helper.from_array(table, "table")])
    write_model(helper.make_model(graph), project.path / "budgets" / "net.onnx")
    budget(project)
    assert project.run(CREATE, "budgets").ret == 0
    change(project, nudge("table", 1.0, at=-1))
    result = project.run("budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["equivalence unknown: stored tensors that no output shows differ: 'table': *"])


def test_what_is_not_reproduced_is_not_written(project: Project) -> None:
    """A network whose outputs do not move proves nothing."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    nodes = [helper.make_node("Mul", ["x", "zero"], ["y"])]
    zero = numpy_helper.from_array(np.zeros(1, "float32"), "zero")
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [zero])), project.path / "budgets" / "net.onnx")
    budget(project)
    result = project.run(CREATE, "budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["equivalence unknown: golden: net.golden.npz is not written: *"])
    assert not (project.path / "budgets" / "net.golden.npz").exists()


def test_a_name_is_not_given_twice(project: Project) -> None:
    budget(project, "a.npz, transforms: {golden: {fold_batchnorm: , equivalence: exact_algebra}}")
    project.run("budgets").stdout.fnmatch_lines(["*'golden' is no name of a transform: *"])


def test_outside_of_the_project_nothing_is_read(project: Project) -> None:
    budget(project, "../../x.npz")
    project.run("budgets").stdout.fnmatch_lines(["*'../../x.npz' lies outside the project*"])
