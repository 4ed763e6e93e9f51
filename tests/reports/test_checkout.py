"""The commit that a page names: out of git and what the host says of its job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from pytest_modelbudget.reports.checkout import Checkout, checkout

DAY = "2026-11-22T08:04:38+01:00"
GITHUB = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "team/nets"}
GITLAB = {"CI_PROJECT_URL": "https://gitlab.com/team/nets", "CI_PROJECT_PATH": "team/nets"}


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the folder "my nets" of a repository called "house", on the branch wider, with one commit."""
    house = tmp_path / "house"
    (house / "my nets").mkdir(parents=True)
    git(house, "init", "-q", "-b", "wider")
    monkeypatch.setenv("GIT_COMMITTER_DATE", DAY)
    git(house, "commit", "-q", "--allow-empty", "-m", "first")
    return house / "my nets"


def test_git_alone_tells_project_branch_and_day(project: Path) -> None:
    """The folder's name is the project's; no forge is known, and nothing is linked."""
    found = checkout(project, {})
    assert found == Checkout(project="house", branch="wider", commit=git(project, "rev-parse", "HEAD"), date=DAY)
    assert found.address("budgets/a.yaml", 8) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="names elsewhere are Unicode")
def test_a_branch_whose_name_is_no_utf_8_can_be_reported(project: Path) -> None:
    """JSON has no lone bytes: the one of the name is shown as lacking."""
    subprocess.run([b"git", b"checkout", b"-q", b"-b", b"caf\xe9"], cwd=project, check=True)
    found = checkout(project, {})
    assert found is not None
    assert found.branch == "caf\ufffd"
    assert "caf\ufffd" in msgspec.json.encode(found).decode()


@pytest.mark.parametrize(
    ("host", "built", "address"),
    [
        pytest.param(
            GITHUB, "GITHUB_SHA", "https://github.com/team/nets/blob/{}/my%20nets/budgets/a.yaml#L8", id="GitHub"
        ),
        pytest.param(
            GITLAB, "CI_COMMIT_SHA", "https://gitlab.com/team/nets/-/blob/{}/my%20nets/budgets/a.yaml#L8", id="GitLab"
        ),
    ],
)
def test_a_host_says_where_lines_are_read(project: Path, host: Mapping[str, str], built: str, address: str) -> None:
    """At the commit that it built; of another checkout it says nothing, and neither of a file outside."""
    commit = git(project, "rev-parse", "HEAD")
    found = checkout(project, {**host, built: commit})
    assert found is not None
    assert found.project == "team/nets"
    assert found.address("budgets/a.yaml", 8) == address.format(commit)
    assert found.address("../b.yaml", 8) == ""
    other = checkout(project, {**host, built: "0" * 40})
    assert other is not None
    assert other.files == ""


@pytest.mark.parametrize(
    ("environment", "branch"),
    [
        pytest.param({"GITHUB_HEAD_REF": "change", "GITHUB_REF_NAME": "7/merge"}, "change", id="a pull request"),
        pytest.param({"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}, "main", id="a push"),
        pytest.param({"CI_COMMIT_REF_NAME": "main"}, "main", id="GitLab"),
        pytest.param({}, "", id="nobody says"),
    ],
)
def test_a_checkout_on_no_branch_is_named_by_its_host(
    project: Path, environment: Mapping[str, str], branch: str
) -> None:
    """CI checks out commits."""
    git(project, "checkout", "-q", "--detach")
    found = checkout(project, environment)
    assert found is not None
    assert found.branch == branch


def test_an_address_that_is_none_links_nothing(project: Path) -> None:
    """What the environment says is put into a page: nothing but http and https."""
    commit = git(project, "rev-parse", "HEAD")
    found = checkout(project, {**GITHUB, "GITHUB_SERVER_URL": "javascript:alert(1)//", "GITHUB_SHA": commit})
    assert found is not None
    assert found.files == ""


def test_there_is_none_outside_of_git_and_before_the_first_commit(tmp_path: Path) -> None:
    """A page without them is a page."""
    assert checkout(tmp_path, {}) is None
    git(tmp_path, "init", "-q")
    assert checkout(tmp_path, {}) is None
