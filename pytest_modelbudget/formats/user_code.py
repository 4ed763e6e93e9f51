"""The boundary around code that is not ours: whatever it raises becomes one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from pytest_modelbudget.errors import ModelBudgetError

IN_SCRIPT = "The following operation failed in the TorchScript interpreter."
CAUSE = re.compile(r"^([A-Za-z_][\w.]*):(?: (.*))?$", re.MULTILINE)  # the end of its traceback
INNER = ("/torch/", "/pytest_modelbudget/", "<string>")  # whose lines tell a user little


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
    """Type, first line and raising line of an exception, for one line of text.

    The line is the innermost one outside torch and this package, where there is one: the user's.
    Addresses of objects are left out, so that the text is the same in every run.
    """
    kind, line = _kind_and_line(error)
    words = re.sub(r" at 0x[0-9a-f]+", "", line[:300])
    text = f"{kind}: {words}".rstrip(": ")
    places = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    if not places:
        return text
    own = [place for place in places if not any(part in place[0].co_filename for part in INNER)]
    code, number = (own or places)[-1]
    # The last two parts of a path are enough to find it, and the same on every machine.
    short = "/".join(code.co_filename.replace("\\", "/").split("/")[-2:])
    return f"{text} (in {code.co_name}, {short}:{number})"


def _kind_and_line(error: BaseException) -> tuple[str, str]:
    """Type and first line of an exception; of what TorchScript raised, those of the cause."""
    text = str(error).strip()
    causes = CAUSE.findall(text) if text.startswith(IN_SCRIPT) else []
    if causes:
        kind, line = causes[-1]
        return kind.removeprefix("builtins."), line
    return type(error).__name__, (text.splitlines() or [""])[0]
