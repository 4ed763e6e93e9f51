"""Limits on what a model gives and takes where it runs: statistics of values, and measured runs."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.builders import numbers_format
from tests.builders.project import Project

CONFTEST = """
from pytest_modelbudget.formats import table as formats_table
from pytest_modelbudget.formats.table import Format

NUMBERS = Format("numbers", "path of a numbers file", "numbers_format", suffixes=(".numbers",))
if NUMBERS not in formats_table.FORMATS:
    formats_table.FORMATS += (NUMBERS,)
"""
# Two calls of two rows: channel 1 is never above zero, channel 3 always zero.
ROWS = [[1, -2, 3, 0], [0, -1, 4, 0], [2, -3, -5, 0], [1, -1, 8, 0]]
MODEL = "  net:\n    numbers: net.numbers\n    inputs: float32 2x4\n"
RUNTIME = "--model-budget-runtime"


@pytest.fixture
def runs(project: Project) -> Project:
    """A project with a model that runs, whose clock and memory are told by a file."""
    assert numbers_format.__file__
    project.write("numbers_format.py", Path(numbers_format.__file__).read_text())
    project.configure(CONFTEST)
    seconds = [0.010, 0.030, 0.020, 0.200, 0.020]  # the median is 20 ms, the quartiles 20 and 30
    project.write("budgets/net.numbers", json.dumps({"seconds": seconds, "peak": 6000, "device": "cpu"}))
    np.save(project.path / "budgets" / "x.npy", np.array(ROWS, np.float32))
    return project


def statistics(project: Project, words: str) -> None:
    """A budget with one statistics check of these words, on the file."""
    project.budget(f"{MODEL}    statistics:\n      some: {{inputs: x.npy, {words}}}\n")


HELD = [
    # relu: channels 1 and 3 are zero throughout: 2 dead. zeros: 4 + 4 of those, 1 in channel 0, 1 in channel 2.
    pytest.param("layers: body.relu, dead_channels: 2", 0, "within", "dead_channels", id="two dead"),
    pytest.param("layers: body.relu, dead_channels: 1", 1, "2 > 1", "channels 1, 3 of 4", id="more than one"),
    pytest.param("types: Relu, zeros: 62.5%", 0, "within", "zeros", id="10 of 16 zeros"),
    pytest.param("types: Relu, zeros: 62%", 1, "62.5% > 62.0%", "10 of 16 values", id="too many zeros"),
    pytest.param("layers: [body.*], max_abs: 16", 0, "within", "max_abs", id="the largest"),
    pytest.param("layers: [body.*], max_abs: 15.9", 1, "16.00 > 15.90", "channel 2, values from -10", id="double"),
    # (16 + 10) / 255 = 0.10196...
    pytest.param("types: [Double], int8_scale: 0.10196", 1, "> ", "values from -10 to 16", id="a finer grid"),
    pytest.param("types: [Double], int8_scale: 0.10197", 0, "within", "int8_scale", id="a grid that reaches"),
    # -10 .. 16 of sixteen values: sum 14, squares 540: 14/16 + 2.5·√(540/16 - (14/16)²) = 15.2, below 16 alone.
    pytest.param("types: [Double], sigmas: 2.5, saturation: 6.25%", 0, "within", "saturation", id="1 of 16"),
    pytest.param("types: [Double], sigmas: 2.5, saturation: 6%", 1, "6.3% > 6.0%", "beyond", id="cut values"),
    pytest.param("layers: head.narrow, dead_channels: 0", 1, "unknown", "without that axis of channels", id="no axis"),
    pytest.param("layers: head.odd, max_abs: 99", 1, "unknown", "NaN or Inf", id="not finite"),
    pytest.param("layers: tail.*, max_abs: 99", 1, "unknown", "no layer 'tail.*' gave numbers", id="no layer"),
    pytest.param("types: [Relu, Doubel], max_abs: 99", 1, "unknown", "of type Doubel gave numbers", id="no such type"),
    pytest.param("layers: body.relu, types: [Relu, Double], max_abs: 99", 1, "unknown", "of type Double", id="there"),
    pytest.param("types: [Double, Relu], max_abs: 16", 0, "within", "max_abs", id="two types"),
    pytest.param("layers: body.relu, dead_channels: 0, level: warn", 0, "warn", "net::dead_channels@some", id="warned"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "outcome", "said"), HELD)
def test_values_are_held(runs: Project, words: str, code: int, outcome: str, said: str) -> None:
    """Exactly at a limit is within; a failure names layer, channel and value, and on what it was measured."""
    statistics(runs, words)
    result = runs.run()
    text = result.stdout.str()
    assert result.ret == code, text
    assert outcome in text
    assert said in text
    assert "measured on x.npy" in text


def test_values_on_drawn_inputs_name_their_seeds(runs: Project) -> None:
    """N(0, 1) of two seeds; in every report."""
    runs.budget(f"{MODEL}    statistics: {{some: {{types: Relu, seeds: [4, 5], max_abs: 40}}}}\n")
    (model,) = runs.report()["models"]
    (check,) = model["checks"]
    assert check["measured_on"] == "measured on drawn inputs, seeds 4, 5: 2 calls, 1 layer"
    assert (check["id"], check["metric"]) == ("budgets/a.yaml::net::max_abs@some", "max_abs")


def test_nothing_of_a_run_is_locked(runs: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file that is written of a model with both holds its static number alone."""
    for sign in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(sign, raising=False)
    runs.budget(
        f"{MODEL}    limits: {{params: 0}}\n    statistics: {{some: {{types: Relu, max_abs: 40}}}}\n"
        "    runtime: {latency: 20 ms, peak_memory: 6 kB}\n"
    )
    assert runs.run(RUNTIME, "--model-budget-update=create").ret == 0
    lock = (runs.path / "budgets" / "a.lock.json").read_text()
    assert "params" in lock
    assert [word for word in ("max_abs", "latency", "peak_memory") if word in lock] == []


def test_a_run_is_measured_where_it_is_asked_for(runs: Project) -> None:
    """The median of 10, 20, 20, 30 and 200 ms is within 20 ms; 6,000 B are over 5,999."""
    runs.budget(f"{MODEL}    runtime: {{latency: 20 ms, peak_memory: 5999 B, repeats: 5, warmup: 2, threads: 1}}\n")
    result = runs.run(RUNTIME, "-v")
    text = result.stdout.str()
    assert result.ret == 1
    assert "peak_memory@cpu 6.000 kB > 5.999 kB" in text
    assert "measured on cpu, 1 thread: 5 calls after 2, quartiles 10.0 ms apart" in text
    assert "2 limits: 1 over, 0 warn, 1 within, 0 unknown" in text


def test_a_latency_that_is_over(runs: Project) -> None:
    """One microsecond less than the median."""
    runs.budget(f"{MODEL}    runtime: {{latency: 19999 us}}\n")
    result = runs.run(RUNTIME)
    assert result.ret == 1
    assert "latency@cpu 20.000 ms > 19.999 ms" in result.stdout.str()


THROUGHPUTS = [("50 call/s", 0, "1 within"), ("50.01 call/s", 1, "throughput@cpu 50.00 call/s < 50.01 call/s")]


@pytest.mark.parametrize(("least", "code", "said"), THROUGHPUTS)
def test_calls_a_second(runs: Project, least: str, code: int, said: str) -> None:
    """A median of 20 ms is 50 calls a second."""
    runs.budget(f"{MODEL}    runtime: {{throughput: {{min: {least}}}}}\n")
    result = runs.run(RUNTIME)
    assert result.ret == code
    assert said in result.stdout.str()


TRACE = [
    {"ph": "X", "tid": 1, "ts": 0, "dur": 20_000, "name": "model_run"},
    {"ph": "X", "tid": 1, "ts": 100, "dur": 19_000, "name": "module fc"},
    {"ph": "X", "tid": 1, "ts": 200, "dur": 18_000, "name": "aten::addmm"},
]


def test_operators_stand_in_every_report(runs: Project) -> None:
    """18 of 20 ms in addmm, 1 ms in fc beside it, and 1 ms outside; a failure, the record and the page say so."""
    runs.write("budgets/net.numbers", json.dumps({"seconds": [0.020], "device": "cpu", "trace": TRACE}))
    runs.budget(f"{MODEL}    runtime: {{latency: 19 ms}}\n")
    result, report = runs.run_and_report(RUNTIME, "--model-budget-report=html:page.html")
    lines = ["*aten::addmm: 1 call, 18.0 ms of its own, 90.0%, most in fc*", "*between operators, 2.00 ms*, 10.0%*"]
    result.stdout.fnmatch_lines(lines)
    (check,) = report["models"][0]["checks"]
    row = {"nbytes": 0, "roof_share": ""}
    assert check["operators"] == [
        {"name": "aten::addmm", "module": "fc", "calls": 1, "ns": 18_000_000, "share": "0.9000", **row},
        {"name": "between operators", "module": "fc", "calls": 0, "ns": 1_000_000, "share": "0.05000", **row},
        {"name": "between operators", "module": "", "calls": 0, "ns": 1_000_000, "share": "0.05000", **row},
    ]
    page = (runs.path / "page.html").read_text(encoding="utf-8")
    (view,) = re.findall('<script type="application/gzip" id="[^"]+">([^<]+)</script>', page)
    text = gzip.decompress(base64.b64decode(view)).decode()
    table = text.partition("Operators of a timed run of net")[2].partition("/table>")[0]
    assert ("18.000" in table, "90.0%" in table, "(model)" in table) == (True, True, True)


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_run_that_nobody_asked_for_is_skipped_and_said(runs: Project, workers: str) -> None:
    """What is held besides is measured, and counted without it."""
    runs.budget(f"{MODEL}    limits: {{params: 0}}\n    runtime: {{latency: 1 us}}\n")
    result = runs.run(workers, "-rs")
    assert result.ret == 0
    text = result.stdout.str()
    assert "not measured: give --model-budget-runtime" in text
    assert "model budget: 1 limit on timed runs skipped: give --model-budget-runtime" in text
    assert "1 limit: 0 over, 0 warn, 1 within, 0 unknown" in text


@pytest.mark.parametrize("words", [("-k", "latency"), ("budgets/a.yaml::net::latency@cpu",)], ids=["-k", "node id"])
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_runs_alone_that_nobody_asked_for_are_no_green_session(
    runs: Project, workers: str, words: tuple[str, ...]
) -> None:
    """What is held besides was left out, and nothing was judged."""
    runs.budget(f"{MODEL}    limits: {{params: 0}}\n    runtime: {{latency: 1 us}}\n")
    result = runs.run(workers, *words)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "model budget: nothing measured" in result.stdout.str()


def test_a_device_that_is_not_there_is_skipped_and_red(runs: Project) -> None:
    """It was asked for, and nobody measured it; what is selected away is left out in words."""
    runs.budget(f"{MODEL}    limits: {{params: 0}}\n    runtime: {{latency: 20 ms, device: cuda}}\n")
    result = runs.run(RUNTIME, "-rs")
    assert result.ret == 1
    assert "no such device here" in result.stdout.str()
    assert "model budget: 1 limit skipped or stopped, and so not measured" in result.stdout.str()
    assert runs.run(RUNTIME, "-k", "not cuda").ret == 0


def test_memory_that_nobody_tells_is_unknown(runs: Project) -> None:
    """And so is the latency that was to be measured beside it."""
    runs.write("budgets/net.numbers", json.dumps({"seconds": [0.01], "device": "cpu"}))
    runs.budget(f"{MODEL}    runtime: {{latency: 20 ms, peak_memory: 6 kB}}\n")
    result = runs.run(RUNTIME)
    assert result.ret == 1
    assert "peak_memory@cpu unknown: nobody tells the memory" in result.stdout.str()


def test_a_trace_is_written_where_it_is_asked_for(runs: Project) -> None:
    """One file for a model and a device, whose name is its node id."""
    runs.budget(f"{MODEL}    runtime: {{latency: 20 ms}}\n")
    assert runs.run(RUNTIME, "--model-budget-profile-dir", "traces").ret == 0
    assert os.listdir(runs.path / "traces") == ["budgets-a.yaml-net@cpu.json"]


def test_a_trace_alone_asks_for_nothing(runs: Project) -> None:
    """Without the switch no model is timed."""
    runs.budget(f"{MODEL}    limits: {{params: 0}}\n    runtime: {{latency: 20 ms}}\n")
    assert runs.run("--model-budget-profile-dir", "traces").ret == 0
    assert not (runs.path / "traces").exists()


def test_shards_do_not_wait_for_what_nobody_asked_for(runs: Project) -> None:
    """Two models on two shards, each with a limit that is held and one on a run that is skipped."""
    models = "".join(
        MODEL.replace("net:", f"{name}:") + "    limits: {params: 0}\n    runtime: {latency: 20 ms}\n"
        for name in ("one", "two")
    )
    runs.budget(models)
    for shard in ("1/2", "2/2"):
        result = runs.run("--model-budget-shard", shard)
        assert result.ret == 0
        assert f"shard {shard}: 1 of 2 limits" in result.stdout.str()


NETS = """
import os
import torch
from torch import nn

class Dies(nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            if not x.is_meta:
                os._exit(7)
        return x * 2

def kept():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())
"""


@pytest.mark.slow
@pytest.mark.needs_torch
def test_a_model_that_dies_where_it_runs_fails_alone(runs: Project) -> None:
    """In processes of their own: one ends itself when it is run, and the other is held all the same."""
    runs.write("run_nets.py", NETS)
    held = "    inputs: float32 1x4\n    statistics: {some: {max_abs: 99}}\n    runtime: {latency: 60 s, repeats: 1}\n"
    runs.budget(f"  dies:\n    torch: run_nets:Dies\n{held}  kept:\n    torch: run_nets:kept\n{held}")
    result = runs.run_apart(RUNTIME, "-p", "no:cacheprovider")
    text = result.stdout.str()
    assert result.ret == 1
    assert "max_abs@some unknown: the process that ran it ended itself with exit code 7" in text
    assert "latency@cpu unknown: the process that ran it ended itself with exit code 7" in text
    assert "4 limits: 0 over, 0 warn, 2 within, 2 unknown" in text
