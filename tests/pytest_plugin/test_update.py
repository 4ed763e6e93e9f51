"""Updates write what was measured, the scalars concerned and nothing else, once."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

# 48 parameters and MACs; 192 bytes of weights.
ODD = """# the team's own layout
model_budget: 1
defaults: {inputs: float32 1x4}
models:
      net:            # four spaces more than anybody needs
            widths:   net.widths
            limits:
                  params:   "40"      # quoted, aligned
                  macs: {max:  1_000 MAC,   level: warn}
                  weight_memory: {max: 0.1 kB, level: error}   # units stay
                  model_size: auto
            scopes:
                  "layer*": {params: {min: 60, max: 90}}
            variants:
                  wide: {inputs: float32 2x4, limits: {macs: 95}}
"""


def changed(project: Project, before: str, name: str = "budgets/a.yaml") -> list[tuple[str, str]]:
    """(line before, line after) of every line that is another one now."""
    after = (project.path / name).read_bytes().decode("utf-8-sig")
    pairs = zip(before.splitlines(keepends=True), after.splitlines(keepends=True), strict=True)
    return [pair for pair in pairs if pair[0] != pair[1]]


def locked(project: Project, name: str = "budgets/a.lock.json") -> dict[str, dict[str, int]]:
    """Locked numbers by model and check."""
    models = json.loads((project.path / name).read_text())["models"]
    return {path: {check: number["value"] for check, number in model.items()} for path, model in models.items()}


def update(project: Project, mode: str, *args: str) -> pytest.RunResult:
    return project.run(f"--model-budget-update={mode}", *args)


def test_fix_sets_what_is_broken_and_nothing_else(project: Project) -> None:
    """Comments, order, alignment, quotes and units survive; a minimum is lowered."""
    project.write("budgets/a.yaml", ODD)
    result = update(project, "fix")
    assert [(old.strip(), new.strip()) for old, new in changed(project, ODD)] == [
        ('params:   "40"      # quoted, aligned', 'params:   "48"      # quoted, aligned'),
        (
            "weight_memory: {max: 0.1 kB, level: error}   # units stay",
            "weight_memory: {max: 0.192 kB, level: error}   # units stay",
        ),
        ('"layer*": {params: {min: 60, max: 90}}', '"layer*": {params: {min: 48, max: 90}}'),
        ("wide: {inputs: float32 2x4, limits: {macs: 95}}", "wide: {inputs: float32 2x4, limits: {macs: 96}}"),
    ]
    result.stdout.fnmatch_lines(
        [
            "accepted  net::params 40 → 48   budgets/a.yaml:8",
            "accepted  net::weight_memory 0.1 kB → 0.192 kB   budgets/a.yaml:10",
            "accepted  net::params@layer[*] min 60 → 48   budgets/a.yaml:13",
            "accepted  net::wide::macs 95 → 96   budgets/a.yaml:15",
            "6 limits: 0 over, 0 warn, 5 within, 1 unknown",
            "4 limits accepted in budgets/a.yaml: review and commit",
        ]
    )
    result.assert_outcomes(passed=5, failed=1)  # auto is unknown
    assert not (project.path / "budgets" / "a.lock.json").exists()


def test_trim_lowers_what_has_room(project: Project) -> None:
    """More than one percent of room goes, in the unit that is there; nothing below a minimum."""
    before = ODD.replace("95", "96")
    project.write("budgets/a.yaml", before)
    result = update(project, "trim")
    assert [new.strip() for _, new in changed(project, before)] == ["macs: {max:  48 MAC,   level: warn}"]
    result.stdout.fnmatch_lines(["1 limit trimmed in budgets/a.yaml: review and commit"])


def test_create_fills_auto_and_locks(project: Project) -> None:
    """What was auto is a quantity, and every number that ran is locked."""
    project.write("budgets/a.yaml", ODD)
    update(project, "create")
    assert [new.strip() for _, new in changed(project, ODD)] == ["model_size: 192 B"]
    assert locked(project) == {
        "net": {
            "macs": 48, "model_size": 192, "params": 48, "params@layer*": 48, "weight_memory": 192
        },
        "net::wide": {"macs": 96},
    }  # fmt: skip


def test_auto_holds_nothing_until_it_is_filled(project: Project) -> None:
    """Unknown, and so red, with the command; afterwards it is an ordinary limit."""
    project.budget("  net: {widths: net.widths, limits: {params: auto}}\n")
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["params 48   max is auto, which sets no limit: *=create fills*"])
    update(project, "create")
    assert project.run().ret == 0


def test_what_did_not_run_is_kept(project: Project) -> None:
    """A selected update leaves every other limit and number alone."""
    twin = "  {}: {{widths: {}.widths, limits: {{params: 40}}}}\n"
    project.write("budgets/other.widths", "4 4 4")  # 32
    project.budget(twin.format("net", "net") + twin.format("other", "other"))
    update(project, "create")
    before = (project.path / "budgets" / "a.yaml").read_text()
    project.write("budgets/other.widths", "4 5 5")  # 45
    project.write("budgets/net.widths", "4 9 2")  # 54
    update(project, "fix", "-k", "other")
    assert changed(project, before) == [
        (twin.format("other", "other"), twin.format("other", "other").replace("40", "45"))
    ]
    assert locked(project) == {"net": {"params": 48}, "other": {"params": 45}}


def test_a_number_of_no_limit_goes_with_trim_only(project: Project) -> None:
    """A model that left the budget stays locked until somebody trims."""
    both = "  net: {widths: net.widths, limits: {params: 50}}\n"
    project.budget(both + both.replace("net:", "old:"))
    update(project, "create")
    project.budget(both)
    update(project, "fix")
    assert locked(project).keys() == {"net", "old"}
    update(project, "trim")
    assert locked(project).keys() == {"net"}


def test_a_lower_bound_is_written_nowhere(project: Project) -> None:
    """What was measured in part is neither a limit nor a baseline."""
    project.write("budgets/odd.widths", "4 8 2 ?")
    project.budget("  odd: {widths: odd.widths, limits: {macs: auto, params: auto}}\n")
    result = update(project, "create")
    assert result.ret == 1
    text = (project.path / "budgets" / "a.yaml").read_text()
    assert "macs: auto, params: 48}" in text
    assert locked(project) == {"odd": {"params": 48}}


def test_the_command_of_a_failure_works_when_pasted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words after "accept" make the limits pass, from the folder that printed them."""
    name = "a,b:c% 'd'"
    project.write("budgets/a.yaml", ODD.replace("net: ", f'"{name}": '))
    monkeypatch.chdir(project.path / "budgets")
    run = project.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget")
    fixes = [line for line in run.outlines if line.startswith("fix: ")]
    assert len(fixes) == 2  # one a block; what is auto is unknown, and has a command of its own
    for line in fixes:
        words = shlex.split(re.sub("^.* or accept(| all 3): ", "", line))
        assert words[:3] == ["pytest", "--model-budget", "--model-budget-update=fix"]
        assert "::" in words[3]
        project.pytester.runpytest_inprocess("-p", "no:cacheprovider", *words[1:])
    again = project.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget")
    assert not [line for line in again.outlines if line.startswith("fix: ")]


@pytest.mark.parametrize("sign", ["CI", "BUILD_NUMBER", "TF_BUILD"])
def test_ci_writes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    """A usage error, before anything is measured."""
    monkeypatch.setenv(sign, "true")
    project.write("budgets/a.yaml", ODD)
    result = update(project, "fix")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--model-budget-update=fix writes budgets, and CI only reads*"])
    assert changed(project, ODD) == []


@pytest.mark.parametrize(
    "option", ["--model-budget-update=fix", "--model-budget-base=main", "--model-budget-lock=check"]
)
def test_options_need_the_switch(project: Project, option: str) -> None:
    """Without --model-budget nothing is measured, and so nothing written or compared."""
    result = project.run(option, switch=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option} needs --model-budget*"])


def test_workers_let_the_controller_write(project: Project) -> None:
    """-n2 writes the same bytes as one process."""
    project.write("budgets/a.yaml", ODD)
    for mode in ("create", "fix"):
        project.run(f"--model-budget-update={mode}")
    alone = [(project.path / "budgets" / name).read_bytes() for name in ("a.yaml", "a.lock.json")]
    project.write("budgets/a.yaml", ODD)
    (project.path / "budgets" / "a.lock.json").unlink()
    for mode in ("create", "fix"):
        project.run(f"--model-budget-update={mode}", "-n2")
    shared = [(project.path / "budgets" / name).read_bytes() for name in ("a.yaml", "a.lock.json")]
    assert shared == alone


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_bytes_around_a_scalar_stay(project: Project, newline: str, mark: str) -> None:
    """Line ends, a byte order mark, the mode and a link to the file stay as they are."""
    text = mark + ODD.replace("\n", newline)
    target = project.path / "shared.txt"
    target.write_bytes(text.encode())
    target.chmod(0o640)
    (project.path / "budgets" / "a.yaml").symlink_to(target)
    update(project, "fix")
    expected = text.replace('"40"', '"48"').replace("0.1 kB", "0.192 kB")
    expected = expected.replace("min: 60", "min: 48").replace("95", "96")
    assert target.read_bytes() == expected.encode()
    assert (project.path / "budgets" / "a.yaml").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert not list(Path(project.path).rglob("*.new"))


def test_what_cannot_be_written_fails_and_leaves_the_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is said in a line; the budget is whole."""
    project.write("budgets/a.yaml", ODD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = update(project, "fix")
    monkeypatch.undo()
    result.stdout.fnmatch_lines(["*budgets/a.yaml not written: No space left on device"])
    assert result.ret == 1
    assert changed(project, ODD) == []
    assert not list(Path(project.path).rglob("*.new"))


def test_a_budget_outside_of_the_root_is_updated(project: Project) -> None:
    """Wherever the file stands, its own numbers are written into it."""
    outside = project.path / "outside"
    project.write("outside/net.widths", "4 8 2")
    project.budget("  net: {widths: net.widths, limits: {params: 40}}\n", "outside/a.yaml")
    project.write("inside/pytest.ini", "[pytest]\n")
    args = ("--rootdir", str(project.path / "inside"), str(outside / "a.yaml"))
    update(project, "create", *args)
    update(project, "fix", *args)
    assert "params: 48}" in (outside / "a.yaml").read_text()
    assert locked(project, "outside/a.lock.json") == {"net": {"params": 48}}


def test_growth_over_the_base_is_accepted_in_the_budget(project: Project) -> None:
    """48 -> 54 is 12.5%: over the base's lock only the budget can allow it."""
    project.budget("  net: {widths: net.widths, limits: {params: {grow: 2%}}}\n")
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    repository.write("budgets/net.widths", "4 9 2")
    assert update(project, "fix", "--model-budget-base=main").ret == 0
    assert "{grow: 12.5%}" in (project.path / "budgets" / "a.yaml").read_text()
    assert locked(project) == {"net": {"params": 54}}
    assert project.run("--model-budget-base=main").ret == 0


def test_growth_over_the_working_tree_is_accepted_in_the_lock(project: Project) -> None:
    """Without a base the lock is the baseline, and the budget stays as it is."""
    project.budget("  net: {widths: net.widths, limits: {params: {grow: 2%}}}\n")
    before = (project.path / "budgets" / "a.yaml").read_text()
    update(project, "create")
    project.write("budgets/net.widths", "4 9 2")
    assert project.run().ret == 1
    result = update(project, "fix")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["budgets/a.lock.json written: review and commit"])
    assert changed(project, before) == []
    assert project.run().ret == 0


# Numbers that a lock lacks.


def added(project: Project, *args: str) -> pytest.RunResult:
    """A run that says nothing of locks."""
    return project.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget", *args)


def test_a_local_run_adds_what_a_lock_lacks(project: Project) -> None:
    """Of limits that are within, and of new growth; what is over or auto is left to people."""
    project.budget("  net: {widths: net.widths, limits: {params: 60, macs: {grow: 2%}, flops: 9, model_size: auto}}\n")
    before = (project.path / "budgets" / "a.yaml").read_text(encoding="utf-8")
    result = added(project)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["model budget: 2 numbers added to budgets/a.lock.json: commit it"])
    result.stdout.no_fnmatch_line("*lock stale*flops*")  # its failure says how to accept it
    assert locked(project) == {"net": {"macs": 48, "params": 48}}
    assert changed(project, before) == []
    added(project).stdout.no_fnmatch_line("*added to*")
    project.write("budgets/net.widths", "4 9 2")
    added(project).assert_outcomes(passed=1, failed=3)
    assert locked(project) == {"net": {"macs": 48, "params": 48}}


@pytest.mark.parametrize(("sign", "option", "lines"), [("CI", "", 1), ("CI", "keep", 0), ("", "keep", 0)])
def test_ci_adds_nothing(project: Project, monkeypatch: pytest.MonkeyPatch, sign: str, option: str, lines: int) -> None:
    """One line says so, unless the option does."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    if sign:
        monkeypatch.setenv(sign, "true")
    result = added(project, *([f"--model-budget-lock={option}"] if option else []))
    assert result.ret == 0
    assert result.stdout.str().count("1 budget without a complete lock file, which CI does not write") == lines
    assert not (project.path / "budgets" / "a.lock.json").exists()


def test_a_lock_that_cannot_be_read_is_left_alone(project: Project) -> None:
    """A limit on growth stays unknown."""
    project.budget("  net: {widths: net.widths, limits: {params: {grow: 2%}}}\n")
    project.write("budgets/a.lock.json", "{\n<<<<<<< HEAD\n")
    assert added(project).ret == 1
    assert (project.path / "budgets" / "a.lock.json").read_text(encoding="utf-8") == "{\n<<<<<<< HEAD\n"


# Stale locks.


def test_a_stale_lock_is_said_and_fails_where_it_is_checked(project: Project) -> None:
    """Fresh, stale and missing; only --model-budget-lock=check fails."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    assert project.run("--model-budget-lock=check").ret == 1
    project.run().stdout.no_fnmatch_line("model budget: *lock*")
    update(project, "create")
    assert project.run("--model-budget-lock=check").ret == 0
    project.write("budgets/net.widths", "4 9 2")
    result = project.run()
    assert result.ret == 0
    line = "*lock stale: budgets/a.lock.json: params of net 48 -> 54: *=fix renews it"
    result.stdout.fnmatch_lines([line])
    checked = project.run("--model-budget-lock=check")
    assert checked.ret == 1
    checked.stdout.fnmatch_lines([line])
    report = project.report()
    assert [each["state"] for each in report["lock"]] == ["stale"]


def test_a_lock_that_lacks_a_limit_is_stale(project: Project) -> None:
    """A new limit is to be locked too."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    update(project, "create")
    project.budget("  net: {widths: net.widths, limits: {params: 60, macs: 60}}\n")
    result = project.run("--model-budget-lock=check")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*lock stale: budgets/a.lock.json lacks macs of net: *=create*"])


def test_a_broken_lock_is_no_baseline(project: Project) -> None:
    """An unfinished merge is said; limits that grow are unknown, others are judged."""
    project.budget("  net: {widths: net.widths, limits: {params: {grow: 2%}, macs: 48}}\n")
    project.write("budgets/a.lock.json", "{\n<<<<<<< HEAD\n")
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["params 48   nothing to grow from: budgets/a.lock.json holds the marks of an unfinished *",
         "2 limits: 0 over, 0 warn, 1 within, 1 unknown"]
    )  # fmt: skip


def test_create_ends_green_when_it_did_what_it_was_asked(project: Project) -> None:
    """Values for auto on either end, and numbers to grow from; what is broken besides is still red."""
    project.budget(
        "  net: {widths: net.widths, limits: {params: auto, macs: {grow: 2%}, model_size: {max: auto, min: auto}}}\n"
    )
    result = update(project, "create")
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 limits filled in budgets/a.yaml: review and commit"])
    project.budget("  net: {widths: net.widths, limits: {params: auto, macs: 47}}\n")
    result = update(project, "create")
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("limit", "after"),
    [
        pytest.param("params: 50  # 48: elements", "params: 60  # 48: elements", id="a figure"),
        pytest.param("params: 9      # ours", "params: 60     # ours", id="in its column"),
        pytest.param("macs: {max: 9 MAC}    # ours", "macs: {max: 60 MAC}   # ours", id="in its column, flow"),
        pytest.param("params: 50\n      # macs: 48 MAC", "params: 60\n      # macs: 48 MAC", id="a limit"),
    ],
)
def test_fix_edits_no_comment(project: Project, limit: str, after: str) -> None:
    """4 * 10 + 10 * 2 = 60: a comment keeps its text and its column."""
    budget = "  net:\n    widths: net.widths\n    limits:\n      {}\n"
    project.write("budgets/net.widths", "4 10 2")
    path = project.budget(budget.format(limit))
    update(project, "fix")
    assert path.read_text(encoding="utf-8").endswith(budget.format(after))
