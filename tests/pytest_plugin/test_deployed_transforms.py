"""What a transform made of a model, on a device: one layer of 16 → 8, cut into two products of 8x8.

An array of 8x8 cells, weight stationary, takes 2·8 + 8 + 1 - 2 = 23 cycles for each of two passes: what is written as
one product is cut by the array, and what is cut already fits. In int8 the layer stores 128 B and a scale for each of 8
outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.changes import loosenings, redefinitions
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.registry import tables
from tests.builders.pages import Page

pytestmark = pytest.mark.needs_torch

CYCLES, FLASH = 2 * (2 * 8 + 8 + 1 - 2), 16 * 8 + 4 * 8
NET = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(16, 8, bias=False))\n"
HARDWARE = """hardware: 1
devices:
  board:
    memories:
      flash: {{size: {flash} B, holds: weights}}
      sram: {{size: 64 B, holds: activations}}
    array: {{rows: 8, columns: 8}}
    source: made up
"""
BUDGET = """model_budget: 1
hardware: hardware.yaml
models:
  net:
    torch: net:net
    inputs: float32 1x16
    transforms:
      tiled:
        tile_linear: {{tile: {tile}}}
        deployments:
          array:
            device: {device}
            lower: {{dtype: int8}}
            {held}
    deployments:
      array: {{device: board, lower: {{dtype: int8}}, limits: {{array_cycles: 46}}}}
"""
HELD = "fits: true\n            limits: {array_cycles: {max: 46, min: 46}, macs: 128}"


def write(folder: Path, held: str = HELD, *, device: str = "board", flash: int = FLASH, tile: int = 8) -> Path:
    (folder / "budgets").mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    (folder / "budgets" / "hardware.yaml").write_text(HARDWARE.format(flash=flash))
    path = folder / "budgets" / "a.yaml"
    path.write_text(BUDGET.format(held=held, device=device, tile=tile))
    return path


def run(pytester: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, Any]:
    """The gate, and its report without what time it took."""
    report = "--model-budget-report=json:r.json"
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget", report, *args)
    known = json.loads((pytester.path / "r.json").read_text())
    known.pop("timings")
    return result, known


def test_a_transform_is_deployed(pytester: pytest.Pytester) -> None:
    """Its items, its numbers and its arena stand below the transform; flash is exactly full."""
    write(pytester.path)
    result, report = run(pytester, "-v")
    result.assert_outcomes(passed=4)
    path = "budgets/a.yaml::net::tiled::array"
    result.stdout.fnmatch_lines([f"{path}::{name} PASSED*" for name in ("fits", "array_cycles", "macs")])
    result.stdout.fnmatch_lines(["net / tiled / array", "within  fits *flash 160 B *160 B"])
    (model,) = report["models"]
    (transform,) = model["transforms"]
    (tiled,), (whole,) = transform["deployments"], model["deployments"]
    assert (tiled["id"], tiled["name"]) == (path, "array")
    assert tiled["metrics"]["array_cycles"]["value"] == whole["metrics"]["array_cycles"]["value"] == CYCLES
    assert {op["name"]: op["count"] for op in tiled["ops"]}["aten::linear"] == 2
    assert tiled["memories"][0]["weights"] == FLASH


def test_the_same_wherever_it_is_measured(pytester: pytest.Pytester) -> None:
    """In a worker, each model in a process of its own, or here; and so are the drawings of what was deployed."""
    write(pytester.path)
    apart, here = (
        (run(pytester, "--model-budget-report=html:p.html", *options)[1], (pytester.path / "p.html").read_bytes())
        for options in (("-n1", "--model-budget-lock=keep"), ("--model-budget-lock=keep",))
    )
    assert apart == here
    (view,), (model,) = Page(here[1].decode()).views(), here[0]["models"]
    deployed = [*model["transforms"][0]["deployments"], *model["deployments"]]
    assert [each["arena"]["bytes"] for each in view["deployments"]] == [each["arena"]["nbytes"] for each in deployed]


def test_one_byte_too_many(pytester: pytest.Pytester) -> None:
    """The failure names the memory and the line under the transform."""
    write(pytester.path, "fits: true", flash=FLASH - 1)
    result, _ = run(pytester)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*flash 160 B > 159 B (*budgets/a.yaml:14"])


def test_a_transform_that_cannot_be_applied_fits_nowhere(pytester: pytest.Pytester) -> None:
    """Each of its items is unknown, for the one reason, where the transform stands."""
    write(pytester.path, "fits: true", tile=8)
    path = pytester.path / "budgets" / "a.yaml"
    path.write_text(path.read_text().replace("tile_linear: {tile: 8}", "apply: net:gone"))
    result, _ = run(pytester)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*: 1 limit unknown: *gone*budgets/a.yaml:9"])


def test_its_limits_are_locked(pytester: pytest.Pytester) -> None:
    """At 46 cycles, under the path below the transform; a wider input grows by a row for each product."""
    write(pytester.path, "limits: {array_cycles: {grow: 1%}}")
    run(pytester, "--model-budget-update=create")
    assert '"net::tiled::array"' in (pytester.path / "budgets" / "a.lock.json").read_text()
    path = pytester.path / "budgets" / "a.yaml"
    path.write_text(path.read_text().replace("1x16", "3x16"))
    result, _ = run(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["array_cycles 50 cycle > 46 cycle (+8.7% vs base)   base 46 cycle, grow 1.0%*"])


def test_auto_is_filled_in(pytester: pytest.Pytester) -> None:
    """Where the file says it, below the transform."""
    path = write(pytester.path, "limits: {array_cycles: auto}")
    run(pytester, "--model-budget-update=create")
    assert "            limits: {array_cycles: 46 cycle}\n" in path.read_text()


# What a file says, and what changes in it.

Read = Callable[..., Budget]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return lambda *args, **options: read_budget(write(tmp_path, *args, **options), tables(), root=tmp_path)


@pytest.mark.parametrize(
    ("held", "device", "said"),
    [
        pytest.param("fits: true", "bord", "there is no device 'bord': did you mean 'board'?", id="device"),
        pytest.param("level: warn", "board", "unknown key 'level' in a deployment", id="key"),
        pytest.param("", "board", "'array' has none of the keys fits, limits, scopes: give one", id="nothing held"),
        pytest.param("limits: {array_cyles: 1}", "board", "did you mean 'array_cycles'?", id="metric"),
    ],
)
def test_what_is_wrong_is_said_in_place(read: Read, held: str, device: str, said: str) -> None:
    with pytest.raises(Exception, match=said.replace("?", r"\?")) as raised:
        read(held, device=device)
    assert f"budgets/a.yaml:{12 if device == 'bord' else 11 if not held else 14}" in str(raised.value)


def test_limits_below_a_transform_know_their_keys(read: Read) -> None:
    """By which updates find them."""
    held = [each for each in read().held() if each.path == "net::tiled::array"]
    keys = ("models", "net", "transforms", "tiled", "deployments", "array")
    assert [(each.keys, each.check.name) for each in held] == [(keys, "fits"), (keys, "array_cycles"), (keys, "macs")]


def test_a_transform_that_is_only_deployed_is_redefined(read: Read) -> None:
    """Other tiles, and another memory, are what its limits are held on."""
    before, now = read(), read(tile=4, flash=200)
    found = {
        (each.path, each.what): (each.before, each.after) for each in redefinitions(before, now, tables().transforms)
    }
    assert found == {
        ("net::tiled", "tile"): ("8", "4"),
        ("net::tiled::array", "device"): ("{flash.size: 160 B}", "{flash.size: 200 B}"),
        ("net::array", "device"): ("{flash.size: 160 B}", "{flash.size: 200 B}"),
    }


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("fits: true\n            limits: {array_cycles: 48, macs: 128}", "array_cycles 46 -> 48"),
        ("limits: {array_cycles: {max: 46, min: 46}, macs: 128}", "fits of net::tiled::array removed"),
    ],
)
def test_limits_below_a_transform_are_loosened(read: Read, held: str, said: str) -> None:
    texts = [each.text for each in loosenings(read(), read(held), tables().metrics)]
    assert any(said in text for text in texts), texts
