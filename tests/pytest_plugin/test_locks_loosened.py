"""A lock file is a part of what can be loosened: raised, removed or moved numbers are told, and may be forbidden."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
ALONE = ("-p", "no:pytest_github_actions_annotate_failures")
GROW = "{grow: 2%}"
RAISED = "budget loosened +941.7 %: params baseline raised 48 -> 500 (48 measured)"  # 500 / 48 - 1


def budget(limits: str = f"params: {GROW}", *, loosen: str = "warn", name: str = "net") -> str:
    return (
        f"model_budget: 1\nloosen: {loosen}\nmodels:\n  {name}:\n    widths: net.widths\n"
        f"    inputs: float32 1x4\n    limits:\n      {limits}\n"
    )


def on_branch(project: Project, text: str, *more: tuple[str, str]) -> Repository:
    """Main has a budget with its lock, and what else is given; the branch is where a test changes that."""
    project.write("budgets/a.yaml", text)
    for name, other in more:
        project.write(name, other)
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    return repository


def rewrite(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def lock(repository: Repository, name: str = "a.lock.json") -> Path:
    return repository.path / "budgets" / name


def raise_it(repository: Repository) -> None:
    rewrite(lock(repository), ('"value": 48', '"value": 500'))


def delete(repository: Repository) -> None:
    lock(repository).unlink()


def conflict(repository: Repository) -> None:
    text = lock(repository).read_text()
    lock(repository).write_text(f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> change\n")


GONE = "budget loosened: budgets/a.lock.json is gone, or cannot be read, with 1 baseline"
CHANGES = [
    pytest.param(raise_it, "baseline raised", RAISED, id="raised"),
    pytest.param(delete, "lock removed", GONE, id="deleted"),
    pytest.param(conflict, "lock removed", GONE, id="in conflict"),
]


@pytest.mark.parametrize("loosen", ["warn", "forbid"])
@pytest.mark.parametrize(("change", "what", "text"), CHANGES)
def test_p2_p5_a_lock_that_lets_grow_further_is_loosening(
    project: Project, page: Path, change: Callable[[Repository], None], what: str, text: str, loosen: str
) -> None:
    """48 parameters are locked and measured: told in terminal, annotation, comment and JSON, red where forbidden."""
    repository = on_branch(project, budget(loosen=loosen))
    change(repository)
    repository.commit()
    result = project.run(BASE, *ALONE, "--model-budget-report=comment:c.md", "--model-budget-report=json:out.json")
    forbidden = loosen == "forbid"
    assert result.ret == forbidden
    (found,) = json.loads((project.path / "out.json").read_text())["loosened"]
    assert (found["what"], found["text"], found["forbidden"]) == (what, text, forbidden)
    assert found["file"] == "budgets/a.yaml"
    end = " (forbidden)" if forbidden else ""
    subject = "" if what == "lock removed" else "net: "
    result.stdout.fnmatch_lines([f"model budget: {subject}{text}{end}   budgets/a.yaml:*"])
    (command,) = [line for line in result.outlines if line.startswith("::") and "loosened" in line]
    assert command.startswith("::error" if forbidden else "::warning")
    comment = (project.path / "c.md").read_text(encoding="utf-8")
    assert "1 loosened" in comment.splitlines()[1]
    assert "✅ Model budget" not in comment
    assert "1 loosened" in page.read_text(encoding="utf-8")


def test_p2_two_green_changes_cannot_free_a_model(project: Project) -> None:
    """The first raises the number, the second grows into it: the first one fails."""
    repository = on_branch(project, budget(loosen="forbid"))
    raise_it(repository)
    assert project.run(BASE).ret == 1
    repository.git("checkout", "-q", "--", ".")
    repository.locked("4 9 2")  # grow and lock at once: judged by the base's 48
    assert project.run(BASE).ret == 1


def test_p2_a_lock_that_says_what_is_measured_loosens_nothing(project: Project) -> None:
    """48 -> 54 within a floor of 6: growth is judged by the base, and the lock may say so."""
    repository = on_branch(project, budget("params: {grow: 2%, floor: 6}", loosen="forbid"))
    repository.write("budgets/net.widths", "4 9 2")
    assert project.run("--model-budget-update=fix").ret == 0
    assert '"value": 54' in lock(repository).read_text()
    repository.commit()
    assert project.report(BASE)["loosened"] == []
    assert project.run(BASE).ret == 0


def test_p2_selection_tells_and_leaves_the_verdict_to_the_whole(project: Project) -> None:
    """What -k leaves out is not measured: an honest number cannot be told from a raised one."""
    repository = on_branch(project, budget(f"params: {GROW}\n      macs: {GROW}", loosen="forbid"))
    rewrite(lock(repository), ('"value": 48, "unit": "param"', '"value": 500, "unit": "param"'))
    (found,) = project.report(BASE, "-k", "macs")["loosened"]
    assert (found["text"], found["forbidden"]) == (RAISED.replace("48 measured", "not measured here"), False)
    (found,) = project.report(BASE)["loosened"]
    assert (found["text"], found["forbidden"]) == (RAISED, True)


def test_p2_a_limit_that_is_gone_takes_its_number_along(project: Project) -> None:
    """The removed limit is told, once; trim then removes its number."""
    repository = on_branch(project, budget(f"params: {GROW}\n      macs: {GROW}"))
    repository.write("budgets/a.yaml", budget(f"macs: {GROW}"))
    project.run("--model-budget-update=trim")
    assert '"params"' not in lock(repository).read_text()
    assert [found["what"] for found in project.report(BASE)["loosened"]] == ["metric removed"]


def test_p2_workers_tell_the_same(project: Project) -> None:
    """Numbers come from any process; the record is the same."""
    repository = on_branch(project, budget(f"params: {GROW}\n      macs: {GROW}", loosen="forbid"))
    raise_it(repository)
    texts = []
    for words in (("-n0",), ("-n2", "--dist=load")):
        result = project.run(BASE, "--model-budget-report=json:out.json", *words)
        assert result.ret == 1
        texts.append((project.path / "out.json").read_text().partition('"timings"')[0])
    assert texts[0] == texts[1]
    assert texts[0].count('"baseline raised"') == 2


# Renamed and moved budgets.


def moved(repository: Repository, file: str, *, widths: str = "4 20 2", name: str = "net") -> None:
    """The budget under another name, its lock written anew, of a model that grew to 20 x 4 + 2 x 20 = 120."""
    target = repository.path / file
    target.parent.mkdir(parents=True, exist_ok=True)
    (repository.path / "budgets" / "a.yaml").unlink()
    lock(repository).unlink()
    target.write_text(budget(name=name))
    (target.parent / "net.widths").write_text(widths)
    repository.project.run(file.split("/")[0], "--model-budget-update=create")
    repository.commit()


@pytest.mark.parametrize("file", ["budgets/b.yaml", "budgets/a.yml", "nets/budgets/a.yaml"])
def test_p6_a_renamed_budget_keeps_its_base(project: Project, file: str) -> None:
    """The model of that name stood in a file that is gone: its number there is the baseline."""
    repository = on_branch(project, budget())
    moved(repository, file)
    report = project.report(BASE, file.split("/")[0])
    ((check,),) = [model["checks"] for model in report["models"]]
    assert (check["outcome"], check["baseline"], check["actual"]) == ("over", 48, 120)
    assert [each["what"] for each in report["redefined"]] == ["file"]
    assert not [each for each in report["lock"] if each["state"] == "missing"]


@pytest.mark.parametrize("limits", ["params: 900", f"params: {GROW}"])
def test_p6_a_budget_that_leaves_its_folder_is_told_there(project: Project, limits: str) -> None:
    """Also where only the new folder is asked for: its limits are compared, and the ban goes with the model."""
    repository = on_branch(project, budget(f"params: {GROW}\n      macs: 50", loosen="forbid"))
    moved(repository, "nets/budgets/a.yaml")
    repository.write("nets/budgets/a.yaml", budget(limits))
    result = project.run(BASE, "nets", "--model-budget-report=json:out.json")
    found = json.loads((project.path / "out.json").read_text())["loosened"]
    assert {("nets/budgets/a.yaml", what, True) for what in ("metric removed", "loosen removed")} <= {
        (one["file"], one["what"], one["forbidden"]) for one in found
    }
    assert result.ret == 1


def test_p6_a_renamed_budget_without_growth_is_within(project: Project) -> None:
    """Renamed alone, that is said, and nothing is loosened or over."""
    repository = on_branch(project, budget())
    moved(repository, "budgets/b.yaml", widths="4 8 2")
    report = project.report(BASE)
    assert report["models"][0]["checks"][0]["outcome"] == "within"
    assert (report["loosened"], [found["what"] for found in report["redefined"]]) == ([], ["file"])


def test_p6_a_raised_number_in_a_renamed_lock_is_told(project: Project) -> None:
    """Moved with its budget, and raised on the way."""
    repository = on_branch(project, budget())
    for suffix in ("yaml", "lock.json"):
        lock(repository, f"a.{suffix}").rename(lock(repository, f"b.{suffix}"))
    rewrite(lock(repository, "b.lock.json"), ('"value": 48', '"value": 500'))
    assert [found["what"] for found in project.report(BASE)["loosened"]] == ["baseline raised"]


def test_p6_a_model_that_moves_to_another_file_keeps_its_base(project: Project) -> None:
    """The file that it leaves stays, with another model."""
    two = budget() + budget(name="twin").partition("models:\n")[2]
    repository = on_branch(project, two)
    repository.write("budgets/a.yaml", budget(name="twin"))
    repository.write("budgets/b.yaml", budget())
    repository.write("budgets/net.widths", "4 20 2")
    project.run("--model-budget-update=create")
    checks = {model["id"]: model["checks"][0] for model in project.report(BASE)["models"]}
    assert checks["budgets/b.yaml::net"]["baseline"] == 48
    assert checks["budgets/b.yaml::net"]["outcome"] == "over"


def test_p6_of_several_files_that_are_gone_the_least_number_counts(project: Project) -> None:
    """Nobody knows which of them it was; one of the same name is taken first."""
    more = [("budgets/wide.widths", "4 30 2"), ("budgets/w.yaml", budget().replace("net.widths", "wide.widths"))]
    repository = on_branch(project, budget(), *more)  # 30 x 4 + 2 x 30 = 180
    for name in ("w.yaml", "w.lock.json"):
        lock(repository, name).unlink()
    moved(repository, "budgets/b.yaml")
    assert project.report(BASE)["models"][0]["checks"][0]["baseline"] == 48


# What is said besides.


@pytest.mark.parametrize("args", [(), ("-x",)], ids=str)
def test_p7_a_broken_ban_is_a_failing_item(project: Project, args: tuple[str, ...]) -> None:
    """No green "1 passed" above an exit code of 1; pytest's own JUnit has it, too."""
    repository = on_branch(project, budget("params: 50", loosen="forbid"))
    repository.write("budgets/a.yaml", budget("params: 60", loosen="forbid"))
    result = project.run(BASE, *ALONE, "-rf", "--junitxml=own.xml", *args)
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 1, "failed": 1}
    line = "net: budget loosened +20.0 %: params 50 -> 60 (forbidden)"
    result.stdout.fnmatch_lines(["_* model budget: loosen _*", line + "*", "FAILED budgets/a.yaml::loosen - net: *"])
    result.stdout.no_fnmatch_line("*200%*")
    own = (project.path / "own.xml").read_text(encoding="utf-8")
    assert 'failures="1"' in own
    assert 'name="loosen"' in own
    assert project.report(BASE, "-rf")["models"][0]["checks"][0]["outcome"] == "within"


def test_p7_an_unfit_lock_is_a_failing_item(project: Project) -> None:
    """Where locks are checked."""
    project.write("budgets/a.yaml", budget("params: 60"))
    Repository(project).locked()
    project.write("budgets/net.widths", "4 9 2")
    result = project.run("--model-budget-lock=check", "-rf")
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 1, "failed": 1}
    result.stdout.fnmatch_lines(["FAILED budgets/a.lock.json::lock - lock stale: *"])


def test_p9_terminal_lines_name_the_model(project: Project) -> None:
    """Two models loosened alike are two lines that differ."""
    two = budget("params: 50") + budget("params: 50", name="twin").partition("models:\n")[2]
    project.write("budgets/a.yaml", two)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.write("budgets/a.yaml", two.replace("params: 50", "params: 60").replace("1x4", "2x4"))
    lines = [line for line in project.run(BASE).outlines if "loosened +" in line or "model changed" in line]
    assert [re.sub(r"   .*", "", line.removeprefix("model budget: ")) for line in lines] == [
        "net: budget loosened +20.0 %: params 50 -> 60",
        "twin: budget loosened +20.0 %: params 50 -> 60",
        *(f"{name}: model changed: inputs float32 1x4 -> float32 2x4: its limits now apply to a different model"
          for name in ("net", "twin")),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["gone", "a folder", "broken"])
def test_r2_a_lock_that_goes_fails(project: Project, how: str) -> None:
    """Growth was told from it, and nobody can tell it again."""
    project.write("budgets/a.yaml", budget())
    repository = Repository(project)
    repository.locked()
    then = {"a folder": "os.mkdir(LOCK)", "broken": "open(LOCK, 'w').close()"}.get(how, "None")
    project.configure(
        f"import os\nLOCK = {str(lock(repository))!r}\n"
        f"def pytest_model_budget_judged(item, verdict):\n    os.remove(LOCK)\n    {then}\n"
    )
    result = project.run("--model-budget-report=json:out.json")
    assert result.ret == 1
    report = json.loads((project.path / "out.json").read_text())
    assert report["lock"][0]["fails"] is True
    assert report["lock"][0]["state"] == ("missing" if how == "gone" else "broken")


@pytest.mark.parametrize(("mark", "line"), [("<<<<<<< HEAD", 3), ("=======", 3)])
def test_p14_marks_of_a_merge_in_a_budget(project: Project, mark: str, line: int) -> None:
    """In good words, and on the line of the first mark."""
    text = budget().splitlines()
    text.insert(2, mark)
    project.write("budgets/a.yaml", "\n".join(text))
    result = project.run()
    assert result.ret == 1
    said = f"broken budget: the marks of an unfinished merge: keep one side, *   budgets/a.yaml:{line}:1"
    result.stdout.fnmatch_lines([said])


@pytest.mark.parametrize(
    ("value", "why"), [('"0.5"', "the value '0.5' is no whole number"), ("-3", "Expected `int` >= 0 - at `$.value`")]
)
def test_n14_r1_an_odd_lock_is_unknown_and_never_a_traceback(project: Project, value: str, why: str) -> None:
    """By file and key, with reports; at the base alike."""
    project.write("budgets/a.yaml", budget("params: {grow: 2%, min: 1}"))
    repository = Repository(project)
    repository.locked()
    rewrite(lock(repository), ('"value": 48', f'"value": {value}'))
    for words in ((), (BASE,)):
        report = project.report(*words)
        assert report["models"][0]["checks"][0]["outcome"] == "unknown"
        assert f"budgets/a.lock.json{' at main' if words else ''}" in report["models"][0]["checks"][0]["reason"]
        assert f"'net', 'params': {why}" in report["lock"][0]["text"]
        repository.commit()


def test_v5_the_words_on_a_lock_do_not_depend_on_the_order_of_tests(project: Project) -> None:
    """Stale numbers in one order, whichever came first."""
    limits = "\n      ".join(f"{name}: 9 G" for name in ("weight_memory", "params", "macs", "bandwidth"))
    project.write("budgets/a.yaml", budget(limits))
    Repository(project).locked()
    project.write("budgets/net.widths", "4 9 2")
    texts = {project.report()["lock"][0]["text"]}
    project.configure("def pytest_collection_modifyitems(items):\n    items.reverse()\n")
    texts.add(project.report()["lock"][0]["text"])
    assert len(texts) == 1
