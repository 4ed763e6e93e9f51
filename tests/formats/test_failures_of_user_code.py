"""What a user's code raises is the user's failure, whatever it is; only the user's key interrupts."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable

import pytest

from pytest_modelbudget.errors import InputError, SourceError, user_code


class UnspeakableError(Exception):
    """Its text is code that raises."""

    def __str__(self) -> str:
        raise ValueError("no words")


def interrupting_itself() -> None:
    raise KeyboardInterrupt


def within_another() -> None:
    try:
        raise ValueError("first")
    except ValueError as error:
        raise KeyboardInterrupt("second") from error


def its_own_cause() -> None:
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("second") from error
    except RuntimeError as error:
        raise error.__cause__ or error  # noqa: B904  # the cause of the second, which is its context: a ring


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        pytest.param(raising(GeneratorExit()), "GeneratorExit (in fail, ", id="GeneratorExit"),
        pytest.param(raising(asyncio.CancelledError()), "CancelledError (in fail, ", id="CancelledError"),
        pytest.param(raising(SystemExit(0)), "SystemExit: 0 (in fail, ", id="SystemExit"),
        pytest.param(raising(StopIteration()), "StopIteration (in fail, ", id="StopIteration"),
        pytest.param(lambda: pytest.fail("by hand"), "Failed: by hand (in fail, ", id="pytest.fail"),
        # No test is skipped here: a model that says so must not end in a quiet green.
        pytest.param(lambda: pytest.skip("not today"), "Skipped: not today (in skip, ", id="pytest.skip"),
        pytest.param(lambda: pytest.exit("enough"), "Exit: enough (in exit, ", id="pytest.exit"),
        pytest.param(interrupting_itself, "KeyboardInterrupt (in interrupting_itself, ", id="KeyboardInterrupt"),
        pytest.param(within_another, "KeyboardInterrupt: second (in within_another, ", id="KeyboardInterrupt, chained"),
        pytest.param(its_own_cause, "ValueError: first (in its_own_cause, ", id="the cause of what was caught"),
        pytest.param(raising(UnspeakableError()), "UnspeakableError (in fail, ", id="an exception without words"),
    ],
)
def test_any_exception_is_the_models_failure(fail: Callable[[], None], words: str) -> None:
    """With its type, its words and the line of the user's that raised it."""
    with pytest.raises(SourceError) as caught, user_code("building", SourceError):
        fail()
    if "pytest" in words or "(in skip" in words or "(in exit" in words or "by hand" in words:
        words = words.partition(" (in ")[0]
    assert str(caught.value).startswith(f"building raised {words}")


def test_an_error_of_our_own_is_not_wrapped() -> None:
    """It says place, cause and way out already."""
    with pytest.raises(InputError, match=r"^said$"), user_code("building", SourceError):
        raise InputError("said")


def slept() -> None:
    time.sleep(20)


def looped() -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pass


def interrupted_in_handling() -> None:
    try:
        looped()
    except KeyboardInterrupt:
        raise ValueError("cleaning up failed") from None


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads here")
@pytest.mark.parametrize("busy", [slept, looped, interrupted_in_handling])
def test_the_users_key_interrupts(busy: Callable[[], None]) -> None:
    """A real SIGINT goes on, wherever it finds the model's code, and whatever that makes of it."""
    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), user_code("building", SourceError):
            busy()
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
