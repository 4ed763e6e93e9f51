"""Slowdowns that are planted in a model, and none: how often ``latency: {grow: ...}`` finds them.

Prints how often a growth was over its limit, within, and unknown, and the pairs of processes that this took. A slowdown
works at the end of each call for a share of the processor time that the call took: it is as large on a busy machine.
``--own-times BATCH`` prints the sum of the operators' own times ÷ the latency alone; exit code 1: off by more than 5 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from statistics import median

from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.gate.measuring import time_alone
from pytest_modelbudget.registry import tables
from pytest_modelbudget.runners.paired import Growth, Side, paired

INPUTS = "float32 1x3x224x224"
NETS = '''"""AlexNet without torchvision, which takes as long to import as torch; and the same with a wait."""
from time import perf_counter, process_time

from pytest_modelbudget.torch_models import benchmark
from torch import nn

benchmark.timer = CLOCK


def conv(before, after, kernel, pool=False, **more):
    return [nn.Conv2d(before, after, kernel, **more), nn.ReLU(), *([nn.MaxPool2d(3, 2)] if pool else [])]


def alexnet():
    return nn.Sequential(
        *conv(3, 64, 11, True, stride=4, padding=2),
        *conv(64, 192, 5, True, padding=2),
        *conv(192, 384, 3, padding=1), *conv(384, 256, 3, padding=1), *conv(256, 256, 3, True, padding=1),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )


class Slowed(nn.Module):
    def __init__(self, share=0.0):
        super().__init__()
        self.net, self.share = alexnet(), share

    def forward(self, x):
        began = process_time()
        result = self.net(x)
        end = began + (process_time() - began) * (1 + self.share)
        while self.share and process_time() < end:
            pass
        return result


def same():
    return Slowed()


def slowed():
    return Slowed(SHARE)
'''
OWN_TIMES_OFF = 0.05  # the most that the sum of own times may be off


def growth(folder: Path, change: str, grow: Fraction) -> Growth:
    """The growth of one model of the folder over that without a wait."""

    def side(name: str) -> Side:
        source = model_source(f"planted_nets:{name}", INPUTS, registry=tables(), base=folder)
        return Side(name, partial(time_alone, replace(source, import_roots=((folder,),)), folder), folder, sys.path)

    return paired(side(change), side("same"), Plan(warmup=3), grow)


def own_times(folder: Path, batch: int) -> float:
    """The sum of the operators' own times ÷ the median of the calls without a profiler."""
    source = model_source("planted_nets:same", INPUTS.replace(" 1x", f" {batch}x"), registry=tables(), base=folder)
    observation = time_alone(replace(source, import_roots=((folder,),)), folder, Plan(warmup=3))
    if (timing := observation.value) is None:
        raise SystemExit(observation.failure)
    return sum(row.ns for row in timing.operators) / 1e9 / timing.median


def main() -> None:
    """Print a row for runs with a slowdown, and one for runs without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--clock", default="perf_counter", choices=("perf_counter", "process_time"),
        help="the second one leaves out what other processes of a busy machine take",
    )  # fmt: skip
    parser.add_argument("--share", default="0.05", help="of the time, that is added")
    parser.add_argument("--grow", default="0.025", help="the limit on the growth")
    parser.add_argument("--own-times", type=int, default=0, metavar="BATCH")
    options = parser.parse_args()
    grow = Fraction(options.grow)
    found: dict[str, list[Growth]] = {"slowed": [], "same": []}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = {"SHARE": options.share, "CLOCK": options.clock}
        (folder / "planted_nets.py").write_text(reduce(lambda text, word: text.replace(*word), words.items(), NETS))
        if options.own_times:
            ratio = own_times(folder, options.own_times)
            print(f"AlexNet at batch {options.own_times}: own times are {ratio:.1%} of the latency")
            sys.exit(abs(ratio - 1) > OWN_TIMES_OFF)
        print(f"AlexNet, {INPUTS}, {options.clock}; growth of {float(grow):.1%} allowed\n")
        for change in (*found,) * options.runs:
            found[change].append(growth(folder, change, grow))
            print(f"{change}: {found[change][-1].text}", file=sys.stderr, flush=True)
    seconds = (time.perf_counter() - began) / (2 * options.runs)
    print(f"{seconds:.0f} s a run, load {os.getloadavg()[0]:.1f} at the end\n")
    print("| planted | over | within | unknown | pairs, median | median growth, least to most |")
    print("|---|---|---|---|---|---|")
    for change, planted in (("slowed", float(options.share)), ("same", 0.0)):
        told = Counter(outcome(one, grow) for one in found[change])
        counts = " | ".join(str(told[word]) for word in ("over", "within", "unknown"))
        ratios = sorted(one.ratio - 1 for one in found[change])
        spread = f"{median(ratios):+.1%}, {ratios[0]:+.1%} to {ratios[-1]:+.1%}"
        print(f"| {planted:.0%} | {counts} | {median(len(one.pairs) for one in found[change]):.0f} | {spread} |")


def outcome(growth: Growth, grow: Fraction) -> str:
    """The verdict on a growth."""
    if not growth.is_decided(grow):
        return "unknown"
    return "over" if growth.ratio > 1 + grow else "within"


if __name__ == "__main__":
    main()
