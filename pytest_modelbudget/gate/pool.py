"""A child process for each model, several side by side; the session waits for their answers.

A ``ModelProcess`` belongs to one model. Its requests are planned when collection ends, and carried out by a thread of
the ``Pool`` while the session runs other items; a request that was not planned is carried out when it is made::

    session  --- request, through a socket ------------------------->  child
    session  <-- a message that the answer is complete, in a file ---  child

The session waits for the message, the end of the child, the timeout and the memory, whichever comes first. Children are
forked from a server that has the frameworks loaded (``gate/preload.py``).
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import Any

from pytest_modelbudget.errors import IsolationError, ModelBudgetError, in_code, is_users_file
from pytest_modelbudget.formats.user_modules import Roots, is_installed
from pytest_modelbudget.gate.preload import PRELOADED
from pytest_modelbudget.gate.worker import Answer, Measure, Request, SessionSetup, Verify, Worker, serve
from pytest_modelbudget.units import quantity, readable

# The variable that names how children start: "forkserver", with a loaded framework safe on Linux alone, "spawn", or
# "session", which has none.
START = "MODELBUDGET_START"
PRELOAD = "pytest_modelbudget.gate.preload"
# One thread each: children run side by side, and a library that has started threads must not be forked. The folder in
# which pytest was started may have a random.py.
SERVERS_VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
LOOK_SECONDS = 0.02  # between two looks at a child
SERVER_SECONDS = 2.0  # in which the system has the end of a server that was killed
STARTING_SECONDS = 120.0  # for a child to import conftest.py files
MOST_OUTPUT = 100_000  # bytes of what one step of a model prints
SHARE_OF_MEMORY = 0.8  # of the machine, or of its container, for all children together
XDIST_WORKERS = "PYTEST_XDIST_WORKER_COUNT"  # variable with the number of sessions that share the machine
TRACED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)  # a line of faulthandler's
THREAD = re.compile(r"\n(?=(?:Current thread|Thread) 0x)")
CURRENT = "most recent call first"  # ends the heading of each thread there


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one step of a child may take, as written: "60 s", "4 GiB"."""

    timeout: str
    memory: str = ""

    @property
    def seconds(self) -> float:
        return float(quantity(self.timeout, "s"))

    @property
    def nbytes(self) -> int:
        return int(quantity(self.memory, "B")) if self.memory else 0


@contextmanager
def _variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a process that is started in this context."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


class CrowdedError(Exception):
    """All children together took too much memory: the largest one is ended, and tried again alone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The file with the answer to a request, or the error of a child that gave none, and what the child printed."""

    file: Path | None = None
    error: ModelBudgetError | None = None
    printed: tuple[str, str] = ("", "")  # to stdout and stderr


class Pool:
    """The children of a session: at most ``workers`` run at a time, and ``close`` ends them all.

    setup is the state of the session that each child takes over, or the error that keeps every child from it.
    unavailable says why no child can be started, "" where one can; a worker of the session's process, which in_session
    gives, then answers.
    """

    setup: SessionSetup | ModelBudgetError
    in_session: Callable[[], Worker]

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.start = os.environ.get(START) or ("forkserver" if sys.platform == "linux" else "session")
        self.unavailable = "" if workers and self.start != "session" else "processes are forked on Linux alone"
        sessions = int(os.environ.get(XDIST_WORKERS, "1"))
        self.memory = 0 if self.unavailable else int(machine_memory() * SHARE_OF_MEMORY) // sessions
        self.used: dict[object, int] = {}  # bytes of each child that is within the shared bound
        self.turns = Turns(workers)
        self.is_closed = self.has_started = False
        self._executor: ThreadPoolExecutor | None = None
        self._processes: list[ModelProcess] = []

    def process(self, bounds: Bounds, roots: Roots = ()) -> "ModelProcess":
        """A process for one model, started with its first request. It imports from roots first."""
        process = ModelProcess(self, bounds, roots)
        self._processes.append(process)
        return process

    def preload(self, modules: Iterable[str]) -> None:
        """Let the server that forks children import these modules in the background, or each spawned child."""
        SERVERS_VARIABLES[PRELOADED] = ",".join(modules)
        if self.unavailable or self.start != "forkserver":
            return
        multiprocessing.get_context(self.start).set_forkserver_preload([PRELOAD])
        try:
            with _variables(SERVERS_VARIABLES):
                forkserver.ensure_running()
        except OSError as error:
            self.unavailable = f"no process could be forked: {error}"

    def plan(self, planned: Iterable[tuple["ModelProcess", Sequence[Request[Any]]]]) -> None:
        """Carry out requests in this order, ahead of the items that will ask for the answers."""
        self._executor = ThreadPoolExecutor(self.workers, "model-budget")
        for process, requests in planned:
            process.plan(requests)
            self._executor.submit(process.work)

    def close(self) -> None:
        """End every child, also those that are at work."""
        self.is_closed = True
        if _starting.locked():  # waits for a server that is still importing
            _end_server()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        for process in self._processes:
            process.release()


class Turns:
    """Lets so many steps run side by side, and some alone."""

    def __init__(self, at_once: int) -> None:
        self._at_once = max(1, at_once)
        self._permits = threading.Semaphore(self._at_once)
        self._alone = threading.Lock()  # of two steps that wait to run alone one takes permits

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Run side by side with other steps, or alone: with every permit."""
        wanted, taken = self._at_once if alone else 1, 0
        try:
            with self._alone if alone else nullcontext():
                while taken < wanted:
                    self._permits.acquire()
                    taken += 1
            yield
        finally:  # also of what an interruption left waiting
            for _ in range(taken):
                self._permits.release()


class ModelProcess:
    """The child of one model: started for its first request, and again if it ended before the last one."""

    def __init__(self, pool: Pool, bounds: Bounds, roots: Roots) -> None:
        self.pool, self.bounds, self.roots = pool, bounds, roots
        self.is_released = False
        self._planned: list[Request[Any]] = []
        self._replies: dict[str, Future[Reply]] = {}
        self._folders: set[Path] = set()
        self._child: Child | None = None
        self._lock = threading.RLock()  # of the thread that carries requests out
        self._answered: set[str] = set()
        self._failures: dict[str, ModelBudgetError] = {}  # of requests that ended their child

    def plan(self, requests: Iterable[Request[Any]]) -> None:
        for request in requests:
            if repr(request) not in self._replies:
                self._replies[repr(request)] = Future()
                self._planned.append(request)

    def work(self) -> None:
        """Carry out the planned requests, and end the child. Runs in a thread of the pool."""
        with self._lock:
            self._carry_out(self._planned)
            self.end()

    def answer(self, request: Request[Answer]) -> Answer:
        """The answer to a request. What the child has printed is printed here, once."""
        key = repr(request)
        if key not in self._replies:
            self._replies[key] = Future()
            with self._lock:
                self._carry_out([request], alone=request.is_alone)
        reply = self._replies[key].result()
        if key not in self._answered:
            self._answered.add(key)
            for stream, text in zip((sys.stdout, sys.stderr), reply.printed, strict=True):
                stream.write(text)
        if reply.error is not None:
            return request.unanswered(reply.error)
        if reply.file is None:
            return InSession(self.pool.in_session(), self.pool.turns).answer(request)
        answer: Answer = pickle.loads(reply.file.read_bytes())
        return answer

    def has_answered(self, request: Request[Any]) -> bool:
        """True if the answer was given before: it takes no time again."""
        return repr(request) in self._answered

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
        """End the child, also one that is at work, and forget the answers."""
        self.is_released = True
        with self._lock:
            self.is_released = False
            self.end()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            self._folders.clear()
            self._replies.clear()
            self._answered.clear()

    def _carry_out(self, requests: list[Request[Any]], *, alone: bool = False) -> None:
        """Let the child answer requests, which leave the list; alone once one of them did not fit in memory."""
        try:
            with self.pool.turns.taken(alone=alone):
                while requests:
                    reply = self._reply(requests[0], alone=alone)
                    self._replies[repr(requests.pop(0))].set_result(reply)
        except CrowdedError:
            self.end()
            self._carry_out(requests, alone=True)
        except BaseException as error:  # an interruption, too, leaves neither a child nor a waiting item
            self.end()
            for request in requests:
                self._replies[repr(request)].set_exception(error)
            raise

    def _reply(self, request: Request[Any], *, alone: bool) -> Reply:
        if failure := self._failure_before(request):
            return Reply(error=failure)
        if self.pool.unavailable:
            return Reply()
        try:
            if self._child is None or not self._child.is_alive:
                self.end()
                self._child = Child(self)
                self._folders.add(self._child.folder)
                self._child.start(alone=alone)
            return self._child.answer(request, alone=alone)
        except NoServerError as error:
            self.end()
            if not self.pool.has_started:
                self.pool.unavailable = str(error)
                return Reply()
            return Reply(error=IsolationError(str(error)))
        except (IsolationError, OSError) as error:
            printed = self._child.take_output() if self._child is not None else ("", "")
            self.end()
            failure = error if isinstance(error, IsolationError) else IsolationError(f"no process for it: {error}")
            self._failures[repr(request)] = failure
            return Reply(error=failure, printed=printed)

    def _failure_before(self, request: Request[Any]) -> ModelBudgetError | None:
        """The error that keeps a request from being tried: a step that it needs has ended its child."""
        if isinstance(self.pool.setup, ModelBudgetError):
            return self.pool.setup
        if isinstance(request, Verify) and (failure := self._failures.get(repr(request.transform))):
            return failure
        return next((error for key, error in self._failures.items() if key.startswith(Measure.__name__)), None)


class InSession:
    """Answers requests in the session's process, each once; has the methods of a ModelProcess."""

    def __init__(self, worker: Worker, turns: Turns) -> None:
        self._worker, self._turns = worker, turns
        self._answers: dict[str, Any] = {}

    def answer(self, request: Request[Answer]) -> Answer:
        """The answer to a request."""
        key = repr(request)
        if key not in self._answers:
            with self._turns.taken(alone=request.is_alone):
                self._answers[key] = request.carry_out(self._worker)
        answer: Answer = self._answers[key]
        return answer

    def has_answered(self, request: Request[Any]) -> bool:
        return repr(request) in self._answers

    def rest(self) -> None:
        """Do nothing: there is no child."""

    def release(self) -> None:
        """Forget the answers, and the models that comparisons needed."""
        self._answers.clear()
        self._worker.release()


class NoServerError(Exception):
    """The server that forks children does not run."""


class Child:
    """A process and the folder of its answers. Its owner ends it and removes the folder."""

    def __init__(self, owner: ModelProcess) -> None:
        self.owner, self.pool, self.bounds = owner, owner.pool, owner.bounds
        self.folder = Path(tempfile.mkdtemp(prefix="model-budget-"))
        self._requests = 0
        self._read = dict.fromkeys(("stdout", "stderr"), 0)  # bytes that were taken from each file
        self._shared = 0  # bytes that it has in common with the server
        context: Any = multiprocessing.get_context(self.pool.start)
        self._ours, self._theirs = context.Pipe()
        arguments = str(self.folder), self._theirs, self.pool.setup, owner.roots
        self.process = context.Process(target=serve, args=arguments, name="model-budget")

    def start(self, *, alone: bool) -> None:
        """Start it, and wait until it takes requests.

        Raises IsolationError if it never will, and NoServerError if nothing forks it.
        """
        try:
            _start(self.process)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise IsolationError(f"no process of its own could be started: {error}") from error
        self.pool.has_started = True
        self._theirs.close()
        self._shared = memory_of(self.process.pid)
        if why := self._await(max(STARTING_SECONDS, self.bounds.seconds), alone=alone):
            raise IsolationError(f"the process for it {why}")

    @property
    def is_alive(self) -> bool:
        """True while it can take another request."""
        with _starting:
            return bool(self.process.is_alive())

    def answer(self, request: Request[Any], *, alone: bool) -> Reply:
        """The file with the answer to a request.

        Raises IsolationError if the child gives none, and CrowdedError if it has to run alone.
        """
        self._requests += 1
        with suppress(OSError):  # of a child that has ended, for a reason that follows
            self._ours.send((request, self.bounds.seconds))
        if why := self._await(self.bounds.seconds, alone=alone):
            place = _place(_end_of(self.folder / "stderr", self._read["stderr"]))
            raise IsolationError(f"the process that {request.done} {why}{place}")
        return Reply(self.folder / f"answer-{self._requests}", printed=self.take_output())

    def take_output(self) -> tuple[str, str]:
        """The end of the output since the last call, to stdout and to stderr."""
        texts = []
        for name, position in self._read.items():
            texts.append(_end_of(self.folder / name, position))
            with suppress(OSError):
                self._read[name] = (self.folder / name).stat().st_size
        return texts[0], texts[1]

    def _await(self, seconds: float, *, alone: bool) -> str:
        """Wait for a message. Return why none will come, or ""."""
        deadline, listened = monotonic() + seconds, [self.process.sentinel, self._ours]
        try:
            while True:
                ready = connection.wait(listened, LOOK_SECONDS)
                if self._ours in ready:
                    if _received(self._ours):
                        return ""
                    listened.remove(self._ours)
                if self.process.sentinel in ready:
                    return _ending(_joined(self.process))
                if why := self._over_memory(alone=alone):
                    return why
                if self.pool.is_closed or self.owner.is_released:
                    return "was stopped with the session"
                if monotonic() > deadline:
                    self._await_trace()
                    return f"was stopped after {seconds:g} s: raise 'timeout' in the budget, or --model-budget-timeout"
        finally:
            self.pool.used.pop(self, None)

    def _over_memory(self, *, alone: bool) -> str:
        """Why the child takes too much memory, "" if it does not. Raises CrowdedError for the largest of several."""
        nbytes = memory_of(self.process.pid) - self._shared
        fix = "raise 'memory' in the budget, or --model-budget-memory"
        if self.bounds.nbytes:
            is_over = nbytes > self.bounds.nbytes
            return f"needed more than {self.bounds.memory}, and was stopped: {fix}" if is_over else ""
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
        """End it and the processes of its group."""
        if self.process.pid is not None:
            if hasattr(os, "killpg"):  # it has no group of its own before it calls setsid
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            connection.wait([self.process.sentinel])  # until it has ended, or the server
            _joined(self.process)
        with _starting:
            self.process.close()
        self._ours.close()
        self._theirs.close()


# Starting and joining in one thread at a time: multiprocessing keeps one list of the processes of all threads.
_starting = threading.Lock()


def _start(process: Any) -> None:
    """Start a process that imports nothing of the program that was started: it may be a script without a guard.

    Raises NoServerError if the server does not run.
    """
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            with _variables(SERVERS_VARIABLES):
                _start_anew(process)
        except (OSError, EOFError) as error:
            why = str(error) or "the server that loads the frameworks ended"
            raise NoServerError(f"no process could be forked: {why}") from error
        finally:
            sys.modules["__main__"] = main


def _start_anew(process: Any) -> None:
    """Start a process; where the server has ended, with another one, as soon as the system has its end."""
    deadline = monotonic() + SERVER_SECONDS
    while True:
        try:
            process.start()
            return
        except (OSError, EOFError):
            if monotonic() > deadline:
                raise
            sleep(LOOK_SECONDS)


def _joined(process: Any) -> int | None:
    """The exit code of a process that has ended."""
    with _starting:
        process.join()
        exitcode: int | None = process.exitcode
        return exitcode


def _end_server() -> None:
    """Kill the server that children are forked from."""
    server: Any = forkserver
    if (pid := server._forkserver._forkserver_pid) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    """The innermost line of the user's that faulthandler wrote of the thread that mattered: " (in f, nets.py:3)"."""
    for block in reversed(THREAD.split(stderr)):
        lines = [found for found in TRACED.findall(block) if is_users_file(found[0])]
        own = [found for found in lines if not is_installed(found[0])] or lines
        if CURRENT in block and own:
            file, line, function = own[0]
            return f" {in_code(function, file, line)}"
    return ""


# The machine, as Linux tells of it in /proc and /sys.

CGROUP_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of versions 2 and 1
CGROUP_CPU = "/sys/fs/cgroup/cpu.max"


def memory_of(pid: int | None) -> int:
    """Bytes that a process has for itself and not only mapped from files; 0 if that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    kinds = ("RssAnon", "RssShmem", "VmSwap")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kinds))


def machine_memory() -> int:
    """The bytes of the machine, or of its container where that has fewer; 0 where the system does not say."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for file in map(Path, CGROUP_MEMORY):
        with suppress(OSError, ValueError):  # "max" is no number
            amounts.append(int(file.read_text()))
    return min(amounts, default=0)


def usable_cores() -> int:
    """The cores that this process may use, or its container where that may use fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with suppress(OSError, ValueError):
        quota, period = Path(CGROUP_CPU).read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores
