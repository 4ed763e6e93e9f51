"""The contract with a base, rule by rule: docs/lock-files.md has the sentences."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
BUDGET = """model_budget: 1
{head}
models:
  {name}:
    widths: net.widths
    inputs: float32 1x4
    limits:
      params: 50
      macs: 50
"""
DROPPED = "budget loosened: model net dropped with 2 limits"
FAR = ("budgets/far/b.yaml", "model dropped", True)
Change = Callable[[Repository], object]


def budget(head: str = "loosen: forbid", name: str = "net") -> str:
    return BUDGET.format(head=head, name=name)


def on_branch(project: Project, head: str = "loosen: forbid") -> Repository:
    """Main has budgets/far/b.yaml, and budgets/a.yaml without a ban."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("budgets/far/b.yaml", budget(head))
    project.write("budgets/far/net.widths", "4 8 2")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    return repository


def in_ini(lines: str) -> Change:
    return lambda repository: repository.write("pytest.ini", f"[pytest]\n{lines}\n")


def told(project: Project, *args: str) -> list[tuple[Any, ...]]:
    """What a session tells as loosened: the file, what it is, and whether it is forbidden."""
    return [(found["file"], found["what"], found["forbidden"]) for found in project.report(BASE, *args)["loosened"]]


# Rule 3: dropped by settings.

# What pytest itself does since this version.
NATIVE = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 takes ini settings out of addopts")
PATHS = in_ini("model_budget_paths = budgets/a.yaml")
WAYS = [
    pytest.param(PATHS, "-n0", id="model_budget_paths"),
    pytest.param(in_ini("addopts = -o model_budget_paths=budgets/a.yaml"), "-n0", id="-o in addopts", marks=NATIVE),
    pytest.param(in_ini("addopts = budgets/a.yaml"), "-n0", id="a path in addopts"),
]


@pytest.mark.parametrize(("change", "workers"), [*WAYS, pytest.param(PATHS, "-n1", id="in workers")])
def test_a_budget_that_settings_stop_naming_is_dropped(project: Project, change: Change, workers: str) -> None:
    """Its file stays as it was, and its ban is enforced; the setting's file is named."""
    change(on_branch(project))
    result, report = project.run_and_report(BASE, workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        [
            f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1",
            "*budgets/far/b.yaml is dropped: not collected since the change of pytest.ini",
        ]
    )
    assert [found["file"] for found in report["loosened"]] == ["budgets/far/b.yaml"]
    assert report["broken"] == []


def test_without_a_ban_it_is_said(project: Project) -> None:
    PATHS(on_branch(project, head=""))
    result = project.run(BASE)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*net: {DROPPED}   budgets/far/b.yaml:1"])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tox.ini", "[pytest]\nmodel_budget_paths =\n    limits\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\nmodel_budget_paths = ["limits"]\n'),
        ("setup.cfg", "[tool:pytest]\nmodel_budget_paths = limits\n"),
    ],
)
def test_the_settings_of_the_base_say_where_its_budgets_were(project: Project, file: str, text: str) -> None:
    """Not those of the change, which has none any more: what was in budgets/ was never checked there."""
    (project.path / "pytest.ini").unlink()
    project.write(file, text)
    project.write("budgets/a.yaml", budget(name="other"))
    project.write("limits/b.yaml", budget())
    project.write("limits/net.widths", "4 8 2")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    (project.path / file).unlink()
    project.write("pytest.ini", "[pytest]\n")
    assert told(project, "--rootdir=.") == [("limits/b.yaml", "model dropped", True)]


def test_settings_that_move_rootdir_drop_what_was_above(project: Project) -> None:
    """The base's rootdir was above that of the change."""
    for file in ("conftest.py", "widths_format.py"):  # which pytest finds in either rootdir
        project.write(f"team/{file}", (project.path / file).read_text())
    project.write("team/budgets/a.yaml", budget(head="", name="other"))
    project.write("team/budgets/net.widths", "4 8 2")
    repository = on_branch(project)
    repository.write("team/pytest.ini", "[pytest]\nmodel_budget_paths = budgets\n")
    repository.commit()
    result = project.run(BASE, "--rootdir=team", "-c", "team/pytest.ini")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)*"])


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("budgets/a.yaml",), id="a path"),
        pytest.param(("budgets/a.yaml::other",), id="a node id"),
        pytest.param(("-k", "other"), id="-k"),
        pytest.param(("--deselect", "budgets/far/b.yaml"), id="--deselect"),
        pytest.param(("--ignore=budgets/far",), id="--ignore"),
        pytest.param(("--ignore", "budgets/far/b.yaml"), id="--ignore a file"),
        pytest.param(("--ignore-glob=*far*",), id="--ignore-glob"),
        pytest.param(("-o", "model_budget_paths=budgets/a.yaml"), id="-o"),
    ],
)
def test_what_the_user_leaves_out_is_not_dropped(project: Project, args: tuple[str, ...]) -> None:
    """The command line is the choice of this run, also where the change touches settings."""
    in_ini("addopts = -ra")(on_branch(project))
    result, report = project.run_and_report(BASE, *args)
    assert (result.ret, report["loosened"], report["broken"]) == (0, [], [])


@pytest.mark.parametrize("setting", ["model_budget_paths = budgets/a.yaml", "addopts = budgets/a.yaml"])
def test_what_the_base_left_out_as_well_is_not_dropped(project: Project, setting: str) -> None:
    """With the same settings, and with others that name no more."""
    repository = on_branch(project)
    in_ini(setting)(repository)
    repository.commit()
    repository.git("branch", "-f", "main")
    assert told(project) == []
    project.configure("\nREMARK = 'unlike before'\n")
    assert told(project) == []


def test_what_pytest_does_not_collect_is_red_once(project: Project) -> None:
    """By rule 4, whether or not the base collected it; it is not told as dropped, too."""
    repository = on_branch(project)
    in_ini("norecursedirs = far")(repository)
    for _ in range(2):
        result, report = project.run_and_report(BASE)
        assert (result.ret, report["loosened"]) == (1, [])
        assert [file["id"] for file in report["broken"]] == ["budgets/far/b.yaml::budget"]
        repository.commit()
        repository.git("branch", "-f", "main")


@pytest.mark.parametrize("text", ["[pytest]\nmodel_budget_paths = it's\n", "model_budget_paths = budgets\n"])
def test_a_base_whose_settings_cannot_be_read_hides_no_deleted_budget(project: Project, text: str) -> None:
    """Its budgets are looked for where this session looks."""
    project.write("pytest.ini", text)
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\n")
    (project.path / "budgets/far/b.yaml").unlink()
    assert told(project) == [FAR]


# Rule 3: dropped models.


def no_budget(project: Project, text: str | None) -> None:
    path = project.path / "budgets/far/b.yaml"
    path.unlink()
    if text is None:
        path.mkdir()
    elif text:
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "args"),
    [
        pytest.param("", (), id="deleted"),
        pytest.param("", ("budgets/a.yaml",), id="deleted, a path"),
        pytest.param("", ("-k", "other"), id="deleted, -k"),
        pytest.param("a: 1\n", (), id="another file"),
        pytest.param("".join(f"# {line}\n" for line in budget().splitlines()), (), id="commented out"),
        pytest.param(None, (), id="a folder"),
    ],
)
def test_a_file_that_is_no_budget_any_more_is_dropped(
    project: Project, text: str | None, args: tuple[str, ...]
) -> None:
    """Whatever the command line names: the change has removed it."""
    on_branch(project)
    no_budget(project, text)
    assert told(project, *args) == [FAR]


@pytest.mark.parametrize("content", [b"caf\xe9: 1\n", b"\xff\xfem\x00"], ids=["latin-1", "a UTF-16 scrap"])
def test_a_file_that_is_no_utf8_hides_no_dropped_budget(project: Project, content: bytes) -> None:
    """It is no budget, and comes first in git's list; a budget whose name is no UTF-8 is as good as any."""
    (project.path / "aaa.yaml").write_bytes(content)
    on_branch(project)
    (project.path / "budgets/far/b.yaml").unlink()
    assert told(project) == [FAR]


def moved(repository: Repository, head: str, limit: str = "50", file: str = "budgets/c.yaml") -> None:
    """The model of budgets/far/b.yaml in another file, with this limit on params."""
    (repository.path / "budgets/far/b.yaml").unlink()
    repository.write(file, budget(head).replace("params: 50", f"params: {limit}"))
    repository.commit()


MOVED = "net: model moved: budgets/far/b.yaml -> budgets/c.yaml, compared with its limits there   budgets/c.yaml:4"


@pytest.mark.parametrize(
    ("head", "limit", "expected"),
    [
        pytest.param("loosen: forbid", "50", [], id="as it was"),
        pytest.param("loosen: forbid", "60", [("budgets/c.yaml", "max raised", True)], id="raised on the way"),
        pytest.param("", "50", [("budgets/c.yaml", "loosen removed", True)], id="without its ban"),
    ],
)
def test_a_model_that_moves_keeps_its_base(
    project: Project, head: str, limit: str, expected: list[tuple[str, str, bool]]
) -> None:
    """Its limits are compared with those of the file that it left, and that file's ban goes with it."""
    moved(on_branch(project), head, limit)
    result, report = project.run_and_report(BASE)
    result.stdout.fnmatch_lines([f"model budget: {MOVED}"])
    assert result.ret == bool(expected)
    assert [(found["file"], found["what"], found["forbidden"]) for found in report["loosened"]] == expected


def test_a_folder_of_budgets_that_moves_with_its_setting_is_compared(project: Project) -> None:
    """git mv budgets limits, and model_budget_paths = limits: both files keep their bases."""
    repository = on_branch(project)
    repository.git("mv", "budgets", "limits")
    in_ini("model_budget_paths = limits")(repository)
    repository.commit()
    report = project.report(BASE)
    assert report["loosened"] == []
    assert [(found["file"], found["what"]) for found in report["redefined"]] == [
        ("limits/a.yaml", "file"),
        ("limits/far/b.yaml", "file"),
    ]


def test_a_model_that_moves_out_of_the_paths_is_dropped(project: Project) -> None:
    """Nothing checks it there."""
    moved(on_branch(project), "loosen: forbid", file="archive/c.yaml")
    assert told(project) == [FAR]


def test_of_two_files_that_lost_a_model_none_is_its_base(project: Project) -> None:
    """Nobody can tell which it was: both are told as dropped."""
    project.write("budgets/near/d.yaml", budget())
    project.write("budgets/near/net.widths", "4 8 2")
    repository = on_branch(project)
    (project.path / "budgets/near/d.yaml").unlink()
    moved(repository, "loosen: forbid", "60")
    assert told(project) == [FAR, ("budgets/near/d.yaml", "model dropped", True)]


def test_a_copy_is_a_new_model(project: Project) -> None:
    """Its model is where it was, too: nothing has moved."""
    repository = on_branch(project)
    repository.write("budgets/c.yaml", budget().replace("50", "5000"))
    report = project.report(BASE)
    assert (report["loosened"], report["redefined"]) == ([], [])


# Rule 5: links, submodules and Git LFS.


def behind_a_link(repository: Repository) -> None:
    """budgets/far is a link to limits/."""
    (repository.path / "budgets/far").rename(repository.path / "limits")
    (repository.path / "budgets/far").symlink_to("../limits", target_is_directory=True)


def a_link(repository: Repository) -> None:
    (repository.path / "budgets/far/b.yaml").rename(repository.path / "b.yaml")
    (repository.path / "budgets/far/b.yaml").symlink_to("../../b.yaml")


def in_a_submodule(repository: Repository) -> None:
    inner = repository.path / "budgets/far"
    repository.git("rm", "-rq", "--cached", "budgets/far")
    repository.git("init", "-q", folder=inner)
    for words in (("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        repository.git(*words, folder=inner)


def in_git_lfs(repository: Repository) -> None:
    """A filter like that of Git LFS writes the pointer of the budget, and the budget of the pointer."""
    text = (repository.path / "budgets/far/b.yaml").read_text()
    repository.write("pointer", f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 130\n")
    repository.write("budget", text)
    repository.git("config", "filter.lfs.clean", "if cmp -s - budget; then cat pointer; else echo other; fi")
    repository.write(".gitattributes", "budgets/far/b.yaml filter=lfs\n")
    repository.git("rm", "-q", "--cached", "budgets/far/b.yaml")


WHY = {
    behind_a_link: "b.yaml at main (*) is behind a link: name the folder of the file itself in model_budget_paths",
    a_link: "b.yaml at main (*) is behind a link: name the folder of the file itself in model_budget_paths",
    in_a_submodule: "b.yaml at main (*) is in a submodule that the change touches: compare it with a base in its own *",
    in_git_lfs: "b.yaml at main (*) is in Git LFS, and git has only its pointer: take it out of .gitattributes*",
}
NAMED = {"ids": lambda value: getattr(value, "__name__", None)}


def with_far(project: Project, how: Change, text: str) -> None:
    """Main and the change have budgets/far/b.yaml in this way; in the working tree it then has this text."""
    repository = on_branch(project)
    how(repository)
    project.write("net.widths", "4 8 2")
    repository.commit()
    repository.git("branch", "-f", "main")
    (project.path / "budgets/far/b.yaml").resolve().write_text(text, encoding="utf-8")


@pytest.mark.parametrize("how", [in_a_submodule, in_git_lfs], **NAMED)
def test_a_budget_that_is_as_it_was_is_green_wherever_it_is(project: Project, how: Change) -> None:
    """The ban of a file that the change does not touch is kept."""
    with_far(project, how, budget())
    result, report = project.run_and_report(BASE)
    assert (result.ret, report["loosened"], report["redefined"]) == (0, [], [])


@pytest.mark.parametrize(
    ("how", "path"),
    [(in_a_submodule, "budgets/far"), (behind_a_link, "budgets/far"), (a_link, "budgets/far/b.yaml")],
    **NAMED,
)
def test_a_submodule_or_link_that_is_gone_is_said(project: Project, how: Change, path: str) -> None:
    """Its budgets are not known, nor a ban of theirs."""
    with_far(project, how, budget())
    far = project.path / path
    far.unlink() if far.is_symlink() else shutil.rmtree(far)
    assert told(project) == [(path, "unknown", False)]


@pytest.mark.parametrize("head", ["loosen: forbid", ""], ids=["forbidden", "allowed"])
@pytest.mark.parametrize("how", WHY, **NAMED)
def test_what_is_not_compared_is_said_and_red_under_a_ban(project: Project, how: Change, head: str) -> None:
    """In one sentence with the fix; growth has no baseline."""
    with_far(project, how, budget(head).replace("params: 50", "params: 49"))
    result = project.run(BASE)
    assert result.ret == bool(head)
    end = " (forbidden)" if head else ""
    result.stdout.fnmatch_lines([f"*not compared with the base, so possibly loosened: {WHY[how]}{end}   *b.yaml:1"])
    path = project.path / "budgets/far/b.yaml"
    path.write_text(budget(head).replace("params: 50", "params: {grow: 2%}"), encoding="utf-8")
    assert [check["outcome"] for check in project.report(BASE)["models"][1]["checks"]] == ["unknown", "within"]


def test_budgets_of_a_base_that_git_cannot_list_are_unknown_and_red(project: Project) -> None:
    """A clone may lack the trees of a commit that it has."""
    repository = on_branch(project)
    tree = repository.git("rev-parse", "main^{tree}")
    repository.write("budgets/far/b.yaml", budget().replace("50", "49"))
    repository.commit()
    (project.path / ".git/objects" / tree[:2] / tree[2:]).unlink()
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*budgets at main (*) cannot be read: git *", "*FAILED base::lock*"])
