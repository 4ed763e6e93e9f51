"""What a user's code raised, in full where somebody asks for it: traceback, every line, and its causes."""

from __future__ import annotations

import pickle

import pytest

from pytest_modelbudget.errors import LONGEST_WHOLE, SourceError, user_code
from tests.builders.project import Project


@pytest.fixture
def raising(project: Project) -> Project:
    """One model that raises, under two limits."""
    project.write("budgets/bad.widths", "raise")
    project.budget("  bad: {widths: bad.widths, limits: {params: 48, macs: 1}}\n")
    return project


@pytest.mark.parametrize("args", [("-v",), ("--tb=long",), ("-vv", "-rf")], ids=" ".join)
def test_the_whole_exception_is_shown_once(raising: Project, args: tuple[str, ...]) -> None:
    """With its second line and the user's line, at the first limit of the model alone."""
    text = raising.run(*args).stdout.str()
    assert text.count("\nsecond line") == text.count("Traceback (most recent call last)") == 1
    assert 'File "widths_format.py", line ' in text
    assert "pytest_modelbudget/" not in text[text.index("Traceback") : text.index("\nsecond line")]


def test_the_way_to_it_is_said_once(raising: Project) -> None:
    """Two limits fail for it, and one says how to see it."""
    text = raising.run().stdout.str()
    assert "second line" not in text
    assert text.count("the whole exception: pytest -v") == 1


class LoudError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def caused() -> None:
    try:
        raise KeyError("deep cause")
    except KeyError as error:
        raise ValueError("first\nsecond") from error


def endless() -> None:
    raise ValueError("x" * 10 * LONGEST_WHOLE + "the end")


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        pytest.param(caused, ["KeyError: 'deep cause'", "direct cause of the following", "first\nsecond"], id="cause"),
        pytest.param(endless, ["...xxx", "xxxthe end"], id="endless"),
    ],
)
def test_causes_and_other_processes_keep_it(code: object, parts: list[str]) -> None:
    """The text goes with the error, also to the process that asked."""
    with pytest.raises(SourceError) as raised, user_code("calling it", SourceError):
        code()  # type: ignore[operator]
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.raised == raised.value.raised
    assert str(error) == str(raised.value)
    for part in parts:
        assert part in error.raised
    assert len(error.raised) <= LONGEST_WHOLE + len("...")


def test_an_exception_without_a_text_has_its_traceback() -> None:
    """Its own code makes the text, and raises."""
    with pytest.raises(SourceError) as raised, user_code("calling it", SourceError):
        raise LoudError
    assert "LoudError: <exception str() failed>" in raised.value.raised
