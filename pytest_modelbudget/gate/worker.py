"""Requests about one model, and the child process that answers them.

A ``Worker`` answers requests wherever it lives: in the session's own process, or in a child, where ``serve`` is its
life. ``gate/pool.py`` is the session's side, which starts children, waits for their answers and ends them.
"""

from __future__ import annotations

import copy
import faulthandler
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from pytest_modelbudget.budget.base_inventory import ModelAtBase
from pytest_modelbudget.budget.budget import ClaimCheck, Subject, TimedRun, Transformation, ValuesRun
from pytest_modelbudget.budget.kinds import Observation
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import ExtensionError, IsolationError, ModelBudgetError, user_code
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.user_modules import Roots, is_installed, searched_first
from pytest_modelbudget.gate import measuring, transforming
from pytest_modelbudget.metrics.measured_model import Deployment, MeasuredModel
from pytest_modelbudget.registry import Tables, tables

CURRENT_TEST = "PYTEST_CURRENT_TEST"  # a variable that pytest sets for each item
COVERAGE_CONFIG = "COVERAGE_PROCESS_CONFIG"  # https://coverage.readthedocs.io/en/latest/subprocess.html

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A module that the session imported, as a child finds it: by its name if it is installed, else by its file."""

    name: str
    file: str | None

    @classmethod
    def of(cls, module: object) -> ModuleFile:
        """Raises IsolationError for an object that is not a module."""
        if not isinstance(module, ModuleType):
            kind = type(module).__name__
            raise IsolationError(
                f"the extension of type {kind} cannot be handed to a process of its own: make it a module"
            )
        return cls(module.__name__, getattr(module, "__file__", None))

    def load(self) -> ModuleType:
        """Import the module in this process."""
        loaded = sys.modules.get(self.name)
        if loaded is not None and getattr(loaded, "__file__", None) == self.file:
            return loaded
        if self.file is None or is_installed(self.file):
            return importlib.import_module(self.name)
        spec = importlib.util.spec_from_file_location(self.name, str(self.file))
        if spec is None or spec.loader is None:
            raise ImportError(f"no module {self.name} in {self.file}")
        module = sys.modules[self.name] = importlib.util.module_from_spec(spec)  # as pytest does with conftest.py files
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """The part of a session that a child takes over before it measures.

    plugins are the conftest.py files and the project's own pytest plugins: they are imported again in the child, so
    that paths, operators and whatever else they set up hold there. extensions join the tables. folder is the current
    folder, path is sys.path. coverage is the configuration of a running coverage.py, "" without one.
    """

    root: Path
    plugins: tuple[ModuleFile, ...] = ()
    extensions: tuple[ModuleFile, ...] = ()
    profile: measuring.Profile | None = None
    folder: str = "."
    path: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    coverage: str = ""

    def of_this_process(self) -> SessionSetup:
        """The same with the state of the calling process, as it is now."""
        environ = {name: value for name, value in os.environ.items() if name != CURRENT_TEST}
        coverage = _running_coverage()
        return replace(self, folder=os.getcwd(), path=tuple(sys.path), environ=environ, coverage=coverage)


class Request(Generic[Answer]):
    """A step that a session asks of a worker; done names it in messages: "the process that measured it"."""

    done: ClassVar[str]

    @property
    def is_alone(self) -> bool:
        return isinstance(getattr(self, "run", None), TimedRun)

    def carry_out(self, worker: Worker) -> Answer:
        """The answer, computed in the worker's process."""
        raise NotImplementedError

    def unanswered(self, error: ModelBudgetError) -> Answer:
        """The answer in which nothing is known, because of an error."""
        raise NotImplementedError


@dataclass(frozen=True)
class Measure(Request[MeasuredModel]):
    """Measure the model, also on devices."""

    source: ModelSource
    deployments: tuple[Deployment, ...]
    with_parts: bool
    done = "measured it"

    def carry_out(self, worker: Worker) -> MeasuredModel:
        return measuring.measure_model(
            self.source,
            worker.registry,
            root=worker.root,
            deployments=self.deployments,
            with_parts=self.with_parts,
            profile=worker.profile,
        )

    def unanswered(self, error: ModelBudgetError) -> MeasuredModel:
        return MeasuredModel(self.source.format, failure=error)


@dataclass(frozen=True)
class ApplyTransform(Request[transforming.TransformedModel]):
    """Measure the model after a transform."""

    source: ModelSource
    change: Subject[Transformation]
    with_parts: bool
    creates: bool = False  # files of golden outputs that are not there
    done = "transformed it"

    def carry_out(self, worker: Worker) -> transforming.TransformedModel:
        """The transformed model; both models stay in the worker if their outputs are to be compared."""
        transformed = worker.transformed(self)
        if not any(isinstance(check, ClaimCheck) for check in self.change.checks):
            worker.release()
        return replace(transformed, applied=None)

    def unanswered(self, error: ModelBudgetError) -> transforming.TransformedModel:
        return transforming.TransformedModel(MeasuredModel(self.source.format, failure=error))


@dataclass(frozen=True)
class Verify(Request[Equivalence]):
    """Compare a transformed model's outputs with the original's."""

    transform: ApplyTransform
    claim: Claim
    done = "compared its outputs"

    def carry_out(self, worker: Worker) -> Equivalence:
        try:
            roots = self.transform.source.searched(worker.root)
            return transforming.verified(worker.transformed(self.transform), self.claim, roots)
        finally:
            worker.release()  # two models that nothing else asks for

    def unanswered(self, error: ModelBudgetError) -> Equivalence:
        return Equivalence(Outcome.UNKNOWN, self.claim.kind, str(error), seeds=self.claim.seeds)


@dataclass(frozen=True)
class Observe(Request["Observation[Any]"]):
    """Run the model for the values of its layers, or for its time: then no other child may run meanwhile."""

    source: ModelSource
    run: ValuesRun | TimedRun
    base: ModelAtBase | None = None
    done = "ran it"

    def carry_out(self, worker: Worker) -> Observation[Any]:
        base = self.base and replace(self.base, folder=worker.folder)
        return measuring.observed(self.source, self.run, worker.registry, root=worker.root, base=base)

    def unanswered(self, error: ModelBudgetError) -> Observation[Any]:
        return Observation(failure=str(error))


class Worker:
    """Answers requests in the process it lives in, and keeps transformed models for their comparison.

    folder is that of a child, which the session removes in whatever way the child ends.
    """

    def __init__(
        self, registry: Tables, *, root: Path, profile: measuring.Profile | None = None, folder: Path | None = None
    ) -> None:
        self.registry, self.root, self.profile, self.folder = registry, root, profile, folder
        self._transformed: dict[str, transforming.TransformedModel] = {}  # by source and check

    def transformed(self, request: ApplyTransform) -> transforming.TransformedModel:
        """The transformed model, made once; one with parts also serves a request without."""
        with_parts = replace(request, with_parts=True)
        known = self._transformed.get(repr(with_parts)) or self._transformed.get(repr(request))
        if known is None:
            known = self._transformed[repr(request)] = transforming.transformed_model(
                request.source, request.change, self.registry, root=self.root,
                with_parts=request.with_parts, creates=request.creates, profile=self.profile,
            )  # fmt: skip
        return known

    def release(self) -> None:
        """Forget the transformed models: one that is asked for again is made again."""
        self._transformed.clear()


def serve(folder: str, requests: Connection, setup: SessionSetup, roots: Roots) -> None:
    """Answer the requests of a session until it closes the connection. Runs in a child process.

    An answer is a file ``answer-N`` in the folder; a message on the connection says that it is complete. The modules of
    the model, and of conftest.py files, are imported from roots first.
    """
    if hasattr(os, "fork"):
        multiprocessing.set_start_method("fork", force=True)  # semaphores without names, which outlive nothing
    if hasattr(os, "setsid"):
        os.setsid()  # processes that the model starts end with this group
    with suppress(OSError):  # a system that is short of memory ends this process before the session
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with_session, args=(folder,), name="model-budget-watch", daemon=True).start()
    importlib.import_module("pytest_modelbudget.gate.preload")  # before a step's time counts; a server has done it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stderr = _redirected(Path(folder))
    _take_over(setup)
    measured_coverage = _started_coverage(setup.coverage)
    with searched_first(roots):
        worker = _made_worker(setup, Path(folder))
    requests.send_bytes(b"ready")
    for number in range(1, sys.maxsize):
        try:
            request, seconds = requests.recv()
        except (EOFError, OSError):
            os._exit(0)  # without waiting for threads that the model left running
        faulthandler.dump_traceback_later(seconds, file=stderr)
        is_ready = isinstance(worker, Worker)
        answer = request.carry_out(worker) if is_ready else request.unanswered(worker)
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):  # a model may have closed it
            sys.stdout.flush()
        if measured_coverage is not None:
            measured_coverage.save()
        (Path(folder) / f"answer-{number}").write_bytes(pickled(answer, request))
        requests.send_bytes(b"answered")


def _end_with_session(folder: str) -> None:
    """End this process, and all that it started, when the session's process ends in whatever way."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL) if hasattr(os, "killpg") else os._exit(1)


def _redirected(folder: Path) -> int:
    """Redirect stdout and stderr to files. Return a descriptor of stderr that the model does not know."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
        stream = open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115  # it stays open as long as the process lives
        setattr(sys, name, stream)
    kept = os.dup(2)
    faulthandler.enable(kept)
    return kept


def _take_over(setup: SessionSetup) -> None:
    """Set the session's folder, path and variables. Warnings are silent: they fail no model, whatever the filters."""
    os.chdir(setup.folder)
    sys.path[:] = setup.path
    os.environ.clear()
    os.environ.update(setup.environ)
    warnings.simplefilter("ignore")


def _made_worker(setup: SessionSetup, folder: Path) -> Worker | ModelBudgetError:
    """The worker of this process, or the error that keeps it from measuring anything."""
    try:
        for plugin in setup.plugins:
            with user_code(f"importing {plugin.file} in the model's own process", ExtensionError):
                plugin.load()
        with user_code("importing an extension in the model's own process", ExtensionError):
            extensions = [extension.load() for extension in setup.extensions]
        return Worker(tables(extensions), root=setup.root, profile=setup.profile, folder=folder)
    except ModelBudgetError as error:
        return type(error)(f"{error}: 'isolate: false' measures in the session's process")


def pickled(answer: object, request: Request[Any]) -> bytes:
    """An answer as bytes; one that cannot be pickled holds an object of the user's, and is an error itself."""
    try:
        return pickle.dumps(answer)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        why = IsolationError(f"the answer of its process cannot be pickled: {error}")
        return pickle.dumps(request.unanswered(why))


def _running_coverage() -> str:
    """The configuration of the coverage.py that measures this process, "" without one."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None or not hasattr(current.config, "serialize"):  # of coverage.py before 7.10
        return ""
    config = copy.copy(current.config)
    config.parallel = True  # each process writes a file of its own, which pytest-cov and ``coverage combine`` join
    return str(config.serialize())


def _started_coverage(config: str) -> Any:
    """Measure the coverage of this process as the session's is measured; None without coverage.py."""
    if not config:
        return None
    import coverage

    os.environ[COVERAGE_CONFIG] = config
    try:
        return coverage.process_startup(force=True)
    finally:
        del os.environ[COVERAGE_CONFIG]
