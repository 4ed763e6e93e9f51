"""Measuring in a process of its own: whatever a model does to that process, the session goes on.

An ``OwnProcess`` belongs to one model: it measures it, applies transforms and compares outputs, step by step::

    session  --- request, through a pipe ------------------------->  process
    session  <-- answer, a file that has its name when it is whole --  process

The session waits for the file, the end of the process, the timeout and the memory, whichever comes first, and trusts no
byte that it did not check. Where systems can fork, processes are forked from a server that has the frameworks loaded.
"""

import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from pytest_modelbudget.budget.budget import StatisticsCheck, TransformCheck
from pytest_modelbudget.budget.ruling import Observation
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import IsolationError, in_code, is_users_file
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.stopwatch import Plan, Timing
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.in_own_process import (
    Answer,
    ApplyTransform,
    Clock,
    Measure,
    Observe,
    Request,
    SessionSetup,
    Verify,
    read_answer,
    serve,
)
from pytest_modelbudget.gate.python_files import is_installed
from pytest_modelbudget.metrics.measured_model import Deployment, MeasuredModel
from pytest_modelbudget.units import exact, quantity
from pytest_modelbudget.values.capture import Captured

START = "forkserver" if sys.platform == "linux" else "spawn"  # a fork of a loaded framework is safe on Linux alone
FORKED = "pytest_modelbudget.gate.forked"
LOADED = "MODEL_BUDGET_LOADED"  # variable by which that module learns what to load
LOOK_SECONDS = 0.01  # between two looks at a process
STARTING_SECONDS = 120.0  # for importing frameworks, where a process is not forked
MOST_OUTPUT = 100_000  # bytes of what one step of a model prints
TRACED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)  # a line of faulthandler's
THREAD = re.compile(r"\n(?=(?:Current thread|Thread) 0x)")
CURRENT = "most recent call first"  # ends the heading of each thread there


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one step of a process may take, as written: "60 s", "4 GiB"."""

    timeout: str
    memory: str

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return float(quantity(self.timeout, "s"))

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return int(quantity(self.memory, "B"))

    @property
    def most_memory(self) -> str:
        """The memory for people: as written, but with its unit where that is left out, as in 4 or 4 Gi."""
        return self.memory if self.memory.endswith("B") else exact(self.nbytes, "B")


class OwnProcess:
    """The process of one model, started when it is first asked and again after it ended.

    Raises IsolationError for a step that it did not live to answer; ``end`` leaves nothing of it.
    """

    def __init__(self, bounds: Bounds, setup: Callable[[], SessionSetup]) -> None:
        self.bounds = bounds
        self._setup = setup
        self._child: _Child | None = None

    def measure(
        self, source: ModelSource, *, deployments: tuple[Deployment, ...] = (), with_parts: bool = False
    ) -> MeasuredModel:
        """The numbers of the model, also on devices, or why there are none."""
        began = monotonic()
        return self._asked(
            Measure(source, deployments, with_parts),
            lambda error: MeasuredModel(source.format, failure=error, seconds=monotonic() - began),
        )

    def transform(
        self, source: ModelSource, check: TransformCheck, *, with_parts: bool = False
    ) -> transforming.TransformedModel:
        """The model after a transform, or why there is none."""
        began = monotonic()
        return self._asked(
            ApplyTransform(source, check, with_parts),
            lambda error: transforming.TransformedModel(
                MeasuredModel(source.format, failure=error, seconds=monotonic() - began)
            ),
        )

    def verify(self, source: ModelSource, check: TransformCheck, claim: Claim) -> Equivalence:
        """Whether the outputs are still the same; unknown where the process did not live to say so."""
        return self._asked(
            Verify(ApplyTransform(source, check, False), claim),
            lambda error: Equivalence(Outcome.UNKNOWN, claim.kind, str(error), seeds=claim.seeds),
        )

    def observe(self, source: ModelSource, check: StatisticsCheck) -> Observation[Captured]:
        """The values of layers; unknown where the process did not live to say so."""
        return self._asked(Observe(source, check), lambda error: Observation(failure=str(error)))

    def time(self, source: ModelSource, plan: Plan) -> Observation[Timing]:
        """What the calls of the model take, or why nobody knows."""
        return self._asked(Clock(source, plan), lambda error: Observation(failure=str(error)))

    def end(self) -> None:
        """End the process, and all that it started."""
        if self._child is not None:
            self._child.end()
        self._child = None

    def _asked(self, request: Request[Answer], unanswered: Callable[[IsolationError], Answer]) -> Answer:
        """The answer to a request, or what stands for it; a process that gave none is no more."""
        try:
            if self._child is None or not self._child.is_alive:
                self.end()
                self._child = _Child(self._setup())
                self._child.start()
            return self._child.answer(request, self.bounds)
        except BaseException as error:  # an interruption, too, leaves no process behind
            self.end()
            if isinstance(error, IsolationError):
                return unanswered(error)
            raise


class _Child:
    """A process and the folder of its answers; whoever made it ends it, however far it came."""

    def __init__(self, setup: SessionSetup) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="model-budget-"))
        self.asked = 0
        self._output = dict.fromkeys(("stdout", "stderr"), 0)  # bytes that were shown
        context: Any = multiprocessing.get_context(START)
        self._received, self._requests = context.Pipe(duplex=False)
        given = str(self.folder), self._received, setup
        self.process = context.Process(target=serve, args=given, name="model-budget")

    def start(self) -> None:
        """Start it, and wait until it takes requests. Raises IsolationError where it never will."""
        try:
            _start(self.process)
        except (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError) as error:
            raise IsolationError(f"no process of its own could be started: {error}") from error
        self._received.close()
        self._await(self.folder / "ready", STARTING_SECONDS, None)

    @property
    def is_alive(self) -> bool:
        """Whether it can take another request."""
        return bool(self.process.is_alive())

    def answer(self, request: Request[Answer], bounds: Bounds) -> Answer:
        """The answer to a request. Raises IsolationError, saying why there is none."""
        self.asked += 1
        file = self.folder / f"answer-{self.asked}"
        with suppress(OSError):  # a process that ended says so below
            self._requests.send((request, bounds.seconds))
        try:
            why = self._await(file, bounds.seconds, bounds)
            if not why:
                answer: Answer = read_answer(file)
                return answer
        finally:
            shown = self._show_output()
        raise IsolationError(f"the process that {request.doing} {why}{_place(shown)}")

    def _await(self, file: Path, seconds: float, bounds: Bounds | None) -> str:
        """Wait for a file; why it will never be there, or ""."""
        deadline = monotonic() + seconds
        while not file.exists():
            if connection.wait([self.process.sentinel], LOOK_SECONDS):
                self.process.join()
                return "" if file.exists() else _ending(self.process.exitcode)
            if bounds is not None and memory_of(self.process.pid) > bounds.nbytes:
                return f"needed more than {bounds.most_memory}, and was stopped: 'memory' in the budget gives it more"
            if monotonic() > deadline:
                if bounds is None:
                    raise IsolationError(f"no process of its own could be started within {seconds:.0f} s")
                self._await_trace()
                return f"was stopped after {seconds:g} s: 'timeout' in the budget gives it longer"
        return ""

    def _await_trace(self) -> None:
        """Give faulthandler, which the process runs beside itself, the time to write where it is."""
        deadline, file = monotonic() + 3.0, self.folder / "stderr"
        while monotonic() < deadline and not TRACED.search(file.read_text("utf-8", "replace")):
            connection.wait([self.process.sentinel], LOOK_SECONDS)

    def _show_output(self) -> str:
        """Hand on what was printed, as if the model had been measured here; gives what went to stderr."""
        texts = {}
        for name, seen in self._output.items():
            content = b""
            with suppress(OSError), (self.folder / name).open("rb") as file:
                file.seek(seen)
                content = file.read()
            self._output[name] += len(content)
            texts[name] = content[-MOST_OUTPUT:].decode("utf-8", "replace")
            getattr(sys, name).write(texts[name])
        return texts["stderr"]

    def end(self) -> None:
        """End it and all that it started, and remove its folder."""
        if self.process.pid is not None:
            self._kill()
        self.process.close()
        self._received.close()
        self._requests.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        if hasattr(os, "killpg"):
            below = descendants(self.process.pid)  # as long as it lives: whom it started, in whichever session
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for pid in below:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


_FIRST: list[str] = []  # modules that processes are forked with, for the server that is not started yet


def load_first(modules: Iterable[str]) -> None:
    """Let processes be forked with these modules loaded; without effect once the first one was."""
    _FIRST[:] = modules


def _start(process: Any) -> None:
    """Start a process. None imports the program that was started: it may be a script without a guard."""
    if START == "forkserver":
        multiprocessing.get_context(START).set_forkserver_preload([FORKED])
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ[LOADED] = ",".join(_FIRST)
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
        os.environ.pop(LOADED, None)


def _ending(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is None or exitcode >= 0:
        return f"ended itself with exit code {exitcode}, and gave no answer"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = ", as systems do that are short of memory" if name == "SIGKILL" else ""
    return f"ended by {name}{hint}"


def _place(stderr: str) -> str:
    """The innermost line of the user's that faulthandler wrote of the thread that mattered: " (in f, nets.py:3)".

    It writes other threads first. A line of what is installed is taken only where there is no better one.
    """
    for block in reversed(THREAD.split(stderr)):
        lines = [found for found in TRACED.findall(block) if is_users_file(found[0])]
        own = [found for found in lines if not is_installed(found[0])] or lines
        if CURRENT in block and own:
            file, line, function = own[0]
            return f" {in_code(function, file, line)}"
    return ""


def memory_of(pid: int | None) -> int:
    """Bytes that a process has for itself and not only mapped from files; 0 where nobody can say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return _memory_by_ps(pid)
    kinds = ("RssAnon", "RssShmem", "VmSwap")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kinds))


def _memory_by_ps(pid: int | None) -> int:
    """The same on systems without /proc."""
    if sys.platform == "linux" or not shutil.which("ps"):
        return 0
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return int(told) * 1024 if told.strip().isdigit() else 0


def descendants(pid: int) -> list[int]:
    """The processes below one, nearest first; none on systems without /proc."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *_ = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            below.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found[1:]
