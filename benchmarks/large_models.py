"""Two large models beside FlopCounterMode on a CPU: time, and memory added after the imports.

Every measurement is a process of its own: it imports, notes the memory it holds, resets the
kernel's high-water mark, then builds and measures. Linux only: the mark is in /proc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

OURS, PEER = "this project", "FlopCounterMode"
MODELS = {"regnet_y_128gf": (1, 3, 224, 224), "vit_h_14": (1, 3, 224, 224)}
REQUIRED_SPEED, REQUIRED_MEMORY = 20, 5  # times faster, and times less memory added


def resident_nbytes(field: str) -> int:
    """VmRSS (now) or VmHWM (the most so far) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")


def count_ours(name: str) -> int:
    """Build, trace and measure all metrics."""
    from this_project import all_metrics

    return all_metrics(f"torchvision.models:{name}", (MODELS[name],), {})


def count_peer(name: str) -> int:
    """Build and run under FlopCounterMode."""
    import torch
    import torchvision
    from peers import flop_counter_mode

    built = torchvision.models.get_model(name).eval()
    return flop_counter_mode(built, (torch.zeros(MODELS[name]),))


def imported(tool: str) -> Callable[[str], int]:
    """A tool's counter, after everything it imports has been imported by one small count."""
    MODELS["alexnet"] = (1, 3, 64, 64)
    counter = count_ours if tool == OURS else count_peer
    if tool == OURS:
        counter("alexnet")  # the front end imports torch on first use; unfilled weights cost nothing
    else:
        import peers  # noqa: F401
        import torchvision  # noqa: F401
        from torch.utils.flop_counter import FlopCounterMode  # noqa: F401
    return counter


def measure(tool: str, name: str) -> dict[str, float]:
    """Seconds, added bytes and MACs of one count in this process."""
    counter = imported(tool)
    before = resident_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    began = time.perf_counter()
    macs = counter(name)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "added": resident_nbytes("VmHWM") - before, "macs": macs}


def measured_apart(tool: str, name: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", tool, name]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def scoreboard(rounds: int) -> list[str]:
    """Markdown: both tools on every model, and the ratios that are asked for."""
    lines = ["| model | tool | seconds | MB added | MACs |", "|---|---|---|---|---|"]
    for name in MODELS:
        typical = {}
        for tool in (OURS, PEER):
            runs = [measured_apart(tool, name) for _ in range(rounds)]
            typical[tool] = {key: median(run[key] for run in runs) for key in runs[0]}
            seconds, added, macs = (typical[tool][key] for key in ("seconds", "added", "macs"))
            lines.append(f"| {name} | {tool} | {seconds:.2f} | {added / 1e6:.0f} | {macs:,.0f} |")
        faster = typical[PEER]["seconds"] / typical[OURS]["seconds"]
        leaner = typical[PEER]["added"] / max(typical[OURS]["added"], 1)
        kept = faster >= REQUIRED_SPEED and leaner > REQUIRED_MEMORY
        lines.append(
            f"| {name} | **{'met' if kept else 'missed'}** | {faster:.0f} times faster "
            f"(target: {REQUIRED_SPEED}) | {leaner:.1f} times less (target: {REQUIRED_MEMORY}) | |"
        )
    return lines


def main() -> None:
    """Print the table, or with --one the figures of one count as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "MODEL"))
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(*options.one)))
    else:
        print("\n".join(scoreboard(options.rounds)))


if __name__ == "__main__":
    main()
