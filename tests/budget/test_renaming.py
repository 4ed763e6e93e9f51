"""A model of another name is the same model where it stays what it is, and is held to no less."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_modelbudget.budget import changes
from pytest_modelbudget.budget.changes import renamings
from pytest_modelbudget.budget.source_forms import source_texts
from pytest_modelbudget.metrics.table import metric_table
from tests.builders.texts import Read

HEAD = "model_budget: 1\nmodels:\n"
NET = "    torch: a:b\n    inputs: float32 1x3\n    limits: {params: 3 M}\n"
TILED = "    transforms: {t: {tile_linear: {tile: 64}, equivalence: exact_algebra}}\n"
VARIANT = "    variants: {two: {inputs: float32 2x3, limits: {macs: 1 G}}}\n"
OLD = f"{HEAD}  old:\n{NET}"


def new(old: str, replaced: str = "", by: str = "") -> str:
    """The text under another name, and with one word changed."""
    assert replaced in old
    return old.replace("  old:", "  new:").replace(replaced, by, 1)


KEPT = [
    pytest.param(OLD, new(OLD), id="as it is"),
    pytest.param(OLD, new(OLD, "3 M", "2 M"), id="held to more"),
    pytest.param(OLD, new(OLD, "float32 1x3", "float32[1, 3]"), id="spelt in another way"),
    pytest.param(OLD + TILED + VARIANT, new(OLD + TILED + VARIANT), id="with all below it"),
    pytest.param(OLD, new(OLD) + VARIANT, id="with a new variant"),
]
OTHER = [
    pytest.param(OLD, new(OLD, "3 M", "4 M"), id="held to less"),
    pytest.param(OLD, new(OLD, "a:b", "a:c"), id="another source"),
    pytest.param(OLD, new(OLD, "float32 1x3", "float32 1x4"), id="other inputs"),
    pytest.param(OLD + TILED, new(OLD + TILED, "tile: 64", "tile: 32"), id="another setting"),
    pytest.param(OLD + TILED, new(OLD + TILED, "exact_algebra", "{kind: lossy, sqnr: 9}"), id="a weaker claim"),
    pytest.param(OLD + VARIANT, new(OLD), id="without a variant"),
    pytest.param(OLD.replace("3 M", "{grow: 2%}"), new(OLD).replace("3 M", "{grow: 2%}"), id="grows from a lock"),
    pytest.param(OLD, OLD + new(OLD).removeprefix(HEAD), id="both are there"),
    pytest.param(OLD + new(OLD).removeprefix(HEAD), new(OLD), id="the other one was there"),
]


@pytest.mark.parametrize(("before", "now"), KEPT)
def test_a_model_that_stays_what_it_is_is_renamed(read: Read, before: str, now: str) -> None:
    """Said once, where it stands today, with both names."""
    names, (said,) = renamings(read(before), read(now), metric_table())
    assert dict(names) == {"old": "new"}
    assert said.text == "model renamed: old -> new, as strict as before"
    assert (said.path, said.what, said.before, said.after, said.place.line) == ("new", "name", "old", "new", 3)


@pytest.mark.parametrize(("before", "now"), OTHER)
def test_every_other_model_that_is_gone_is_dropped(read: Read, before: str, now: str) -> None:
    """Nothing is a renaming that asks for less, or whose locked numbers stand under the older name."""
    assert renamings(read(before), read(now), metric_table()) == ({}, ())


def test_two_models_alike_are_renamed_to_two(read: Read) -> None:
    """Each new name stands for one older model; a third one is dropped."""
    before = HEAD + "".join(f"  {name}:\n{NET}" for name in "abc")
    now = HEAD + "".join(f"  {name}:\n{NET}" for name in "xy")
    assert dict(renamings(read(before), read(now), metric_table())[0]) == {"a": "x", "b": "y"}
    assert renamings(read(before), None, metric_table()) == ({}, ())


@pytest.mark.parametrize("limits", ["{params: 3 M}", "{params: {grow: 2%}}"], ids=["renamed", "growing from a lock"])
def test_looking_for_new_names_takes_as_long_as_there_are_models(
    read: Read, monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    """Four times as many models are compared at most four times as often, and not sixteen times."""
    compared = 0

    def texts(source: Any) -> Any:
        nonlocal compared
        compared += 1
        return source_texts(source)

    def named(letter: str, count: int) -> str:
        lines = (
            f"  {letter}{each}: {{torch: a:b, kwargs: {{width: {each}}}, inputs: float32 1x3, limits: {limits}}}\n"
            for each in range(count)
        )
        return HEAD + "".join(lines)

    monkeypatch.setattr(changes, "source_texts", texts)
    asked = []
    for count in (10, 40):
        compared = 0
        names, _ = renamings(read(named("old", count)), read(named("new", count)), metric_table())
        assert names == ({} if "grow" in limits else {f"old{each}": f"new{each}" for each in range(count)})
        asked.append(compared)
    assert asked[1] <= 4 * asked[0]
