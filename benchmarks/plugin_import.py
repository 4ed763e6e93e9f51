"""What a pytest session pays for the plugin before it is asked for anything: its import.

Pytest loads every installed plugin in every session. Milliseconds to import this one, with pytest
loaded and bytecode written, beside what pytest itself and pytest-xdist take in the same processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median

ASKED_MS = 5
MODULES = {
    "pytest": "pytest",
    "pytest-xdist": "xdist.plugin",
    "pytest-modelbudget": (
        "pytest_modelbudget.pytest_plugin, pytest_modelbudget.pytest_plugin.hookspecs, pytest_modelbudget.reports.table"
    ),
}
CODE = """
import time
for imported in {modules!r}:
    began = time.perf_counter()
    exec("import " + imported)
    print(1000 * (time.perf_counter() - began))
"""


def milliseconds() -> tuple[float, ...]:
    """Times of one process that imports one module after the other."""
    code = CODE.format(modules=list(MODULES.values()))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
    return tuple(map(float, run.stdout.split()))


def main() -> None:
    """Print medians as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="processes (20)")
    rounds = parser.parse_args().rounds
    milliseconds()  # writes the bytecode
    taken = [median(each) for each in zip(*(milliseconds() for _ in range(rounds)), strict=True)]
    print("| imported | ms | of pytest | target (ms) |")
    print("|---|---|---|---|")
    for name, each in zip(MODULES, taken, strict=True):
        asked = ASKED_MS if name == "pytest-modelbudget" else ""
        print(f"| {name} | {each:.1f} | {each / taken[0]:.3f} | {asked} |")


if __name__ == "__main__":
    main()
