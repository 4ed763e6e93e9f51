"""The commit that was measured as people know it: its project and branch, its day, and where its files can be read.

{"project": "team/nets", "branch": "wider", "commit": "1a2b...", "date": "2026-11-22T08:04:38+00:00",
 "files": "https://github.com/team/nets/blob/1a2b.../vision/"}

GitHub and GitLab say in the environment of a job which project it is of, and at which address; elsewhere nothing is
linked. The day is the commit's own: the same page comes of the same commit, whenever it is measured.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pytest_modelbudget.budget.git import BaseError, run_git
from pytest_modelbudget.reports.json_records import Record

ADDRESS = re.compile(r"https?://[^\s\"'<>]+")
# The variables of each host, the best first: what a change is called before it is merged, then what is built.
PROJECT = ("GITHUB_REPOSITORY", "CI_PROJECT_PATH")
BRANCH = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_REF_NAME")
# The parts of a project's address, the commit that the job is of, and what a host has between the two in an address.
LINKED = (
    (("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"), "GITHUB_SHA", "blob"),
    (("CI_PROJECT_URL",), "CI_COMMIT_SHA", "-/blob"),
)


class Checkout(Record, frozen=True, kw_only=True):
    """Project, branch, commit (all its digits) and its day; files is the address that paths of budgets are below."""

    project: str
    branch: str = ""
    commit: str
    date: str
    files: str = ""

    def address(self, file: str, line: int | None) -> str:
        """The address of a line of a file, as seen from rootdir; "" where nobody knows it, or it lies elsewhere."""
        if not self.files or not file or file.startswith("../"):
            return ""
        return f"{self.files}{quote(file)}" + (f"#L{line}" if line else "")


def checkout(root: Path, environment: Mapping[str, str]) -> Checkout | None:
    """The checkout that a project's root is part of; None outside of git, and before the first commit."""
    try:
        commit, date = run_git(root, "log", "-1", "--format=%H%n%cI").decode().splitlines()
        asked = ("rev-parse", "--show-toplevel", "--show-prefix", "--abbrev-ref", "HEAD")
        top, prefix, branch = run_git(root, *asked).decode("utf-8", "replace").splitlines()  # JSON takes no other bytes
    except (BaseError, ValueError):
        return None
    project, named = ([environment[name] for name in names if environment.get(name)] for names in (PROJECT, BRANCH))
    return Checkout(
        project=[*project, Path(top).name][0],
        branch=[*named, "" if branch == "HEAD" else branch][0],
        commit=commit,
        date=date,
        files=_files(commit, prefix, environment),
    )


def _files(commit: str, prefix: str, environment: Mapping[str, str]) -> str:
    """The address of a folder at a commit; "" where no host says where it is."""
    for parts, built, between in LINKED:
        known = [environment.get(part, "") for part in parts]
        above = "/".join(known) if all(known) else ""
        # A job may check out another project than its own: the host's commit tells.
        if ADDRESS.fullmatch(above) and environment.get(built) == commit:
            return f"{above}/{between}/{commit}/{quote(prefix)}"
    return ""
