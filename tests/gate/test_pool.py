"""Children of a pool: what ends them, what is left of them, and which of them run side by side."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_modelbudget.budget.budget import Place, Subject, Transformation
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.errors import IsolationError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import pool as pools
from pytest_modelbudget.gate.pool import Bounds, Child, ModelProcess, NoServerError, Pool, Turns
from pytest_modelbudget.gate.worker import ApplyTransform, Measure, SessionSetup, Verify, Worker
from pytest_modelbudget.registry import tables

MEASURE = Measure(ModelSource("onnx", "nothing.onnx"), (), False)
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
CAN_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork, as Windows")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def refused(*_: object) -> None:
    raise NoServerError("no process could be forked: no more processes")


def late(*_: object, **__: object) -> str:
    return "was stopped after 0 s"


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool whose folders are in tmp_path; Python's own server is started, and stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = Pool(2)
    pool.setup = SessionSetup(tmp_path).of_this_process()
    pool.in_session = lambda: Worker(tables(), root=tmp_path)
    process = pool.process(Bounds("60 s", "4 GiB"))
    process.answer(MEASURE)
    process.release()
    yield pool
    pool.close()


@pytest.fixture
def process(pool: Pool) -> ModelProcess:
    """A process of one model, not started."""
    return pool.process(Bounds("60 s", "4 GiB"))


def left(folder: Path) -> tuple[int, int, list[str]]:
    """How many processes run and files are open, and what is in a folder."""
    return len(multiprocessing.active_children()), len(os.listdir("/proc/self/fd")), os.listdir(folder)


def test_a_child_that_starts_too_slowly_is_ended(
    process: ModelProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is unknown, and nothing of it is left once it is released."""
    before = left(tmp_path)
    monkeypatch.setattr(Child, "_await", late)
    assert "was stopped after 0 s" in str(process.answer(MEASURE).failure)
    process.release()
    assert left(tmp_path) == before


def test_an_interruption_ends_the_child(process: ModelProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches whoever waits for an answer."""
    before = left(tmp_path)
    monkeypatch.setattr(Child, "_await", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.answer(MEASURE)
    process.release()
    assert left(tmp_path) == before


def test_without_processes_the_session_measures(
    pool: Pool, process: ModelProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first child cannot be started, the reason is noted once, and every model is measured all the same."""
    before, pool.has_started = left(tmp_path), False
    monkeypatch.setattr(pools, "_start", refused)
    assert "nothing.onnx does not exist" in str(process.answer(MEASURE).failure)
    process.release()
    assert pool.unavailable == "no process could be forked: no more processes"
    assert left(tmp_path) == before


def test_a_later_child_that_cannot_be_started_fails_its_model(
    pool: Pool, process: ModelProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that measures in processes never measures in its own: an exit would end it green."""
    monkeypatch.setattr(pools, "_start", refused)
    assert str(process.answer(MEASURE).failure) == "no process could be forked: no more processes"
    assert not pool.unavailable


def test_a_child_that_was_ended_is_started_again(process: ModelProcess, tmp_path: Path) -> None:
    """The answer comes from a child each time: the file is not there."""
    assert "nothing.onnx does not exist" in str(process.answer(MEASURE).failure)
    process.release()
    assert "nothing.onnx does not exist" in str(process.answer(MEASURE).failure)
    process.release()
    assert left(tmp_path)[2] == []


def test_planned_requests_are_carried_out_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the item asks before or after its child has answered."""
    asked: list[object] = []
    answer = Child.answer

    def counted(child: Child, request: Measure, *args: object, **kwargs: object) -> object:
        asked.append(request)
        return answer(child, request, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Child, "answer", counted)
    processes = [pool.process(Bounds("60 s")) for _ in range(3)]
    pool.plan((process, [MEASURE, MEASURE]) for process in processes)
    for process in processes * 2:
        assert "nothing.onnx does not exist" in str(process.answer(MEASURE).failure)
    assert asked == [MEASURE] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_children_that_do_not_fit_in_memory_together_run_alone(
    workers: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two needs 60 of 100 bytes: both are answered, whatever the number of workers."""
    monkeypatch.setattr(pools, "LOOK_SECONDS", 0)  # the child of a server that has torch may end within the usual
    pool.workers, pool.memory = workers, 100
    looked: set[object] = set()

    def of_children(pid: object) -> int:
        is_first = pid not in looked  # which tells what a child shares with the server
        looked.add(pid)
        return 0 if is_first else 60

    monkeypatch.setattr(pools, "memory_of", of_children)
    both, start, alone_started = threading.Barrier(workers), Child.start, []

    def together(child: Child, *, alone: bool) -> None:
        alone_started.append(alone)
        if not alone:
            both.wait(10)
        start(child, alone=alone)

    monkeypatch.setattr(Child, "start", together)
    processes = [pool.process(Bounds("60 s")) for _ in range(2)]
    pool.plan((process, [MEASURE]) for process in processes)
    assert ["nothing.onnx" in str(process.answer(MEASURE).failure) for process in processes] == [True, True]
    assert (True in alone_started) is (workers == 2)


def test_a_child_that_is_alone_and_over_the_bound_is_stopped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause names the share and the fix."""
    monkeypatch.setattr(pools, "LOOK_SECONDS", 0)  # as above
    pool.memory = -1  # less than any child needs beyond what it shares with the server
    why = str(pool.process(Bounds("60 s")).answer(MEASURE).failure)
    assert "needed more than 80% of the memory here" in why
    assert "and was stopped: raise 'memory' in the budget, or --model-budget-memory" in why


def test_a_comparison_is_not_tried_after_its_transform_ended_the_child(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform that hangs costs its timeout once, and both have its cause."""
    tried: list[object] = []

    def stopped(child: Child, request: object, *, alone: bool) -> object:
        tried.append(request)
        raise IsolationError("was stopped after 600 s")

    monkeypatch.setattr(Child, "answer", stopped)
    transform = ApplyTransform(
        MEASURE.source, Subject("tiled", Place("a.yaml", 1), Transformation("tile_linear", {})), False
    )
    verify = Verify(transform, Claim(Kind.EXACT_ALGEBRA))
    process = pool.process(Bounds("600 s"))
    pool.plan([(process, [transform, verify])])
    assert "was stopped after 600 s" in str(process.answer(transform).measured.failure)
    assert "was stopped after 600 s" in process.answer(verify).reason
    assert tried == [transform]


def test_a_session_that_cannot_be_handed_over_is_the_failure_of_each_model(pool: Pool, process: ModelProcess) -> None:
    """An extension that is no module, say; no child is started for it."""
    pool.setup = IsolationError("the extension of type Table cannot be handed to a process of its own")
    assert process.answer(MEASURE).failure is pool.setup


def test_a_step_that_runs_alone_waits_and_is_waited_for() -> None:
    """Two shared steps overlap; the third, alone, begins when both have ended, and a later one after it."""
    turns, order, both, go = Turns(2), [], threading.Barrier(3), threading.Event()

    def step(name: str, *, alone: bool) -> None:
        with turns.taken(alone=alone):
            if name in "ab":
                both.wait(10)  # which each of them reaches inside
                go.wait(10)
            order.append(name)

    threads = [threading.Thread(target=step, args=(name,), kwargs={"alone": False}) for name in "ab"]
    for thread in threads:
        thread.start()
    both.wait(10)
    for name in ("alone", "late"):
        threads.append(threading.Thread(target=step, args=(name,), kwargs={"alone": name == "alone"}))
        threads[-1].start()
    assert order == []
    go.set()
    for thread in threads:
        thread.join(10)
    assert sorted(order[:2]) == ["a", "b"]
    assert sorted(order) == ["a", "alone", "b", "late"]


@pytest.mark.parametrize("start", [pytest.param("forkserver", marks=CAN_FORK), "spawn"])
def test_children_start_as_the_variable_says(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned child answers as a forked one does: a system without fork has the same reports."""
    monkeypatch.setenv(pools.START, start)
    own = Pool(1)
    own.setup = SessionSetup(tmp_path).of_this_process()
    process = own.process(Bounds("60 s", "4 GiB"))
    assert own.start == start
    assert "nothing.onnx does not exist" in str(process.answer(MEASURE).failure)
    own.close()


def test_a_system_without_fork_measures_in_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS and Windows: no child is started where nothing asks for one."""
    monkeypatch.delenv(pools.START, raising=False)
    monkeypatch.setattr(pools.sys, "platform", "darwin")
    assert Pool(1).unavailable == "processes are forked on Linux alone"
    monkeypatch.setenv(pools.START, "spawn")
    assert not Pool(1).unavailable
