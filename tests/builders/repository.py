"""A git repository with a budget, its lock and a model of widths, as a pull request meets it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.builders.project import Project

WIDTHS = "4 8 2"  # 8 x 4 + 2 x 8 = 48 parameters
# Somebody who signs nothing; and git tidies up behind no commit, which is a process more each.
SETTINGS = """[user]
\temail = somebody@example.org
\tname = Somebody
[commit]
\tgpgsign = false
[maintenance]
\tauto = false
"""
BUDGET = "  net:\n    widths: net.widths\n    limits:\n      params: {grow: 2%}\n"


class Repository:
    """Commits of a project, made by words."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.path = project.path
        self.git("init", "-q", "-b", "main", "--template=")
        with (self.path / ".git" / "config").open("a", encoding="utf-8") as file:
            file.write(SETTINGS)
        self.write(".gitignore", "__pycache__/\nbudgets/loads\n*.json\n!*.lock.json\n")

    def git(self, *words: str, folder: Path | None = None) -> str:
        run = subprocess.run(["git", *words], cwd=folder or self.path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"git {' '.join(words)}: {run.stderr}"
        return run.stdout.strip()

    def write(self, name: str, text: str) -> None:
        self.project.write(name, text)

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def locked(self, widths: str = WIDTHS, message: str = "lock") -> str:
        """Commit these widths, with a lock that knows them."""
        self.write("budgets/net.widths", widths)
        lock = self.path / "budgets" / "a.lock.json"
        lock.unlink(missing_ok=True)
        self.project.run("--model-budget-update=create")
        assert lock.exists()
        return self.commit(message)

    def branch(self, name: str) -> None:
        self.git("checkout", "-q", "-b", name)

    def merged(self, branch: str) -> str:
        """The checkout of a pull request: main with the branch merged into it, on no branch."""
        self.git("checkout", "-q", "--detach", "main")
        self.git("merge", "-q", "--no-ff", "-m", "merge", branch)
        return self.git("rev-parse", "HEAD")
