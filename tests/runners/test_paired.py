"""The growth of paired calls: its interval by hand, and when rounds end, by clocks that the test sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import import_module
from itertools import cycle
from math import exp, inf
from pathlib import Path

import pytest

from pytest_modelbudget.budget.kinds import Observation
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import Plan
from pytest_modelbudget.runners import paired
from pytest_modelbudget.runners.paired import MOST_PAIRS, MOST_ROUNDS, Growth, Pair, Side, alternated, in_rounds


def grown(*shares: float) -> Growth:
    """A pair of processes for each share by which the change takes longer."""
    return Growth(tuple((1 + share, 1.0) for share in shares))


def test_a_round_takes_out_what_starting_first_costs() -> None:
    """Whichever starts first takes 4 % longer: each ratio is off, and the mean of two is not."""
    growth = Growth(((1.04, 1.0), (1.0, 1.04)) * 3)
    assert growth.ratio == pytest.approx(1)
    assert growth.ends == pytest.approx((1, 1))


def test_the_interval_is_that_of_students_distribution() -> None:
    """Of the logarithms 1, 2 and 6 in a hundred: mean 3, standard error sqrt(14 / 6), 4.303 of them to each side."""
    growth = Growth(tuple((exp(each / 100), 1.0) for each in (1, 1, 2, 2, 6, 6)))
    half = 4.303 * (14 / 6) ** 0.5 / 100
    assert growth.ratio == pytest.approx(exp(0.03))
    assert growth.ends == pytest.approx((exp(0.03 - half), exp(0.03 + half)))


def test_two_rounds_say_nothing() -> None:
    """Equal ratios have no spread, and three of them are the fewest."""
    assert grown(*(0.1,) * 5).ends == (0.0, inf)
    assert grown(*(0.1,) * 6).ends == pytest.approx((1.1, 1.1))


@pytest.mark.parametrize(("share", "within"), [(-0.1, True), (0.05, True), (0.051, False)])
def test_a_growth_of_the_limit_itself_is_within(share: float, within: bool) -> None:
    """All of the interval is at one share, against 5 %."""
    growth = grown(*(share,) * 6)
    assert growth.is_decided(Fraction(1, 20))
    assert (growth.ratio <= 1.05) is within


def pairs_of(*shares: float) -> tuple[Callable[[bool], Pair], list[str]]:
    """Pairs of processes whose change takes longer by these shares in turn, and which side each started first."""
    started: list[str] = []
    turns = cycle(shares)

    def pair(change_first: bool) -> Pair:
        started.append("change" if change_first else "base")
        return 1 + next(turns), 1.0

    return pair, started


def test_rounds_end_when_one_side_of_the_limit_is_sure() -> None:
    """Three are the fewest: 5 % against a limit of 3 %."""
    pair, started = pairs_of(0.05)
    growth = in_rounds(pair, Fraction(3, 100))
    assert started == ["change", "base"] * 3
    assert growth.text == "6 pairs of processes: medians of 1.05 s, and 1.00 s at the base; by pairs 5.0% to 5.0%"


def test_rounds_that_differ_around_the_limit_are_undecided() -> None:
    """Half of them at 0 and half at 10 %: the interval of the mean reaches to both sides of 5 %."""
    pair, started = pairs_of(0, 0, 0.1, 0.1)
    growth = in_rounds(pair, Fraction(1, 20))
    assert len(started) == 2 * MOST_ROUNDS
    assert not growth.is_decided(Fraction(1, 20))


def clock(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much at each look."""
    moments: Iterator[float] = (k * seconds for k in range(10_000))
    return lambda: next(moments)


def test_rounds_end_after_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred seconds at each look: two rounds before the end at 300."""
    monkeypatch.setattr(paired, "monotonic", clock(100))
    pair, started = pairs_of(0, 0, 0.1, 0.1)
    in_rounds(pair, Fraction(1, 20))
    assert len(started) == 4


def sides() -> tuple[Callable[[], float], Callable[[], float], list[str]]:
    """A change and a base whose calls take 22 and 20 ms, but for a first one of each, and the order of the calls."""
    asked: list[str] = []

    def side(name: str, seconds: float) -> Callable[[], float]:
        def turn() -> float:
            asked.append(name)
            return seconds if asked.count(name) > 1 else 1.0

        return turn

    return side("A", 0.022), side("B", 0.020), asked


def test_calls_alternate() -> None:
    """The seconds are the medians of all of them."""
    change, base, asked = sides()
    assert alternated(change, base) == (0.022, 0.020)
    assert "".join(asked) == "ABBA" * (MOST_PAIRS // 2)


def test_slow_calls_end_after_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second at each look: three turns before the end at 3, and one in any case."""
    monkeypatch.setattr(paired, "monotonic", clock(1))
    change, base, asked = sides()
    alternated(change, base)
    assert "".join(asked) == "ABBA" * 3


def test_a_model_that_is_new_has_not_grown() -> None:
    """It says why, and is on the safe side of every limit."""
    growth = Growth((), "net is new since main (1a2b3c4): what is new has not grown")
    assert (growth.ratio, growth.is_decided(0)) == (1.0, True)
    assert growth.text.startswith("net is new since main")


def timed_module(plan: Plan) -> Observation[None]:
    """The seconds that a module names, in the process of a side; how they differ tells which module it was."""
    seconds = import_module("module_of_a_side").SECONDS
    try:
        plan.timed(lambda: float(seconds))
    except TransformError as error:
        return Observation(failure=str(error))
    return Observation()


def module(folder: Path, seconds: float) -> str:
    folder.mkdir(parents=True)
    (folder / "module_of_a_side.py").write_text(f"SECONDS = {seconds}\n")
    return str(folder)


def test_a_side_finds_modules_as_its_session_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH=src counts before a copy that is installed where this package is."""
    source = module(tmp_path / "src", 0.5)
    installed = module(tmp_path / "site-packages", 0.25)
    monkeypatch.setattr(paired, "OWN", Path(installed, "pytest_modelbudget"))
    with paired._turns(Side("net", timed_module, tmp_path, [source, *sys.path]), Plan()) as turn:
        assert turn() == 0.5


def test_modules_of_the_change_are_refused_behind_a_link(tmp_path: Path) -> None:
    """A home folder is often a link, and PYTHONPATH has its name."""
    module(tmp_path / "change" / "src", 0.5)
    (tmp_path / "link").symlink_to(tmp_path / "change")
    path = [str(tmp_path / "link" / "src"), *sys.path]
    with (
        paired._turns(Side("net", timed_module, tmp_path, path, tmp_path / "change"), Plan()) as turn,
        pytest.raises(TransformError, match=r"it imports .*module_of_a_side\.py, which is of the change"),
    ):
        turn()


@pytest.mark.parametrize(("installed_from", "is_refused"), [("change", True), ("elsewhere", False)])
def test_a_copy_that_was_installed_from_the_change_is_refused(
    tmp_path: Path, installed_from: str, is_refused: bool
) -> None:
    """``pip install .`` of a project with src/ gives both sides the code of the change."""
    packages = module(tmp_path / "site-packages", 0.5)
    known = Path(packages, "nets-1.dist-info")
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: nets\nVersion: 1\n")
    (known / "RECORD").write_text("module_of_a_side.py,,\n")
    url = (tmp_path / installed_from).as_uri()
    (known / "direct_url.json").write_text(json.dumps({"dir_info": {}, "url": url}))
    side = Side("net", timed_module, tmp_path, [packages, *sys.path], tmp_path / "change")
    with paired._turns(side, Plan()) as turn:
        if is_refused:
            with pytest.raises(TransformError, match="it imports nets as it was installed from the change"):
                turn()
        else:
            assert turn() == 0.5
