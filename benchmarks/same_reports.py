"""Compare node ids, locks, report files and terminal output of three scenes between two checkouts of this project.

``same_reports.py BASE HEAD`` runs the scenes with the package of either checkout and prints the lines that differ.
Exit code 1: something differs. ``same_reports.py --store FOLDER BASE`` writes a snapshot once, which stands for BASE
from then on. The folder does not belong in git. Durations and scratch paths are masked.

Scenes: some of the shipped budgets, a red project of a format without a framework, and a pull request with a base.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ANNOTATOR = "pytest_github_actions_annotate_failures"  # without which the gate annotates failures itself
REPORTS = {
    "json": "report.json", "junit": "junit.xml", "summary": "summary.md", "comment": "comment.md",
    "sarif": "log.sarif", "codequality": "codequality.json", "openmetrics": "metrics.txt", "html": "page.html",
}  # fmt: skip
RUNS: Mapping[str, tuple[str, ...]] = {  # options of each run by the name of its terminal output
    "ids": ("--collect-only", "-q"),
    "quiet": (*(f"--model-budget-report={option}:{{out}}/{file}" for option, file in REPORTS.items()),),
    "coloured": (
        "-vv",
        "--color=yes",
        "-p",
        "no:pytest_github_actions_annotate_failures",
        "--junit-xml={out}/pytest.xml",
    ),
    "workers": ("-n", "1", "--model-budget-report=json:{out}/workers.json"),
    "locked": ("--model-budget-update=create",),
}
ENVIRONMENT = {
    "COLUMNS": "80", "GITHUB_ACTIONS": "true", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null", **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "Somebody", "EMAIL": "a@example.org", "DATE": "2026-11-22T12:00:00Z"}.items()},
}  # fmt: skip
MASKED = (
    (r'("[^"\n]*::[^"\n]*": )"\d+\.\d{3}"', r'\1"0.000"'),  # timings of the JSON report
    (r'\b(time|timestamp|hostname)="[^"]*"', r'\1="MASKED"'),
    (r"\bin \d+\.\d+s(?: \(\d+:\d\d:\d\d\))?|imports took [\d.]+ s", "in TIME"),
    (r"(?m)^([=-])\1{4,} (.*) \1{4,}$", r"\1 \2"),  # whose width is that of a duration
    (r" +\[ *\d+%\]|model budget: .* is being measured, for \d+ s now\s*", ""),
)
SHIPPED = ("lab.yaml", "devices.yaml::alexnet", "vision.yaml::resnet18", "tiling.yaml::classifier", "onnx.yaml::int8")
HEAD = "model_budget: 1\ndefaults: {inputs: float32 1x4}\n"
RED = {
    "budgets/net.widths": "4 8 2", "budgets/odd.widths": "4 3?", "budgets/bad.widths": "raise",
    "budgets/big.widths": "4 " + "16 " * 30 + "2",
    "budgets/a.yaml": HEAD + """models:
  net:
    widths: net.widths
    limits:
      params: 47
      macs: {max: 50 MAC, min: 1 MAC}
      flops: {max: 90 FLOP, level: warn}
      arithmetic_intensity: {min: 9 FLOP/B}
      weight_memory: {max: 150 B, waiver: {to: 200 B, until: 2027-01-31, reason: a new head}}
      model_size: {max: 1 MB, waiver: {to: 2 MB, until: 2027-01-31, reason: no more}}
      bandwidth: {max: 1 B, waiver: {to: 1 kB, until: 2026-01-31, reason: long ago}}
      ops: {allow: [relu], max: {linear: 1}}
    scopes: {layer0: {params: 30, macs: 32 MAC}}
    variants: {batch2: {inputs: float32 2x4, limits: {macs: 90 MAC}}}
  odd: {widths: odd.widths, limits: {params: 12, macs: 9 MAC, flops: {max: 1 FLOP, min: 1 FLOP}}}
  bad: {widths: bad.widths, limits: {params: 1, macs: 1 MAC}}
  deep: {widths: big.widths, limits: {params: 1 k, macs: {max: 99 kMAC, grow: 1%}}}
""",
    "budgets/broken.yaml": HEAD + "models:\n  x: {widths: net.widths, limits: {parms: 3, macs: -1}}\n",
    "budgets/hostile.yaml": HEAD + 'models:\n  "a|b <b>_x_ %0A": {widths: net.widths, limits: {params: 1}}\n',
    "budgets/a.lock.json": "{",
}  # fmt: skip
BEFORE = {
    "budgets/net.widths": "4 8 2",
    "budgets/a.yaml": HEAD + """loosen: forbid
models:
  net: {widths: net.widths, limits: {params: {max: 48, grow: 2%}, macs: 48 MAC}, scopes: {layer0: {params: 32}}}
  old: {widths: net.widths, limits: {params: 50}}
""",
    "budgets/b.yaml": HEAD
    + "models:\n  b: {widths: net.widths, limits: {params: {max: 60, grow: 1%}, flops: 99 FLOP}}\n",
    "budgets/gone.yaml": HEAD + "models:\n  gone: {widths: net.widths, limits: {params: 48}}\n",
}  # fmt: skip
AFTER = {
    "budgets/net.widths": "4 9 2",
    "budgets/a.yaml": HEAD + """loosen: forbid
models:
  net:
    widths: net.widths
    inputs: float32 2x4
    limits: {params: {max: 60, grow: 2%}, macs: {max: 48 MAC, waiver: {to: 200 MAC, until: 2027-01-31, reason: x}}}
""",
    "budgets/b.yaml": BEFORE["budgets/b.yaml"].replace("99 FLOP", "{max: 120 FLOP, level: warn}").replace("1x4", "3x4"),
}  # fmt: skip


def shipped(folder: Path, _: Path) -> list[str]:
    """Some budgets of this repository, with the code and files that they name."""
    for name in ("budgets", "examples"):
        shutil.copytree(HERE.parent / name, folder / name)
    return [f"budgets/{each}" for each in SHIPPED]


def _project(folder: Path, files: Mapping[str, str]) -> None:
    builders = HERE.parent / "tests" / "builders"
    conftest = re.search(r'CONFTEST = """(.*?)"""', (builders / "project.py").read_text(), re.DOTALL)
    assert conftest is not None
    fixed = {"conftest.py": conftest[1], "widths_format.py": (builders / "widths_format.py").read_text()}
    for name, text in {**fixed, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def red(folder: Path, _: Path) -> list[str]:
    """Every outcome, unreadable budgets, a broken lock and hostile names."""
    _project(folder, RED)
    return ["--model-budget-lock=check", "--model-budget-date=2026-11-28"]


def pull_request(folder: Path, checkout: Path) -> list[str]:
    """Raised, removed and forbidden limits, a waiver, growth, redefined models and a dropped file, against main."""
    ignored = "__pycache__/\nloads\n.pytest_cache/\n"
    _project(folder, {**BEFORE, ".gitignore": ignored})
    subprocess.run([sys.executable, "-m", "pytest", *_OPTIONS, "--model-budget-update=create"], cwd=folder,
                   env=_environment(checkout), stdout=subprocess.DEVNULL, check=False)  # fmt: skip
    _git(folder, "init", "-q", "-b", "main", "--template=")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "base")
    _git(folder, "checkout", "-q", "-b", "change")
    (folder / "budgets" / "gone.yaml").unlink()
    _project(folder, AFTER)
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "change")
    return ["--model-budget-base=main", "--model-budget-lock=check", "--model-budget-date=2026-11-28"]


SCENES: Mapping[str, Callable[[Path, Path], list[str]]] = {"shipped": shipped, "red": red, "pull_request": pull_request}
_OPTIONS = ("-p", "no:cacheprovider", "-p", "no:randomly", "--model-budget")


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, env=_environment(folder), check=True)


def _environment(checkout: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CI", "GITHUB", "PYTEST", "GIT_"))}
    return {**kept, **ENVIRONMENT, "PYTHONPATH": str(checkout)}


def store(snapshot: Path, checkout: Path) -> None:
    """Run each scene with the package of a checkout, and write what it leaves into a folder."""
    for name, build in SCENES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder, out = Path(scratch).resolve() / "project", snapshot / name
            folder.mkdir()
            out.mkdir(parents=True, exist_ok=True)
            options = build(folder, checkout)
            for run, more in RUNS.items():
                given = [each.format(out=out) for each in more]
                command = [sys.executable, "-W", "ignore", "-m", "pytest", *_OPTIONS, *given, *options]
                ran = subprocess.run(command, cwd=folder, env=_environment(checkout), capture_output=True, check=False)
                text = ran.stdout.decode("utf-8", "replace") + ran.stderr.decode("utf-8", "replace")
                (out / f"{run}.txt").write_text(f"{text}\nexit code {ran.returncode}\n", encoding="utf-8")
            for lock in sorted(folder.rglob("*.lock.json")):
                shutil.copy(lock, out / lock.name)
            for file in out.iterdir():
                file.write_text(_masked(file.read_text(encoding="utf-8"), scratch, str(out)), encoding="utf-8")


def _masked(text: str, *paths: str) -> str:
    for path in paths:
        text = text.replace(path, "SCRATCH")
    for pattern, word in MASKED:
        text = re.sub(pattern, word, text)
    return text


def differences(base: Path, head: Path) -> Iterator[str]:
    """The lines of all files that differ between two snapshots."""
    for file in sorted({path.relative_to(top) for top in (base, head) for path in top.rglob("*") if path.is_file()}):
        before, after = (
            (top / file).read_text(encoding="utf-8").splitlines() if (top / file).is_file() else []
            for top in (base, head)
        )
        yield from difflib.unified_diff(before, after, f"base/{file}", f"head/{file}", "", "", 1, "")


def main() -> int:
    """Store a snapshot, or compare two checkouts or snapshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, metavar="BASE HEAD", help="checkouts, or stored snapshots")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="write the snapshot of one checkout")
    options = parser.parse_args()
    places = [place.resolve() for place in options.places]
    if options.store and len(places) == 1:
        store(options.store.resolve(), places[0])
        return 0
    if len(places) != 2 or options.store:
        parser.error("name BASE and HEAD, or one checkout to store")
    with tempfile.TemporaryDirectory() as scratch:
        for at, place in enumerate(places):
            if (place / "pytest_modelbudget").is_dir():
                places[at] = Path(scratch) / str(at)
                store(places[at], place)
        found = list(differences(*places))
    print(*found, sep="\n")
    print(f"{len(found)} lines of difference")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
