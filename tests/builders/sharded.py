"""A project whose run is cut into shards and merged, and what one machine writes of the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_modelbudget.cli.command import main
from pytest_modelbudget.reports.table import FILE_REPORTS
from tests.builders.project import Project
from tests.builders.repository import Repository

WRITABLE = [report for report in FILE_REPORTS if report.type != "html" or find_spec("jinja2")]
REPORTS = tuple(report.type for report in WRITABLE)
KEPT = "model_budget: 1\nmodels:\n" + "".join(
    f"  net{n}: {{widths: net.widths, inputs: float32 {n}x4, limits: {{params: 48, macs: {48 * n} MAC}}}}\n"
    for n in range(1, 6)
)
ACCEPT = "waiver: {to: 54, reason: a larger head, until: 2099-01-31}"
# What a change may do to budgets and locks, in one file after another.
AT_BASE = {
    "budgets/a.yaml": "model_budget: 1\ndefaults: {inputs: float32 1x4}\nmodels:\n"
    "  raised: {widths: net.widths, limits: {params: {grow: 2%}, macs: {grow: 2%}}}\n"
    "  kept: {widths: net.widths, limits: {params: {grow: 2%}}}\n"
    "  eased: {widths: net.widths, limits: {params: 48, macs: 48 MAC}}\n"
    "  grown: {widths: other.widths, limits: {params: {grow: 2%}, macs: {grow: 2%}}}\n"
    "  stale: {widths: other.widths, limits: {params: 100}}\n"
    "  granted: {widths: other.widths, limits: {params: {grow: 2%}}}\n",
    "budgets/b.yaml": "model_budget: 1\nloosen: forbid\ndefaults: {inputs: float32 1x4}\nmodels:\n"
    "  here: {widths: net.widths, limits: {params: {grow: 2%}, macs: {grow: 2%}}}\n"
    "  moved: {widths: net.widths, limits: {params: {grow: 2%}}}\n"
    "  moving: {widths: net.widths, limits: {params: {grow: 2%}}}\n"
    "  too: {widths: net.widths, limits: {params: {grow: 2%}}}\n",
    "budgets/other.widths": "4 8 2",
}
BROKEN = {
    "budgets/c.yaml": "model_budget: 1\nmodels:\n"
    "  over: {widths: net.widths, inputs: float32 1x4, limits: {params: 47, macs: {max: 40 MAC, level: warn}}}\n"
    "  odd: {widths: odd.widths, inputs: float32 1x4, limits: {params: 48, macs: 48 MAC}}\n"
    "  gone: {widths: gone.widths, inputs: float32 1x4, limits: {params: 48, macs: 48 MAC}}\n"
    "  wide:\n    widths: net.widths\n    inputs: float32 1x4\n    limits: {params: 48}\n"
    "    variants:\n      batch2: {inputs: float32 2x4, limits: {macs: 96 MAC}}\n",
    "budgets/d.yaml": "model_budget: 1\nmodels: {net: {wdths: net.widths}}\n",
    "budgets/odd.widths": "4 8 2 ?",
}


def changed_project(project: Project) -> Project:
    """A branch on which limits are loosened, models moved and redefined, locks raised and stale, files broken."""
    for name, text in AT_BASE.items():
        project.write(name, text)
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    for name, text in BROKEN.items():
        project.write(name, text)
    project.write("budgets/other.widths", "4 9 2")  # 4 * 9 + 9 * 2 = 54 parameters
    budgets = project.path / "budgets"
    text = AT_BASE["budgets/a.yaml"].replace("{params: 48, macs: 48 MAC}", "{params: 50, macs: 60 MAC}")
    granted = "granted: {widths: other.widths, limits: {params: {grow: 2%"
    text = text.replace(granted, f"{granted}, {ACCEPT}")
    text = text.replace("  kept: {widths: net.widths", "  kept: {widths: net.widths, inputs: float32 2x4")
    project.write("budgets/a.yaml", text)
    lines = AT_BASE["budgets/b.yaml"].splitlines(keepends=True)
    project.write("budgets/b.yaml", "".join(lines[:5]))
    project.write("budgets/e.yaml", "".join((*lines[:4], *lines[5:])))
    for lock in ("a.lock.json", "b.lock.json"):
        path = budgets / lock
        record = json.loads(path.read_text())
        for model, value in (("raised", 500), ("here", 500), ("grown", 54)):  # grown is what is measured
            for number in record["models"].get(model, {}).values():
                number["value"] = value
        path.write_text(json.dumps(record))
    repository.commit()
    return project


def written(folder: Path) -> dict[str, str]:
    """The text of each report in a folder, timings apart."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("report.*"))}
    if "report.json" in texts:
        record = json.loads(texts["report.json"])
        record["timings"] = dict.fromkeys(record["timings"])
        texts["report.json"] = json.dumps(record, indent=1)
    if "report.junit" in texts:
        texts["report.junit"] = re.sub(r'\btime="[\d.]+"', "", texts["report.junit"])
    return texts


def one_run(project: Project, *args: str) -> tuple[int, dict[str, str]]:
    """Exit code and reports of a run on one machine."""
    files = [f"--model-budget-report={kind}:whole/report.{kind}" for kind in REPORTS]
    result = project.run(*files, *args)
    return int(result.ret), written(project.path / "whole")


def run_shards(project: Project, of: int, *args: str) -> list[tuple[int, Path]]:
    """Exit code and part of each shard."""
    return [run_shard(project, f"{number}/{of}", *args) for number in range(1, of + 1)]


def run_shard(project: Project, shard: str, *args: str) -> tuple[int, Path]:
    """Exit code and part of one shard."""
    part = project.path / "parts" / f"{shard.replace('/', 'of')}.json"
    result = project.run(f"--model-budget-shard={shard}", f"--model-budget-report=json:{part}", *args)
    return int(result.ret), part


def merge(folder: Path, parts: Sequence[Path | str], *args: str) -> tuple[int, dict[str, str]]:
    """Exit code and reports of a merge."""
    files = [f"--report={kind}:{folder / 'merged' / f'report.{kind}'}" for kind in REPORTS]
    return main(["merge", *map(str, parts), *files, *args]), written(folder / "merged")


def refusal(capsys: pytest.CaptureFixture[str], folder: Path, parts: Sequence[Path | str], *args: str) -> str:
    """The sentence by which a merge is refused; it wrote nothing."""
    capsys.readouterr()
    assert merge(folder, parts, *args) == (2, {})
    error = capsys.readouterr().err
    assert error.startswith("modelbudget: error: ")
    assert error.count("\n") == 1
    return error.removeprefix("modelbudget: error: ").rstrip("\n")
