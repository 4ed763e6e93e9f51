"""Calls of a model that alternate with calls of its base. Each model has its own process, and one waits for the other.

A slow machine slows both calls of a pair, so the ratio of their times is judged. Two processes of one model differ,
too, and the one that starts first is often slower. A round is therefore two pairs of processes: the change starts first
in one, the base in the other. Rounds are added until the 95 % interval of the ratio (Student's t of the mean logarithm)
is on one side of the limit.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from importlib.metadata import distributions
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.formats.user_modules import OWN, is_installed
from pytest_modelbudget.units import Number, percentage, readable, several

MOST_ROUNDS, MOST_SECONDS = 15, 300.0
MOST_PAIRS, SECONDS_OF_PAIRS = 20, 3.0  # of calls in a pair of processes
STUDENT = (  # 97.5 % quantiles for 2 degrees of freedom and more, en.wikipedia.org/wiki/Student's_t-distribution
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
)  # fmt: skip
TURN, MOST_CALLS = 0.02, 100  # a turn has calls for so many seconds, at most so many calls; the quickest counts
START = "import sys; sys.path[:] = sys.argv[1:]; from pytest_modelbudget.runners.paired import answer; answer()"
Pair = tuple[float, float]  # seconds of a call of the change, and of the base


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth by pairs of processes: seconds are medians of calls, and the change and the base start first in turn.

    A new model has no pairs; new says so.
    """

    pairs: tuple[Pair, ...]
    new: str = ""

    @property
    def rounds(self) -> list[float]:
        """The logarithm of the ratio of each round: the mean of its two pairs of processes."""
        ratios = [log(change / base) for change, base in self.pairs]
        return [fmean(two) for two in zip(ratios[::2], ratios[1::2], strict=False)]

    @property
    def ratio(self) -> float:
        return exp(fmean(self.rounds)) if self.rounds else 1.0

    @property
    def ends(self) -> Pair:
        """The interval of 95 % of the ratio; of less than three rounds, everything."""
        if self.new:
            return 1.0, 1.0
        if (freedom := len(self.rounds) - 1) < 2:
            return 0.0, inf
        half = STUDENT[freedom - 2] * stdev(self.rounds) / sqrt(freedom + 1)
        return self.ratio * exp(-half), self.ratio * exp(half)

    def is_decided(self, grow: Number) -> bool:
        """Whether all of the interval is on one side of a limit on the growth."""
        low, high = (round(end, 9) for end in self.ends)
        return high <= 1 + grow or low > 1 + grow

    @property
    def interval(self) -> str:
        low, high = (percentage(Fraction(f"{end - 1:.9f}")) if end < inf else "?" for end in self.ends)
        return f"{low} to {high}"

    @property
    def text(self) -> str:
        """The pairs for people."""
        if self.new:
            return self.new
        change, base = (readable(Fraction(median(seconds)), "s") for seconds in zip(*self.pairs, strict=True))
        on = f"{several(len(self.pairs), 'pair')} of processes: medians of {change}, and {base} at the base"
        return f"{on}; by pairs {self.interval}"


# The session's side.


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: its name, what times it, and its process: folder, sys.path, and a folder not to import."""

    name: str
    time: Callable[[Plan], Any]
    folder: Path
    path: Sequence[str]
    refused: Path | None = None


def paired(now: Side, then: Side, plan: Plan, grow: Number) -> Growth:
    """The growth of one model over another. Raises TransformError where one of them cannot be timed."""

    def pair(change_first: bool) -> Pair:
        first, second = (now, then) if change_first else (then, now)
        with _turns(first, plan) as one, _turns(second, plan) as other:
            one(), other()  # once both are loaded
            return alternated(one, other) if change_first else alternated(other, one)

    return in_rounds(pair, grow)


def in_rounds(pair: Callable[[bool], Pair], grow: Number) -> Growth:
    """Rounds of two pairs of processes, until a limit is on one side of their interval, or there are too many."""
    growth, end = Growth(()), monotonic() + MOST_SECONDS
    while len(growth.rounds) < MOST_ROUNDS and monotonic() < end and not growth.is_decided(grow):
        growth = Growth((*growth.pairs, pair(True), pair(False)))
    return growth


def alternated(change: Callable[[], float], base: Callable[[], float]) -> Pair:
    """The medians of calls in turn: change, base, base, change, so that neither always waited for the session."""
    taken: dict[Callable[[], float], list[float]] = {change: [], base: []}
    end = monotonic() + SECONDS_OF_PAIRS
    while not taken[base] or (len(taken[base]) < MOST_PAIRS and monotonic() < end):
        for turn in (change, base, base, change):
            taken[turn].append(turn())
    return median(taken[change]), median(taken[base])


@contextmanager
def _turns(side: Side, plan: Plan) -> Iterator[Callable[[], float]]:
    """Start the process of a side; yield a function that returns the seconds of its next turn."""
    command = [sys.executable, "-c", START, *side.path, str(OWN.parent)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait take no time of the other side
    streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process: Any = subprocess.Popen(command, cwd=side.folder, env=environment, **streams)

    def turn() -> float:
        said = {}
        with suppress(BrokenPipeError):
            process.stdin.write(b"\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline() or b"{}")
        if "seconds" not in said:
            why = said.get("failure") or f"its process ended with exit code {process.wait()}"
            raise TransformError(f"{side.name} cannot be timed: {why}")
        return float(said["seconds"])

    try:
        process.stdin.write(pickle.dumps((side.time, plan, side.refused)))
        yield turn
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):  # of what it did not read
            process.stdin.close()


# The process's side.


def answer() -> None:
    """Time the model that the session sends, turn by turn; its prints go to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    time, plan, refused = pickle.load(sys.stdin.buffer)
    said = {each.name: getattr(plan, each.name) for each in fields(Plan)}
    observation = time(Turns(**said, channel=channel, refused=refused))
    print(json.dumps({"failure": observation.failure}), file=channel, flush=True)


@dataclass(frozen=True, slots=True)
class Turns(Plan):
    """A plan that waits for a line of stdin before each turn, and answers with its seconds."""

    channel: Any = None
    refused: Path | None = None

    def timed(self, call: Callable[[], float]) -> tuple[float, ...]:
        """Take turns until stdin ends, and exit. Raises TransformError if a module is in the refused folder."""
        if self.refused is not None:
            _refuse(self.refused.resolve())
        for _ in sys.stdin.buffer:
            taken = [call()]
            while sum(taken) < TURN and len(taken) < MOST_CALLS:
                taken.append(call())
            print(json.dumps({"seconds": min(taken)}), file=self.channel, flush=True)
        os._exit(0)


def _refuse(folder: Path) -> None:
    """Raise TransformError for a module of this folder, or of a copy that ``pip install .`` made of it.

    packaging.python.org/en/latest/specifications/direct-url
    """
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]} - {""}
    for file in files:
        if not is_installed(file) and Path(file).resolve().is_relative_to(folder):
            raise TransformError(f"it imports {file}, which is of the change: add its folder to pythonpath")
    for each in distributions():
        origin = json.loads(each.read_text("direct_url.json") or "{}")
        source = Path(url2pathname(urlsplit(origin.get("url", "")).path)).resolve()
        is_copy = not origin.get("dir_info", {"editable": True}).get("editable") and source.is_relative_to(folder)
        if is_copy and not files.isdisjoint(str(each.locate_file(file)) for file in each.files or ()):
            words = f"it imports {each.name} as it was installed from the change"
            raise TransformError(f"{words}: add its folder to pythonpath")
