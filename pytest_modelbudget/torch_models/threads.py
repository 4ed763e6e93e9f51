"""Operators that a forward pass runs in other threads: no recorder is there, and nothing is claimed of the pass."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from threading import Thread
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget.torch_models.patches import replaced
from pytest_modelbudget.torch_models.recording import Recorder, UnseenError

WHY = "the forward pass computes in another thread, where its operators are not seen"
# Methods by which a pool of threads is given a function.
HAND_OVER = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
_recorders: list[Recorder] = []  # of the passes that run now: a thread may outlive the one that started it


class OtherThread(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types
    """Notes operators of this thread: of the pass that started it any, of a later one those on its tensors."""

    def __init__(self, starter: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types
        self._starter = starter

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        for recorder in _recorders:
            if recorder is self._starter or recorder.knows_any((args, kwargs)):
                recorder.misses_threads = True
        return func(*args, **(kwargs or {}))


def _watched(function: Callable[..., Any], starter: Recorder) -> Callable[..., Any]:
    """A function that a thread runs, with its operators noted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with OtherThread(starter):
            return function(*args, **kwargs)

    return call


@contextmanager
def threads_watched(recorder: Recorder) -> Iterator[None]:
    """Threads that start in this context, and what pools of them are given, are watched for operators.

    Raises UnseenError where one ran any, whatever the pass itself raised for want of it.
    """
    start, submit = Thread.start, ThreadPoolExecutor.submit

    def started(thread: Thread) -> None:
        thread.run = _watched(thread.run, recorder)  # type: ignore[method-assign]
        start(thread)

    def submitted(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, _watched(function, recorder), *args, **kwargs)

    def handed_over(own: Callable[..., Any]) -> Callable[..., Any]:
        return lambda pool, func, *args, **kwargs: own(pool, _watched(func, recorder), *args, **kwargs)

    pools = [(ThreadPool, name, handed_over(getattr(ThreadPool, name))) for name in HAND_OVER]
    _recorders.append(recorder)
    try:
        with replaced([(Thread, "start", started), (ThreadPoolExecutor, "submit", submitted), *pools]):
            yield
    except Exception as error:
        if recorder.misses_threads:
            raise UnseenError(WHY) from error
        raise
    finally:
        _recorders.remove(recorder)
    if recorder.misses_threads:
        raise UnseenError(WHY)
