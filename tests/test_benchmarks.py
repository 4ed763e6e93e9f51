"""The page of benchmarks is what its JSON says, and the comparison of two checkouts names what became slower."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.builders.marks import needs

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script by its name, as python does that runs one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_the_page_is_what_the_json_says(script: Any) -> None:
    """Nobody edits what stands between markers, and no run was forgotten."""
    run_all = script("run_all")
    results = json.loads(run_all.RESULTS.read_text(encoding="utf-8")) if run_all.RESULTS.exists() else {}
    for path in run_all.PAGES:
        text = path.read_text(encoding="utf-8")
        assert run_all.page(path, text, results) == text
    shown = [name for names in run_all.PAGES.values() for name in names]
    assert sorted(shown) == sorted(each.name for each in run_all.SCRIPTS)


def test_tables_are_read_as_they_are_printed(script: Any) -> None:
    """Two tables between other lines; the rule below the headings is no row."""
    run_all = script("run_all")
    text = "words\n| a | b |\n|---|---|\n| 1 |  |\n\n| c |\n|---|\n"
    tables = list(run_all.tables_in(text))
    assert tables == [[["a", "b"], ["1", ""]], [["c"]]]
    assert "\n".join(run_all.markdown(tables[0])) == "| a | b |\n|---|---|\n| 1 |  |"


def test_a_page_without_markers_is_refused(script: Any) -> None:
    """What has no place is not left out in silence."""
    run_all = script("run_all")
    with pytest.raises(SystemExit, match="begin vs_peers"):
        run_all.page(next(iter(run_all.PAGES)), "nothing", {})


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory in /proc")
@pytest.mark.parametrize("network", ["ONNX, layers", "ONNX, shape arithmetic"])
def test_deep_networks_go_through_every_stage(script: Any, network: str) -> None:
    """Twelve operators, from the file to every report."""
    growth = script("growth")
    assert growth.grown(network, 12).keys() == {*growth.STAGES, "MB"}


def test_slower_by_more_than_a_tenth_is_named(script: Any) -> None:
    """1.10 times is no more than a tenth, 1.11 is; what head does not measure is said."""
    fewest = {
        ("base", "a"): 1.0, ("head", "a"): 1.1,
        ("base", "b"): 1.0, ("head", "b"): 1.11,
        ("base", "c"): 1.0, ("head", "c"): None,
    }  # fmt: skip
    lines = list(script("compare").table(fewest, ["a", "b", "c"]))
    assert "All 2 models: 2.00 s before, 2.21 s now (+10%)." in lines
    assert "**c is not measured by head.**" in lines
    slower = lines[: lines.index("<details><summary>every model</summary>")]
    assert [line for line in slower if line.startswith("| b")] == ["| b | 1000 | 1110 | 1.11 |"]
    assert not any(line.startswith("| a") for line in slower)


@pytest.mark.needs_torch
@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")  # others' own, of every release
@needs("transformers")
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl_moe", "idefics2", "qwen2_audio", "qwen3_next"])
def test_models_of_transformers_are_what_runs(script: Any, name: str) -> None:
    """Image grids by value, experts, sound in text, and systems that substitution solves."""
    assert script("transformers_models").compared(name).verdict == "equal"
