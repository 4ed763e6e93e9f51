"""A change that makes a limit easier to keep says so, and fails where that is forbidden."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
BUDGET = """model_budget: 1
{head}
models:
  net:
    widths: net.widths
    inputs: float32 1x4
    limits:
      params: {params}
      macs: 3.5 M
"""


@pytest.fixture
def repository(project: Project) -> Repository:
    """Main asks for 3.5 M; the branch is where a test changes that."""
    project.write("budgets/a.yaml", BUDGET.format(head="", params="3.5 M"))
    made = Repository(project)
    made.commit()
    made.branch("change")
    return made


def loosened(repository: Repository) -> Any:
    return repository.project.report(BASE)["loosened"]


def test_a_raised_limit_is_announced_on_its_line(repository: Repository) -> None:
    """3.5 M -> 4.0 M is (4.0 - 3.5) / 3.5 = 14.3% more, on line 8."""
    repository.write("budgets/a.yaml", BUDGET.format(head="", params="4.0 M"))
    repository.commit()
    assert loosened(repository) == [
        {
            "file": "budgets/a.yaml",
            "line": 8,
            "id": "budgets/a.yaml::net::params",
            "metric": "params",
            "what": "max raised",
            "before": 3_500_000,
            "after": 4_000_000,
            "percent": "+14.3",
            "forbidden": False,
            "text": "budget loosened +14.3 %: params 3.5 M -> 4.0 M",
        }
    ]
    result = repository.project.run(BASE)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*budget loosened +14.3 %: params 3.5 M -> 4.0 M   budgets/a.yaml:8"])


TAKE_BACK = "fix: take that back, or"
PAST = f"{TAKE_BACK} first merge a change that only sets loosen: warn, past this check"
ALONE = f"{TAKE_BACK} have a person merge it past this check, by itself"
OWN = f"{TAKE_BACK} leave loosen: forbid to a change of its own, after this one"
RAISED = "net: budget loosened +14.3 %: params 3.5 M -> 4.0 M (forbidden)   budgets/a.yaml:8"
LIFTED = "budget loosened: loosen: forbid is gone (forbidden)   budgets/a.yaml:1"
AT_BASE, HERE = "budgets/a.yaml:2 at main (*)", "budgets/a.yaml:2"


@pytest.mark.parametrize(
    ("heads", "params", "said"),
    [
        pytest.param(("forbid", "forbid"), "4.0 M", [RAISED, AT_BASE, PAST], id="the base's ban"),
        pytest.param(("forbid", "warn"), "4.0 M", [LIFTED, RAISED, AT_BASE, PAST], id="lifted beside a raised limit"),
        pytest.param(("forbid", "warn"), "3.5 M", [LIFTED, AT_BASE, ALONE], id="lifted alone"),
        pytest.param(("warn", "forbid"), "4.0 M", [RAISED, HERE, OWN], id="the change's own ban"),
    ],
)
def test_what_is_forbidden_says_by_whom_and_the_way_out(
    project: Project, heads: tuple[str, str], params: str, said: list[str]
) -> None:
    """Each change with its line, then the line of the ban, on the side that has it, then what to do."""
    before, now = (f"loosen: {word}" for word in heads)
    project.write("budgets/a.yaml", BUDGET.format(head=before, params="3.5 M"))
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.write("budgets/a.yaml", BUDGET.format(head=now, params=params))
    *changes, ban, way_out = said
    result = repository.project.run(BASE)
    assert result.ret == 1
    lines = [*changes, f"forbidden by loosen: forbid   {ban}", way_out]
    result.stdout.fnmatch_lines(["_* model budget: loosen _*", *lines], consecutive=True)
    assert all(found["forbidden_by"].startswith("budgets/a.yaml:2") for found in loosened(repository))


def test_what_main_tightened_since_is_no_loosening_of_the_branch(repository: Repository) -> None:
    """The base is where the branch left main, not main's tip."""
    repository.git("checkout", "-q", "main")
    repository.write("budgets/a.yaml", BUDGET.format(head="", params="3 M"))
    repository.commit()
    repository.git("checkout", "-q", "change")
    assert loosened(repository) == []


def test_a_dropped_file_is_announced(repository: Repository) -> None:
    """A budget file that is gone, whole, beside one that is there."""
    repository.write("budgets/b.yaml", BUDGET.format(head="", params="3.5 M").replace("net:", "other:"))
    (repository.path / "budgets" / "a.yaml").unlink()
    (found,) = loosened(repository)
    assert (found["file"], found["line"], found["id"]) == ("budgets/a.yaml", 1,
                                                          "budgets/a.yaml::net")  # fmt: skip
    assert found["text"] == "budget loosened: model net dropped with 2 limits"


def test_p6_budgets_that_moved_under_other_names_are_dropped(project: Project) -> None:
    """Folder, ini and model renamed at once: the model of the base is gone, and its ban is held."""
    text = BUDGET.format(head="loosen: forbid", params="3.5 M")
    project.write("budgets/a.yaml", text)
    repository = Repository(project)
    repository.commit()
    repository.git("mv", "budgets", "limits")
    repository.write("limits/a.yaml", text.replace("net:", "other:"))
    repository.write("pytest.ini", "[pytest]\nmodel_budget_paths = limits\n")
    (found,) = project.report(BASE)["loosened"]
    assert (found["file"], found["what"], found["forbidden"]) == ("budgets/a.yaml", "model dropped", True)
    assert project.run(BASE).ret == 1


def test_selection_hides_no_loosening(repository: Repository) -> None:
    """What -k leaves out is compared all the same."""
    repository.write("budgets/a.yaml", BUDGET.format(head="", params="4.0 M"))
    assert len(repository.project.report(BASE, "-k", "macs")["loosened"]) == 1


def test_an_unreadable_base_is_said(repository: Repository) -> None:
    """What today's reader refuses cannot be compared; where loosening is forbidden, that fails."""
    repository.git("checkout", "-q", "main")
    repository.write("budgets/a.yaml", "model_budget: 1\nmodls: {}\n")
    repository.commit()
    repository.git("checkout", "-q", "-B", "change")
    repository.write("budgets/a.yaml", BUDGET.format(head="loosen: forbid", params="1 M"))
    (found,) = loosened(repository)
    assert found["what"] == "unknown"
    assert "unknown key 'modls' in a budget file: did you mean 'models'?" in found["text"]
    assert repository.project.run(BASE).ret == 1


def test_a_ban_without_a_base_to_hold_it_to_fails(project: Project) -> None:
    """A base that was asked for and is not here leaves a ban unchecked: that is not green."""
    project.write("budgets/a.yaml", BUDGET.format(head="loosen: forbid", params="1 M"))
    Repository(project).commit()
    result = project.run("--model-budget-base=nowhere")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*not compared with the base, so possibly loosened: *nowhere*"])
    unasked = project.run()
    assert unasked.ret == 0
    unasked.stdout.fnmatch_lines(["*loosen: forbid of budgets/a.yaml is not checked without *-base"])
