"""``modelbudget fit``, ``devices``, ``show --device`` and ``explain --device``: figures, exit codes, and typos.

The network is 4 → 8 → 2. In int8 it stores 32 + 16 B of weights and a float32 scale for each of 8 + 2 outputs: 88 B. At
its first layer 4 + 8 B of activations are alive, at its second 8 + 2.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from pytest_modelbudget.budget.hardware_file import shipped_devices
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.registry import tables
from tests.builders.hardware import ACTIVATIONS, BOARD, WEIGHTS
from tests.builders.onnx_graphs import model, node, stored, value

HARDWARE = BOARD + "  empty: {{source: made up}}\n"
ON_BOARD = ("--device", "hardware.yaml::board", "--lower", "dtype=int8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the network and a device that it fills to the last byte."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "h v", "y")]
    graph = model(nodes, [value("x", 1, 4)], [value("y", 1, 2)], [stored("w", 4, 8), stored("v", 8, 2)])
    onnx.save(graph, tmp_path / "net.onnx")
    write_hardware()
    return tmp_path


def write_hardware(**sizes: int) -> None:
    known = {"flash": WEIGHTS, "sram": ACTIVATIONS + 5, **sizes}
    Path("hardware.yaml").write_text(HARDWARE.format(**known), encoding="utf-8")


def fit(*args: str) -> int:
    return main(["fit", "net.onnx", *ON_BOARD, *args])


def record(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    fit("--format", "json", *args)
    return json.loads(capsys.readouterr().out)


def test_exactly_full_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of the verdict: both layers wait for flash, 32 + 32 B and 16 + 8 B at 100 B/s."""
    assert fit() == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "it fits: net.onnx on board",
        "",
        "  flash  ██████████  88 of 88 B  100.0%  0 B left  weights",
        "  sram   ██████████  12 of 12 B  100.0%  0 B left  activations",
        "",
        "  12 B alive during onnx::MatMul in h",
        "  8  h, made in h",
        "  4  x, made in (model)",
        "  12 B in the best order of operations (proved)",
        "  12 B in an arena by greedy_by_size, aligned to 1 B",
        "",
        "  880 ms at the least, one operation after another",
        "  880 ms  bound by flash  2 operations",
        "",
        "  46 cycle  array_cycles",
        "      1.6%  array_utilisation",
        "     37.5%  array_mapping",
        "      70 B  array_traffic",
        "",
        'lowered: fold_batchnorm true, fuse_activations ["relu", "clamp"], dtype int8,',
        "  in_place none",
    ]


@pytest.mark.parametrize(
    ("memory", "sizes", "said"),
    [
        ("flash", {"flash": WEIGHTS - 1}, "flash 88 B > 87 B (+1.1%)"),
        ("sram", {"sram": ACTIVATIONS + 4}, "sram 12 B > 11 B (+9.1%)"),
    ],
)
def test_one_byte_too_many(memory: str, sizes: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; JSON has the same."""
    write_hardware(**sizes)
    assert fit() == 1
    first, why, *_ = capsys.readouterr().out.splitlines()
    assert (first, why.strip()) == ("it does not fit: net.onnx on board", said)
    found = record(capsys)
    assert found["outcome"] == "over"
    assert {each["name"]: each["headroom"] for each in found["memories"]} == {"flash": 0, "sram": 0, memory: -1}


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys)
    assert (found["device"], found["lower"]["dtype"], found["outcome"]) == ("board", "int8", "within")
    assert found["memories"] == [
        {"name": "flash", "holds": ["weights"], "used": 88, "size": 88, "reserve": 0, "headroom": 0, "complete": True},
        {"name": "sram", "holds": ["activations"], "used": 12, "size": 17, "reserve": 5, "headroom": 0,
         "complete": True},
    ]  # fmt: skip
    assert [(each["name"], each["nbytes"]) for each in found["peak"]["alive"]] == [("h", 8), ("x", 4)]
    assert (found["metrics"]["array_cycles"]["value"], found["metrics"]["macs"]["value"]) == (46, 48)
    assert "training_macs" not in found["metrics"]


def test_a_plan_for_people_and_one_for_the_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    """The largest buffer lies first: h at 0, x above it, and y there once x is dead.

    TFLM reads version, subgraph, count, offsets.
    """
    fit("--plan", "plan.json")
    assert "wrote plan.json\n" in capsys.readouterr().err
    assert [(each["name"], each["offset"]) for each in json.loads(Path("plan.json").read_text())] == [
        ("x", 8), ("h", 0), ("y", 8),
    ]  # fmt: skip
    fit("--plan", "plan.tflm")
    assert json.loads(Path("plan.tflm").read_text()) == [1, 0, 3, 8, 0, 8]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        pytest.param(
            "hardware.yaml::empty", "empty names no memory that holds weights or activations: add", id="no memories"
        ),
        pytest.param("lab_array", "lab_array names no memory that holds weights or activations: add", id="shipped"),
    ],
)
def test_what_a_device_does_not_say_leaves_it_unknown(
    device: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, for nobody knows whether it fits; the missing rate is named, and no time is claimed."""
    assert main(["fit", "net.onnx", "--device", device]) == 1
    out = capsys.readouterr().out
    assert "whether it fits is unknown" in out
    assert said in " ".join(out.split())
    assert "at the least" not in out
    assert "without a bound: " in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["--device", "cortex_m5"], "no shipped device is called 'cortex_m5': did you mean", id="device"),
        pytest.param(["--device", "hardware.yaml::bord"], "hardware.yaml has no device 'bord': did you mean 'board'?",
                     id="device of a file"),
        pytest.param(["--device", "hardware.yaml"], "names no device in it: write hardware.yaml::NAME", id="nameless"),
        pytest.param(["--device", "hardwar.yaml::board"], "hardwar.yaml", id="file"),
        pytest.param(["--device", "lab_array", "--lower", "dtyp=int8"], "did you mean 'dtype'?", id="key"),
        pytest.param(["--device", "lab_array", "--lower", "dtype=int9"], "did you mean 'int8'?\n", id="type"),
        pytest.param(["--device", "lab_array", "--lower", "int8"], "neither KEY=VALUE nor a JSON object", id="no key"),
        pytest.param([*ON_BOARD, "--plan", "nowhere/plan.json"], "nowhere/plan.json cannot be written", id="plan"),
        pytest.param([], "name one device: --device NAME (modelbudget devices lists them), --flash 1MiB", id="none"),
        pytest.param(["--all", "--flash", "1MiB"], "name one device", id="two"),
        pytest.param(["--flash", "1MiB"], "--flash and --ram belong together: add --ram SIZE", id="half a board"),
        pytest.param(["--flash", "1 Mib", "--ram", "1 B"], "size: '1 Mib' could mean 1 MiB", id="size"),
    ],
)  # fmt: skip
def test_typos_end_in_one_sentence(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and nothing on standard output."""
    try:
        code = main(["fit", "net.onnx", *args])
    except SystemExit as error:  # argparse's own
        code = int(error.code or 0)
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert said in shown.err


def test_a_broken_hardware_file_is_told_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hardware.yaml").write_text(HARDWARE.format(flash=1, sram=9).replace("1 B, holds", "1 MAC, holds"))
    assert fit() == 2
    assert "hardware.yaml:5:21: size: '1 MAC' counts MAC, but this key counts B" in capsys.readouterr().err
    Path("hardware.yaml").write_text(HARDWARE.format(flash="1 M", sram=9).replace("int8:", "int9:"))
    assert fit() == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("modelbudget: error: hardware.yaml:") for line in lines)


# Boards without a file, and several devices.


def test_a_board_is_two_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """U17: float32 stores 4 · (32 + 16) B, int8 88 B; aligned sizes tie, so that x is at 0 and h at 16."""
    assert main(["fit", "net.onnx", "--flash", "0.1KiB", "--ram", "1 KiB"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "it does not fit: net.onnx on this board",
        "  flash 192 B > 102 B (+88.2%)",
        "as int8 it fits: --lower dtype=int8",
    ]
    assert main(["fit", "net.onnx", "--flash", "0.1KiB", "--ram", "1 KiB", "--lower", "dtype=int8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("it fits: net.onnx on this board\n")
    assert re.search(r"^  ram +░{10} +24 B of 1.00 KiB +2.3% +1,000 B left  activations$", out, re.MULTILINE)
    assert main(["fit", "net.onnx", "--flash", "8 B", "--ram", "8 B"]) == 1
    assert "as int8 it does not fit either" in capsys.readouterr().out


def test_all_devices_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Every shipped device, or those of a file, in 80 columns; what is not known is no verdict."""
    assert main(["fit", "net.onnx", "--all"]) == 0
    title, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "net.onnx"
    assert [row.split()[0] for row in rows] == list(shipped_devices())
    assert max(map(len, rows)) <= 80
    assert re.fullmatch(r"  cortex_m4 +<1% of 1.00 MiB +<1% of 256 KiB +0.960 us  fits", rows[0])
    assert re.fullmatch(r"  lab_array +\? +\? +\?  unknown", rows[-1])
    assert main(["fit", "net.onnx", "--all", "--device", "hardware.yaml", "--format", "json"]) == 1
    assert [each["outcome"] for each in json.loads(capsys.readouterr().out)] == ["over", "unknown"]


# Show and explain.


def test_show_has_the_lowered_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Each layer writes a byte for each output."""
    assert main(["show", "net.onnx", *ON_BOARD, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["scope"]: row["output_bytes"] for row in shown["layers"] if row["scope"]} == {"h": 8, "y": 2}
    assert shown["totals"]["output_bytes"] == 8 + 2
    assert shown["metrics"]["array_cycles"]["value"] == 46


def test_show_says_what_a_device_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """The other numbers are there; nothing is taken for zero."""
    assert main(["show", "net.onnx", "--device", "lab_array", "--lower", "dtype=int8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "latency_bound unknown: lab_array gives no rate of int8 MACs" in out
    assert "array_cycles" in out


def test_explain_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    """A layer's share; and the way out where no device is given."""
    assert main(["explain", "array_cycles", "net.onnx", "h", *ON_BOARD]) == 0
    assert "array_cycles 23 cycle of 46 cycle (50.0%)" in capsys.readouterr().out
    assert main(["explain", "array_cycles", "net.onnx", "h"]) == 2
    assert "array_cycles is of a model on a device: add --device NAME" in capsys.readouterr().err


def test_explain_of_what_has_no_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """An arena is one buffer: no share of it is taken for zero."""
    assert main(["explain", "activation_arena", "net.onnx", "(model)", *ON_BOARD]) == 0
    first, *_ = capsys.readouterr().out.split("\n\n")
    told = " ".join(first.split())  # folded at 80 columns
    assert told.startswith("activation_arena is of the whole program, and has no parts by layer: 12 B, alive 12 B")


# Init.


def test_init_drafts_a_deployment() -> None:
    """The budget holds what it was drafted from: the device's file, the lowering, and the arena with room on top."""
    assert main(["init", "net.onnx", *ON_BOARD, "--headroom", "50%", "--output", "budgets/net.yaml"]) == 0
    path = Path("budgets/net.yaml")
    assert path.read_text().splitlines()[-6:] == [
        "    deployments:",
        "      board:",
        "        device: board",
        "        lower: {dtype: int8}",
        "        fits: true",
        "        limits: {activation_arena: 18 B}",
    ]
    (drafted,) = read_budget(path, tables(), root=Path.cwd()).models
    (check,) = drafted.deployments
    assert check.made.device.memories[0].size == WEIGHTS


def test_init_claims_no_fit_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A fit that is false or unknown is a comment."""
    write_hardware(flash=WEIGHTS - 1)
    assert main(["init", "net.onnx", *ON_BOARD]) == 0
    assert "        # fits: true  # it does not fit: see modelbudget fit" in capsys.readouterr().out
    assert main(["init", "net.onnx", "--device", "lab_array"]) == 0
    assert "        # fits: true  # unknown: see modelbudget fit" in capsys.readouterr().out
    assert main(["init", "net.onnx", "--lower", "dtype=int8"]) == 2
    assert "add --device NAME" in capsys.readouterr().err


# Devices.


def test_devices_lists_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    """At least eight, each with where it is from, in 80 columns."""
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    names = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert names == list(shipped_devices())
    assert len(names) >= 8
    assert max(map(len, out.splitlines())) <= 80


def test_devices_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure exact in JSON."""
    assert main(["devices", "board", "--hardware", "hardware.yaml", "--format", "json"]) == 0
    (board,) = json.loads(capsys.readouterr().out).values()
    assert (board["flash.size"], board["sram.reserve"], board["macs.int8"]) == ("88 B", "5 B", "1,000 MAC/s")
    assert (board["array"], board["source"]) == ("8x8 weight_stationary", "made up")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cortex_m8"], "no shipped device is called 'cortex_m8': did you mean"),
        (["cortex_m55"], "did you mean 'cortex_m55_ethos_u55'?"),  # and no other of as few letters
        (["bord", "--hardware", "hardware.yaml"], "hardware.yaml has no device 'bord': did you mean 'board'?"),
        (["--hardware", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_devices_that_are_none(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *args]) == 2
    assert said in capsys.readouterr().err


def test_sizes_that_nobody_bound_give_no_peak(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is stored is held; of activations nothing is said but that they are unknown."""
    graph = model([node("MatMul", "x w", "y")], [value("x", "N", 4)], [value("y", "N", 8)], [stored("w", 4, 8)])
    onnx.save(graph, folder / "net.onnx")
    assert fit() == 1
    out = capsys.readouterr().out
    assert "64 of 88 B" in out  # 32 of int8, and eight scales
    assert re.search(r"^  sram +░{10}  >= 0 of \d+ B +>= 0.0% +<= [\d,]+ B left  activations$", out, re.MULTILINE)
    assert "whether it fits is unknown" in out
    assert "not bound by dims: N (of x)" in out
    assert "alive during" not in out
    assert "in the best order" not in out
    assert record(capsys)["peak"] == {"op": "", "scope": "", "alive": []}
