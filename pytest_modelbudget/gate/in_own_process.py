"""The process of one model from inside: what it can be asked, and how it answers until the session wants no more.

``gate/own_process.py`` is the session's side: it starts such a process, waits for its answers and ends it.
"""

import ctypes
import faulthandler
import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import pickle
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
from typing import Any, Protocol, TypeVar

from pytest_modelbudget.budget.budget import StatisticsCheck, TransformCheck
from pytest_modelbudget.budget.ruling import Observation
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import IsolationError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.stopwatch import Plan, Timing
from pytest_modelbudget.gate import measuring, running, transforming
from pytest_modelbudget.metrics.measured_model import Deployment, MeasuredModel
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.values.capture import Captured

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2): a process that is orphaned below has this one for a parent
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Extension:
    """A module that joins the tables, as another process finds it: by its name, or else by its file."""

    name: str
    file: str | None

    @classmethod
    def of(cls, module: object) -> "Extension":
        """Raises IsolationError for what is no module."""
        if not isinstance(module, ModuleType):
            kind = type(module).__name__
            raise IsolationError(
                f"the extension of type {kind} cannot be handed to a process of its own: make it a module"
            )
        return cls(module.__name__, getattr(module, "__file__", None))

    def loaded(self) -> ModuleType:
        """The module, imported here; a conftest.py is loaded from its file."""
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(self.name)
            if getattr(module, "__file__", None) == self.file:
                return module
        spec = importlib.util.spec_from_file_location(self.name, str(self.file))
        assert spec is not None, "a module's file is Python"
        assert spec.loader is not None, "a module's file is Python"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """All that a process needs to measure as the session would: its project, tables, variables and filters."""

    root: Path
    extensions: tuple[Extension, ...] = ()
    profile: measuring.Profile | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    filters: tuple[bytes, ...] = ()  # of warnings, each pickled: a category may be of a module that is gone


Answer = TypeVar("Answer", covariant=True)


class Request(Protocol[Answer]):
    """What the session asks of a process; doing says what that did, for people."""

    @property
    def doing(self) -> str: ...

    def carry_out(self, worker: "Worker") -> Answer: ...


@dataclass(frozen=True, slots=True)
class Measure:
    """Asks for the numbers of the model."""

    source: ModelSource
    deployments: tuple[Deployment, ...]
    with_parts: bool
    doing = "measured it"

    def carry_out(self, worker: "Worker") -> MeasuredModel:
        """The measured model."""
        return measuring.measure_model(
            self.source,
            worker.registry,
            root=worker.setup.root,
            deployments=self.deployments,
            with_parts=self.with_parts,
            profile=worker.setup.profile,
        )


@dataclass(frozen=True, slots=True)
class ApplyTransform:
    """Asks for the numbers of the model after a transform."""

    source: ModelSource
    check: TransformCheck
    with_parts: bool
    doing = "transformed it"

    def carry_out(self, worker: "Worker") -> transforming.TransformedModel:
        """The changed model; both models stay in the process, for a comparison."""
        return replace(worker.transformed(self), applied=None)


@dataclass(frozen=True, slots=True)
class Verify:
    """Asks whether a transformed model's outputs are still the same."""

    transform: ApplyTransform
    claim: Claim
    doing = "compared its outputs"

    def carry_out(self, worker: "Worker") -> Equivalence:
        """The comparison."""
        return transforming.verified(worker.transformed(self.transform), self.claim, root=worker.setup.root)


@dataclass(frozen=True, slots=True)
class Observe:
    """Asks for the values of layers."""

    source: ModelSource
    check: StatisticsCheck
    doing = "ran it"

    def carry_out(self, worker: "Worker") -> Observation[Captured]:
        """What the layers gave."""
        return running.observe_layers(self.source, self.check, worker.registry, root=worker.setup.root)


@dataclass(frozen=True, slots=True)
class Clock:
    """Asks for the time and the memory of calls."""

    source: ModelSource
    plan: Plan
    doing = "timed it"

    def carry_out(self, worker: "Worker") -> Observation[Timing]:
        """What the calls took."""
        return running.time_model(self.source, self.plan, worker.registry, root=worker.setup.root)


class Worker:
    """Carries requests out, and keeps what a comparison needs."""

    def __init__(self, setup: SessionSetup) -> None:
        self.setup = setup
        self.registry: Tables = tables([extension.loaded() for extension in setup.extensions])
        self._transformed: dict[tuple[str, bool], transforming.TransformedModel] = {}  # by check, and with parts or not

    def transformed(self, request: ApplyTransform) -> transforming.TransformedModel:
        """The model after a transform, applied once; one with parts does where none are asked for."""
        name = request.check.name
        known = self._transformed.get((name, True)) or self._transformed.get((name, request.with_parts))
        if known is None:
            known = self._transformed[name, request.with_parts] = transforming.transformed_model(
                request.source, request.check, self.registry, root=self.setup.root,
                with_parts=request.with_parts, profile=self.setup.profile,
            )  # fmt: skip
        return known


def serve(folder: str, requests: Connection, setup: SessionSetup) -> None:
    """The life of the process: answer requests until the session wants no more."""
    if hasattr(os, "setsid"):
        os.setsid()  # what the model starts ends with it
    if sys.platform == "linux":  # also what left its session, or whose parent is gone
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=_end_with_session, name="model-budget-watch", daemon=True).start()
    stderr = _redirected(Path(folder))
    _set_up(setup)
    worker = Worker(setup)
    (Path(folder) / "ready").touch()
    for number in range(1, sys.maxsize):
        try:
            request, seconds = requests.recv()
        except (EOFError, OSError):
            os._exit(0)  # without waiting for threads that the model left behind
        faulthandler.dump_traceback_later(seconds, file=stderr)
        answer = request.carry_out(worker)
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):  # a model may have closed it
            sys.stdout.flush()
        _write_answer(Path(folder) / f"answer-{number}", answer)


def _end_with_session() -> None:
    """End this process when the session's does, however that came about."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _redirected(folder: Path) -> int:
    """What is printed, by whatever means, goes to files; gives a descriptor of stderr that no model closes."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
        stream = open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115  # it stays open as long as the process lives
        setattr(sys, name, stream)
    kept = os.dup(2)
    faulthandler.enable(kept)
    return kept


def as_the_session(setup: SessionSetup) -> SessionSetup:
    """The same with what the session's own process has now: variables, and filters of warnings."""
    filters = []
    for one in warnings.filters:
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            filters.append(pickle.dumps(one))
    return replace(setup, environ=dict(os.environ), filters=tuple(filters))


def _set_up(setup: SessionSetup) -> None:
    """Take on the session's variables and filters of warnings."""
    os.environ.clear()
    os.environ.update(setup.environ)
    filters = []
    for pickled in setup.filters:
        with suppress(ImportError, AttributeError):  # a category that cannot be imported here
            filters.append(pickle.loads(pickled))
    warnings.filters[:] = filters  # type: ignore[index]


def _write_answer(file: Path, answer: object) -> None:
    """An answer in its file, which has its name only when it is whole."""
    content = pickle.dumps(answer)
    unnamed = file.with_suffix(".new")
    unnamed.write_bytes(hashlib.sha256(content).digest() + content)
    os.replace(unnamed, file)


def read_answer(file: Path) -> Any:
    """An answer out of its file. Raises IsolationError for what is none."""
    content = file.read_bytes()
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        raise IsolationError("the process that measured it gave an answer that cannot be read")
    return pickle.loads(content[DIGEST:])
