"""Calls of a model in turn with those of its base, each in a process of its own that runs while the other one waits.

Calls alternate: change, base, base, change, and then the other way round: neither is always the one that waited for
the session. A machine that becomes slower slows both of a pair, so that the ratio of paired calls is judged, and not
two times. Its interval is that of the median by ranks, which assumes no distribution; pairs are added until all of it
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
from math import comb, inf
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.formats.user_modules import OWN, is_installed
from pytest_modelbudget.units import Number, percentage, readable, several

MOST_PAIRS, MOST_SECONDS = 400, 300.0
TAIL = 0.001  # of the binomial distribution, outside of each end of an interval: 10 pairs are the fewest
TURN, MOST_CALLS = 0.02, 100  # seconds of a turn at the least, and its calls at the most: the quickest counts
START = "import sys; sys.path[:] = sys.argv[1:]; from pytest_modelbudget.runners.paired import answer; answer()"
Pair = tuple[float, float]  # seconds of a call of the change, and of the base


@dataclass(frozen=True, slots=True)
class Growth:
    """Paired calls of a model and its base; of a model that is new, none, and why."""

    pairs: tuple[Pair, ...]
    new: str = ""

    @property
    def ratios(self) -> list[float]:
        return [change / base for change, base in self.pairs]

    @property
    def ratio(self) -> float:
        return median(self.ratios) if self.pairs else 1.0

    @property
    def ends(self) -> tuple[float, float]:
        return (1.0, 1.0) if self.new else rank_interval(self.ratios)

    def is_decided(self, grow: Number) -> bool:
        """Whether all of the interval is on one side of a limit on the growth."""
        low, high = self.ends
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
        return f"{several(len(self.pairs), 'pair')} of calls: {change}, and {base} at the base, {self.interval}"


def rank_interval(values: Sequence[float]) -> Pair:
    """The interval of the median that values were drawn around, between two of them in their order.

    So many are outside of each end that a fair coin shows as few heads with a probability of TAIL at the most.
    """
    outside, chance = 0, 0.0
    while outside < len(values) // 2 and (chance := chance + comb(len(values), outside) / 2 ** len(values)) <= TAIL:
        outside += 1
    ordered = sorted(values)
    return (ordered[outside - 1], ordered[-outside]) if outside else (0.0, inf)


# The session's side.


@dataclass(frozen=True, slots=True)
class Side:
    """A model for people, what times it, the folder and sys.path of its process, and a folder of no module of it."""

    name: str
    time: Callable[[Plan], Any]
    folder: Path
    path: Sequence[str]
    refused: Path | None = None


def paired(now: Side, then: Side, plan: Plan, grow: Number) -> Growth:
    """The growth of one model over another. Raises TransformError where one of them cannot be timed."""
    with _turns(now, plan) as change, _turns(then, plan) as base:
        change(), base()  # once both are loaded
        return alternated(change, base, grow)


def alternated(change: Callable[[], float], base: Callable[[], float], grow: Number) -> Growth:
    """Pairs of calls, until a limit is on one side of their interval, or there are as many as may be."""
    growth, end = Growth(()), monotonic() + MOST_SECONDS
    while len(growth.pairs) < MOST_PAIRS and monotonic() < end and not growth.is_decided(grow):
        for turns in ((change, base), (base, change), (base, change), (change, base)):  # none is always the first
            taken = {turn: turn() for turn in turns}
            growth = Growth((*growth.pairs, (taken[change], taken[base])))
    return growth


@contextmanager
def _turns(side: Side, plan: Plan) -> Iterator[Callable[[], float]]:
    """The process of a side: what gives the seconds of its next call."""
    command = [sys.executable, "-c", START, str(OWN.parent), *side.path]
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


# The side of a process.


def answer() -> None:
    """Time what the session hands over, turn by turn; what a model prints goes to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    time, plan, refused = pickle.load(sys.stdin.buffer)
    said = {each.name: getattr(plan, each.name) for each in fields(Plan)}
    observation = time(Turns(**said, channel=channel, refused=refused))
    print(json.dumps({"failure": observation.failure}), file=channel, flush=True)


@dataclass(frozen=True, slots=True)
class Turns(Plan):
    """A plan whose calls wait for a line each, and that answers with their seconds."""

    channel: Any = None
    refused: Path | None = None

    def timed(self, call: Callable[[], float]) -> tuple[float, ...]:
        """Does not return. Raises TransformError where a module is of the folder that is refused."""
        files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
        for file in (each for each in files if each and self.refused and Path(each).is_relative_to(self.refused)):
            if not is_installed(file):
                raise TransformError(f"it imports {file}, which is of the change: add its folder to pythonpath")
        for _ in sys.stdin.buffer:
            taken = [call()]
            while sum(taken) < TURN and len(taken) < MOST_CALLS:
                taken.append(call())
            print(json.dumps({"seconds": min(taken)}), file=self.channel, flush=True)
        os._exit(0)
