"""Every error a user can meet: one tree, one sentence each, with place, cause and way out.

At its end the boundary around code that is not ours: whatever it raises becomes one sentence, too.
"""

import dis
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from traceback import StackSummary, TracebackException, walk_tb
from types import MappingProxyType
from typing import Any, ClassVar

IN_SCRIPT = "The following operation failed in the TorchScript interpreter."
CAUSE = re.compile(r"^([A-Za-z_][\w.]*):(?: (.*))?$", re.MULTILINE)  # the end of its traceback
SCRIPTS_LINE = "<--- HERE"  # below each line of it
PYTHON_STACK = "\n\nAt:\n"  # behind the words of what a Python function raised that it called, and before its lines
LONGEST_WHOLE = 20_000  # characters of an exception that anybody reads
OURS = "/pytest_modelbudget/"
CALLERS = (OURS, "/torch/nn/modules/module.py")  # whose lines only call what users wrote
PRIVATE = ("/torch/_", "/torch/utils/_")  # plumbing below an operator, and torch's __init__
INNER = ("/torch/", OURS, "/_pytest/", "<string>", "<frozen ")  # whose lines tell a user little
STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")  # alike, but for what is installed in it
INSTALLED = ("/site-packages/", "/dist-packages/")


class ModelBudgetError(Exception):
    """Anything a user can mend; its text says what is wrong and how to mend it.

    said_by is the key of a model, or of a transform's setting, whose line in a budget says it; "run" is what a variant
    changes, and the source of a model that is none. raised is the whole
    exception of a user's code, with its traceback and what caused it, "" where none was raised.
    """

    said_by: ClassVar[str] = "source"
    raised: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its text, whatever its class is made from: another process may have met it."""
        return (_again, (type(self), self.args, self.raised))


def _again(kind: type[ModelBudgetError], args: tuple[object, ...], raised: str = "") -> ModelBudgetError:
    """An error that was pickled."""
    error = kind.__new__(kind)
    error.args, error.raised = args, raised
    return error


class UnitError(ModelBudgetError):
    """A quantity that cannot be read without guessing."""


class BudgetError(ModelBudgetError):
    """A budget file that does not say what it must say."""


class SourceError(ModelBudgetError):
    """A model source that names nothing, raises, or is not a model."""


class InputError(ModelBudgetError):
    """Inputs that cannot be read, or that the model refuses."""

    said_by = "inputs"


class DimsError(InputError):
    """Sizes for dimensions that the inputs do not have, or that are missing."""

    said_by = "dims"


class UnboundError(DimsError):
    """Sizes that are not given, and that the inputs do not have.

    why has no way out in it, and sizes has for each symbol that stands for one a size that it may have: budgets
    and Python are told the way out in their words; the command line has its own.
    """

    why: str = ""
    sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(self, why: str, sizes: Mapping[str, int], way_out: str) -> None:
        super().__init__(f"{why}: {way_out}")
        self.why, self.sizes = why, sizes


class TraceError(ModelBudgetError):
    """A model whose operations could not be recorded, on the inputs that it was given."""

    said_by = "run"


class MissingExtraError(ModelBudgetError):
    """A framework that the source needs and that is not installed."""

    def __init__(self, needed_for: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed: pip install 'pytest-modelbudget[{extra}]'"
        )


def must_be_recent(package: str, lowest: str) -> None:
    """Raise SourceError where an installed framework is older than its lowest supported version: "2.4"."""
    numbers = re.findall(r"\d+", here := str(import_module(package).__version__))[:2]
    if [*map(int, numbers)] < [*map(int, lowest.split("."))]:
        raise SourceError(f"{package} {here} is too old: pip install '{package}>={lowest}'")


class GraphError(ModelBudgetError):
    """A graph that is not a valid program: a format handed over something impossible."""


class DeviceError(ModelBudgetError):
    """A device that cannot exist, or whose profile does not say what is asked of it."""


class TransformError(ModelBudgetError):
    """A transform that could not be applied, or skipped what it was asked to change."""


class ExtensionError(ModelBudgetError):
    """An extension whose tables cannot be joined with the project's own."""


class UnmeasurableError(ModelBudgetError):
    """Raised by a formula whose answer is not in the shapes; the op is then unmeasured."""


class IsolationError(ModelBudgetError):
    """A step that a process of its own was to carry out, and did not live to answer."""


@contextmanager
def user_code(doing: str, error_type: type[ModelBudgetError]) -> Iterator[None]:
    """Turn any exception of a user's code into ``error_type``, chained, with its place.

    This is the one place where every exception is caught: a model may raise anything, an exit, a skip of pytest's and
    a KeyboardInterrupt of its own among it. Only what a user's key interrupts goes on.
    """
    try:
        yield
    except ModelBudgetError:
        raise
    except BaseException as error:
        if interrupt := _interrupt(error):
            raise interrupt from None
        described_error = error_type(f"{doing} raised {described(error)}")
        described_error.raised = whole_exception(error)
        raise described_error from error


def _interrupt(error: BaseException) -> BaseException | None:
    """The signal that interrupted the code, which did not say ``raise KeyboardInterrupt`` itself."""
    interrupts = (each for each in behind(error) if isinstance(each, KeyboardInterrupt))
    return next((each for each in interrupts if not _was_raised_by_code(each)), None)


def behind(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what led to it, each once: ``raise error.__cause__`` behind ``except`` makes a ring."""
    met: set[int] = set()
    while error is not None and id(error) not in met:
        yield error
        met.add(id(error))
        error = error.__cause__ or error.__context__


def _was_raised_by_code(error: BaseException) -> bool:
    """Whether the innermost frame is at a ``raise``; a signal comes between any two instructions."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return False
    instruction = innermost.tb_frame.f_code.co_code[innermost.tb_lasti]
    return dis.opname[instruction] == "RAISE_VARARGS"


def whole_exception(error: BaseException) -> str:
    """An exception as Python prints it, with what caused it; without the lines of this package.

    Addresses and paths as in ``described``; of an endless one the end.
    """
    told = TracebackException.from_exception(error)
    chain: list[TracebackException | None] = [told]
    for link in chain:
        if link is not None:
            kept = [frame for frame in link.stack if not is_in(frame.filename, (OURS,))]
            link.stack = StackSummary.from_list(kept)
            chain += [link.__cause__, link.__context__]
    text = _seen_from_here("".join(told.format())).rstrip()
    return text if len(text) <= LONGEST_WHOLE else f"...{text[-LONGEST_WHOLE:]}"


def described(error: BaseException) -> str:
    """Type, first line and raising line of an exception, for one line of text.

    The line is the innermost one outside Python's library, torch, pytest and this package, where there is one: the
    user's. Otherwise it is theirs, of torch the innermost of a module that it documents; what only calls a model says
    nothing.
    Addresses of objects are left out, and paths below the current folder told from there, so that the text is the same
    in every run and every checkout.
    """
    kind, line = _kind_and_line(error)
    words = re.sub(r" at 0x[0-9a-f]+", "", _seen_from_here(line)[:300])
    text = f"{kind}: {words}".rstrip(": ")
    places = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    places = [place for place in places if not is_in(place[0].co_filename, (*CALLERS, *PRIVATE))]
    if not places:
        return text
    own = [place for place in places if is_users_file(place[0].co_filename)]
    code, number = (own or places)[-1]
    return f"{text} {in_code(code.co_name, code.co_filename, number)}"


def in_code(function: str, file: str, line: object) -> str:
    """The place of code, for people: "(in make, vision/nets.py:3)".

    The last two parts of a path are enough to find it, and the same on every machine; a file that lies in the current
    folder itself has one, for that folder's name is each checkout's own.
    """
    short = "/".join(_seen_from_here(file).replace("\\", "/").split("/")[-2:])
    return f"(in {function}, {short}:{line})"


def _seen_from_here(text: str) -> str:
    """A text whose absolute paths below the current folder are relative to it."""
    with suppress(OSError):  # the folder was removed
        here = os.path.join(os.getcwd(), "")
        return text if here == os.sep else text.replace(here, "")
    return text


def is_users_file(file: str) -> bool:
    """Whether a line of this file may tell a user something: it is of their own code, or of a package of models."""
    is_pythons = file.startswith(STANDARD_LIBRARY) and not is_in(file, INSTALLED)
    return not is_pythons and not is_in(file, INNER)


def is_in(file: str, parts: Sequence[str]) -> bool:
    """Whether a path has one of these parts, on any system."""
    return any(part in file.replace("\\", "/") for part in parts)


def _kind_and_line(error: BaseException) -> tuple[str, str]:
    """Type and first line of an exception; of what TorchScript raised, those of the cause."""
    text, is_pythons, _ = _text(error).strip().partition(PYTHON_STACK)
    if cause := _scripts_cause(text):
        kind, line = cause
        if is_pythons and (own := CAUSE.fullmatch(line)):  # "RuntimeError: KeyError: 'scale'"
            kind, line = own.groups()
        return kind.removeprefix("builtins."), line
    return type(error).__name__, (text.splitlines() or [""])[0]


def is_wordless(error: BaseException) -> bool:
    """Whether TorchScript raised it for an exception of Python's, of which its interpreter keeps no word."""
    cause = _scripts_cause(_text(error).strip())
    return cause is not None and not cause[1]


def _scripts_cause(text: str) -> tuple[str, str] | None:
    """Type and first line of what made TorchScript raise this text; None of any other text."""
    causes = CAUSE.findall(text.rpartition(SCRIPTS_LINE)[2]) if text.startswith(IN_SCRIPT) else []
    return causes[0] if causes else None


def _text(error: BaseException) -> str:
    """The text of an exception, whose own code makes it; "" where that raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # the text of a user's exception is the user's code
        return ""
