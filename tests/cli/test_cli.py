"""``modelbudget``: true figures, an exit code, and one sentence where something is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_modelbudget import registry as check
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric

pytestmark = pytest.mark.needs_torch

WHOLE = "the whole exception: add -v"
ALEXNET = ("show", "torchvision.models:alexnet", "--input", "float32 1x3x224x224")
LAB = """
import torch
from torch import nn

class Odd(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x)

class Chained(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.batch = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(2, 4, 4))

    def forward(self, x):
        return x @ self.one @ self.batch


class Named(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.layer = nn.Linear(4, width, bias=bias)
    def forward(self, x, *, y):
        return self.layer(x) + y

def small():
    return nn.Linear(4, 8)

def large():
    return nn.Linear(4, 16)

def __getattr__(name):
    if name == "moody":
        raise ValueError("no attribute for you")
    raise AttributeError(name)

def broken():
    print("this goes to standard error")
    raise OSError("no such weights")
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the module ``lab_cli``, made the current one."""
    (tmp_path / "lab_cli.py").write_text(LAB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_alexnet_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The lab's AlexNet: 61,100,840 params, 714,188,480 MACs and 4,392,864 B of leaf outputs."""
    assert main([*ALEXNET, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["totals"] == {"params": 61_100_840, "macs": 714_188_480, "output_bytes": 4_392_864}
    for column, total in shown["totals"].items():
        assert sum(row[column] or 0 for row in shown["layers"]) == total
    first = next(row for row in shown["layers"] if row["scope"] == "features.0")
    assert (first["type"], first["kernel"]) == ("Conv2d", [11, 11])
    assert (first["inputs"], first["outputs"]) == ([[1, 3, 224, 224]], [[1, 64, 55, 55]])
    assert first["params"] == 64 * 3 * 11 * 11 + 64
    assert first["macs"] == 64 * 55 * 55 * 3 * 11 * 11
    assert first["output_bytes"] == 4 * 64 * 55 * 55


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_table_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer table is no wider than the terminal, and its figures are whole in any."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*ALEXNET]) == 0
    table = capsys.readouterr().out.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= columns
    assert "61,100,840" in table
    assert "714,188,480" in table
    assert "4,392,864" in table


@pytest.mark.parametrize("metric", ["macs", "flops", "params", "bandwidth", "peak_activation"])
def test_an_explanation_fits_the_terminal(
    metric: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons and documents of formulas are folded below the place where they begin."""
    monkeypatch.setenv("COLUMNS", "80")
    explained = ["explain", metric, ALEXNET[1], "(model)", *ALEXNET[2:]]
    assert main(explained) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "400")
    assert main(explained) == 0
    assert capsys.readouterr().out.split() == narrow.split()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        pytest.param("resnet18", "torchvision.models:resnet18 --depth 0 --input 1x3x224x224", id="torchvision"),
        pytest.param(
            "transformers:BertModel",
            "transformers:BertModel --kwargs '{config: {call: transformers:BertConfig}}' --depth 0"
            " --input 'int64 1x128'",
            id="a class that needs a configuration",
        ),
        pytest.param(
            "hub/bert-tiny",
            "transformers:AutoModel.from_config --args"
            " '{call: transformers:AutoConfig.from_pretrained, args: [hub/bert-tiny]}' --depth 0 --input 'int64 1x128'",
            id="a name of the hub",
        ),
    ],
)
def test_a_library_name_is_answered_with_the_line_that_works(
    said: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U15: the other words stay, and the line as it is printed measures the model."""
    if "transformers" in line:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert main(["show", said, "--depth", "0"]) == 2
    (printed,) = re.findall(r"^write: (?:HF_HUB_OFFLINE=0 )?modelbudget show (.*)$", capsys.readouterr().err, re.M)
    assert printed == line
    config = tmp_path / "hub" / "bert-tiny" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}')
    assert main(["show", *shlex.split(printed)]) == 0


def test_both_sources_of_a_comparison_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is left for a second try."""
    assert main(["compare", "resnet18", "resnet34"]) == 2
    line = "write: modelbudget compare torchvision.models:resnet18 torchvision.models:resnet34 --input 1x3x224x224\n"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("no-such-model", "neither module:callable nor a model file"),
        ("my_compiler.passes:lower", "is it installed, or on the pythonpath?"),
        ("net.pb", "python -m tf2onnx.convert --graphdef"),
    ],
)
def test_other_sources_are_no_line(source: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What no library knows is refused, and a file of another format says how to come to one that is read."""
    assert main(["show", source]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "write: " not in said


@pytest.mark.usefixtures("lab")
def test_a_symbol_of_the_inputs_takes_several_values(capsys: pytest.CaptureFixture[str]) -> None:
    """4 x 8 products a row; also as an argument of the builder, and each value is a line of one table."""
    net = ["show", "lab_cli:Named", "--input", "rowsx4", "--input", "y=rowsx1", "--kwargs", "width=8"]
    assert main([*net, "--vary", "rows=1,2,30"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["rows", "params", "model_size", "macs", "peak_activation", "bandwidth"]
    assert [(line.split()[0], line.split()[4:6]) for line in lines] == [
        ("1", ["32", "MAC"]), ("2", ["64", "MAC"]), ("30", ["960", "MAC"]),
    ]  # fmt: skip
    widths = ["show", "lab_cli:Named", "--input", "1x4", "--input", "y=1x1", "--kwargs", "width=width"]
    assert main([*widths, "--vary", "width=8,16", "--format", "json"]) == 0
    varied = json.loads(capsys.readouterr().out)
    assert [(each["model"], each["metrics"]["macs"]["value"]) for each in varied] == [("8", 32), ("16", 64)]


@pytest.mark.usefixtures("lab")
def test_several_symbols_make_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each of all values: 4 x width products a row."""
    net = ["show", "lab_cli:Named", "--input", "rowsx4", "--input", "y=rowsx1", "--kwargs", "width=width"]
    assert main([*net, "--vary", "rows=1,2", "--vary", "width=8,16"]) == 0
    heading, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading[:2] == ["rows", "width"]
    found = {(words[0], words[1]): words[5] for words in lines}
    assert found == {("1", "8"): "32", ("1", "16"): "64", ("2", "8"): "64", ("2", "16"): "128"}


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param("q=1,2", "--vary q: write it in --input, --args or --kwargs: 'int64 1xq'", id="no symbol"),
        pytest.param("width", "--vary 'width' is not NAME=VALUE,VALUE, such as seq=128,512,2048", id="no values"),
        pytest.param("x=1,0x7", "x 1: running the model raised", id="a value that does not run"),
    ],
)
def test_what_cannot_be_varied(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2; a value that the model cannot run is named."""
    net = ["show", "lab_cli:Named", "--input", "1xx", "--input", "y=1x1", "--kwargs", "width=8"]
    assert main([*net, "--vary", words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("lab")
def test_two_models_side_by_side(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each, and by how much they differ; on a narrow terminal they are columns."""
    two = ["compare", "lab_cli:small", "lab_cli:large", "--input", "1x4"]
    monkeypatch.setenv("COLUMNS", "80")
    assert main(two) == 0
    heading, small, large, change = capsys.readouterr().out.splitlines()
    assert (heading.split()[:2], small.split()[:2], large.split()[:2]) == (
        ["model", "params"], ["small", "40"], ["large", "80"],
    )  # fmt: skip
    assert change.split()[:2] == ["change", "+100.0%"]
    monkeypatch.setenv("COLUMNS", "60")
    assert main(two) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["params", "40", "80", "+100.0%"]
    assert main(["compare", "a.json", "b.json"]) == 2
    assert "a.json is a report: modelbudget diff a.json b.json" in capsys.readouterr().err


def test_depth_folds_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """At depth 1 AlexNet is itself and its three parts."""
    assert main([*ALEXNET, "--depth", "1", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [row["scope"] for row in rows] == ["", "features", "avgpool", "classifier"]
    assert rows[3]["params"] == (9216 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 1000 + 1000)


def test_ops_lists_the_census_and_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    """AlexNet runs 5 convolutions and 3 linear layers; each operation shows its attributes."""
    assert main([*ALEXNET, "--ops", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    counts = {row["name"]: row["count"] for row in shown["census"]}
    assert (counts["aten::conv2d"], counts["aten::linear"]) == (5, 3)
    first = shown["ops"][0]
    assert (first["kind"], first["scope"]) == ("convolution", "features.0")
    assert first["attributes"]["stride"] == [4, 4]
    assert [operand["shape"] for operand in first["operands"]] == [
        [1, 3, 224, 224], [64, 3, 11, 11], [64],
    ]  # fmt: skip
    assert main([*ALEXNET, "--ops"]) == 0
    text = capsys.readouterr().out
    assert "5  convolution" in text
    assert "stride=[4, 4]" in text


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("model", ["lab_cli:Chained", "lab_cli:Odd"])
def test_operations_and_what_is_unmeasured_fit_the_terminal(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 60 columns, no line is longer, and none of its words is lost."""
    texts = []
    for columns in ("2000", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        main(["show", model, "--input", "float32 2x3x4", "--ops"])
        texts.append(capsys.readouterr().out)
    wide, narrow = texts
    assert max(map(len, wide.splitlines())) > 60
    assert max(map(len, narrow.splitlines())) <= 60
    assert sorted(narrow.split()) == sorted(wide.split())


@pytest.mark.usefixtures("lab")
def test_the_census_has_each_operation_once(capsys: pytest.CaptureFixture[str]) -> None:
    """By a matrix and by a batch of them: other operators do the same, but both are one matmul to a reader."""
    assert main(["show", "lab_cli:Chained", "--input", "float32 2x3x4", "--ops"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["2", "matmul", "aten::matmul"]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--args", "8", "--kwargs", "bias=false"),
        ("--args", "[8]", "--kwargs", '{"bias": false}'),
        ("--kwargs", "width=8", "--kwargs", "bias=false"),
    ],
)
def test_arguments_and_inputs_by_name(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments as words or JSON, inputs by position and by name: 4 x 8 weights, no bias."""
    inputs = ("--input", "float32 2x4", "--input", "y=float32[2, 8]")
    assert main(["show", "lab_cli:Named", *inputs, *arguments, "--format", "json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert totals == {"params": 4 * 8, "macs": 2 * 4 * 8, "output_bytes": 2 * (4 * 2 * 8)}


@pytest.mark.usefixtures("lab")
def test_unmeasured_operations_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """An operation without a formula ends in exit code 1 and is named with its reason."""
    assert main(["show", "lab_cli:Odd", "--input", "float32 3x2"]) == 1
    shown = capsys.readouterr().out
    assert "unmeasured: 1 x aten::cdist (macs, " in shown
    assert ">= 0" in shown


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere.at_all:net", "--input", "float32 1"), "nowhere"),
        (("torchvision.models:alexnett", "--input", "float32 1x3"), "alexnet"),
        (("torchvision.models:alexnet",), "--input"),
        (("torchvision.models:alexnet", "--input", "float 1x3"), "did you mean"),
        (("torchvision.models:alexnet", "--input", "float32 1x3x"), "1x3x224x224"),
        (("torchvision.models:alexnet", "--input", "[float32 1, float32 2]"), "takes 2 positional arguments but 3"),
        (("torch.nn:Linear", "--args", "[4, 2]", "--input", "[1, 4]"), "write float32 1x4"),
        (("torch.nn:Linear", "--args", "[4, 2]"), "torch.nn:Linear needs inputs: --input 'float32 1x3x224x224'"),
        (("torch.nn:Linear", "--args", "{call: torch.Size}"), "did you mean torch:Size?"),
        (("torchvision.models:alexnet", "--input", "float32 1x3x32x32", "--kwargs", "7"), "KEY="),
        (("lab_cli:broken", "--input", "float32 1"), "no such weights"),
        (("lab_cli:Named", "--input", "float32 2x4"), "width"),
        (("lab_cli:moody", "--input", "float32 1"), "ValueError: no attribute for you"),
        (("missing.pt2",), "does not exist"),
        (("missing.onnx",), "does not exist"),
        (("missing.tflite",), "does not exist"),
        (("lab_cli.py",), "did you mean lab_cli:CALLABLE?"),
        (("lab_cli:small()",), "did you mean lab_cli:small?"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad sources, inputs and arguments exit with 2, one line on standard error, no traceback.

    Where a model's own code raised, a second line leads to the traceback.
    """
    assert main(["show", *arguments]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    error, *more = shown.err[shown.err.index("modelbudget: ") :].splitlines()
    assert more in ([], [WHOLE])
    assert error.startswith("modelbudget: error: ")
    assert says in error
    assert "Traceback" not in shown.err


@pytest.mark.usefixtures("lab")
def test_an_extensions_metric_that_raises_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends like any other error of a user's code."""

    def divided(costed: CostedGraph) -> Measurement:
        return Measurement(1 // 0, "op")

    extension = SimpleNamespace(METRICS=(Metric("divided", "op", "nothing", divided),))
    monkeypatch.setattr(check, "installed_extensions", lambda: (extension,))
    words = ("lab_cli:Named", "--args", "4", "--input", "float32 2x4", "--input", "y=float32 2x4")
    assert main(["show", *words]) == 2
    error, more = capsys.readouterr().err.splitlines()
    assert more == WHOLE
    assert error.startswith("modelbudget: error: measuring divided raised ZeroDivisionError")


@pytest.mark.parametrize(
    ("source", "module"), [("torchvision.models:alexnet", "module"), ("net.pt", "torchscript"), ("net.pt2", "exported")]
)
def test_a_missing_extra_names_its_installation(
    source: str, module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without torch, every format that needs it says what to install, in one sentence."""
    monkeypatch.chdir(tmp_path)
    for name in ("net.pt", "net.pt2"):
        Path(name).touch()
    monkeypatch.delitem(sys.modules, f"pytest_modelbudget.torch_models.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["show", source, "--input", "float32 1"]) == 2
    error = capsys.readouterr().err
    assert "needs torch, which is not installed: pip install 'pytest-modelbudget[torch]'" in error
    assert len(error.splitlines()) == 1


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``modelbudget schema`` prints a draft-07 schema."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("http://json-schema.org/draft-07")


@pytest.mark.parametrize("arguments", [(), ("explode",), ("show",), (*ALEXNET, "--depth", "-1")])
def test_usage_errors_exit_with_two(arguments: tuple[str, ...]) -> None:
    """Unknown commands and options are argparse's to refuse."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_sentence(unbuffered: str) -> None:
    """A full disk ends with exit code 2, whenever Python writes."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_modelbudget.cli", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr == "modelbudget: error: cannot write: No space left on device\n"
