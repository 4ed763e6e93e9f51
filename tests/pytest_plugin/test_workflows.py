"""The action and the workflows: their scripts are run, and what they must not do is looked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_modelbudget.reports.markdown import MARKER
from tests.builders.marks import one_of_many
from tests.builders.project import Project

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
# A stand-in for GitHub's command: notes what it was asked, answers from the files beside it.
GH = """#!/usr/bin/env bash
here="$(dirname "$0")"
printf '%s\\n' "$*" | head -n 1 >> "$here/asked"
case "$*" in
  *"repos/o/r/pulls "*) cat "$here/number" ;;
  "run download"*) mkdir -p "$RUNNER_TEMP/reports"; cp "$here/comment.md" "$RUNNER_TEMP/reports" || exit 1 ;;
  *"--paginate"*) cat "$here/own" ;;
esac
"""


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of an action or a workflow."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "runs" in document:
        return list(document["runs"]["steps"])
    return [step for job in document["jobs"].values() for step in job["steps"]]


def script(step: dict[str, Any]) -> str:
    """The shell commands of a step; a command of the README and a script of .ci are written out."""
    text = str(step.get("run", ""))
    if command := re.search(r"\.ci/readme-command (\w+)", text):
        return subprocess.check_output([ROOT / ".ci" / "readme-command", command[1]], text=True)
    return (ROOT / text).read_text(encoding="utf-8") if re.fullmatch(r"\.ci/\w+", text) else text


def jobs() -> Iterator[Any]:
    """Every job of every workflow, as a parameter."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            yield pytest.param(job, id=f"{path.stem}-{name}")


def runs_the_gate(job: dict[str, Any]) -> bool:
    """Whether a step is the action, or a command of a step is the gate."""
    gate = re.compile(r"(^|&& )pytest --model-budget ", re.MULTILINE)
    return any(step.get("uses") == "./" or gate.search(script(step)) for step in job["steps"])


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_what_no_workflow_may_do(path: Path) -> None:
    """Foreign code with rights, movable versions of others' code, values pasted into scripts."""
    text = path.read_text(encoding="utf-8")
    assert "pull_request_target" not in text
    for step in steps(path):
        uses = step.get("uses", "./")
        assert uses.startswith("./") or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", uses)
        assert "${{" not in step.get("run", "")
        if uses.startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        if path == ACTION and "run" in step:
            assert step["shell"] == "bash"
    if path != ACTION:
        assert yaml.safe_load(text)["permissions"] in ({}, {"contents": "read"})


def test_the_job_that_comments_checks_nothing_out() -> None:
    """It has the right to write, so nothing of a change is run in it."""
    told = steps(ROOT / ".github" / "workflows" / "model-budget-comment.yml")
    assert [step for step in told if "uses" in step] == []
    assert MARKER in told[0]["run"]


def test_the_two_workflows_know_each_other() -> None:
    """The one that comments waits for the one that measures, and asks for its artifact."""
    measuring, commenting = (
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        for name in ("model-budget", "model-budget-comment")
    )
    assert f"workflows: [{yaml.safe_load(measuring)['name']}]" in commenting
    artifact = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]["artifact"]["default"]
    assert f"--name {artifact} " in commenting


TORCH_FOR_CPUS = re.compile(r"https://download\.pytorch\.org/whl/(nightly/)?cpu\b")
BRING_TORCH = {"torch", "vision", "all", "test", "dev"}  # extras


@pytest.mark.parametrize("job", [each for each in jobs() if each.values[0]["runs-on"] == "ubuntu-latest"])
def test_no_job_installs_torch_with_cuda(job: dict[str, Any]) -> None:
    """Before an extra brings torch, it is installed from the index of builds for CPUs; other systems have no others."""
    lines = [line for step in job["steps"] for line in script(step).splitlines()]
    for position, line in enumerate(lines):
        extras = re.findall(r"[\w.*$]\[([a-z,]+)\]", line) if re.search(r"pip install|environment ", line) else []
        if BRING_TORCH & {extra for group in extras for extra in group.split(",")}:
            assert TORCH_FOR_CPUS.search("\n".join(lines[: position + 1])), line


def one_of_many_gates(job: Any) -> Any:
    """On request: .ci/run has the gates of a change, `action` below that of the action, and nightly jobs run alone."""
    return pytest.param(*job.values, id=job.id, marks=one_of_many(job.id, []))


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tracked files alone, as a checkout has them; the package is imported from there."""
    folder = tmp_path / "clone"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path / "temp"))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="tracked files are those of a clone")
@pytest.mark.parametrize("job", [one_of_many_gates(each) for each in jobs() if runs_the_gate(each.values[0])])
def test_the_gate_is_green_in_a_fresh_clone(job: dict[str, Any], clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps write every file that the budgets name.

    Skipped are installations, the job's other tests, and limits that take seconds each.
    """
    addopts = f"{os.environ['PYTEST_ADDOPTS']} -k 'not equivalence and not tiled and not batched and not channels'"
    monkeypatch.setenv("PYTEST_ADDOPTS", addopts)
    for step in job["steps"]:
        if step.get("uses") == "./":
            assert gate_of_the_action(step["with"], clone) == "0"
        for command in re.split(r" && |\n", script(step)):
            is_set_up = re.search(r"pip install|-m venv|/activate", command)
            if not is_set_up and ("pytest" not in command or "--model-budget" in command):
                subprocess.run([*SHELL, command], cwd=clone, check=True)


def gate_of_the_action(given: dict[str, str], folder: Path) -> str:
    """Run the action's gate with a step's inputs; pytest's exit code."""
    declared = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]
    inputs = {name: str(given.get(name, each["default"])) for name, each in declared.items()}
    (gate,) = [step for step in steps(ACTION) if step.get("id") == "gate"]
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], value)
        for name, value in gate["env"].items()
    }
    subprocess.run([*SHELL, gate["run"]], cwd=folder, env={**os.environ, **environment}, check=True)
    outputs = Path(os.environ["GITHUB_OUTPUT"]).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in outputs)["exit-code"]


@pytest.fixture
def action(project: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the action's gate in the project as a runner does; exit code and outputs."""
    (gate,) = [step for step in steps(ACTION) if step.get("id") == "gate"]
    output = project.path / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.setenv("RUNNER_TEMP", str(project.path / "temp"))
    monkeypatch.setenv("PYTHONPATH", f"{project.path}:{os.environ.get('PYTHONPATH', '')}")

    def run(**inputs: str) -> tuple[int, dict[str, str]]:
        environment = {**os.environ, "BUDGETS": "", "ARGUMENTS": "", **inputs}
        ran = subprocess.run([*SHELL, gate["run"]], cwd=project.path, env=environment, check=False)
        pairs = (line.split("=", 1) for line in output.read_text().splitlines())
        return ran.returncode, dict(pairs)

    return run


def test_the_action_tells_counts_and_leaves_the_verdict_to_its_last_step(project: Project, action: Any) -> None:
    """Reports are written and uploaded before the job fails; arguments may hold several words."""
    project.budget("  net: {widths: net.widths, limits: {params: 47, macs: 48 MAC}}\n")
    code, outputs = action(BUDGETS="budgets/a.yaml", ARGUMENTS="-k params\n-q")
    assert code == 0
    assert outputs == {
        "exit-code": "1",
        "reports": str(project.path / "temp" / "model-budget"),
        "over": "1",
        "warn": "0",
        "within": "0",
        "unknown": "0",
        "accepted": "0",
        "unused": "0",
    }
    assert {*outputs} == {*yaml.safe_load(ACTION.read_text(encoding="utf-8"))["outputs"]}
    reports = Path(outputs["reports"])
    assert json.loads((reports / "report.json").read_text())["selected"] is True
    assert (reports / "comment.md").read_text(encoding="utf-8").startswith(MARKER)
    assert "budgets/a.yaml" in (reports / "page.html").read_text(encoding="utf-8")
    verdict = steps(ACTION)[-1]
    ran = subprocess.run([*SHELL, verdict["run"]], env={"CODE": "1", **os.environ}, check=False)
    assert ran.returncode == 1


def test_the_action_counts_exceptions(project: Project, action: Any) -> None:
    """One that is needed is accepted and passes, one that is not is unused and fails."""
    waiver = "{max: %s, waiver: {to: 50, reason: until later, until: 2999-01-01}}"
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {waiver % 47}, macs: {waiver % 48}}}}}\n")
    _, outputs = action(BUDGETS="budgets/a.yaml")
    assert (outputs["exit-code"], outputs["accepted"], outputs["unused"]) == ("1", "1", "1")


def test_an_action_that_measured_nothing_is_not_green(project: Project, action: Any) -> None:
    """A path that does not exist is pytest's usage error, and has no counts."""
    code, outputs = action(BUDGETS="nowhere")
    assert (code, outputs["exit-code"]) == (0, "4")
    assert "within" not in outputs


def test_quotes_hold_words_together(project: Project, action: Any) -> None:
    """-k "params or flops" is one expression, and a budget's name may hold a blank."""
    project.budget("  net: {widths: net.widths, limits: {params: 48, macs: 48 MAC, flops: 1 k}}\n")
    (project.path / "budgets" / "a.yaml").rename(project.path / "budgets" / "a b.yaml")
    code, outputs = action(BUDGETS="'budgets/a b.yaml'", ARGUMENTS='-k "params or flops" -q')
    assert code == 0
    assert (outputs["exit-code"], outputs["within"]) == ("0", "2")


PIP = """#!/usr/bin/env bash
# A stand-in for Python: has the modules that INSTALLED names, and notes what pip is asked for.
[ "$1" = -c ] && { [ "$2" = "import $INSTALLED" ]; exit; }
printf '%s\\n' "$*" >> "$ASKED"
"""
CPU = "https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize(
    ("extras", "index", "installed", "asked"),
    [
        pytest.param("torch", CPU, "", [f"--index-url {CPU} torch"], id="torch"),
        pytest.param("vision,onnx", CPU, "", [f"--index-url {CPU} torch torchvision"], id="vision"),
        pytest.param("torch", CPU, "torch", [], id="already there"),
        pytest.param("torch", "", "", [], id="as pip finds it"),
        pytest.param("onnx", CPU, "", [], id="no torch"),
    ],
)
def test_m6_torch_comes_without_cuda(extras: str, index: str, installed: str, asked: list[str], tmp_path: Path) -> None:
    """Its builds for CPUs are asked for first, by an index that has nothing else."""
    (tmp_path / "python").write_text(PIP)
    (tmp_path / "python").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked"),
        "EXTRAS": extras, "TORCH_INDEX": index, "INSTALLED": installed, "GITHUB_ACTION_PATH": "/a",
    }  # fmt: skip
    subprocess.run([*SHELL, steps(ACTION)[0]["run"]], env=environment, check=True)
    lines = (tmp_path / "asked").read_text().splitlines()
    assert lines == [f"-m pip install {words}" for words in [*asked, f"/a[{extras},html]"]]


@pytest.fixture
def commented(tmp_path: Path) -> Any:
    """Runs the script of the commenting job; its exit code and what it asked of GitHub."""
    (step,) = steps(ROOT / ".github" / "workflows" / "model-budget-comment.yml")
    binary = tmp_path / "bin"
    binary.mkdir()
    (binary / "gh").write_text(GH)
    (binary / "gh").chmod(0o755)

    def run(*, number: str = "7", own: str = "", comment: str | None) -> tuple[int, list[str]]:
        files = {"number": number, "own": own, **({"comment.md": comment} if comment is not None else {})}
        for name, text in files.items():
            (binary / name).write_text(text, encoding="utf-8")
        environment = {
            "PATH": f"{binary}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path),
            "REPOSITORY": "o/r", "RUN": "1", "HEAD_OWNER": "fork", "HEAD_BRANCH": "b",
            "HEAD_SHA": "abcdef0123", "CONCLUSION": "failure", "URL": "https://example.org/runs/1",
        }  # fmt: skip
        ran = subprocess.run([*SHELL, step["run"]], env=environment, check=False)
        return ran.returncode, (binary / "asked").read_text().splitlines()

    return run


def test_a_first_comment_is_posted_and_later_ones_replace_it(commented: Any) -> None:
    """On the pull request that GitHub names for the branch."""
    code, asked = commented(comment=f"{MARKER}\nall well\n")
    assert code == 0
    assert "-f head=fork:b" in asked[0]
    assert asked[-1].startswith("api --silent --method POST repos/o/r/issues/7/comments -F body=@")
    _, asked = commented(comment=f"{MARKER}\nall well\n", own="11\n12\n")
    assert asked[-1].startswith("api --silent --method PATCH repos/o/r/issues/comments/11 -F")


def test_a_commit_that_is_not_the_newest_is_not_commented(commented: Any) -> None:
    """No open pull request stands there."""
    code, asked = commented(number="", comment=f"{MARKER}\n")
    assert (code, len(asked)) == (0, 1)


@pytest.mark.parametrize("comment", ["hello\n", MARKER + "\n" + "x" * 65_536])
def test_a_text_that_is_no_comment_of_ours_is_refused(commented: Any, comment: str) -> None:
    """An artifact is the change's to fill: the marker must be there, and the length in bounds."""
    code, asked = commented(comment=comment)
    assert code == 1
    assert not [line for line in asked if "--method P" in line]


@pytest.mark.parametrize("own", ["", "11\n"])
def test_a_run_without_a_report_replaces_an_older_all_within(commented: Any, tmp_path: Path, own: str) -> None:
    """A failed install leaves no artifact: the comment says that this commit was not measured."""
    code, asked = commented(comment=None, own=own)
    assert code == 0
    assert asked[-1].startswith(f"api --silent --method {'PATCH' if own else 'POST'} ")
    assert (tmp_path / "reports" / "comment.md").read_text(encoding="utf-8") == (
        f"{MARKER}\n❌ Model budget: abcdef0 was not measured: its [run](https://example.org/runs/1) "
        "ended with failure and without a report\n"
    )


def test_an_action_that_did_not_start_says_so_in_the_comment(project: Project, action: Any) -> None:
    """A usage error writes no report: the comment is the action's, with the exit code."""
    _, outputs = action(BUDGETS="nowhere")
    text = (Path(outputs["reports"]) / "comment.md").read_text(encoding="utf-8")
    assert text == f"{MARKER}\n❌ Model budget: nothing measured, pytest ended with exit code 4\n"


def test_a_second_use_knows_nothing_of_the_first(project: Project, action: Any) -> None:
    """Its counts and reports are its own, and those of another artifact stay."""
    project.budget("  net: {widths: net.widths, limits: {params: 47}}\n")
    _, first = action()
    assert first["over"] == "1"
    (project.path / "output").unlink()
    _, second = action(BUDGETS="nowhere")
    assert "over" not in second
    assert not (Path(second["reports"]) / "report.json").exists()
    _, third = action(ARTIFACT="more")
    _, fourth = action(BUDGETS="nowhere", ARTIFACT="other")
    assert (Path(third["reports"]) / "report.json").exists()
    assert third["reports"] != fourth["reports"]
