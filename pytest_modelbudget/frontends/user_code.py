"""The boundary around code that is not ours: whatever it raises becomes one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_modelbudget.errors import ModelBudgetError


@contextmanager
def user_code(doing: str, error_type: type[ModelBudgetError]) -> Iterator[None]:
    """Turn any exception of a user's code into ``error_type``, chained, with its place.

    This is the one place where every exception is caught: a model may raise anything.
    """
    try:
        yield
    except ModelBudgetError:
        raise
    except (Exception, SystemExit) as error:  # a model may raise anything
        raise error_type(f"{doing} raised {described(error)}") from error


def described(error: BaseException) -> str:
    """Type, first line and raising line of an exception, for one line of text."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0][:300]}".rstrip(": ")
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    if not trace:
        return text
    code = trace.tb_frame.f_code
    return f"{text} (in {code.co_name}, {_short(code.co_filename)}:{trace.tb_lineno})"


def _short(path: str) -> str:
    """The last two parts of a path: enough to find it, and the same on every machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
