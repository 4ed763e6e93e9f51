"""A command as the second side of a claim: what it gives, and every way in which it can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_modelbudget.onnx_models.reading import write_model
from pytest_modelbudget.runners.__main__ import dequantised, main, named, quantised
from tests.builders.onnx_linears import network
from tests.builders.project import Project

RIGHT = "python -m pytest_modelbudget.runners onnxruntime {model} {inputs} {outputs}"
BUDGET = """model_budget: 1
models:
  net:
    onnx: net.onnx
    limits: {{params: 50 k}}
    transforms:
      on_device:
        runner: {runner}
        model: net.onnx
        equivalence: {{kind: lossy, sqnr: 100, families: [normal], seeds: [0]}}
"""
COMMAND = "'python board.py {model} {inputs} {outputs}'"
# A board in numpy: three linear layers, as tests.builders.onnx_linears has them, and what a test does to the outputs.
BOARD = """
import sys, time, os, subprocess
import numpy as np, onnx
from onnx import numpy_helper
model, inputs, outputs = sys.argv[1:]
w = {each.name: numpy_helper.to_array(each) for each in onnx.load(model).graph.initializer}
x = np.load(inputs)[NAME]
h0 = np.maximum(x @ w["w0"] + w["b0"], 0)
h1 = np.maximum(h0 @ w["w1"] + w["b1"], 0)
e = np.exp(h0 - h0.max(-1, keepdims=True))
found = {"fc2": h1 @ w["w2"] + w["b2"], "second": e / e.sum(-1, keepdims=True)}
"""


def budget(project: Project, runner: str) -> None:
    write_model(network("float32"), project.path / "budgets" / "net.onnx")
    project.write("budgets/a.yaml", BUDGET.format(runner=runner))


def board(project: Project, end: str, *, runner: str = COMMAND, name: str = "x") -> None:
    """A budget whose runner ends so."""
    project.write("budgets/board.py", BOARD.replace("NAME", repr(name)) + end)
    budget(project, runner)


def test_a_right_runner_is_within(project: Project) -> None:
    """ONNX Runtime with its own optimisations, on four families."""
    budget(project, f"'{RIGHT}'")
    text = (project.path / "budgets" / "a.yaml").read_text().replace(", families: [normal], seeds: [0]", ", seeds: [0]")
    project.write("budgets/a.yaml", text)
    result, report = project.run_and_report("budgets")
    assert result.ret == 0
    (claim,) = report["models"][0]["transforms"]
    assert claim["equivalence"]["outcome"] == "within"
    assert {each["family"] for each in claim["equivalence"]["outputs"]} == {"normal", "uniform", "large", "zeros"}


@pytest.mark.parametrize(
    ("runner", "name", "end"),
    [
        pytest.param("{command: COMMAND, inputs: {x: image}, outputs: {fc2: logits, second: shares}}", "image",
                     "np.savez(outputs, logits=found['fc2'], shares=found['second'])", id="names"),
        pytest.param("{command: COMMAND, inputs: {x: {name: x, dtype: float64}}, outputs: {second: {dtype: f8}}}", "x",
                     "assert x.dtype == 'f8'\nfound['fc2'] = np.float32(found['fc2'])\nnp.savez(outputs, **found)",
                     id="types"),
        pytest.param("{command: COMMAND, inputs: {x: {layout: NHWC}}, outputs: {fc2: {layout: NHWC}}}", "x",
                     "np.savez(outputs, **found)", id="layouts: the second axis of two is the last one already"),
    ],
)  # fmt: skip
def test_a_map_says_what_arrays_are_there(project: Project, runner: str, name: str, end: str) -> None:
    board(project, end, runner=runner.replace("COMMAND", COMMAND), name=name)
    assert project.run("budgets").ret == 0


FAILURES = {
    "crash": ("sys.exit('no board on /dev/tty7')", "exit code 1: no board on /dev/tty7: run it by hand"),
    "exception": ("1 / 0", "in <module> / 1 / 0 / ZeroDivisionError: division by zero: run it by hand"),
    "signal": ("os.abort()", "exit code -6: stderr is empty"),
    "nothing": ("", "it wrote nothing to {outputs}: write one"),
    "no archive": ("open(outputs, 'w').write('done')", "it wrote no .npz of arrays to {outputs}: write one"),
    "too few": ("np.savez(outputs, fc2=found['fc2'])", "it wrote fc2, and no 'second': write it, or map it"),
    "another shape": ("np.savez(outputs, fc2=found['fc2'][:, :-1], second=found['second'])",
                      "the outputs are not the same: output 'fc2' is [[]4, 69] and was [[]4, 70]"),
    "another type": ("np.savez(outputs, **{k: v.astype('float64') for k, v in found.items()})",
                     "output 'fc2' is float64 and was float32"),
    "NaN": ("found['fc2'][1, 2] = np.nan; np.savez(outputs, **found)", "NaN or Inf in float32 where the original *"),
    "wrong": ("found['second'] *= 1.001; np.savez(outputs, **found)", "output 'second', normal inputs: sqnr 60 < 100"),
}  # fmt: skip


WRONG = {
    "an input that is none": ("{command: COMMAND, inputs: {y: image}}",
                              "inputs: the model has no 'y': known are x"),
    "an output that is none": ("{command: COMMAND, outputs: {fc3: logits}}",
                               "outputs: the model has no 'fc3': did you mean 'fc2'?"),
    "a layer that is none": ("{command: COMMAND, layers: {relu9: fc2}}",
                             "layers: the model has no 'relu9': did you mean 'relu"),
    "a layer that was not written": ("{command: COMMAND, layers: {relu0: hidden}}",
                                     "it wrote fc2, second, and no 'hidden': write it, or map it: layers: {'relu0'"),
    "a layer of another shape": ("{command: COMMAND, layers: {relu0: fc2}}",
                                 "layers: 'relu0' is [4, 130] here, and [4, 70] there: correct its name or its layout"),
    "a type that it has not": ("{command: COMMAND, outputs: {fc2: {dtype: float16}}}",
                               "'fc2' is float32 there, and the budget says float16: correct its dtype"),
    "no type": ("{command: COMMAND, outputs: {fc2: {dtype: float33}}}", "fc2: reading its dtype raised TypeError"),
    "a quote": ("'python \"board.py'", "a quotation mark is missing: correct the command"),
    "no words": ("' '", "the command is empty: python run.py {model} {inputs} {outputs}"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_map_or_a_command_that_says_something_else_is_red(project: Project, what: str) -> None:
    """What a budget says of a runner is true of it, or the claim is unknown, with the fix."""
    runner, said = WRONG[what]
    board(project, "np.savez(outputs, **{k: v.astype('f4') for k, v in found.items()})",
          runner=runner.replace("COMMAND", COMMAND))  # fmt: skip
    result = project.run("budgets")
    result.assert_outcomes(passed=1, failed=1)
    assert said in " ".join(result.stdout.str().split())


@pytest.mark.parametrize("how", FAILURES)
def test_what_fails_is_red_for_its_limit_alone(project: Project, how: str) -> None:
    end, said = FAILURES[how]
    board(project, end)
    result = project.run("budgets")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"equivalence *{said}*budgets/a.yaml:10"])


def test_a_failure_shows_the_end_of_a_long_stderr(project: Project) -> None:
    """A thousand letters at most, in the failure and in the summary: a progress bar may be one line."""
    board(project, "sys.stderr.write('~' * 9_999 + ' no board'); sys.exit(2)")
    text = project.run("budgets").stdout.str()
    assert "no board: run it by hand" in text
    assert 900 < text.count("~") <= 2_000


def test_a_hanging_runner_ends_with_all_that_it_started(project: Project) -> None:
    end = "child = subprocess.Popen(['sleep', '60']); open('pid', 'w').write(str(child.pid)); time.sleep(60)"
    board(project, end, runner="{command: 'python board.py {model} {inputs} {outputs}', timeout: 3}")
    result = project.run("budgets")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["equivalence unknown: *no answer within 3 s: raise timeout, or mend it*"])
    assert has_ended(project)


def has_ended(project: Project) -> bool:
    """Whether the process whose number a runner wrote has ended, and is perhaps not yet collected."""
    state = Path("/proc", (project.path / "budgets" / "pid").read_text(), "stat")
    return not state.exists() or ") Z " in state.read_text()


def test_a_runner_ends_with_the_process_of_its_model(project: Project) -> None:
    """It is in the process group of its model, which a time limit ends."""
    board(project, "open('pid', 'w').write(str(os.getpid())); time.sleep(60)")
    result = project.run("budgets", "--model-budget-timeout=10 s")
    result.stdout.fnmatch_lines(["equivalence unknown: *was stopped after 10 s: *"])
    assert has_ended(project)


def test_the_layer_that_loses_most_is_named_where_layers_are_mapped(project: Project) -> None:
    end = "h0 *= 1.01\nh1 = np.maximum(h0 @ w['w1'] + w['b1'], 0)\nfound['fc2'] = h1 @ w['w2'] + w['b2']\n"
    end += "np.savez(outputs, **found, first=h0, then=h1)"
    runner = "{command: 'python board.py {model} {inputs} {outputs}', layers: {relu0: first, relu1: then}}"
    board(project, end, runner=runner)
    result, report = project.run_and_report("budgets")
    assert result.ret == 1
    (claim,) = report["models"][0]["transforms"]
    assert claim["equivalence"]["first_divergence"]["scope"] == "relu0"


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ("'no_such_program {model}'", "it does not start (No such file or directory: no_such_program): correct"),
        ("{command: 'python board.py', inputs: {x: {layout: CHWN}}}", "x: {'layout': 'CHWN'} is no array: write "),
    ],
)
def test_what_cannot_be_run_is_said(project: Project, runner: str, said: str) -> None:
    budget(project, runner)
    project.run("budgets").stdout.fnmatch_lines([f"*runner: *{said.replace('[', '[[]')}*"])


def test_a_model_that_was_not_built_is_not_run(project: Project) -> None:
    """A runner that does not open it, as one that flashes another file, would be green."""
    write_model(network("float32"), project.path / "budgets" / "net.onnx")
    project.write("budgets/a.yaml", BUDGET.format(runner="'true'").replace("model: net.onnx", "model: no_such.tflite"))
    project.run("budgets").stdout.fnmatch_lines(["*no_such.tflite does not exist: build it, or correct 'model'*"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fold_batchnorm: {}\n        model: a.onnx\n        equivalence: exact_algebra", "*'model' is the file of*"),
        ("runner: 'true'\n        limits: {params: 1}\n        equivalence: {kind: lossy, sqnr: 1}",
         "*'model' is the file of a runner, and not measured: *"),
        ("runner: {timeout: 3}\n        equivalence: {kind: lossy, sqnr: 1}", "*command*"),
    ],
)  # fmt: skip
def test_what_a_budget_cannot_say_is_refused(project: Project, text: str, said: str) -> None:
    head = "model_budget: 1\nmodels:\n  net:\n    onnx: net.onnx\n    transforms:\n      t:\n        "
    project.write("budgets/a.yaml", head + text + "\n")
    result = project.run("budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines([said])


@pytest.mark.parametrize(
    ("dtype", "scale", "zero", "values", "stored"),
    [
        pytest.param("int8", 0.5, -3, [0.0, 1.0, -100.0, 100.0], [-3, -1, -128, 127], id="x/s + z, within its ends"),
        pytest.param("uint8", 0.25, 10, [0.0, 0.25, -9.0], [10, 11, 0], id="unsigned"),
        pytest.param("float32", 0.0, 0, [0.5, -2.0], [0.5, -2.0], id="without a scale nothing is rounded"),
    ],
)
def test_floats_are_quantised_by_the_scales_of_a_file(
    dtype: str, scale: float, zero: int, values: list[float], stored: list[float]
) -> None:
    detail = {"dtype": np.dtype(dtype).type, "quantization": (scale, zero)}
    made = quantised(np.array(values, "float32"), detail)
    assert (made.dtype.name, made.tolist()) == (dtype, stored)
    again = [(each - zero) * scale for each in stored] if scale else stored
    assert dequantised(made, detail).tolist() == again
    assert dequantised(made, detail).dtype == "float32"


def test_inputs_of_other_names_are_taken_in_order() -> None:
    assert named(["a", "b"], {"b": 2, "a": 1}) == [1, 2]
    assert named(["serving_0", "serving_1"], {"x": 1, "y": 2}) == [1, 2]
    with pytest.raises(SystemExit, match="the file takes 2 inputs, a, b, and 1 are given"):
        named(["a", "b"], {"a": 1})


@pytest.mark.parametrize(("runtime", "package"), [("litert", "ai-edge-litert"), ("executorch", "executorch")])
def test_a_runtime_that_is_not_installed_is_said_with_its_package(
    runtime: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.zeros(1))
    for name in ("ai_edge_litert", "executorch"):
        monkeypatch.setitem(sys.modules, name, None)
    words = ["runners", runtime, "net", str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=rf": pip install {package}$"):
        main()
