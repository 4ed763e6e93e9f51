"""Write every model file that budgets/ measures: runs each write_*.py of examples/, two at a time.

A script whose framework is not installed is left out, by name: the gate is then red for what it would have written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve()
FRAMEWORKS = re.compile(r"^(?:import|from) (torch|onnx|tflite)\b", re.MULTILINE)


def write(script: Path) -> int:
    """Run one script, print what it wrote; its exit status, 0 where it was left out."""
    name = script.relative_to(HERE.parent)
    missing = [package for package in FRAMEWORKS.findall(script.read_text(encoding="utf-8")) if not find_spec(package)]
    if missing:
        print(f"left out {name}: {missing[0]} is not installed")
        return 0
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout if not done.returncode else f"{name} failed:\n{done.stdout}", end="")
    return done.returncode


def main() -> int:
    """Run all scripts; 1 where one failed."""
    with ThreadPoolExecutor(2) as pool:
        return int(any(list(pool.map(write, sorted(set(HERE.parent.rglob("write_*.py")) - {HERE})))))


if __name__ == "__main__":
    raise SystemExit(main())
