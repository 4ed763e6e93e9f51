"""Exceptions in a session: every report says them, a pull request shows a new one first, and trim removes idle ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

TODAY, BASE = "--model-budget-date=2027-01-31", "--model-budget-base=main"
LIMIT = "  net:\n    widths: net.widths\n    limits:\n      params: {{max: {most}, waiver: {waiver}}}\n"
ACCEPT = "{{to: {to}, reason: the head is being replaced, until: {until}, by: Ann}}"
WORDS = "accepted to {} until {} by Ann: the head is being replaced"
FILES = {"json": "json", "junit": "junit", "comment": "comment", "summary": "summary", "page": "html"}


def grant(project: Project, most: int, to: int, until: str) -> None:
    """A budget whose line 7 limits 48 parameters, with an exception."""
    project.budget(LIMIT.format(most=most, waiver=ACCEPT.format(to=to, until=until)))


# 48 parameters: (max, accepted to, until, outcome, what its words say)
CASES = {
    "within": (40, 50, "2027-02-01", "accepted", WORDS.format(50, "2027-02-01")),
    "at the amount": (40, 48, "2027-02-01", "accepted", WORDS.format(48, "2027-02-01")),
    "over it": (40, 47, "2027-02-01", "over", "accepted to 47 only"),
    "expired yesterday": (40, 50, "2027-01-30", "over", "accepted to 50 until 2027-01-30, which is past"),
    "expiring today": (40, 50, "2027-01-31", "accepted", WORDS.format(50, "2027-01-31")),
    "unused": (48, 50, "2027-02-01", "unused", "the exception to 50 is not needed"),
}


@pytest.mark.parametrize(("most", "to", "until", "outcome", "words"), CASES.values(), ids=CASES)
def test_every_report_says_what_became_of_an_exception(
    project: Project, monkeypatch: pytest.MonkeyPatch, most: int, to: int, until: str, outcome: str, words: str
) -> None:
    """Accepted passes with its reason; all else fails and says what to do."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    grant(project, most, to, until)
    given = [f"--model-budget-report={kind}:{name}" for name, kind in FILES.items()]
    result = project.run(TODAY, "-v", "-p", "no:pytest_github_actions_annotate_failures", *given)
    text = {name: (project.path / name).read_text(encoding="utf-8") for name in FILES}
    assert result.ret == (0 if outcome == "accepted" else 1)
    terminal = " ".join(result.stdout.str().split())
    assert f"{outcome} params " in terminal
    assert words in terminal
    (check,) = json.loads(text["json"])["models"][0]["checks"]
    granted = {"to": to, "until": until, "reason": "the head is being replaced", "by": "Ann", "today": "2027-01-31"}
    assert check["outcome"] == outcome
    assert check["waiver"] == {**granted, "text": WORDS.format(to, until), "line": 7}
    for name in ("to", "until", "reason", "by", "today"):
        assert f'<property name="waiver.{name}" value="{granted[name]}" />' in text["junit"]
    assert ("<failure" in text["junit"]) is (outcome != "accepted")
    assert all(words in text[name] for name in ("junit", "comment", "summary", "page"))
    assert f"1 {outcome} (1 limit)" in text["comment"]
    kind = "notice" if outcome == "accepted" else "error"
    commands = [line for line in result.outlines if line.startswith("::")]
    assert [line.partition(" ")[0] for line in commands] == [f"::{kind}"]
    assert words in commands[0]


REMOVED = "remove 'waiver' at budgets/a.yaml:7"
TOLD = {
    "over it": (40, 47, "2027-02-01", "fix: shrink what is largest above, or accept: pytest *=fix *"),
    "expired": (40, 50, "2027-01-30", f"fix: {REMOVED}, then shrink what is largest above, or accept: pytest *"),
    "unused": (48, 50, "2027-02-01", f"fix: {REMOVED}: pytest --model-budget --model-budget-update=trim budgets/*"),
}  # fmt: skip


@pytest.mark.parametrize(("most", "to", "until", "line"), TOLD.values(), ids=TOLD)
def test_a_failure_says_the_way_out(project: Project, most: int, to: int, until: str, line: str) -> None:
    """With the command that takes it."""
    grant(project, most, to, until)
    project.run(TODAY).stdout.fnmatch_lines([line])


def test_a_step_summary_has_accepted_limits(project: Project, page: Path) -> None:
    """The page of a run on GitHub, without an option."""
    grant(project, 40, 50, "2027-02-01")
    project.run(TODAY)
    assert "### Accepted" in page.read_text(encoding="utf-8")
    assert WORDS.format(50, "2027-02-01") in page.read_text(encoding="utf-8")


def test_the_day_is_todays_in_utc_and_the_same_in_workers(project: Project) -> None:
    """An exception that ended in 2020 is past on any machine, and one day is settled on for all workers."""
    grant(project, 40, 50, "2020-06-30")
    assert project.run().ret == 1
    assert project.run("--model-budget-date=2020-06-30").ret == 0
    assert project.run("--model-budget-date=2020-06-30", "-n2").ret == 0
    assert project.run("-n1").ret == 1


@pytest.mark.parametrize(
    ("day", "words"),
    [
        pytest.param("tomorrow", "'tomorrow' is no date: write one such as 2027-01-31", id="a word"),
        pytest.param("2027-13-01", "'2027-13-01' is no day of any calendar", id="a month too many"),
        pytest.param("", "'' is no date", id="nothing"),
    ],
)
def test_a_day_that_is_none_is_a_usage_error(project: Project, day: str, words: str) -> None:
    """Nothing is judged by a slip of the pen."""
    grant(project, 40, 50, "2027-02-01")
    result = project.run(f"--model-budget-date={day}")
    assert result.ret == 4
    assert f"--model-budget-date: {words}" in result.stderr.str()


def test_level_warn_warns_of_an_exception_that_is_past_or_unused(project: Project) -> None:
    """As it does of a limit that is over."""
    for most, until in ((40, "2027-01-30"), (48, "2027-02-01")):
        project.budget(LIMIT.format(most=f"{most}, level: warn", waiver=ACCEPT.format(to=50, until=until)))
        result = project.run(TODAY)
        assert result.ret == 0
        assert "0 over, 1 warn, 0 within, 0 unknown" in result.stdout.str()


def test_limits_of_variants_and_scopes_are_accepted(project: Project) -> None:
    """48 in all, 8 x 4 = 32 of them in layer0, whatever the inputs."""
    waiver = ACCEPT.format(to=50, until="2027-02-01")
    limits = f"limits: {{params: {{max: 40, waiver: {waiver}}}}}"
    scopes = f"scopes: {{layer0: {{params: {{max: 30, waiver: {waiver}}}}}}}"
    project.budget(
        f"  net:\n    widths: net.widths\n    {scopes}\n"
        f"    variants:\n      batch8:\n        inputs: float32 8x4\n        {limits}\n"
    )
    result = project.run(TODAY)
    assert result.ret == 0
    assert "2 limits: 0 over, 0 warn, 0 within, 0 unknown, 2 accepted" in result.stdout.str()


# In a pull request.

HEAD = "model_budget: 1\nloosen: {}\ndefaults: {{inputs: float32 1x4}}\nmodels:\n"
PLAIN = "  net:\n    widths: net.widths\n    limits: {params: 48, macs: 40}\n"
GRANTED = "  net:\n    widths: net.widths\n    limits: {params: 48, macs: {max: 40, waiver: {}}}\n"


@pytest.mark.parametrize("loosen", ["warn", "forbid"])
def test_a_pull_request_that_adds_an_exception_shows_it_first(project: Project, loosen: str) -> None:
    """Before what fails; and it fails where loosening is forbidden."""
    project.write("budgets/a.yaml", HEAD.format(loosen) + PLAIN)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    waiver = ACCEPT.format(to=50, until="2027-02-01")
    changed = GRANTED.replace("{}", waiver).replace("params: 48", "params: 47")
    repository.write("budgets/a.yaml", HEAD.format(loosen) + changed)
    repository.commit()
    files = [f"--model-budget-report={FILES[name]}:{name}" for name in ("json", "comment", "page")]
    result = project.run(BASE, TODAY, *files)
    assert result.ret == 1  # params is 48 of 47
    words = f"macs {WORDS.format(50, '2027-02-01')}"
    (change,) = json.loads((project.path / "json").read_text(encoding="utf-8"))["loosened"]
    assert (change["what"], change["forbidden"], change["line"]) == ("exception added", loosen == "forbid", 7)
    assert change["text"] == f"budget loosened: {words}"
    headings = re.findall(r"^### (.*)$", (project.path / "comment").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Exceptions granted by this change", "Failing"]
    page = (project.path / "page").read_text(encoding="utf-8")
    assert page.index("Exceptions that this change grants</h2>") < page.index("Models</h2>")
    failed = [line for line in result.outlines if line.startswith("FAILED")]
    assert any("a.yaml::loosen" in line for line in failed) is (loosen == "forbid")


# Updates.


def locked(repository: Repository) -> Any:
    lock = json.loads((repository.path / "budgets" / "a.lock.json").read_text(encoding="utf-8"))
    return lock["models"]["net"]["params"]["value"]


def test_trim_removes_what_is_past_or_unused(project: Project) -> None:
    """And leaves what is accepted; the file says it for good, and the next run has no exception."""
    project.budget(
        "  net:\n    widths: net.widths\n    limits:\n"
        f"      params: {{max: 48, waiver: {ACCEPT.format(to=50, until='2027-02-01')}}}  # kept\n"
        f"      macs: {{max: 40, waiver: {ACCEPT.format(to=50, until='2027-01-30')}}}\n"
        f"      flops: {{max: 90, waiver: {ACCEPT.format(to=96, until='2027-01-31')}}}\n"
    )
    before = (project.path / "budgets" / "a.yaml").read_text(encoding="utf-8").splitlines()
    result = project.run(TODAY, "--model-budget-update=trim")
    result.stdout.fnmatch_lines(
        [
            "trimmed  net::params waiver removed   budgets/a.yaml:7",
            "trimmed  net::macs waiver removed   budgets/a.yaml:8",
        ]
    )
    result.assert_outcomes(passed=2, failed=1)  # macs is over, and trim raises nothing
    after = (project.path / "budgets" / "a.yaml").read_text(encoding="utf-8").splitlines()
    assert after[:6] == before[:6]
    assert after[6:] == ["      params: {max: 48}  # kept", "      macs: {max: 40}", before[8]]
    assert project.run(TODAY).ret == 1  # macs is 48 of 40, and nothing excuses it


def test_an_accepted_number_moves_no_lock(project: Project) -> None:
    """48 were locked; 56 = 4 x 8 + 8 x 3 are accepted, and neither update nor check takes them for the number."""
    project.budget("  net: {widths: net.widths, limits: {params: {max: 50, grow: 0%}}}\n")
    repository = Repository(project)
    repository.locked()
    project.write("budgets/net.widths", "4 8 3")
    waiver = ACCEPT.format(to=56, until="2027-02-01")
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {{max: 50, grow: 0%, waiver: {waiver}}}}}}}\n")
    text = (project.path / "budgets" / "a.yaml").read_text(encoding="utf-8")
    assert project.run(TODAY, "--model-budget-lock=check").ret == 0
    for mode in ("create", "trim", "fix"):
        result = project.run(TODAY, f"--model-budget-update={mode}")
        assert f"nothing to {mode}" in result.stdout.str()
        assert locked(repository) == 48
    assert (project.path / "budgets" / "a.yaml").read_text(encoding="utf-8") == text


def test_a_lock_that_is_moved_to_an_accepted_number_is_said(project: Project) -> None:
    """Growth would then be told from it, for good."""
    project.budget("  net: {widths: net.widths, limits: {params: {grow: 0%}}}\n")
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    repository.write("budgets/net.widths", "4 8 3")
    waiver = ACCEPT.format(to=56, until="2027-02-01")
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {{grow: 0%, waiver: {waiver}}}}}}}\n")
    lock = project.path / "budgets" / "a.lock.json"
    lock.write_text(lock.read_text(encoding="utf-8").replace('"value": 48', '"value": 56'), encoding="utf-8")
    repository.commit()
    found = project.report(BASE, TODAY)["loosened"]
    assert [change["what"] for change in found] == ["exception added", "baseline raised"]


def test_the_fixture_takes_no_exceptions(project: Project) -> None:
    """What is granted in Python code no review of budgets sees."""
    project.write(
        "test_it.py",
        "def test_it(model_budget):\n"
        "    waiver = {'to': '50', 'reason': 'a', 'until': '2027-02-01'}\n"
        "    model_budget('net.widths').within(params={'max': 40, 'waiver': waiver})\n",
    )
    result = project.run("test_it.py", switch=False)
    assert result.ret == 1
    assert "params: 'waiver' is granted where a change of it is seen" in result.stdout.str()
