"""A child process for each model, several side by side; the session waits for their answers.

A ``ModelProcess`` belongs to one model. Its requests are planned when collection ends, and carried out by a thread of
the ``Pool`` while the session runs other items; a request that was not planned is carried out when it is made::

    session  --- request, through a socket ------------------------->  child
    session  <-- answer, a file that has its name when it is complete --  child

The session waits for the file, the end of the child, the timeout and the memory, whichever comes first, and trusts no
byte that it did not check. Children are forked from a server that has the frameworks loaded (``gate/preload.py``).
pebble and loky run independent tasks: neither keeps a child for the steps of one model, nor bounds its memory.
"""

import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, forkserver
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from pytest_modelbudget.errors import IsolationError, ModelBudgetError, in_code, is_users_file
from pytest_modelbudget.gate.preload import PRELOADED
from pytest_modelbudget.gate.python_files import is_installed
from pytest_modelbudget.gate.worker import Answer, Measure, Request, SessionSetup, TimeRuns, Worker, read_answer, serve
from pytest_modelbudget.units import exact, quantity, readable

START = "forkserver"  # with a loaded framework, safe on Linux alone
PRELOAD = "pytest_modelbudget.gate.preload"
LOOK_SECONDS = 0.02  # between two looks at a child
STARTING_SECONDS = 120.0  # for the server to import frameworks
MOST_OUTPUT = 100_000  # bytes of what one step of a model prints
SHARE_OF_MEMORY = 0.8  # of the machine, or of its container, for all children together
CGROUP_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of versions 2 and 1
CGROUP_CPU = "/sys/fs/cgroup/cpu.max"
TRACED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)  # a line of faulthandler's
THREAD = re.compile(r"\n(?=(?:Current thread|Thread) 0x)")
CURRENT = "most recent call first"  # ends the heading of each thread there


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one step of a child may take, as written: "60 s", "4 GiB".

    Without a memory, all children together may take a share of the machine's.
    """

    timeout: str
    memory: str = ""

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return float(quantity(self.timeout, "s"))

    @property
    def nbytes(self) -> int:
        """The memory in bytes; 0 where none is written."""
        return int(quantity(self.memory, "B")) if self.memory else 0

    @property
    def most_memory(self) -> str:
        """The memory for people: as written, but with its unit where that is left out, as in 4 or 4 Gi."""
        return self.memory if self.memory.endswith("B") else exact(self.nbytes, "B")


class CrowdedError(Exception):
    """All children together took too much memory: the largest one is ended, and tried again alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: the file with its answer, or the error that kept it from one, and what was printed.

    Without a file or an error no child could be started.
    """

    file: Path | None = None
    error: ModelBudgetError | None = None
    printed: tuple[str, str] = ("", "")  # to stdout and stderr


class Pool:
    """The children of a session: at most ``workers`` run at a time, and ``close`` ends them all.

    setup gives what a child takes over from the session. unavailable says why no child can be started, "" where one
    can; a worker of the session's process, which in_session gives, then answers.
    """

    setup: Callable[[], SessionSetup]
    in_session: Callable[[], Worker]

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.unavailable = "" if workers and sys.platform == "linux" else "processes are forked on Linux alone"
        self.memory = int(machine_memory() * SHARE_OF_MEMORY)
        self.used: dict[object, int] = {}  # bytes of each child that is within the shared bound
        self.turns = Turns()
        self.is_closed = False
        self._executor: ThreadPoolExecutor | None = None
        self._processes: list[ModelProcess] = []

    def process(self, bounds: Bounds) -> "ModelProcess":
        """A process for one model, started with its first request."""
        process = ModelProcess(self, bounds)
        self._processes.append(process)
        return process

    def preload(self, modules: Iterable[str]) -> None:
        """Start the server that children are forked from, and let it import these modules in the background."""
        if self.unavailable:
            return
        # One thread each: children run side by side, and a library that has started threads must not be forked.
        variables = {PRELOADED: ",".join(modules), "OMP_NUM_THREADS": "1"}
        before = {name: os.environ[name] for name in variables if name in os.environ}
        os.environ.update(variables)
        try:
            multiprocessing.get_context(START).set_forkserver_preload([PRELOAD])
            forkserver.ensure_running()
        except OSError as error:
            self.unavailable = f"no process could be forked: {error}"
        finally:
            for name in variables:
                del os.environ[name]
            os.environ.update(before)

    def plan(self, planned: Iterable[tuple["ModelProcess", Sequence[Request[Any]]]]) -> None:
        """Carry out requests in this order, ahead of the items that will ask for the answers."""
        self._executor = ThreadPoolExecutor(self.workers, "model-budget")
        for process, requests in planned:
            process.plan(requests)
            self._executor.submit(process.work)

    def close(self) -> None:
        """End every child, also those that are at work."""
        self.is_closed = True
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        for process in self._processes:
            process.release()


class Turns:
    """Lets steps run side by side, and some alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = self._waiting = 0
        self._is_alone = False

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Run beside others, unless one of them waits to run alone; or alone."""
        with self._changed:
            self._waiting += alone
            try:
                self._changed.wait_for(lambda: not self._is_alone and not (self._shared if alone else self._waiting))
            finally:
                self._waiting -= alone
            self._is_alone = alone
            self._shared += not alone
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._shared -= not alone
                self._changed.notify_all()


class ModelProcess:
    """The child of one model: started for its first request, and again if it ended before the last one."""

    def __init__(self, pool: Pool, bounds: Bounds) -> None:
        self.pool, self.bounds = pool, bounds
        self._planned: list[Request[Any]] = []
        self._outcomes: dict[str, Future[Outcome]] = {}
        self._folders: set[Path] = set()
        self._child: Child | None = None
        self._lock = threading.RLock()  # of the thread that carries requests out
        self._given: set[str] = set()
        self._failure: ModelBudgetError | None = None  # of measuring the model, after which nothing else is tried

    def plan(self, requests: Iterable[Request[Any]]) -> None:
        """Note requests that ``work`` will carry out."""
        for request in requests:
            if repr(request) not in self._outcomes:
                self._outcomes[repr(request)] = Future()
                self._planned.append(request)

    def work(self) -> None:
        """Carry out the planned requests, and end the child. Runs in a thread of the pool."""
        with self._lock:
            self._carry_out(self._planned)
            self.end()

    def answer(self, request: Request[Answer]) -> Answer:
        """The answer to a request. What the child has printed is printed here, once."""
        key = repr(request)
        self._given.add(key)
        if key not in self._outcomes:
            self._outcomes[key] = Future()
            with self._lock:
                self._carry_out([request], alone=isinstance(request, TimeRuns))
        outcome = self._outcomes[key].result()
        for stream, text in zip((sys.stdout, sys.stderr), outcome.printed, strict=True):
            stream.write(text)
        self._outcomes[key] = Future()
        self._outcomes[key].set_result(replace(outcome, printed=("", "")))
        if outcome.error is not None:
            return request.unanswered(outcome.error)
        if outcome.file is None:
            return request.carry_out(self.pool.in_session())
        try:
            found: Answer = read_answer(outcome.file)
        except IsolationError as error:
            return request.unanswered(error)
        return found

    def has_answered(self, request: Request[Any]) -> bool:
        """Whether the answer was given before, so that it takes no time again."""
        return repr(request) in self._given

    def rest(self) -> None:
        """End a child that is not at work."""
        if self._lock.acquire(blocking=False):
            try:
                self.end()
            finally:
                self._lock.release()

    def end(self) -> None:
        """End the child and every process that it started; its answers stay."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def release(self) -> None:
        """End the child and forget the answers."""
        with self._lock:
            self.end()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            self._folders.clear()
            self._outcomes.clear()
            self._given.clear()

    def _carry_out(self, requests: list[Request[Any]], *, alone: bool = False) -> None:
        """Let the child answer requests, which leave the list; alone once one of them did not fit beside others."""
        try:
            with self.pool.turns.taken(alone=alone):
                while requests:
                    outcome = self._outcome(requests[0], alone=alone)
                    self._outcomes[repr(requests.pop(0))].set_result(outcome)
        except CrowdedError:
            self.end()
            self._carry_out(requests, alone=True)
        except BaseException as error:  # an interruption, too, leaves neither a child nor somebody who waits
            self.end()
            for request in requests:
                self._outcomes[repr(request)].set_exception(error)
            raise

    def _outcome(self, request: Request[Any], *, alone: bool) -> Outcome:
        if self._failure is not None:
            return Outcome(error=self._failure)
        if self.pool.unavailable:
            return Outcome()
        try:
            if self._child is None or not self._child.is_alive:
                self.end()
                self._child = Child(self.pool)
                self._folders.add(self._child.folder)
                self._child.start(self.bounds)
            return self._child.answer(request, self.bounds, alone=alone)
        except OSError as error:  # no child can be started, or no folder be made
            self.end()
            self.pool.unavailable = f"no process could be forked: {error}"
            return Outcome()
        except IsolationError as error:
            printed = self._child.take_output() if self._child is not None else ("", "")
            self.end()
            if isinstance(request, Measure):
                self._failure = error
            return Outcome(error=error, printed=printed)


class InSession:
    """Answers requests in the session's process, each once; has the methods of a ModelProcess."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._answers: dict[str, Any] = {}

    def answer(self, request: Request[Answer]) -> Answer:
        """The answer to a request."""
        key = repr(request)
        if key not in self._answers:
            self._answers[key] = request.carry_out(self._worker)
        found: Answer = self._answers[key]
        return found

    def has_answered(self, request: Request[Any]) -> bool:
        """Whether the answer was given before, so that it takes no time again."""
        return repr(request) in self._answers

    def rest(self) -> None:
        """Do nothing: there is no child."""

    def release(self) -> None:
        """Forget the answers, and the models that comparisons needed."""
        self._answers.clear()
        self._worker.release()


class Child:
    """A process and the folder of its answers. Its owner ends it and removes the folder."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.folder = Path(tempfile.mkdtemp(prefix="model-budget-"))
        self._requests = 0
        self._shown = dict.fromkeys(("stdout", "stderr"), 0)  # bytes that were taken from each file
        context: Any = multiprocessing.get_context(START)
        self._ours, self._theirs = context.Pipe()
        arguments = str(self.folder), self._theirs, pool.setup()
        self.process = context.Process(target=serve, args=arguments, name="model-budget")

    def start(self, bounds: Bounds) -> None:
        """Start it, and wait until it takes requests. Raises IsolationError if it never will."""
        try:
            _start(self.process)
        except (EOFError, pickle.PicklingError, AttributeError, TypeError) as error:
            raise IsolationError(f"no process of its own could be started: {error}") from error
        self._theirs.close()
        if why := self._await(self.folder / "ready", max(STARTING_SECONDS, bounds.seconds), bounds, alone=True):
            raise IsolationError(f"the process for it {why}")

    @property
    def is_alive(self) -> bool:
        """Whether it can take another request."""
        return bool(self.process.is_alive())

    def answer(self, request: Request[Any], bounds: Bounds, *, alone: bool) -> Outcome:
        """The file with the answer to a request.

        Raises IsolationError if the child gives none, and CrowdedError if it has to run alone.
        """
        self._requests += 1
        file = self.folder / f"answer-{self._requests}"
        with suppress(OSError):  # of a child that has ended, for a reason that follows
            self._ours.send((request, bounds.seconds))
        if why := self._await(file, bounds.seconds, bounds, alone=alone):
            place = _place(_end_of(self.folder / "stderr", self._shown["stderr"]))
            raise IsolationError(f"the process that {request.doing} {why}{place}")
        return Outcome(file, printed=self.take_output())

    def take_output(self) -> tuple[str, str]:
        """What was printed since this was last called, to stdout and to stderr; of a lot the end."""
        texts = []
        for name, seen in self._shown.items():
            texts.append(_end_of(self.folder / name, seen))
            with suppress(OSError):
                self._shown[name] = (self.folder / name).stat().st_size
        return texts[0], texts[1]

    def _await(self, file: Path, seconds: float, bounds: Bounds, *, alone: bool) -> str:
        """Wait for a file. Return why it will never be there, or ""."""
        deadline, listened = monotonic() + seconds, [self.process.sentinel, self._ours]
        try:
            while not file.exists():
                ready = connection.wait(listened, LOOK_SECONDS)
                if self._ours in ready and not _received(self._ours):
                    listened.remove(self._ours)
                if self.process.sentinel in ready:
                    self.process.join()
                    return "" if file.exists() else _ending(self.process.exitcode)
                if why := self._over_memory(bounds, alone=alone):
                    return why
                if self.pool.is_closed:
                    return "was stopped with the session"
                if monotonic() > deadline:
                    self._await_trace()
                    return (
                        f"was stopped after {seconds:g} s: 'timeout' in the budget, or --model-budget-timeout, "
                        "gives it longer"
                    )
            return ""
        finally:
            self.pool.used.pop(self, None)

    def _over_memory(self, bounds: Bounds, *, alone: bool) -> str:
        """Why the child takes too much memory, "" if it does not. Raises CrowdedError for the largest of several."""
        nbytes, fix = memory_of(self.process.pid), "'memory' in the budget, or --model-budget-memory, gives it more"
        if bounds.nbytes:
            return f"needed more than {bounds.most_memory}, and was stopped: {fix}" if nbytes > bounds.nbytes else ""
        self.pool.used[self] = nbytes
        used = [*self.pool.used.values()]
        if sum(used) <= self.pool.memory or nbytes < max(used):
            return ""
        if len(used) > 1 and not alone:
            raise CrowdedError
        share = f"{SHARE_OF_MEMORY:.0%} of the memory here ({readable(self.pool.memory, 'B')})"
        return f"needed more than {share}, and was stopped: {fix}"

    def _await_trace(self) -> None:
        """Wait until faulthandler, which runs in the child, has written where it is."""
        deadline, file = monotonic() + 3.0, self.folder / "stderr"
        while monotonic() < deadline and not TRACED.search(_end_of(file, 0)):
            connection.wait([self.process.sentinel], LOOK_SECONDS)

    def end(self) -> None:
        """End it and all that it started."""
        if self.process.pid is not None:
            self._kill()
        self.process.close()
        self._ours.close()
        self._theirs.close()

    def _kill(self) -> None:
        below = descendants(self.process.pid)  # while it lives: all that it started, also in other sessions
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


_starting = threading.Lock()  # of what is set in this process while another one is started


def _start(process: Any) -> None:
    """Start a process that imports nothing of the program that was started: it may be a script without a guard."""
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main


def _received(messages: connection.Connection) -> bool:
    """Take a message; False if no more will come, as a model may close every descriptor."""
    try:
        messages.recv_bytes()
    except (EOFError, OSError):
        return False
    return True


def _end_of(file: Path, start: int) -> str:
    """The text of a file from a position on; of a long one its end."""
    with suppress(OSError), file.open("rb") as stream:
        stream.seek(max(start, file.stat().st_size - MOST_OUTPUT))
        return stream.read(MOST_OUTPUT).decode("utf-8", "replace")
    return ""


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
    """Bytes that a process has for itself and not only mapped from files; 0 if that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    kinds = ("RssAnon", "RssShmem", "VmSwap")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kinds))


def machine_memory() -> int:
    """The bytes of the machine, or of its container where that has fewer."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in map(Path, CGROUP_MEMORY):
        with suppress(OSError, ValueError):  # "max" is no number
            amounts.append(int(file.read_text()))
    return min(amounts)


def usable_cores() -> int:
    """The cores that this process may use, or its container where that may use fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with suppress(OSError, ValueError):
        quota, period = Path(CGROUP_CPU).read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def descendants(pid: int) -> list[int]:
    """The processes below one, nearest first."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found[1:]
