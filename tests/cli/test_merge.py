"""``modelbudget merge``: what one run would have written, or a sentence that names the part which does not fit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.cli.command import main
from tests.builders import sharded
from tests.builders.marks import one_of_many
from tests.builders.project import Project
from tests.builders.repository import Repository

CHECKED = ("--model-budget-base=main", "--model-budget-lock=check")


@pytest.mark.parametrize("of", [pytest.param(of, marks=one_of_many(str(of), ["1", "3"])) for of in (1, 2, 3, 7)])
def test_merged_reports_are_those_of_one_run(project: Project, of: int) -> None:
    """Over, warned of, unknown, unloadable, broken, loosened, redefined and stale: byte for byte."""
    sharded.changed_project(project)
    whole = sharded.one_run(project, *CHECKED)
    parts = [part for _, part in sharded.run_shards(project, of, *CHECKED)]
    assert sharded.merge(project.path, parts) == whole
    code, texts = whole
    assert (code, set(texts)) == (1, {f"report.{kind}" for kind in sharded.REPORTS})
    report = json.loads(texts["report.json"])
    told = {f"{lock['state']} {lock['file']}" for lock in report["lock"]}
    assert {"stale budgets/a.lock.json", "missing budgets/c.lock.json"} <= told
    raised = [limit["id"] for limit in report["loosened"] if limit["what"] == "baseline raised"]
    assert [name.split("::")[1] for name in raised] == ["raised", "raised", "here", "here"]  # grown is what is measured
    assert "1 accepted" in texts["report.comment"]
    assert "shard" not in report


RUNS = {
    "all within": (),
    "-k": ("-k", "net1 or net4"),
    "--deselect": ("--deselect", "budgets/a.yaml::net2"),
    "-k of nothing": ("-k", "no_such_name"),
    "a node id": ("budgets/a.yaml::net3::params",),
    "no lock to check": ("-k", "not net1", "--model-budget-lock=check"),
}


@pytest.mark.parametrize("args", RUNS.values(), ids=RUNS)
def test_merged_runs_end_as_one_run(project: Project, args: tuple[str, ...]) -> None:
    """Exit code and reports are the same, green ones and selections too."""
    project.write("budgets/a.yaml", sharded.KEPT)
    whole = sharded.one_run(project, *args)
    parts = [part for _, part in sharded.run_shards(project, 3, *args)]
    assert sharded.merge(project.path, parts) == whole


def test_no_budget_at_all_is_no_success(project: Project) -> None:
    """Exit code 5, of each shard, of one run and of the merge."""
    runs = sharded.run_shards(project, 2)
    assert [code for code, _ in runs] == [5, 5]
    assert sharded.merge(project.path, [part for _, part in runs]) == sharded.one_run(project)


def test_an_ordinary_test_that_fails_in_a_shard_fails_the_merge(project: Project) -> None:
    """Every shard runs it, and one run would have ended with its exit code."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.write("test_it.py", "def test_it(): assert 0\n")
    parts = [part for _, part in sharded.run_shards(project, 2)]
    whole = sharded.one_run(project)
    assert whole[0] == 1
    assert sharded.merge(project.path, parts) == whole


def test_annotations_are_those_of_one_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told once, by the merge, from where the project stands in its checkout; shards print none, and no summary."""
    project.budget(
        "  one: {widths: net.widths, limits: {params: 47}}\n  two: {widths: net.widths, limits: {params: 46}}\n"
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "page.md"))
    args = ("-p", "no:pytest_github_actions_annotate_failures")
    parts = []
    for number in (1, 2):
        part = project.path / f"{number}.json"
        result = project.run(f"--model-budget-shard={number}/2", f"--model-budget-report=json:{part}", *args)
        assert "::error" not in result.stdout.str()
        parts.append(part)
    assert not (project.path / "page.md").exists()
    expected = [line for line in project.run(*args).outlines if line.startswith("::")]
    monkeypatch.delenv("GITHUB_WORKSPACE")
    capsys.readouterr()
    sharded.merge(project.path, parts, "--annotations")
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert printed == expected
    assert printed[0].startswith(f"::error file={project.path.name}/budgets/a.yaml,line=5,")


def test_parts_of_two_checkouts_merge_alike(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are seen from the project, wherever a machine has it."""
    sharded.changed_project(project)
    whole = sharded.one_run(project, *CHECKED)
    _, first = sharded.run_shard(project, "1/2", *CHECKED)
    other = project.path.parent / "elsewhere"
    shutil.copytree(project.path, other, ignore=shutil.ignore_patterns("parts", "whole"))
    monkeypatch.chdir(other)
    result = project.run(
        "--model-budget-shard=2/2", "--model-budget-report=json:2.json", f"--rootdir={other}", *CHECKED
    )
    assert result.ret == 1
    assert sharded.merge(project.path, [other / "2.json", first]) == whole


# What is refused.


def edited(part: Path, edit: Callable[[Any], None]) -> None:
    record = json.loads(part.read_text())
    edit(record)
    part.write_text(json.dumps(record))


def of_part(**fields: object) -> Callable[[Path], None]:
    return lambda part: edited(part, lambda record: record.update(fields))


def of_run(**fields: object) -> Callable[[Path], None]:
    return lambda part: edited(part, lambda record: record["run"].update(fields))


def of_two_days(part: Path) -> None:
    """An exception in the first part, and one of another day in the second; none in the third."""
    of_run(exceptions_on="2026-12-30")(part.parent / "1of3.json")
    of_run(exceptions_on="2026-12-31")(part)


def cut_off(part: Path) -> None:
    part.write_text(part.read_text()[:-100])


def with_results_of_the_first(part: Path) -> None:
    others = json.loads((part.parent / "1of3.json").read_text())["results"]
    edited(part, lambda record: record["results"].extend(others))


WRITE = "write it with --model-budget-report=json and --model-budget-shard"
OTHER = "{2} (shard 2/3) has another"
REFUSED = {
    "truncated": (cut_off, f"{{2}} is no JSON: {WRITE}"),
    "gone": (Path.unlink, "{2} cannot be read: No such file or directory"),
    "a list": (lambda part: part.write_text("[]"), "{2} is no part of this version"),
    "a later version": (
        of_part(schema="model-budget-part/2"), f"{{2}} is no part of this version: {WRITE} (Part: Invalid enum value",
    ),
    "a whole run's": (
        of_part(schema="model-budget-report/1"), f"{{2}} is no part of this version: {WRITE} (Part: Invalid enum value",
    ),
    "of another commit": (of_run(commit="abc"), f"{OTHER} commit than {{1}} (shard 1/3): abc, not none: cut one "),
    "of four": (
        of_run(number_of_shards=4), "{2} (shard 2/4) has another number of shards than {1} (shard 1/3): 4, not 3: cut",
    ),
    "of another collection": (of_run(collection="f" * 64), f"{OTHER} collection than {{1}} (shard 1/3): {'f' * 64}, "),
    "of another environment": (
        of_run(environment={"python": "2.7"}), f"{OTHER} environment than {{1}} (shard 1/3): python 2.7, not ",
    ),
    "of another base": (of_run(base="main 1234"), f"{OTHER} base than {{1}} (shard 1/3): main 1234, not none: cut"),
    "of locks that are checked": (of_run(lock_check=True), f"{OTHER} lock check than {{1}} (shard 1/3): True, not "),
    "of another day": (of_two_days, f"{OTHER} exceptions on than {{1}} (shard 1/3): 2026-12-31, not 2026-12-30: cut "),
    "no such shard": (of_part(number=9), "shard 2/3 is missing: give its report json"),
    "no number": (of_part(number="2"), "{2} is no part of this version"),
    "doubled": (of_part(number=3), "{3} and {2} are both shard 3/3: give one of them"),
    "of other locks": (
        with_results_of_the_first,
        "budgets/a.yaml::net1::params is in {1} (shard 1/3) and in {2} (shard 2/3): they were cut by other lock files",
    ),
    "a limit less": (
        lambda part: edited(part, lambda record: record["results"].pop()),
        "the parts have 9 of 10 limits: another plugin cut them too, or their",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def texts_of_parts() -> dict[str, str]:
    """The parts of one run, which is made once."""
    return {}


@pytest.fixture
def parts(project: Project, texts_of_parts: dict[str, str]) -> list[Path]:
    """Three parts: 5 models of 2 limits, dealt 2, 2, 1."""
    if not texts_of_parts:
        project.write("budgets/a.yaml", sharded.KEPT)
        texts_of_parts.update({part.name: part.read_text() for _, part in sharded.run_shards(project, 3)})
    return [project.write(f"parts/{name}", text) for name, text in texts_of_parts.items()]


@pytest.mark.parametrize(("damage", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_part_of_this_run_is_named(
    project: Project,
    parts: list[Path],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
    words: str,
) -> None:
    """One sentence, exit code 2, and no report: that of an earlier merge is gone, too."""
    assert sharded.merge(project.path, parts)[0] == 0
    damage(parts[1])
    assert words.format("", *parts) in sharded.refusal(capsys, project.path, parts)


def test_a_missing_part_is_named_and_never_green(
    project: Project, parts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Allowed or not: the limits of the missing shard, of 2 models, are unanswered."""
    words = sharded.refusal(capsys, project.path, parts[::2])
    assert words == "shard 2/3 is missing: give its report json, or --allow-missing"
    assert sharded.refusal(capsys, project.path, parts[1:2]).startswith("shards 1/3, 3/3 are missing")
    code, texts = sharded.merge(project.path, parts[::2], "--allow-missing")
    assert code == 1
    assert json.loads(texts["report.json"])["unanswered"] == 2 * 2
    assert "4 not measured (6 limits)" in texts["report.comment"]
    assert "model budget: shard 2/3 is missing: its limits were not measured" in capsys.readouterr().out


def test_a_missing_part_without_limits_is_not_green_either(project: Project) -> None:
    """Nobody knows what would have been said in it."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    _, part = sharded.run_shard(project, "1/2")
    code, texts = sharded.merge(project.path, [part], "--allow-missing")
    assert code == 1
    assert json.loads(texts["report.json"])["unanswered"] == 0


def test_a_report_that_is_a_part_is_refused(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """What would be overwritten is what is to be read."""
    part, text = parts[0], parts[0].read_text()
    assert main(["merge", str(part), f"--report=json:{part}"]) == 2
    assert (
        capsys.readouterr().err == f"modelbudget: error: --report json:{part} is one of the parts: name another file\n"
    )
    assert part.read_text() == text


def test_a_reader_who_leaves_changes_no_exit_code(parts: list[Path]) -> None:
    """``modelbudget merge ... | head`` is as red as without."""
    command = [sys.executable, "-m", "pytest_modelbudget.cli", "merge", *map(str, parts[1:]), "--allow-missing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 1


def test_parts_of_two_commits_are_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The commit is the one that is checked out."""
    project.write("budgets/a.yaml", sharded.KEPT)
    repository = Repository(project)
    before = repository.commit()
    _, first = sharded.run_shard(project, "1/2")
    after = repository.commit()
    _, second = sharded.run_shard(project, "2/2")
    words = sharded.refusal(capsys, project.path, [first, second])
    assert words.startswith(f"{second} (shard 2/2) has another commit than {first} (shard 1/2): {after}, not {before}")


def test_what_a_hook_adds_is_kept(project: Project) -> None:
    """Of a key that parts fill in differently, the first part's value counts."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.configure("\ndef pytest_model_budget_report(report):\n    report['job'] = len(report['models'])\n")
    parts = [part for _, part in sharded.run_shards(project, 2)]
    _, texts = sharded.merge(project.path, parts)
    assert json.loads(texts["report.json"])["job"] == 3  # of 5 models, dealt 3 and 2


def test_a_report_without_a_name_is_refused(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that a job did not set."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["merge", *map(str, parts), "--report=comment:"])
    words = "'comment:' names no file: write comment:model_budget_comment.md, or comment alone"
    assert words in capsys.readouterr().err
