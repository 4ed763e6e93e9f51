"""Operators that a forward pass runs in other threads: no recorder is there, and nothing is claimed of the pass."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.patches import replaced
from pytest_modelbudget.torch_models.recording import Recorder

ELSEWHERE = "the forward pass computes in another thread, where its operators are not seen"


class Elsewhere(TorchDispatchMode):
    """Notes that its thread runs operators, for as long as the forward pass that started it is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types
        self._recorder: Recorder | None = recorder

    def end(self) -> None:
        """Note no more: a thread may outlive the forward pass."""
        self._recorder = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self._recorder is not None:
            self._recorder.is_elsewhere = True
        return func(*args, **(kwargs or {}))

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that a thread runs, under this watch."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return watched


@contextmanager
def threads_watched(recorder: Recorder) -> Iterator[None]:
    """Threads that start in this context, and what pools of them are given, are watched for operators.

    Raises TraceError where one ran any.
    """
    elsewhere = Elsewhere(recorder)
    start, submit = Thread.start, ThreadPoolExecutor.submit

    def started(thread: Thread) -> None:
        thread.run = elsewhere.around(thread.run)  # type: ignore[method-assign]
        start(thread)

    def submitted(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, elsewhere.around(function), *args, **kwargs)

    try:
        with replaced([(Thread, "start", started), (ThreadPoolExecutor, "submit", submitted)]):
            yield
    finally:
        elsewhere.end()
        if recorder.is_elsewhere:
            raise TraceError(ELSEWHERE)
