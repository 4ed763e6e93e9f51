"""The process around a model: what its code changes is put back, or said by name."""

import _signal  # type: ignore[import-not-found]  # it has no stub
import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import is_
from typing import Any


@dataclass(frozen=True, slots=True)
class Kept:
    """One thing that a model's code may change: how it is read, and how it is set to what was read."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], object]


def _attribute(owner: Any, name: str) -> Kept:
    """An attribute that is replaced, and not written into."""

    def restore(value: Any) -> None:
        if getattr(owner, name, None) is not value:
            setattr(owner, name, value)

    return Kept(f"{owner.__name__}.{name}", lambda: getattr(owner, name), restore)


def _list(owner: Any, name: str) -> Kept:
    """A list that others hold, too: the same one, with the items that it had."""

    def read() -> tuple[list[Any], list[Any]]:
        return getattr(owner, name), list(getattr(owner, name))

    def restore(before: tuple[list[Any], list[Any]]) -> None:
        items, content = before
        items[:] = content
        setattr(owner, name, items)

    return Kept(f"{getattr(owner, '__name__', 'logging.root')}.{name}", read, restore)


def _names(name: str, owner: dict[str, Any]) -> Kept:
    """Names with the objects that they had; new names stay, as those of imported modules must."""

    def restore(before: Mapping[str, Any]) -> None:
        if list(owner)[: len(before)] == list(before) and all(map(is_, owner.values(), before.values())):
            return  # the usual case, at most with names at the end: compared without a step in Python
        for key, value in before.items():
            if owner.get(key) is not value:
                owner[key] = value

    return Kept(name, owner.copy, restore)


def _setting(name: str, read: Callable[[], Any], restore: Callable[[Any], object]) -> Kept:
    """A setting that is left alone where it is as before."""
    return Kept(name, read, lambda before: None if read() == before else restore(before))


def _environment() -> dict[Any, Any]:
    """The variables as the system has them: ``dict(os.environ)`` decodes each of them, for every model twice."""
    return dict(getattr(os.environ, "_data", os.environ))


def _set_environment(before: Mapping[Any, Any]) -> None:
    os.environ.clear()
    os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in before.items()})
    if hasattr(time, "tzset"):
        time.tzset()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


SIGNALS = tuple(map(int, signal.valid_signals()))
handler_of: Callable[[int], Any] = _signal.getsignal  # without an enumeration around each of sixty answers


def _handlers() -> list[Any]:
    return list(map(handler_of, SIGNALS))


def _set_handlers(before: Sequence[Any]) -> None:
    for number, handler, now in zip(SIGNALS, before, _handlers(), strict=True):
        if handler is not None and now is not handler:
            signal.signal(number, handler)


def _alarm() -> tuple[float, float]:
    """When SIGALRM comes, as a moment, and how often then; 0 where it never does."""
    if not hasattr(signal, "getitimer"):
        return 0.0, 0.0
    seconds, interval = signal.getitimer(signal.ITIMER_REAL)
    return (time.monotonic() + seconds if seconds else 0.0), interval


def _set_alarm(before: tuple[float, float]) -> None:
    moment, interval = before
    if bool(moment) is not bool(_alarm()[0]):
        seconds = max(moment - time.monotonic(), 0.001) if moment else 0.0
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)


def _numpy_state() -> Any:
    numpy_random = sys.modules.get("numpy.random")
    return numpy_random.get_state(legacy=False) if numpy_random else None


def _set_numpy_state(before: Any) -> None:
    if before is not None:
        sys.modules["numpy.random"].set_state(before)


# In the order in which they are restored: what restores others comes first.
KEPT: tuple[Kept, ...] = (
    _names("built-in names", vars(builtins)),
    _names("imported modules", sys.modules),
    _attribute(os, "environ"),
    _setting("environment variables", _environment, _set_environment),
    _setting("the current folder", os.getcwd, os.chdir),
    *(_list(sys, name) for name in ("path", "meta_path", "path_hooks", "argv")),
    *(_attribute(sys, name) for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook")),
    _attribute(threading, "excepthook"),
    _setting("sys.settrace", sys.gettrace, sys.settrace),
    _setting("sys.setprofile", sys.getprofile, sys.setprofile),
    _setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _setting("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
    Kept("signal handlers", _handlers, _set_handlers),
    Kept("the alarm", _alarm, _set_alarm),
    _list(warnings, "filters"),
    _attribute(warnings, "showwarning"),
    _list(logging.root, "handlers"),
    _setting("the level of logging", lambda: logging.root.level, logging.root.setLevel),
    _setting("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    _setting("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    _setting("its thresholds", gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    _setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    Kept("the decimal context", lambda: decimal.getcontext().copy(), decimal.setcontext),
    _setting("the umask", _umask, os.umask),
    Kept("the state of random", random.getstate, random.setstate),
    Kept("the state of numpy.random", _numpy_state, _set_numpy_state),
)
STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


class LentStream:
    """A stream that a model may write to and not close, as those of pytest and of the shell are others' to close."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def close(self) -> None:
        """Write what is waiting, and stay open."""
        self._stream.flush()

    detach = close


@dataclass(slots=True)
class Leftovers:
    """Changes to the process that nobody could take back, in words."""

    names: list[str] = field(default_factory=list)


@contextmanager
def process_kept() -> Iterator[Leftovers]:
    """Everything in KEPT, the streams and their descriptors are as before afterwards; the rest is named."""
    left = Leftovers()
    before = tuple(_readable())
    threads = set(threading.enumerate())
    with _streams_lent(left):
        try:
            yield left
        finally:
            for kept, value in before:
                try:
                    kept.restore(value)
                except (OSError, ValueError, RuntimeError, TypeError) as error:
                    left.names.append(f"{kept.name} could not be restored: {error}")
            started = [thread for thread in threading.enumerate() if thread not in threads]
            left.names += [f"a thread that it started still runs: {thread.name}" for thread in started]


def _readable() -> Iterator[tuple[Kept, Any]]:
    """All that can be read, with its value; a current folder that is gone cannot."""
    for kept in KEPT:
        with suppress(OSError):
            yield kept, kept.read()


@contextmanager
def _streams_lent(left: Leftovers) -> Iterator[None]:
    """Streams that cannot be closed, on descriptors that are as before afterwards."""
    streams = {name: getattr(sys, name) for name in STREAMS}
    descriptors = {}
    for number in range(3):
        with suppress(OSError):  # a process may have none
            descriptors[number] = os.dup(number)
    for name, stream in streams.items():
        setattr(sys, name, stream and LentStream(stream))
    try:
        yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)
        for number, kept in descriptors.items():
            try:
                if not _is_same_file(number, kept):
                    os.dup2(kept, number)
                os.close(kept)
            except OSError as error:  # a model may close every descriptor that there is
                left.names.append(f"descriptor {number} could not be restored: {error.strerror}")


def _is_same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False
