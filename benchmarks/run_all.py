"""Every benchmark, one after the other: one JSON of what they print, and the tables and plots of docs/benchmarks.md.

Each script runs in a process of its own and stays runnable by itself. What it prints replaces what the JSON had of
it, so that a run of some scripts keeps the rest, with the machine and the versions that each was measured on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
DOCS = HERE.parent / "docs"
PICTURES = DOCS / "pictures"
# The scripts of each page.
PAGES = {
    DOCS / "benchmarks.md": ("vs_peers", "large_models", "gate"),
    HERE / "more.md": (
        "timm_models", "onnx_files", "transforms", "deployments", "many_models", "one_model", "plugin_import",
        "page_opening", "growth",
    ),
}  # fmt: skip
PACKAGES = (
    "torch", "torchvision", "onnx", "onnxruntime", "numpy", "pytest", "thop", "calflops", "fvcore", "ptflops",
    "torchinfo", "onnx-tool", "onnxsim", "mcufit", "timm",
)  # fmt: skip
LONGEST = 8  # lines of a table on the page, its headings among them; the JSON has longer ones
Result = Mapping[str, Any]  # of one script: command, when, machine, versions, seconds, tables


@dataclass(frozen=True, slots=True)
class Script:
    """A benchmark by its name, the words of a whole run, and those of a quick one."""

    name: str
    whole: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--rounds", "1")


SCRIPTS = (
    Script("vs_peers", ("--rounds", "5")),
    Script("large_models", ("--rounds", "3")),
    Script("timm_models", quick=("--every", "50")),
    Script("onnx_files"),
    Script("transforms", ("--rounds", "3")),
    Script("deployments"),
    Script("growth", ("--plot", "docs/pictures/growth.svg"), ("--depths", "1000", "10000")),
    Script("many_models", quick=("--models", "40")),
    Script("one_model"),
    Script("gate", quick=("--repeats", "1")),
    Script("plugin_import"),
    Script("page_opening"),
)


def run(script: Script, *, is_quick: bool) -> Result:
    """What a script prints, and on what it ran. Raises ChildProcessError, with its last line, where it fails."""
    words = script.quick if is_quick else script.whole
    load, began = os.getloadavg()[0], time.perf_counter()
    command = [sys.executable, str(HERE / f"{script.name}.py"), *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, check=False)
    if ran.returncode:
        last = (ran.stderr.strip() or ran.stdout.strip() or "it printed nothing").splitlines()[-1]
        raise ChildProcessError(f"{script.name}: exit status {ran.returncode}: {last}")
    tables = list(tables_in(ran.stdout))
    if not tables:
        raise ChildProcessError(f"{script.name}: it printed no table")
    return {
        "command": " ".join(("python", f"benchmarks/{script.name}.py", *words)),
        "day": time.strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - began),
        "machine": f"{processor()}, {os.cpu_count()} processors, load {load:.1f} at the start",
        "versions": dict(versions()),
        "tables": tables,
    }


def processor() -> str:
    """The name that the kernel gives the processor, where it gives one."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def versions() -> Iterator[tuple[str, str]]:
    """Python's version, and those of the packages that are installed."""
    yield "Python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def tables_in(text: str) -> Iterator[list[list[str]]]:
    """The Markdown tables of a text: rows of cells, the headings first."""
    table: list[list[str]] = []
    for line in (*text.splitlines(), ""):
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif table:
            yield [table[0], *table[2:]]  # without the rule below the headings
            table = []


def markdown(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table as it was printed."""
    headings, *rows = table
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def section(name: str, result: Result | None, at: str) -> str:
    """The text between the markers of one script; its plot is in the folder ``at``."""
    if result is None:
        return "Not run yet."
    words = f"`{result['command']}`, {result['day']}."
    drawn = (title := TITLES.get(name)) and (name in PLOTTED or "--plot" in result["command"])
    pictures = [f"![{title}]({at}/{name}.svg)"] if drawn else []
    tables = [table for table in result["tables"] if 1 < len(table) <= LONGEST]
    return "\n\n".join((words, *pictures, *("\n".join(markdown(table)) for table in tables)))


def page(path: Path, text: str, results: Mapping[str, Result]) -> str:
    """The text of a page, with the sections of its scripts written again; what is outside of markers stays."""
    pictures = Path(os.path.relpath(PICTURES, path.parent)).as_posix()
    for name in PAGES[path]:
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{path.name} has no '{begin}' followed by '{end}': add both where its tables belong")
        text = f"{before}{begin}\n\n{section(name, results.get(name), pictures)}\n\n{end}{after}"
    return text


TITLES = {
    "vs_peers": "Models counted exactly, beside the seconds that they took",
    "growth": "Seconds and memory of deep networks, by their number of operators",
}
PLOTTED = ("vs_peers",)  # here; growth.py draws its own


def draw(name: str, result: Result) -> None:
    """The plot of the scoreboard: a point for each tool, right counts above seconds."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = name  # the same picture of the same numbers
    from matplotlib import pyplot

    headings, *rows = result["tables"][0]
    seconds, exact = headings.index(next(each for each in headings if "seconds" in each)), headings.index("exact")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for row in rows:
        if row[seconds].replace(".", "").isdigit():  # others never ran
            axes.scatter(float(row[seconds]), int(row[exact]), color="C3" if row is rows[0] else "C0")
            axes.annotate(row[0], (float(row[seconds]), int(row[exact])), (5, 5), textcoords="offset points")
    axes.set(xscale="log", xlabel=headings[seconds], ylabel="models counted exactly", title=TITLES[name])
    axes.grid(alpha=0.3)
    axes.margins(0.15)  # room for the names
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    """Run the scripts, and write the JSON, the plots and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [script.name for script in SCRIPTS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="these scripts alone; others keep what they had"
    )
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--no-run", action="store_true", help="write plots and page of the JSON as it is")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    failures = []
    for script in SCRIPTS:
        if script.name not in options.only or options.no_run:
            continue
        print(f"{script.name} ...", flush=True)
        try:
            results[script.name] = run(script, is_quick=options.quick)
        except ChildProcessError as error:
            failures.append(str(error))
            continue
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in PLOTTED:
        if name in results:
            draw(name, results[name])
    for path in PAGES:
        path.write_text(page(path, path.read_text(encoding="utf-8"), results), encoding="utf-8")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
