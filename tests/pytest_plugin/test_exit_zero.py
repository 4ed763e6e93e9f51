"""The audit of exit code 0: every way to end green without a verdict on every declared limit, tried.

Each row of the table in docs/threat-model.md has its row here: not possible, or said aloud.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_modelbudget.gate.left_out import left_out
from pytest_modelbudget.pytest_plugin.options import IDLE_SWITCHES
from tests.builders import sharded
from tests.builders.project import Project
from tests.builders.repository import Repository

KEPT = "  {name}: {{widths: net.widths, limits: {{params: 48}}}}\n"  # 4 * 8 + 8 * 2
BROKEN = "  {name}: {{widths: net.widths, limits: {{params: 47}}}}\n"
ROOT = Path(__file__).parents[2]


def kept(project: Project) -> None:
    """Two models that keep their limits, and a test that passes."""
    project.budget(KEPT.format(name="one") + KEPT.format(name="two"))
    project.write("test_ok.py", "def test_ok(): pass\n")


def broken(project: Project) -> None:
    """One model that breaks its limit beside one that keeps it, and a test that passes."""
    project.budget(BROKEN.format(name="one") + KEPT.format(name="two"))
    project.write("test_ok.py", "def test_ok(): pass\n")


SELECTED = "1 left out by"
SAID = [
    pytest.param(("-k", "one"), "1 left out by -k", id="-k"),
    pytest.param(("-k", "test_ok"), "0 of 2 limits measured", id="-k of tests alone"),
    pytest.param(("-m", "not model_budget"), "0 of 2 limits measured", id="-m"),
    pytest.param(("--deselect", "budgets/a.yaml::one"), SELECTED, id="--deselect"),
    pytest.param(("budgets/a.yaml::one",), SELECTED, id="a node id"),
]


@pytest.mark.parametrize(("args", "words"), SAID)
def test_exit0_selection_is_said(project: Project, args: tuple[str, ...], words: str) -> None:
    """What a selection leaves out is counted in a line."""
    kept(project)
    result = project.run(*args)
    assert result.ret == 0
    assert words in result.stdout.str()


def test_exit0_selection_by_a_variable_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTEST_ADDOPTS is a command line like any other."""
    kept(project)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k one")
    result = project.run()
    assert result.ret == 0
    assert "1 left out by -k" in result.stdout.str()


HOOKS = {
    "skips": "    for item in items:\n        item.add_marker(pytest.mark.skip)\n",
    # What a project's conftest may do to its gate, and what must not make it green: no test of ours expects to fail.
    "expects failures": "    for item in items:\n        item.add_marker(pytest.mark.xfail)\n",
}


@pytest.mark.parametrize("body", HOOKS.values(), ids=HOOKS)
def test_exit0_marks_of_a_conftest_are_no_verdict(project: Project, body: str) -> None:
    """A limit that is skipped, or whose failure is expected, is red all the same."""
    broken(project)
    project.configure(f"\nimport pytest\ndef pytest_collection_modifyitems(items):\n{body}")
    assert project.run().ret == 1


def test_exit0_items_that_a_conftest_takes_away_are_said(project: Project) -> None:
    """Declared and collected are counted apart."""
    kept(project)
    project.configure("\ndef pytest_collection_modifyitems(items):\n    del items[1]\n")
    result = project.run()
    assert "1 of 2 limits measured, 1 left out by selection" in result.stdout.str()


@pytest.mark.parametrize("way", ["hook", "option", "ini", "list"])
def test_exit0_ignored_budgets_are_said(project: Project, way: str) -> None:
    """A budget under the configured paths that pytest is told to pass by is named."""
    kept(project)
    project.budget(BROKEN.format(name="net"), name="budgets/far/b.yaml")
    project.write("budgets/far/net.widths", "4 8 2")
    args: tuple[str, ...] = ()
    if way == "hook":
        project.configure(
            "\ndef pytest_ignore_collect(collection_path):\n"
            "    return True if collection_path.name == 'far' else None\n"
        )
    elif way == "option":
        args = ("--ignore=budgets/far",)
    elif way == "ini":
        project.write("pytest.ini", "[pytest]\nnorecursedirs = far\n")
    else:
        project.configure("\ncollect_ignore = ['budgets/far']\n")
    result = project.run(*args)
    assert result.ret == 0
    assert f"budgets{os.sep}far{os.sep}b.yaml is not held: pytest was told to ignore it" in result.stdout.str()


def test_the_only_budget_is_not_ignored_and_missing_at_once(project: Project) -> None:
    """That pytest passes it by is said, and not that there is none."""
    kept(project)
    result = project.run("--ignore=budgets/a.yaml")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*a.yaml is not held: pytest was told to ignore it", "model budget: nothing measured"])
    result.stdout.no_fnmatch_line("no YAML file with the key*")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_budgets_keeps_nobody_waiting(project: Project) -> None:
    """Nobody writes into it: whoever reads it waits for ever."""
    kept(project)
    os.mkfifo(project.path / "budgets" / "pipe.yaml")
    result = project.pytester.runpytest_subprocess("--model-budget", timeout=60)
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("folder", [".far", "build"])
def test_exit0_budgets_in_folders_that_pytest_passes_by_are_said(project: Project, folder: str) -> None:
    """pytest's own norecursedirs has them."""
    kept(project)
    project.budget(BROKEN.format(name="net"), name=f"budgets/{folder}/b.yaml")
    line = f"budgets{os.sep}{folder}{os.sep}b.yaml is not held: pytest was told to ignore it"
    assert line in project.run().stdout.str()


@pytest.mark.parametrize("name", ["b.YAML", "b.Yml"])
def test_exit0_suffixes_in_capitals_are_red(project: Project, name: str) -> None:
    """It is a budget, and pytest reads no file of that name as one."""
    kept(project)
    project.budget(BROKEN.format(name="net"), name=f"budgets/{name}")
    project.write("budgets/other.YAML", "a: 1")
    result = project.run()
    assert result.ret == 1
    output = result.stdout.str()
    assert f"budgets{os.sep}{name} is not held: let its name end in {name.lower()[1:]}" in output
    assert "other.YAML" not in output


@pytest.mark.parametrize("name", ["b.YAML", "b.Yml"])
def test_exit0_such_a_budget_that_is_named_is_a_usage_error(project: Project, name: str) -> None:
    """pytest itself says of it that it is not found."""
    project.budget(BROKEN.format(name="net"), name=f"budgets/{name}")
    result = project.run(f"budgets/{name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"budgets{os.sep}{name} is not held: let its name end in {name.lower()[1:]}" in result.stderr.str()


def test_exit0_a_link_that_leads_nowhere_is_red(project: Project) -> None:
    """It leads into a submodule that was not checked out, say: pytest, which collects files only, passes it by."""
    kept(project)
    (project.path / "budgets" / "b.yaml").symlink_to("nowhere.yaml")
    result = project.run("--model-budget-json=out.json")
    assert result.ret == 1
    (broken,) = json.loads((project.path / "out.json").read_text(encoding="utf-8"))["broken"]
    assert broken["problems"] == ["budgets/b.yaml:1: it is a link that leads nowhere"]
    line = f"model budget: budgets{os.sep}b.yaml is not held: it is a link that leads nowhere"
    assert line in result.stdout.str()


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 130\n"
LFS = "a pointer of Git LFS"
CHECKOUTS = {
    LFS: (POINTER, "a pointer of Git LFS: fetch it with git lfs pull"),
    "a link as text": ("../shared/b.yaml", "git wrote a link out as text: git config core.symlinks true"),
    "a link as text that leads nowhere": ("no where.yml", "git wrote a link out as text"),
}


@pytest.mark.parametrize(
    ("name", "args"), [*((name, args) for name in CHECKOUTS for args in ((), ("budgets/b.yaml",))), (LFS, ("-n1",))]
)
def test_exit0_a_budget_that_was_not_checked_out_is_red(project: Project, name: str, args: tuple[str, ...]) -> None:
    """What git leaves in its place says nothing of what it holds."""
    content, why = CHECKOUTS[name]
    kept(project)
    project.write("shared/b.yaml", "model_budget: 1\n")
    project.write("budgets/b.yaml", "").write_bytes(content.encode())
    result = project.run(*args, "--model-budget-json=out.json")
    assert result.ret == 1
    (broken,) = json.loads((project.path / "out.json").read_text(encoding="utf-8"))["broken"]
    assert broken["problems"][0].startswith(f"budgets/b.yaml:1:1: {why}")


def with_submodule(project: Project, folder: str) -> Path:
    """A repository of which a submodule was not checked out: an empty folder; what git keeps of it is text."""
    kept(project)
    (project.path / ".git").mkdir()
    project.write(".gitmodules", f'[submodule "lib"]\n\tpath = {folder}\n\turl = ../lib\n')
    absent = project.path / folder
    absent.mkdir(parents=True)
    return absent


@pytest.mark.parametrize("args", [(), ("-n1",), ("budgets",)], ids=["alone", "xdist", "named"])
def test_exit0_a_submodule_of_budgets_that_was_not_checked_out_is_red(project: Project, args: tuple[str, ...]) -> None:
    """Its folder is empty, as actions/checkout leaves it; the way out is to fetch it, or to leave it out by name."""
    absent = with_submodule(project, "budgets/vendor/lib")
    result = project.run(*args, "--model-budget-json=out.json")
    assert result.ret == 1
    (broken,) = json.loads((project.path / "out.json").read_text(encoding="utf-8"))["broken"]
    assert broken["problems"][0].startswith("budgets/vendor/lib:1: a submodule that was not checked out: git submodule")
    assert project.run(*args, "--ignore=budgets/vendor/lib").ret == 0
    (absent / "README").write_text("checked out", encoding="utf-8")
    assert project.run(*args).ret == 0
    (absent / ".gitmodules").write_text('[submodule "deep"]\npath = deep\n', encoding="utf-8")
    (absent / "deep").mkdir()
    assert project.run(*args).ret == 1


ODD = {
    "a comment": "\tpath = lib # ours\n",
    "quotation marks": '\tpath = "lib" ; ours\n',
    "capitals": "\tPath=lib\n",
    "one line": '[submodule "b]"] path = lib\n[submodule "c"]\n\turl = ../c\n',
    "beside a name that no folder has": f"\tpath = {'x' * 5000}\n\tpath = lib\n",
    "beside a name that is no UTF-8": "\tpath = caf\udce9\n\tpath = lib\n",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_lists_of_submodules_are_read_as_git_reads_them(tmp_path: Path, text: str) -> None:
    """Neither a comment nor a name that no file system takes hides a submodule."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / ".gitmodules").write_text(f'[submodule "lib"]\n{text}', encoding="utf-8", errors="surrogateescape")
    assert [each.path for each in left_out([tmp_path])] == [tmp_path / "lib"]


def test_exit0_a_submodule_is_absent_from_an_archive_too(project: Project) -> None:
    """As actions/checkout fetches one where there is no git: it has the list, an empty folder, and no repository."""
    with_submodule(project, "budgets/lib")
    (project.path / ".git").rmdir()
    assert project.run().ret == 1


def test_budgets_that_are_looked_for_within_an_absent_submodule_are_not_to_be_written(project: Project) -> None:
    """What is missing is the submodule, and not a folder in it."""
    with_submodule(project, "third_party/lib")
    project.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets third_party/lib/budgets\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "which does not exist: a submodule that was not checked out: git submodule update" in result.stderr.str()


def test_submodules_elsewhere_are_no_budgets(project: Project) -> None:
    """One that lies beside them is none of the gate's business; where all of the project is searched, it is said."""
    with_submodule(project, "third_party/lib")
    result = project.run()
    assert (result.ret, "a submodule that" in result.stdout.str()) == (0, False)
    result = project.run(".")
    assert result.ret == 0
    line = f"third_party{os.sep}lib not held, if there are budgets: a submodule"
    assert line in " ".join(result.stdout.str().split())


@pytest.mark.parametrize("args", [(), ("-n1",)], ids=["alone", "xdist"])
def test_exit0_a_folder_of_budgets_that_is_a_link_as_text_is_red(project: Project, args: tuple[str, ...]) -> None:
    """Beside it, a file that names a folder without budgets is no business of the gate."""
    kept(project)
    project.write("shared/team/b.yaml", "model_budget: 1\n")
    project.write("data/c.yaml", "a: 1\n")
    project.write("budgets/other", "").write_bytes(b"../data")
    assert project.run(*args).ret == 0
    project.write("budgets/team", "").write_bytes(b"../shared")
    result = project.run(*args)
    assert result.ret == 1
    assert f"budgets{os.sep}team is not held: git wrote a link out as text" in result.stdout.str()


@pytest.mark.parametrize("content", ["", "# as in a.yaml", "see: a.yaml", "a.yaml\n", "- a\n- b.yaml"])
def test_other_files_are_no_links(project: Project, content: str) -> None:
    """A YAML file without the marker is none of the gate's business, whatever it names."""
    kept(project)
    project.write("budgets/b.yaml", "").write_bytes(content.encode())
    assert project.run().ret == 0


LINKS = {"budgets/b.yaml": "../shared/b.yaml", "budgets/team": "../shared"}


@pytest.mark.parametrize("name", LINKS)
def test_exit0_a_link_as_text_is_one_where_git_keeps_it_so(project: Project, name: str) -> None:
    """A file of somebody's own that holds a path alone, committed or not, is none of the gate's business."""
    kept(project)
    project.write("shared/b.yaml", "model_budget: 1\n")
    project.write(name, LINKS[name]).write_bytes(LINKS[name].encode())
    repository = Repository(project)
    assert project.run().ret == 0
    repository.commit()
    assert project.run().ret == 0
    blob = repository.git("rev-parse", f"HEAD:{name}")
    repository.git("update-index", "--cacheinfo", f"120000,{blob},{name}")
    result = project.run()
    assert result.ret == 1
    assert "git wrote a link out as text" in result.stdout.str()


@pytest.mark.parametrize("content", ["../data/b.yaml", ".", "..", "/"])
def test_links_as_text_to_other_files_are_no_budgets(project: Project, content: str) -> None:
    """As a link is none of the gate's business that leads to data, or to a folder around it, which never ends."""
    kept(project)
    project.write("data/b.yaml", "a: 1\n")
    project.write("budgets/b.yaml", "").write_bytes(content.encode())
    project.write("budgets/other", "").write_bytes(content.encode())
    assert project.run().ret == 0


LIMITED = "defaults: {inputs: float32 1x4}\nmodels:\n  net: {widths: net.widths, limits: {params: 47}}\n"
MISSPELT = {
    "a hyphen": ("model-budget: 1\n" + LIMITED, "its key 'model-budget' is not model_budget"),
    "capitals": ("Model_Budget: 1\n" + LIMITED, "its key 'Model_Budget' is not model_budget"),
    "a letter lost": ("model_buget: 1\n" + LIMITED, "its key 'model_buget' is not model_budget"),
    "indented": (
        " model_budget: 1\n" + "".join(f" {line}\n" for line in LIMITED.splitlines()),
        "model_budget does not start a line there",
    ),
    "commented out": ("# model_budget: 1\n" + LIMITED, "model_budget does not start a line there"),
    "a tag": ("!!str model_budget: 1\n" + LIMITED, "model_budget does not start a line there"),
    "forgotten": (
        "models:\n  net: {widths: net.widths, inputs: float32 1x4, limits: {params: 1}}\n",
        "it has models and limits, and no line model_budget: 1",
    ),
    "an explicit key": ("? model_budget\n: 1\n" + LIMITED, "model_budget does not start a line there"),
    "forgotten, as JSON": (
        '{\n  "models": {\n    "net": {"widths": "net.widths", "limits": {"params": 1}}}}\n',
        "it has models and limits, and no line model_budget: 1",
    ),
}


@pytest.mark.parametrize(("text", "words"), MISSPELT.values(), ids=MISSPELT)
def test_exit0_a_misspelt_marker_is_broken(project: Project, text: str, words: str) -> None:
    """What was meant for a budget and is none has limits that nobody held, in every report."""
    kept(project)
    project.write("budgets/b.yaml", text)
    result = project.run("--model-budget-json=out.json")
    assert result.ret == 1
    (broken,) = json.loads((project.path / "out.json").read_text(encoding="utf-8"))["broken"]
    assert broken["id"] == "budgets/b.yaml::budget"
    assert broken["problems"] == [
        f"budgets/b.yaml:1:1: {words}: begin a line with model_budget: 1, or keep a file that is no budget elsewhere"
    ]


NO_BUDGETS = {
    "a job of GitLab's": ("model budget:\n  image: python\n  script: [pytest]\n", "'model budget' is not model_budget"),
    "all of it a comment": (
        "".join(f"# {line}\n" for line in ("model_budget: 1\n" + LIMITED).splitlines()),
        "model_budget does not start a line there",
    ),
}


@pytest.mark.parametrize(("text", "words"), NO_BUDGETS.values(), ids=NO_BUDGETS)
def test_exit0_a_marker_that_marks_no_budget_is_said(project: Project, text: str, words: str) -> None:
    """It gives no version and holds no model: nobody's limit is left out."""
    kept(project)
    project.write("budgets/b.yaml", text)
    result = project.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"model budget: budgets?b.yaml is not held: *{words}"])


FLOW = "{model_budget: 1, models: {net: {widths: net.widths, inputs: float32 1x4, limits: {params: 47}}}}\n"
ODDLY_WRITTEN = {
    "behind a document's start": f"--- {FLOW}".encode(),
    **{name: ("model_budget: 1\n" + LIMITED).encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be")},
    **{name: ("model_budget: 1\n" + LIMITED).encode(name) for name in ("utf-32", "utf-32-le", "utf-32-be")},
}


@pytest.mark.parametrize("content", ODDLY_WRITTEN.values(), ids=ODDLY_WRITTEN)
def test_exit0_a_budget_that_is_oddly_written_is_held(project: Project, content: bytes) -> None:
    """The marker is found, so that the limit is judged, or the file refused."""
    kept(project)
    project.write("budgets/b.yaml", "").write_bytes(content)
    assert project.run().ret == 1


SLIPS = {
    "model_budget_path": "model_budget_paths",
    "model-budget-paths": "model_budget_paths",
    "modelbudget_paths": "model_budget_paths",
    "model_buget_paths": "model_budget_paths",
    "model_budget_timeouts": "model_budget_timeout",
    "Model_Budget_Workers": "model_budget_workers",
}


@pytest.mark.parametrize(("key", "meant"), SLIPS.items(), ids=SLIPS)
def test_exit0_a_misspelt_setting_is_a_usage_error(project: Project, key: str, meant: str) -> None:
    """Pytest alone warns of it, and budgets in the folder that it names would be held by nobody."""
    kept(project)
    places = {
        "pytest.ini": (f"[pytest]\n{key} = elsewhere\n", (), "in pytest.ini"),
        "pytest.toml": (f'[pytest]\n{key} = ["elsewhere"]\n', (), "in pytest.toml"),
        "other.ini": (f"[pytest]\n{key} = elsewhere\n", ("-c", "other.ini"), "in other.ini"),
        "tox.ini": ("[pytest]\n", ("-o", f"{key}=elsewhere"), "behind -o"),
    }
    (project.path / "pytest.ini").unlink()
    for file, (text, options, place) in places.items():
        project.write(file, text)
        result = project.pytester.runpytest_inprocess("--model-budget", *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert f"nothing reads '{key}' {place}: did you mean '{meant}'?" in result.stderr.str()
        (project.path / file).unlink()


def test_settings_of_other_plugins_are_their_own(project: Project) -> None:
    """A setting that a plugin reads is no slip, however it is called; nor is one that says nothing of budgets."""
    kept(project)
    project.configure("def pytest_addoption(parser):\n    parser.addini('model_budget_lab', '', type='bool')\n")
    project.write("pytest.ini", "[pytest]\nmodel_budget_lab = perhaps\nmodel_paths = models\nlog_level = INFO\n")
    result = project.pytester.runpytest_inprocess("--model-budget")
    assert result.ret == 0


def test_settings_behind_a_byte_order_mark_are_read(project: Project) -> None:
    """Pytest reads what Notepad saves as "UTF-8 with BOM", and so does the gate."""
    kept(project)
    written = project.write("pytest.ini", "")
    written.write_bytes(b"\xef\xbb\xbf[pytest]\nmodel_budget_paths = budgets\n")
    assert project.pytester.runpytest_inprocess("--model-budget").ret == 0
    written.write_bytes(b"\xef\xbb\xbf[pytest]\nmodel_budget_path = budgets\n")
    assert project.pytester.runpytest_inprocess("--model-budget").ret == pytest.ExitCode.USAGE_ERROR


RED = {
    "nothing below models": "model_budget: 1\nmodels: {}\n",
    "no limits": "model_budget: 1\nmodels:\n  net: {widths: net.widths, inputs: float32 1x4}\n",
    "empty limits": "model_budget: 1\nmodels:\n  net: {widths: net.widths, inputs: float32 1x4, limits: {}}\n",
    "a key twice": "model_budget: 1\ndefaults: {inputs: float32 1x4}\nmodels:\n"
    "  net: {widths: net.widths, limits: {params: 47}, limits: {params: 48}}\n",
    "no bound": "model_budget: 1\ndefaults: {inputs: float32 1x4}\nmodels:\n"
    "  net: {widths: net.widths, limits: {params: {max: .inf}}}\n",
    "an unknown metric": "model_budget: 1\ndefaults: {inputs: float32 1x4}\nmodels:\n"
    "  net: {widths: net.widths, limits: {parameters: 48}}\n",
}


@pytest.mark.parametrize("text", RED.values(), ids=RED)
def test_exit0_a_budget_that_holds_nothing_is_broken(project: Project, text: str) -> None:
    """Nothing to hold is nothing that was held."""
    kept(project)
    project.write("budgets/b.yaml", text)
    assert project.run().ret == 1


@pytest.mark.parametrize(
    "args", [("-x",), ("--maxfail=1",), ("--exitfirst",), ("--setup-only",), ("--setup-plan",)], ids=str
)
def test_exit0_a_session_that_stops_early_is_red(project: Project, args: tuple[str, ...]) -> None:
    """Limits that never came to their turn are not green."""
    broken(project)
    assert project.run(*args).ret == 1


SWALLOWERS = {
    "outcome": "    report.outcome = 'passed'\n    report.longrepr = None\n",
    "words": "    report.outcome = 'passed'\n    report.longrepr = None\n"
    "    vars(report).pop('model_budget_statement', None)\n",
}


@pytest.mark.parametrize("body", SWALLOWERS.values(), ids=SWALLOWERS)
def test_exit0_a_plugin_that_calls_failures_passed_is_seen(project: Project, body: str) -> None:
    """The verdicts decide, not what became of their test reports; a limit without one is unanswered."""
    broken(project)
    project.configure(
        "\nimport pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        f"def pytest_runtest_makereport(item, call):\n    report = yield\n{body}    return report\n"
    )
    assert project.run().ret == 1


def test_exit0_hooks_alter_no_verdict(project: Project) -> None:
    """A hook that answers, or changes the report, has changed no outcome."""
    broken(project)
    project.configure(
        "\ndef pytest_model_budget_judged(item, verdict):\n    return 'within'\n"
        "def pytest_model_budget_report(config, report):\n    report['models'].clear()\n"
    )
    result = project.run()
    assert result.ret == 1
    assert "over    one::params" in result.stdout.str()


def test_exit0_an_exception_is_said_and_ends(project: Project) -> None:
    """A limit of 47 that 48 parameters break passes through one day, and not a day longer."""
    accept = "{to: 48, reason: for a while, until: 2027-01-31}"
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {{max: 47, accept: {accept}}}}}}}\n")
    last = project.run("--model-budget-today=2027-01-31")
    assert last.ret == 0
    assert "accepted to 48 until 2027-01-31: for a while" in last.stdout.str()
    assert project.run("--model-budget-today=2027-02-01").ret == 1


def test_exit0_without_the_plugin_is_a_usage_error(project: Project) -> None:
    """The switch without its plugin is unknown to pytest."""
    kept(project)
    assert project.run_apart("-p", "no:modelbudget").ret == 4


@pytest.mark.parametrize(
    ("paths", "code"),
    [("", pytest.ExitCode.NO_TESTS_COLLECTED), ("model_budget_paths =\n", pytest.ExitCode.USAGE_ERROR)],
    ids=["default", "none"],
)
def test_exit0_no_budget_at_all_is_no_success(project: Project, paths: str, code: pytest.ExitCode) -> None:
    """The switch that finds nothing ends with 5, whatever else passes; with 4 where a setting names no paths."""
    kept(project)
    (project.path / "budgets" / "a.yaml").unlink()
    project.write("pytest.ini", f"[pytest]\n{paths}")
    assert project.run().ret == code


def test_exit0_paths_that_hold_no_budget_are_no_success(project: Project) -> None:
    """Paths on the command line replace the configured ones."""
    kept(project)
    assert project.run("test_ok.py").ret == 5


def test_exit0_a_worker_that_dies_is_red(project: Project) -> None:
    """Under xdist the limits of a worker that ended itself are failures."""
    kept(project)
    project.configure("\nimport os\ndef pytest_model_budget_judged(item, verdict):\n    os._exit(0)\n")
    assert project.run_apart("-n1", "--max-worker-restart=0").ret == 1


def test_exit0_no_report_of_an_earlier_run_is_left(project: Project) -> None:
    """A run that ends before its reports leaves none that could be taken for its own."""
    kept(project)
    project.write("out.json", "{}")
    project.configure("\nimport pytest\ndef pytest_collection_finish():\n    pytest.exit('enough', 3)\n")
    assert project.run("--model-budget-json=out.json").ret == 3
    assert not (project.path / "out.json").exists()


def test_exit0_measured_runs_that_are_not_asked_for_are_said(project: Project) -> None:
    """A budget of nothing else has measured nothing: 5; beside other limits a line counts what was skipped."""
    project.budget("  net: {widths: net.widths, measured: {latency: 1 us}}\n")
    assert project.run().ret == 5
    project.budget("  net: {widths: net.widths, limits: {params: 48}, measured: {latency: 1 us}}\n")
    result = project.run()
    assert result.ret == 0
    assert "1 limit on measured runs skipped: give --model-budget-measured" in result.stdout.str()


def test_exit0_a_shard_says_that_it_is_one(project: Project) -> None:
    """The one that does not have the broken limit is green for its own, which it counts."""
    broken(project)
    codes = [code for code, _ in sharded.run_shards(project, 2)]
    assert codes == [1, 0]
    line = "model budget: shard 2/2: 1 of 2 limits, and modelbudget merge judges the whole"
    assert line in project.run("--model-budget-shard=2/2").outlines


def test_exit0_a_lost_shard_is_red(project: Project) -> None:
    """Whether or not the merge is told to go on without it."""
    kept(project)
    parts = [part for _, part in sharded.run_shards(project, 2)]
    assert sharded.merge(project.path, parts)[0] == 0
    assert sharded.merge(project.path, parts[:1])[0] == 2
    assert sharded.merge(project.path, parts[:1], "--allow-missing")[0] == 1
    assert sharded.merge(project.path, [*parts, parts[0]])[0] == 2


def test_exit0_a_shard_that_is_cut_twice_is_red(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner of Bazel's that cuts by its own rule, before this one: a limit would be in neither shard."""
    kept(project)
    project.configure("\ndef pytest_collection_modifyitems(items):\n    del items[1]\n")
    monkeypatch.setenv("TEST_TOTAL_SHARDS", "2")
    monkeypatch.setenv("TEST_SHARD_INDEX", "0")
    result = project.run()
    assert result.ret == 1
    assert "another plugin left out limits before this shard was cut" in result.stdout.str()
    assert project.run("-k", "one").ret == 0  # which is asked for


def test_exit0_locks_are_checked_by_the_merge(project: Project) -> None:
    """A shard knows too few numbers, and one that writes no part cannot be merged."""
    kept(project)
    assert project.run("--model-budget-shard=1/2", "--model-budget-lock=check").ret == 4
    runs = sharded.run_shards(project, 2, "--model-budget-lock=check")
    assert [code for code, _ in runs] == [0, 0]
    assert sharded.merge(project.path, [part for _, part in runs])[0] == 1


def test_exit0_every_way_is_in_the_table() -> None:
    """The threat model has a row for each of these tests, and names it."""
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    tests = {name for name in globals() if name.startswith("test_exit0_")} - {"test_exit0_every_way_is_in_the_table"}
    assert {name for name in tests if f"`{name}`" not in text} == set()


TWICE = [f"{flag} {flag}" for flag in IDLE_SWITCHES["version"]]
IDLE = [flag for name, flags in IDLE_SWITCHES.items() for flag in (TWICE if name == "version" else flags)]


@pytest.mark.parametrize("flag", [*IDLE, "-qh"])
def test_exit0_switches_of_a_project_that_measure_nothing_are_a_usage_error(project: Project, flag: str) -> None:
    """A change may write addopts, and the session would be green; the command line is its user's."""
    kept(project)
    project.write("pytest.ini", f"[pytest]\naddopts = {flag}\n")
    result = project.pytester.runpytest_inprocess("--model-budget")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "of addopts lets nothing be measured: take it out" in result.stderr.str()
    assert project.pytester.runpytest_inprocess("--model-budget", *flag.split()).ret == 0


@pytest.mark.parametrize("option", ["--model-budget-today=2020-01-01", "--model-budget-shard=1/2"])
def test_exit0_a_day_or_a_shard_of_a_project_is_a_usage_error(project: Project, option: str) -> None:
    """Exceptions would never end, and half of the models never be measured."""
    kept(project)
    project.write("pytest.ini", f"[pytest]\naddopts = {option}\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"{option} of addopts holds for every run: give it on the command line" in result.stderr.str()
    assert project.run(option).ret == 0
    assert project.run(option, "-n1").ret == 0


@pytest.mark.parametrize("name", ["modelbudget-gate", "modelbudget-shard"])
def test_exit0_without_what_measures_is_a_usage_error(project: Project, name: str) -> None:
    """Pytest takes the name of any plugin: one of a part of this one would leave the tests, and none of the limits."""
    broken(project)
    project.write("pytest.ini", f"[pytest]\naddopts = -p no:{name}\n")
    result = project.run_apart("--model-budget-shard=1/1", "--model-budget-json=out.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*-p no:{name} lets nothing be measured: take it out"])


def test_exit0_a_file_that_a_conftest_takes_away_is_said(project: Project) -> None:
    """Found to be a budget, and never read."""
    kept(project)
    project.configure(
        "\nimport pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_collect_file(file_path):\n"
        "    nodes = yield\n    return [] if file_path.suffix == '.yaml' else nodes\n"
    )
    project.run("-rA").stdout.fnmatch_lines(["*budgets/a.yaml is not held: pytest was told to ignore it"])


ENDS = {
    "configure": "def pytest_configure(): pytest.exit('no GPU', returncode=0)",
    "start": "def pytest_sessionstart(): pytest.exit('no GPU', returncode=0)",
    "main": "def pytest_cmdline_main(): return 0",
    "switch": "def pytest_cmdline_main(config): config.option.model_budget = False",
    "configured": "def pytest_configure(config): config.option.model_budget = False",
    "collected only": "def pytest_configure(config): config.option.collectonly = True",
    "collected": "def pytest_collection_finish(): pytest.exit('no GPU', returncode=0)",
    "setup": "def pytest_runtest_setup(): pytest.exit('no GPU', returncode=0)",
}


@pytest.mark.parametrize("hook", ENDS.values(), ids=ENDS)
def test_exit0_a_session_that_a_hook_ends_early_is_red(project: Project, hook: str) -> None:
    """Pytest takes the code of whoever ends it, or switches the gate off beside tests that pass."""
    kept(project)
    project.write("test_it.py", "def test_it(): pass\n")
    project.configure(f"\nimport pytest\n{hook}\n")
    result = project.run_apart()
    assert result.ret == 1
    assert "not measured" in result.stdout.str() or "ERROR: nothing measured: something ended" in result.stderr.str()


@pytest.mark.parametrize(
    ("line", "workers"), [("import sys; sys.exit(0)", "-n0"), ("exit()", "-n1"), ("import helper", "-n0")]
)
def test_exit0_a_conftest_that_exits_while_it_is_imported_is_red(project: Project, line: str, workers: str) -> None:
    """Pytest imports the first ones before there is a session; without the switch they end as they say."""
    kept(project)
    project.write("helper.py", "raise SystemExit\n")
    project.write("pytest.ini", "[pytest]\npythonpath = .\n")
    project.configure(f"\n{line}\n")
    result = project.run_apart(workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: nothing measured: something ended the session before its end*"])
    assert project.pytester.runpytest_subprocess(workers).ret == 0


@pytest.mark.parametrize("switch", ["--help", "--version", "--markers", "--collect-only"])
def test_exit0_what_shows_something_ends_with_its_own_code(project: Project, switch: str) -> None:
    """Nobody asked for a verdict, and none is missing."""
    kept(project)
    assert project.run(switch).ret == 0
